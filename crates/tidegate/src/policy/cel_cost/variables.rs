//! Resolves the names in an expression: attributes of a request, or values of a settlement.

use std::collections::HashMap;

use cel::common::types::{CelInt, CelMap, CelMapKey, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use tidegate_core::Rate;

use crate::policy::descriptor::Descriptor;
use crate::policy::usage::{Usage, UsageValue};

/// The variables of a request.
pub(super) struct Attributes<'a, 'd>(pub(super) &'a Descriptor<'d>);

impl VariableResolver for Attributes<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if let Some(value) = self.0.value(variable) {
            return Some(CowVal::owned(CelString::from(value)));
        }
        let mut fields: HashMap<CelMapKey<'b>, Box<dyn Val + 'b>> = HashMap::new();
        for (name, value) in self.0.pairs() {
            if let Some(field) = name.strip_prefix(variable).and_then(|rest| rest.strip_prefix('.')) {
                fields.insert(CelMapKey::String(CelString::from(field)), Box::new(CelString::from(value)));
            }
        }
        (!fields.is_empty()).then(|| CowVal::owned(CelMap::from(fields)))
    }
}

/// The variables of a settlement.
pub(super) struct Values<'a, 'u> {
    pub(super) usage: &'a Usage<'u>,
    pub(super) missing: &'a [(String, u64)],
    /// The number of bits that numbers are shifted right by. Only 0 becomes 0.
    pub(super) shift: u32,
}

impl Values<'_, '_> {
    fn each(&self) -> impl Iterator<Item = (&str, UsageValue<'_>)> {
        let missing = self.missing.iter().filter(|(name, _)| self.usage.value(name).is_none());
        let missing = missing.map(|(name, units)| (name.as_str(), UsageValue::Units(*units)));
        self.usage.values().map(|(name, value)| (name, value.borrowed())).chain(missing)
    }
}

fn val<'b>(value: &UsageValue<'_>, shift: u32) -> Box<dyn Val + 'b> {
    match value {
        // A number above the largest count is cut to that, which is far above any limit.
        UsageValue::Units(units) => {
            let units = (*units).min(Rate::MAX_COUNT);
            Box::new(CelInt::from((units >> shift).max(units.min(1)) as i64))
        }
        UsageValue::Text(text) => Box::new(CelString::from(text.to_string())),
    }
}

impl VariableResolver for Values<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if let Some((_, value)) = self.each().filter(|(name, _)| *name == variable).last() {
            return Some(CowVal::Owned(val(&value, self.shift)));
        }
        let mut fields: HashMap<CelMapKey<'b>, Box<dyn Val + 'b>> = HashMap::new();
        for (name, value) in self.each() {
            if let Some(field) = name.strip_prefix(variable).and_then(|rest| rest.strip_prefix('.')) {
                fields.insert(CelMapKey::String(CelString::from(field.to_owned())), val(&value, self.shift));
            }
        }
        (!fields.is_empty()).then(|| CowVal::owned(CelMap::from(fields)))
    }
}

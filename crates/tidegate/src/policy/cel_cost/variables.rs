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

/// Returns a copy of the request in which numbers are at most 2^60, and then shifted right by `shift` bits. Only 0
/// becomes 0. All other values stay.
pub(super) fn with_smaller_numbers<'a>(request: &'a Descriptor<'_>, shift: u32) -> Descriptor<'a> {
    let mut smaller = Descriptor::new();
    for (name, value) in request.pairs() {
        match smaller_number(value, shift) {
            Some(number) => smaller.push(name, number),
            None => smaller.push(name, value),
        }
    }
    smaller
}

fn smaller_number(text: &str, shift: u32) -> Option<String> {
    const MOST: f64 = Rate::MAX_COUNT as f64;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = text.parse::<f64>().ok().filter(|_| digits.starts_with(|c: char| c.is_ascii_digit()))?;
    let smaller = number.clamp(-MOST, MOST) / 2_f64.powi(shift.min(60) as i32);
    if digits.bytes().any(|byte| !byte.is_ascii_digit()) {
        return Some(smaller.to_string());
    }
    // Away from zero, so that a whole number keeps its sign.
    let whole = if smaller < 0.0 { smaller.floor() } else { smaller.ceil() };
    Some((whole as i64).to_string())
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

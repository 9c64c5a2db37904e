//! Resolves the names in an expression: attributes of a request, or values of a settlement.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use cel::common::types::{CelBool, CelDouble, CelInt, CelMap, CelMapKey, CelString};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{ExecutionError, Value};
use tidegate_core::Rate;

use super::coerced::{AS_NUMBER, NUMBER, PRESENCE};
use crate::policy::descriptor::{Descriptor, Number, number};
use crate::policy::usage::{Usage, UsageValue};

/// The variables of a request.
pub(super) struct Attributes<'a, 'd> {
    pub(super) request: &'a Descriptor<'d>,
    /// The number of bits that numbers are shifted right by. Only 0 becomes 0.
    pub(super) shift: u32,
    /// Set once a number with a fraction is read.
    pub(super) fraction: &'a AtomicBool,
}

impl VariableResolver for Attributes<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        if let Some(name) = variable.strip_prefix(NUMBER) {
            let number = number(self.request.value(name)?)?;
            note(number, self.fraction);
            return Some(CowVal::Owned(number_val(number, self.shift)));
        }
        if let Some(name) = variable.strip_prefix(PRESENCE) {
            return Some(CowVal::owned(CelBool::from(is_there(
                self.request.pairs().map(|(name, _)| name),
                name,
            ))));
        }
        if let Some(value) = self.request.value(variable) {
            return Some(CowVal::owned(CelString::from(value)));
        }
        let mut fields: HashMap<CelMapKey<'b>, Box<dyn Val + 'b>> = HashMap::new();
        for (name, value) in self.request.pairs() {
            if let Some(field) = name.strip_prefix(variable).and_then(|rest| rest.strip_prefix('.')) {
                fields.insert(CelMapKey::String(CelString::from(field)), Box::new(CelString::from(value)));
            }
        }
        (!fields.is_empty()).then(|| CowVal::owned(CelMap::from(fields)))
    }
}

/// Reports whether a name, or a name of its group, is there.
fn is_there<'n>(mut names: impl Iterator<Item = &'n str>, wanted: &str) -> bool {
    names.any(|name| name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn note(number: Number, fraction: &AtomicBool) {
    if let Number::Fraction(_) = number {
        // Relaxed: one thread evaluates.
        fraction.store(true, Ordering::Relaxed);
    }
}

/// Returns a number as a value, at most 2^60 away from zero and then shifted.
fn number_val<'b>(number: Number, shift: u32) -> Box<dyn Val + 'b> {
    match number {
        // Away from zero, so that a whole number keeps its sign.
        Number::Whole(whole) => {
            let shifted = (whole.unsigned_abs() >> shift).max(whole.unsigned_abs().min(1)) as i64;
            Box::new(CelInt::from(if whole < 0 { -shifted } else { shifted }))
        }
        Number::Fraction(fraction) => Box::new(CelDouble::from(fraction / 2_f64.powi(shift.min(60) as i32))),
    }
}

/// Reads as a number what an expression looked up by a computed name.
pub(super) fn as_number(value: Value) -> Result<Value, ExecutionError> {
    match value {
        Value::String(text) => match number(&text) {
            Some(Number::Whole(whole)) => Ok(Value::Int(whole)),
            Some(Number::Fraction(fraction)) => Ok(Value::Float(fraction)),
            None => Err(ExecutionError::function_error(AS_NUMBER, "what was looked up is not a number")),
        },
        other => Ok(other),
    }
}

/// The variables of a settlement.
#[derive(Clone, Copy)]
pub(super) struct Values<'a, 'u> {
    pub(super) usage: &'a Usage<'u>,
    pub(super) missing: &'a [(String, u64)],
    /// The number of bits that numbers are shifted right by. Only 0 becomes 0.
    pub(super) shift: u32,
    /// Set once a number with a fraction is read.
    pub(super) fraction: &'a AtomicBool,
}

impl Values<'_, '_> {
    /// Reports whether a value of this name, or of its group, was reported or has a default.
    pub(super) fn has(&self, wanted: &str) -> bool {
        is_there(self.each().map(|(name, _)| name), wanted)
    }

    fn each(&self) -> impl Iterator<Item = (&str, UsageValue<'_>)> {
        let missing = self.missing.iter().filter(|(name, _)| self.usage.value(name).is_none());
        let missing = missing.map(|(name, units)| (name.as_str(), UsageValue::Units(*units)));
        self.usage.values().map(|(name, value)| (name, value.borrowed())).chain(missing)
    }
}

/// A number above the largest count is cut to that, which is far above any limit.
fn whole(units: u64) -> Number {
    Number::Whole(units.min(Rate::MAX_COUNT) as i64)
}

fn val<'b>(value: &UsageValue<'_>, shift: u32) -> Box<dyn Val + 'b> {
    match value {
        UsageValue::Units(units) => number_val(whole(*units), shift),
        UsageValue::Text(text) => Box::new(CelString::from(text.to_string())),
    }
}

impl VariableResolver for Values<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let of =
            |wanted: &str| self.each().filter(|(name, _)| *name == wanted).last().map(|(_, value)| value);
        if let Some(name) = variable.strip_prefix(NUMBER) {
            let number = match of(name)? {
                UsageValue::Units(units) => whole(units),
                UsageValue::Text(text) => number(&text)?,
            };
            note(number, self.fraction);
            return Some(CowVal::Owned(number_val(number, self.shift)));
        }
        if let Some(name) = variable.strip_prefix(PRESENCE) {
            return Some(CowVal::owned(CelBool::from(self.has(name))));
        }
        if let Some(value) = of(variable) {
            let text = match value {
                UsageValue::Units(units) => units.to_string(),
                UsageValue::Text(text) => text.into_owned(),
            };
            return Some(CowVal::owned(CelString::from(text)));
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

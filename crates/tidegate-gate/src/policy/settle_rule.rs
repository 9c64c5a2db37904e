//! The settlement rule of a policy: computes units from what a settlement reports.

#[cfg(feature = "cel")]
use std::sync::Arc;

use tidegate_core::Rate;

use super::cost_error::CostError;
use super::descriptor::number;
use super::usage::{Usage, UsageValue};
use tidegate_limits::visible::excerpt;

/// How a policy computes the real cost of a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SettleRule {
    /// The value or expression to settle by.
    pub by: SettleBy,
    /// The numbers for names that are not reported, such as 0 for `llm.cached`.
    pub missing: Vec<(String, u64)>,
}

/// The value or expression that a policy settles by.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SettleBy {
    /// The cost that the settlement reports as a number.
    Cost,
    /// One reported value, by name.
    Value(String),
    /// An expression over the reported values, in which numbers are numbers: `llm.input + 3 * llm.output`.
    #[cfg(feature = "cel")]
    Expression(Arc<super::cel_cost::Expression>),
}

#[cfg(feature = "config")]
impl SettleBy {
    /// Returns the names that the rule uses.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Cost => Vec::new(),
            Self::Value(name) => vec![name],
            #[cfg(feature = "cel")]
            Self::Expression(expression) => expression.names().collect(),
        }
    }

    /// Reports whether a value reported under a name can make a difference: an expression may use any member of a
    /// group.
    pub fn uses(&self, name: &str) -> bool {
        let in_group = |group: &str| name.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.names().iter().any(|one| *one == name || in_group(one))
    }
}

impl SettleRule {
    /// Creates a rule without numbers for missing values.
    #[must_use]
    pub const fn new(by: SettleBy) -> Self {
        Self { by, missing: Vec::new() }
    }

    /// Calls `each` with every name that the rule uses, and whether names that continue it after a dot are meant too.
    pub(super) fn each_name(&self, each: &mut impl FnMut(&str, bool)) {
        match &self.by {
            SettleBy::Cost => {}
            SettleBy::Value(name) => each(name, false),
            #[cfg(feature = "cel")]
            SettleBy::Expression(expression) => expression.names().for_each(|name| each(name, true)),
        }
        self.missing.iter().for_each(|(name, _)| each(name, false));
    }

    /// Computes the units from the reported values, at most [`Rate::MAX_COUNT`].
    pub(super) fn units(&self, usage: &Usage<'_>) -> Result<u64, CostError> {
        let units = match &self.by {
            SettleBy::Cost => {
                usage.cost.ok_or_else(|| CostError::Untold { names: vec!["cost".to_owned()] })?
            }
            SettleBy::Value(name) => match (usage.value(name), self.otherwise(name)) {
                (Some(UsageValue::Units(units)), _) => *units,
                (Some(UsageValue::Text(text)), _) => number(text)
                    .ok_or_else(|| CostError::NotANumber { name: name.clone() })?
                    .units()
                    .ok_or_else(|| CostError::NotACost { found: excerpt(text) })?,
                (None, Some(units)) => units,
                (None, None) => return Err(CostError::Untold { names: vec![name.clone()] }),
            },
            #[cfg(feature = "cel")]
            SettleBy::Expression(expression) => expression.units(usage, &self.missing)?,
        };
        Ok(units.min(Rate::MAX_COUNT))
    }

    /// Reports whether two rules always compute the same units.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same = match (&self.by, &other.by) {
            (SettleBy::Cost, SettleBy::Cost) => true,
            (SettleBy::Value(one), SettleBy::Value(two)) => one == two,
            #[cfg(feature = "cel")]
            (SettleBy::Expression(one), SettleBy::Expression(two)) => one.source() == two.source(),
            _ => false,
        };
        same && self.missing == other.missing
    }

    fn otherwise(&self, name: &str) -> Option<u64> {
        self.missing.iter().find(|(have, _)| have == name).map(|(_, units)| *units)
    }
}

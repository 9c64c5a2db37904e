//! The cost of a request when it is checked: a number, a table, an attribute, a CEL expression, or a learned estimate.
//!
//! For a cost that cannot be determined, the policy says what happens ([`OnCostError`]), and the set counts how often. A
//! fraction is rounded up, and 0 is 1, the least that a check takes. A number above 2^60, however large, counts as 2^60, so
//! that a larger number never costs less.

use std::collections::HashMap;
#[cfg(feature = "cel")]
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_core::Cost;

use super::cost_error::CostError;
use super::descriptor::{Descriptor, number};
use super::estimated_cost::Learning;

/// How the cost of a request is determined.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CostRule {
    /// The same cost for every request.
    Fixed(Cost),
    /// A cost for each value of an attribute.
    Table {
        /// The attribute.
        by: String,
        /// The cost of each value.
        values: HashMap<String, Cost, RandomState>,
        /// The cost of every other value, and of requests without the attribute.
        otherwise: Cost,
    },
    /// The attribute's value is the cost: a number that the caller measured, as tokens or bytes.
    Attribute(String),
    /// An expression over the attributes.
    #[cfg(feature = "cel")]
    Expression(Arc<super::cel_cost::Expression>),
    /// An estimate learned from the real costs of requests, capped at what a full limit grants at once, so that a first
    /// request is never refused because of its own estimate. See [`PolicySet::learn_from`](super::PolicySet::learn_from).
    Learned(Learning),
}

/// What happens to a request whose cost cannot be determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnCostError {
    /// The policy refuses it. For callers that can be told to send what the cost needs.
    #[default]
    Deny,
    /// It is charged the most that the limit grants at once, so it passes only a full limit and leaves nothing of it. For
    /// callers that cannot be told.
    WholeLimit,
}

impl OnCostError {
    /// The words for it in the file, the default first.
    pub const WORDS: [&'static str; 2] = ["deny", "whole-limit"];

    /// Returns the word for it in the file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Deny => Self::WORDS[0],
            Self::WholeLimit => Self::WORDS[1],
        }
    }
}

/// How often the cost of requests under one policy could not be determined, since the first set that had the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CostErrors {
    /// Requests whose cost was not known at the check; [`OnCostError`] decided.
    pub at_check: u64,
    /// Settlements whose real cost was not known; what the check charged stayed.
    pub at_settlement: u64,
    /// Why it failed last.
    pub last: Option<CostError>,
}

impl CostRule {
    /// Determines the cost of a request, 1 to 2^60 where it comes from the request. Only an expression
    /// allocates.
    ///
    /// # Errors
    /// [`CostError`] if there is no valid cost; [`OnCostError`] then decides, and the failure is counted.
    pub fn cost(&self, descriptor: &Descriptor<'_>) -> Result<Cost, CostError> {
        match self {
            Self::Fixed(cost) => Ok(*cost),
            Self::Table { by, values, otherwise } => {
                Ok(descriptor.value(by).and_then(|value| values.get(value)).copied().unwrap_or(*otherwise))
            }
            Self::Attribute(name) => {
                let value =
                    descriptor.value(name).ok_or_else(|| CostError::Missing { name: name.clone() })?;
                let units = number(value)
                    .ok_or_else(|| CostError::NotANumber { name: name.clone() })?
                    .units()
                    .ok_or_else(|| CostError::NotACost { found: tidegate_limits::visible::excerpt(value) })?;
                Ok(Cost::new(units).unwrap_or_default())
            }
            #[cfg(feature = "cel")]
            Self::Expression(expression) => expression.cost(descriptor),
            // Only the initial estimate; the policy set holds what was learned since.
            Self::Learned(learning) => Ok(learning.start),
        }
    }

    /// Reports whether there may be requests whose cost the rule does not determine.
    #[must_use]
    pub fn may_be_unknown(&self) -> bool {
        match self {
            Self::Attribute(_) => true,
            #[cfg(feature = "cel")]
            Self::Expression(_) => true,
            Self::Fixed(_) | Self::Table { .. } | Self::Learned(_) => false,
        }
    }

    /// Returns the largest cost that is known in advance; `None` if the cost depends on the request's data.
    #[must_use]
    pub fn largest_known(&self) -> Option<Cost> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::Table { values, otherwise, .. } => values.values().chain([otherwise]).max().copied(),
            _ => None,
        }
    }
}

/// Reports whether a text is the name of an attribute, such as `llm.tokens`, rather than an expression.
///
/// Names contain a dot: a single word as a cost is more likely a mistake.
#[cfg(any(test, feature = "config"))]
#[must_use]
pub fn is_attribute_name(text: &str) -> bool {
    let word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    text.contains('.') && text.split('.').all(word)
}

#[cfg(test)]
mod tests {
    use tidegate_core::Rate;

    use super::*;

    #[test]
    fn attributes_must_hold_a_cost() {
        let rule = CostRule::Attribute("llm.tokens".to_owned());
        let cost = |value: &'static str| rule.cost(&Descriptor::new().with("llm.tokens", value));
        assert_eq!(cost("250"), Ok(Cost::new(250).unwrap()));
        assert_eq!(["0", "0.2", "1.5", "1e3"].map(|value| cost(value).unwrap().units()), [1, 1, 2, 1000]);
        for bad in ["-1", "-0.5", "", " 5", "0x10", "many", "inf", "infinity", "nan", "-99999999999999999999"]
        {
            assert!(cost(bad).is_err(), "{bad}");
        }
        assert!(matches!(rule.cost(&Descriptor::new()), Err(CostError::Missing { .. })));
    }

    #[test]
    fn a_larger_number_never_costs_less() {
        let rule = CostRule::Attribute("llm.tokens".to_owned());
        let cost =
            |value: &'static str| rule.cost(&Descriptor::new().with("llm.tokens", value)).map(Cost::units);
        let digits = Box::leak("9".repeat(400).into_boxed_str());
        for large in
            ["1152921504606846977", "18446744073709551615", "99999999999999999999", "+1e30", "1e999", digits]
        {
            assert_eq!(cost(large), Ok(Rate::MAX_COUNT), "{large}");
        }
    }

    #[test]
    fn tables_have_an_answer_for_everyone() {
        let rule = CostRule::Table {
            by: "request.method".to_owned(),
            values: [("POST".to_owned(), Cost::new(5).unwrap())].into_iter().collect(),
            otherwise: Cost::ONE,
        };
        let cost = |method: &'static str| {
            rule.cost(&Descriptor::new().with("request.method", method)).unwrap().units()
        };
        assert_eq!((cost("POST"), cost("GET")), (5, 1));
        assert_eq!(rule.largest_known().map(Cost::units), Some(5));
    }

    #[test]
    fn names_are_told_from_expressions() {
        assert!(is_attribute_name("llm.tokens") && is_attribute_name("request.header.x-cost"));
        assert!(!is_attribute_name("5") && !is_attribute_name("tokens") && !is_attribute_name("a.b + 1"));
    }
}

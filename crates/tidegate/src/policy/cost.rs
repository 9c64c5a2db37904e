//! The cost of a request when it is checked: a number, a table, an attribute, a CEL expression, or a learned estimate.
//! A settlement reports the real cost later, see [`super::Usage`].
//!
//! A cost that cannot be determined (a missing attribute, an expression that fails or yields zero, a negative number or
//! a fraction) counts as 1, and the set counts how often that happens: a request with an unusual cost must neither
//! switch a limit off nor fail. A number above [`Rate::MAX_COUNT`], however large, counts as [`Rate::MAX_COUNT`], so
//! that a larger number never costs less.

use std::collections::HashMap;
#[cfg(feature = "cel")]
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_core::{Cost, Rate};

use super::cost_error::CostError;
use super::descriptor::Descriptor;
use super::learned::Learning;

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
    /// request is never refused because of its own estimate. A policy set that is put in force takes over what the last
    /// one learned under the policy's name.
    Learned(Learning),
}

impl CostRule {
    /// Determines the cost of a request, 1 to [`Rate::MAX_COUNT`] where it comes from the request. Only an expression
    /// allocates.
    ///
    /// # Errors
    /// [`CostError`] if there is no valid cost; policies then charge 1 and count the failure.
    pub fn cost(&self, descriptor: &Descriptor<'_>) -> Result<Cost, CostError> {
        match self {
            Self::Fixed(cost) => Ok(*cost),
            Self::Table { by, values, otherwise } => {
                Ok(descriptor.value(by).and_then(|value| values.get(value)).copied().unwrap_or(*otherwise))
            }
            Self::Attribute(name) => {
                let value =
                    descriptor.value(name).ok_or_else(|| CostError::Missing { name: name.clone() })?;
                units(value).and_then(Cost::new).ok_or_else(|| CostError::NotACost {
                    found: format!("\"{}\"", crate::visible::excerpt(value)),
                })
            }
            #[cfg(feature = "cel")]
            Self::Expression(expression) => expression.cost(descriptor),
            // Only the initial estimate; the policy set holds what was learned since.
            Self::Learned(learning) => Ok(learning.start),
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

/// Reads a number of units, at most [`Rate::MAX_COUNT`]; `None` for a text that is not a whole number.
fn units(text: &str) -> Option<u64> {
    match text.parse::<u64>() {
        Ok(units) => Some(units.min(Rate::MAX_COUNT)),
        // A number that does not fit, such as `1e30` or one of 23 digits. At this size, every number is whole. Words
        // that Rust reads as numbers, such as `infinity`, have no digit at their start.
        Err(_) => {
            let is_number = text.trim_start_matches('+').starts_with(|first: char| first.is_ascii_digit());
            let number = text.parse::<f64>().ok().filter(|_| is_number)?;
            (number >= Rate::MAX_COUNT as f64).then_some(Rate::MAX_COUNT)
        }
    }
}

/// Reports whether a text is the name of an attribute, such as `llm.tokens`, rather than an expression.
///
/// Names contain a dot: a single word as a cost is more likely a mistake.
#[cfg(any(test, feature = "config"))]
#[must_use]
pub(crate) fn is_attribute_name(text: &str) -> bool {
    let word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    text.contains('.') && text.split('.').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_must_hold_a_cost() {
        let rule = CostRule::Attribute("llm.tokens".to_owned());
        let cost = |value: &'static str| rule.cost(&Descriptor::new().with("llm.tokens", value));
        assert_eq!(cost("250"), Ok(Cost::new(250).unwrap()));
        for bad in ["0", "-1", "1.5", "", "many", "1e3", "inf", "infinity", "nan", "-99999999999999999999"] {
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

//! What one request costs under a policy when it is checked: a number, a table, an attribute, a CEL expression, or what the policy has
//! learnt. What it really cost is told later, see [`super::Usage`].
//!
//! A cost that cannot be found (a missing attribute, an expression that fails or gives zero, a negative number or no whole
//! number) is 1, and the set counts how often that happened: a request with a strange
//! cost must neither switch a limit off nor fail.

use std::collections::HashMap;
#[cfg(feature = "cel")]
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_core::Cost;

use super::cost_error::CostError;
use super::descriptor::Descriptor;
use super::learned::Learning;

/// How the cost of a request is found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CostRule {
    /// Always the same.
    Fixed(Cost),
    /// By the value of an attribute.
    Table {
        /// The attribute.
        by: String,
        /// The cost of each value.
        values: HashMap<String, Cost, RandomState>,
        /// The cost of every other value, and of none.
        otherwise: Cost,
    },
    /// The attribute's value is the number: what the caller measured, as tokens or bytes.
    Attribute(String),
    /// An expression over the attributes.
    #[cfg(feature = "cel")]
    Expression(Arc<super::cel_cost::Expression>),
    /// What requests have really cost, at most what a full limit grants in one ask: a first request is never refused by its own
    /// estimate. Each policy set that is put in force goes on from what the last one knew under the policy's name.
    Learned(Learning),
}

impl CostRule {
    /// Finds the cost of a request. Only an expression allocates.
    ///
    /// # Errors
    /// [`CostError`] when there is none; policies then charge 1 and count it.
    pub fn cost(&self, descriptor: &Descriptor<'_>) -> Result<Cost, CostError> {
        match self {
            Self::Fixed(cost) => Ok(*cost),
            Self::Table { by, values, otherwise } => {
                Ok(descriptor.value(by).and_then(|value| values.get(value)).copied().unwrap_or(*otherwise))
            }
            Self::Attribute(name) => {
                let value =
                    descriptor.value(name).ok_or_else(|| CostError::Missing { name: name.clone() })?;
                let units = value.parse().ok().and_then(Cost::new);
                units.ok_or_else(|| CostError::NotACost {
                    found: format!("\"{}\"", crate::visible::excerpt(value)),
                })
            }
            #[cfg(feature = "cel")]
            Self::Expression(expression) => expression.cost(descriptor),
            // The estimate at the start; what was learnt since is kept by the policy set.
            Self::Learned(learning) => Ok(learning.start),
        }
    }

    /// Returns the largest cost that is known before any request; `None` when requests say it.
    #[must_use]
    pub fn largest_known(&self) -> Option<Cost> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::Table { values, otherwise, .. } => values.values().chain([otherwise]).max().copied(),
            _ => None,
        }
    }
}

/// Says whether a text is the name of an attribute, as `llm.tokens`, rather than an expression.
///
/// A name has a dot: a single word in a cost is more likely a mistake.
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
        for bad in ["0", "-1", "1.5", "", "99999999999999999999", "many"] {
            assert!(cost(bad).is_err(), "{bad}");
        }
        assert!(matches!(rule.cost(&Descriptor::new()), Err(CostError::Missing { .. })));
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

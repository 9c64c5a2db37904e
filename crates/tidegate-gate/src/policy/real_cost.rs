//! The real cost of a request, computed from what its settlement reports when the work is done.
//!
//! The settlement reports values by name, such as `llm.input` and `llm.output`, and each policy computes its own units from
//! them. It does not need the request, so it can be made on any node, and requests need not be remembered. If the real cost
//! cannot be computed, the estimate stays charged, so the request is not free.

#[cfg(feature = "cel")]
use std::sync::Arc;

use tidegate_core::Rate;

use super::cost_error::CostError;
use super::descriptor::number;
use super::policy::Policy;
use super::set::PolicySet;
use super::usage::{LLM_USAGE, Usage, UsageValue};
use tidegate_limits::visible::excerpt;

/// The real cost of a request under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RealCost {
    /// A number of units, 0 to [`Rate::MAX_COUNT`].
    Units(u64),
    /// The real cost is what was charged: nothing was reported that the policy uses.
    AsCharged,
    /// The real cost cannot be computed from what was reported; what was charged stays.
    Unknown(CostError),
}

impl Policy {
    /// Computes the real cost of a request under this policy.
    ///
    /// A policy with [`Policy::settle`] uses that rule. A policy that takes its caller's cost also takes the caller's
    /// real cost. Any other policy keeps what it charged, whatever is reported. If neither a cost nor a value is
    /// reported, the numbers for missing values do not make a cost. A policy that charges only failures uses the
    /// outcome, not the cost.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Quota;
    /// use tidegate::policy::{Limit, Policy, RealCost, SettleBy, SettleRule, Usage};
    ///
    /// let limit = Limit::new(Quota::per_minute(100_000).gcra()?, "100k/min");
    /// let mut tokens = Policy::new("tokens", limit);
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// assert_eq!(tokens.real_cost(&Usage::default().with("llm.output", 1300)), RealCost::Units(1300));
    /// // Left out is not free: what was charged stands.
    /// assert!(matches!(tokens.real_cost(&Usage::default().with("llm.input", 900)), RealCost::Unknown(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn real_cost(&self, usage: &Usage<'_>) -> RealCost {
        let told_nothing = usage.is_empty();
        match &self.settle {
            _ if self.charges_failures() => RealCost::AsCharged,
            // A settlement with values but no cost is meant for policies that settle by values.
            Some(SettleRule { by: SettleBy::Cost, .. }) if usage.cost.is_none() => RealCost::AsCharged,
            // If nothing at all is reported, the numbers for missing values do not make a cost.
            Some(rule) if told_nothing => {
                rule.units(usage).map_or_else(RealCost::Unknown, |_| RealCost::AsCharged)
            }
            Some(rule) => rule.units(usage).map_or_else(RealCost::Unknown, RealCost::Units),
            None if self.cost.is_none() => {
                usage.cost.map_or(RealCost::AsCharged, |cost| RealCost::Units(cost.min(Rate::MAX_COUNT)))
            }
            None => RealCost::AsCharged,
        }
    }
}

/// The error if a settlement reports a value that no policy uses. That is probably a misspelling, which would silently
/// leave the estimate charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy settles by `{}`{}", excerpt(name), hint(known))]
pub struct UnknownUsage {
    /// The unknown name.
    pub name: String,
    /// Some of the names that policies settle by, at most ten.
    pub known: Vec<String>,
}

fn hint(known: &[String]) -> String {
    match known {
        [] => "; leave it out".to_owned(),
        known => format!("; there are {}", known.join(", ")),
    }
}

impl PolicySet {
    /// Checks that each reported value is used by some policy of the set, whichever policies the request met, or is a
    /// usual value of language-model calls ([`LLM_USAGE`]).
    ///
    /// # Errors
    /// [`UnknownUsage`] with the first value that is not.
    pub fn check_usage(&self, usage: &Usage<'_>) -> Result<(), UnknownUsage> {
        let known = self.settled_by();
        match usage.names().find(|name| !known.contains(name) && !LLM_USAGE.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let mut names: Vec<_> = known.names().take(10).map(str::to_owned).collect();
                names.sort_unstable();
                Err(UnknownUsage { name: name.to_owned(), known: names })
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use tidegate_core::{Cost, Quota};

    use super::super::cost::CostRule;
    use super::super::policy::{ChargeOn, Limit};
    use super::*;

    fn policy(cost: Option<CostRule>, settle: Option<SettleBy>) -> Policy {
        let mut policy = Policy::new("p", Limit::new(Quota::per_minute(1000).gcra().unwrap(), "p"));
        (policy.cost, policy.settle) = (cost, settle.map(SettleRule::new));
        policy
    }

    fn fixed(units: u64) -> Option<CostRule> {
        Cost::new(units).map(CostRule::Fixed)
    }

    #[test]
    fn each_policy_goes_by_its_own_words() {
        let values = Usage::default().with("llm.input", 900).with("llm.output", 133);
        let mut both = values.clone();
        both.cost = Some(7);
        let requests = policy(fixed(1), None);
        let tokens = policy(fixed(800), Some(SettleBy::Value("llm.output".to_owned())));
        let callers = policy(None, None);
        let told = policy(fixed(800), Some(SettleBy::Cost));
        for (name, policy, by_values, by_both) in [
            ("requests", &requests, RealCost::AsCharged, RealCost::AsCharged),
            ("tokens", &tokens, RealCost::Units(133), RealCost::Units(133)),
            ("callers", &callers, RealCost::AsCharged, RealCost::Units(7)),
            ("told", &told, RealCost::AsCharged, RealCost::Units(7)),
        ] {
            assert_eq!(policy.real_cost(&values), by_values, "{name}");
            assert_eq!(policy.real_cost(&both), by_both, "{name}");
        }
        let untold = CostError::Untold { names: vec!["llm.output".to_owned()] };
        assert_eq!(tokens.real_cost(&Usage::cost(7)), RealCost::Unknown(untold.clone()));
        assert_eq!(tokens.real_cost(&Usage::default()), RealCost::Unknown(untold));
        for policy in [&requests, &callers, &told] {
            assert_eq!(policy.real_cost(&Usage::default()), RealCost::AsCharged);
        }
    }

    #[test]
    fn what_is_left_out_is_never_free() {
        let mut tokens = policy(fixed(800), Some(SettleBy::Value("llm.output".to_owned())));
        for usage in [Usage::default().with("llm.input", 1), Usage::default().with("llm.output", "many")] {
            assert!(matches!(tokens.real_cost(&usage), RealCost::Unknown(_)), "{usage:?}");
        }
        tokens.settle.as_mut().unwrap().missing.push(("llm.output".to_owned(), 4000));
        assert_eq!(tokens.real_cost(&Usage::default().with("llm.input", 1)), RealCost::Units(4000));
        assert_eq!(tokens.real_cost(&Usage::default()), RealCost::AsCharged, "nothing is told at all");
        let most = Usage::default().with("llm.output", u64::MAX);
        assert_eq!(tokens.real_cost(&most), RealCost::Units(Rate::MAX_COUNT));
        tokens.charge = ChargeOn::Failure;
        assert_eq!(tokens.real_cost(&most), RealCost::AsCharged, "the outcome decides");
    }

    #[test]
    fn a_value_that_nobody_goes_by_is_named() {
        let set =
            PolicySet::new(vec![policy(fixed(1), Some(SettleBy::Value("llm.total".to_owned())))]).unwrap();
        let usage = Usage::default().with("llm.cached", 1).with("llm.total", 2);
        assert_eq!(set.check_usage(&usage), Ok(()));
        let error = set.check_usage(&usage.with("llm.totl", 3)).unwrap_err();
        assert_eq!(error.to_string(), "no policy settles by `llm.totl`; there are llm.total");
    }
}

//! What a request really cost: worked out, once the work is done, of what its settlement tells.
//!
//! A check takes an estimate; the settlement tells usage by names, as `llm.input` and `llm.output`, and each policy makes units of its
//! own of it: 1 of "requests per minute", 1,300 of "tokens per minute". A settlement knows only what is told with it, not the
//! request, so that it can be made anywhere and without a memory of requests. What cannot be worked out is never free: the
//! estimate stands.

use std::borrow::Cow;
#[cfg(feature = "cel")]
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Rate};

use super::cost::CostError;
use super::named::Named;
use super::policy::Policy;
use super::set::PolicySet;

/// The names that settlements of language-model calls tell: known to every policy set, whether or not a policy goes by them, so that a
/// caller need not know which of them the file names.
pub const LLM_USAGE: [&str; 3] = ["llm.input", "llm.output", "llm.cached"];

/// What a settlement tells: values by name, and the real cost as a number where the caller knows it.
///
/// Borrowed where it can be; up to four values without allocation.
///
/// # Examples
/// ```
/// use tidegate::policy::Usage;
/// let usage = Usage::default().with("llm.input", 900).with("llm.output", 133).with("llm.model", "large");
/// assert_eq!(usage.names().count(), 3);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage<'a> {
    /// The real cost by the caller's word; 0 where nothing was spent. Counts where the check's own `cost` would.
    pub cost: Option<u64>,
    values: SmallVec<[(Cow<'a, str>, UsageValue<'a>); 4]>,
}

/// One value that a settlement tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageValue<'a> {
    /// A number of something: tokens, bytes, cents.
    Units(u64),
    /// A word, for rules that choose by it: the model that answered.
    Text(Cow<'a, str>),
}

impl From<u64> for UsageValue<'_> {
    fn from(units: u64) -> Self {
        Self::Units(units)
    }
}

impl UsageValue<'_> {
    /// Returns the same value, borrowed.
    #[cfg(feature = "cel")]
    pub(super) fn borrowed(&self) -> UsageValue<'_> {
        match self {
            Self::Units(units) => UsageValue::Units(*units),
            Self::Text(text) => UsageValue::Text(Cow::Borrowed(text)),
        }
    }
}

impl<'a> From<&'a str> for UsageValue<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl<'a> Usage<'a> {
    /// Tells nothing but the real cost.
    #[must_use]
    pub fn cost(units: u64) -> Self {
        Self { cost: Some(units), ..Self::default() }
    }

    /// Adds a value and returns the usage, for chains.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<UsageValue<'a>>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds a value. The last of a name counts.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<UsageValue<'a>>) {
        self.values.push((name.into(), value.into()));
    }

    /// Returns the value of a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&UsageValue<'a>> {
        self.values.iter().rev().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    /// Returns the values with their names, in the order they were told.
    pub fn values(&self) -> impl Iterator<Item = (&str, &UsageValue<'a>)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Returns the names, in the order they were told.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(name, _)| name.as_ref())
    }
}

/// How a policy works out what a request really cost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SettleRule {
    /// By what.
    pub by: SettleBy,
    /// What counts for names that are not told, as 0 for `llm.cached`.
    pub missing: Vec<(String, u64)>,
}

/// By what a policy settles.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SettleBy {
    /// The cost that the settlement tells as a number.
    Cost,
    /// One value that it tells.
    Value(String),
    /// An expression over the values that it tells, where numbers are numbers: `llm.input + 3 * llm.output`.
    #[cfg(feature = "cel")]
    Expression(Arc<super::cel_cost::Expression>),
}

/// What a request really cost under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RealCost {
    /// So many units, 0 to [`Rate::MAX_COUNT`].
    Units(u64),
    /// What was charged: nothing was told that the policy goes by.
    AsCharged,
    /// It cannot be worked out of what was told; what was charged stands.
    Unknown(CostError),
}

/// A settlement tells a value that nobody goes by: probably a slip of the pen, which would leave the estimate in force unnoticed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy settles by `{}`{}", name.escape_debug(), hint(known))]
pub struct UnknownUsage {
    /// The name.
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

#[cfg(feature = "config")]
impl SettleBy {
    /// Returns the names it goes by.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Cost => Vec::new(),
            Self::Value(name) => vec![name],
            #[cfg(feature = "cel")]
            Self::Expression(expression) => expression.names().collect(),
        }
    }

    /// Says whether a value told under a name can make a difference: an expression may look at all of a group.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let in_group = |group: &str| name.strip_prefix(group).is_some_and(|rest| rest.starts_with('.'));
        self.names().iter().any(|one| *one == name || in_group(one))
    }
}

impl SettleRule {
    /// Makes a rule without a word for what is not told.
    #[must_use]
    pub const fn new(by: SettleBy) -> Self {
        Self { by, missing: Vec::new() }
    }

    /// Hands over each name it goes by, and whether those that go on after it with a dot are meant too.
    fn each_name(&self, each: &mut impl FnMut(&str, bool)) {
        match &self.by {
            SettleBy::Cost => {}
            SettleBy::Value(name) => each(name, false),
            #[cfg(feature = "cel")]
            SettleBy::Expression(expression) => expression.names().for_each(|name| each(name, true)),
        }
        self.missing.iter().for_each(|(name, _)| each(name, false));
    }

    /// Works out the units of what was told, at most [`Rate::MAX_COUNT`].
    fn units(&self, usage: &Usage<'_>) -> Result<u64, CostError> {
        let units = match &self.by {
            SettleBy::Cost => {
                usage.cost.ok_or_else(|| CostError::Untold { names: vec!["cost".to_owned()] })?
            }
            SettleBy::Value(name) => match (usage.value(name), self.otherwise(name)) {
                (Some(UsageValue::Units(units)), _) => *units,
                (Some(UsageValue::Text(text)), _) => text
                    .parse()
                    .map_err(|_| CostError::NotACost { found: format!("\"{}\"", text.escape_debug()) })?,
                (None, Some(units)) => units,
                (None, None) => return Err(CostError::Untold { names: vec![name.clone()] }),
            },
            #[cfg(feature = "cel")]
            SettleBy::Expression(expression) => expression.units(usage, &self.missing)?,
        };
        Ok(units.min(Rate::MAX_COUNT))
    }

    /// Says whether two rules make the same of everything that is told.
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

impl Policy {
    /// Works out what a request really cost under this policy.
    ///
    /// A policy with [`Policy::settle`] goes by that; one that takes the cost of its caller takes the real one too; any other keeps what
    /// it charged, whatever is told. Where neither a cost nor a value is told, nothing is made of what counts for missing ones. One that charges failures only goes by the outcome, not by the cost.
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
        let told_nothing = usage.cost.is_none() && usage.values.is_empty();
        match &self.settle {
            _ if self.charges_failures() => RealCost::AsCharged,
            // Somebody who tells values and no cost speaks to the policies that go by values.
            Some(SettleRule { by: SettleBy::Cost, .. }) if usage.cost.is_none() => RealCost::AsCharged,
            // Where nothing at all is told, what counts for single values that are missing makes no cost.
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

    /// Says whether what a check charges may turn out to be another amount, or to be nothing: whether there is something to settle.
    #[must_use]
    pub fn may_settle(&self) -> bool {
        self.settle.is_some() || self.cost.is_none() || self.charges_failures()
    }
}

impl PolicySet {
    /// Checks that each value told has somebody who goes by it: some policy of the set, whichever the request met, or those who speak of
    /// language models ([`LLM_USAGE`]).
    ///
    /// # Errors
    /// [`UnknownUsage`] names the first that has nobody.
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

    /// Teaches the estimate of a policy what a request really cost; nothing where the policy does not learn. A short lock of the policy's
    /// own; checks do not take it.
    pub fn learn(&self, policy: usize, real: u64) {
        // At least one unit, as any cost.
        let real = Cost::new(real).unwrap_or_default();
        if let Some(learned) = self.learned(policy) {
            learned.learn(real);
        }
    }
}

/// Collects the names that the policies settle by.
pub(super) fn settled_by(policies: &[Policy]) -> Named {
    let mut named = Named::default();
    let mut add = |name: &str, group: bool| named.add_name(name, group);
    policies.iter().filter_map(|policy| policy.settle.as_ref()).for_each(|rule| rule.each_name(&mut add));
    named
}

#[cfg(test)]
mod tests {
    use tidegate_core::Quota;

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
        let both = Usage { cost: Some(7), ..values.clone() };
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

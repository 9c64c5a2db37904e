//! The report of a settlement about a request whose work is done: values by name, such as `llm.input` and `llm.output`,
//! or the real cost.

use std::borrow::Cow;

use smallvec::SmallVec;

/// The usual names in settlements of language-model calls. Every policy set accepts them, whether or not a policy uses
/// them, so that a caller need not know which of them the file names.
pub const LLM_USAGE: [&str; 3] = ["llm.input", "llm.output", "llm.cached"];

/// What a settlement reports: values by name, and the real cost as a number if the caller knows it.
///
/// Names and texts are borrowed where possible; up to four values need no allocation.
///
/// # Examples
/// ```
/// use tidegate::policy::Usage;
/// let usage = Usage::default().with("llm.input", 900).with("llm.output", 133).with("llm.model", "large");
/// assert_eq!(usage.names().count(), 3);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage<'a> {
    /// The real cost in units, as the caller reports it; 0 if nothing was spent, `None` if it reports none. Used where a
    /// `cost` stated with the check would be used.
    pub cost: Option<u64>,
    values: SmallVec<[(Cow<'a, str>, UsageValue<'a>); 4]>,
}

/// One value that a settlement reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageValue<'a> {
    /// A number of units: tokens, bytes, cents.
    Units(u64),
    /// A text for rules that select by it: the model that answered.
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
    /// Creates a usage with only the real cost.
    #[must_use]
    pub fn cost(units: u64) -> Self {
        Self { cost: Some(units), ..Self::default() }
    }

    /// Adds a value and returns the usage, for chained calls.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<UsageValue<'a>>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds a value. If a name occurs twice, the last value counts.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<UsageValue<'a>>) {
        self.values.push((name.into(), value.into()));
    }

    /// Returns the value of a name, the last one if the name occurs twice; `None` if it does not occur.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&UsageValue<'a>> {
        self.values.iter().rev().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    /// Returns the values with their names, in the order they were added.
    #[cfg(feature = "cel")]
    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &UsageValue<'a>)> {
        self.values.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// Reports whether the usage has neither a cost nor a value.
    pub(super) fn is_empty(&self) -> bool {
        self.cost.is_none() && self.values.is_empty()
    }

    /// Returns the names, in the order they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(name, _)| name.as_ref())
    }
}

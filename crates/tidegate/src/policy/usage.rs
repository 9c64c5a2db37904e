//! What a settlement tells of a request once its work is done: values by name, as `llm.input` and `llm.output`, or the real cost.

use std::borrow::Cow;

use smallvec::SmallVec;

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

    /// Says whether nothing was told at all.
    pub(super) fn is_empty(&self) -> bool {
        self.cost.is_none() && self.values.is_empty()
    }

    /// Returns the names, in the order they were told.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.iter().map(|(name, _)| name.as_ref())
    }
}

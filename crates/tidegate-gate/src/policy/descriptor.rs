//! The description of a request: ordered (name, value) pairs, and the numbers that values read as.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::Rate;

/// Ordered (name, value) pairs that describe a request: `request.method`, `client.ip`, `user.id`.
///
/// Names in use: `request.method`, `request.path` (without query), `request.host`, `request.header.<lower-case name>`,
/// `client.ip`, and any others that a caller sends (`user.id`, `user.tier`, `sms.phone`, `form.username`). Names and
/// values are borrowed where possible; up to eight pairs need no allocation. If a name occurs twice, the last pair
/// counts.
///
/// # Examples
/// ```
/// use tidegate::policy::Descriptor;
///
/// let mut request = Descriptor::new().with("request.method", "POST").with("request.path", "/login");
/// request.push("client.ip", "203.0.113.9");
/// assert_eq!(request.value("client.ip"), Some("203.0.113.9"));
/// assert_eq!(request.value("user.id"), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor<'a> {
    pairs: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>,
}

impl<'a> Descriptor<'a> {
    /// The longest name of an attribute, in bytes, that doors accept and that a policy file may contain.
    pub const MAX_NAME: usize = 256;

    /// The longest value of an attribute, in bytes, that doors accept and that a policy file may contain: a long URL or
    /// token fits.
    pub const MAX_VALUE: usize = 8192;

    /// Creates a descriptor without pairs.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair and returns the descriptor, for chained calls.
    #[must_use]
    #[inline(always)]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        if self.pairs.len() == self.pairs.capacity() {
            return self.grown_with(name.into(), value.into());
        }
        self.push(name, value);
        self
    }

    /// Grows the list, in a separate function since that is rare. So the common path of `with` takes no reference to
    /// the descriptor, which saves a copy per call in a chain.
    #[cold]
    #[inline(never)]
    fn grown_with(mut self, name: Cow<'a, str>, value: Cow<'a, str>) -> Self {
        self.pairs.push((name, value));
        self
    }

    /// Adds a pair.
    #[inline]
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        self.pairs.push((name.into(), value.into()));
    }

    /// Returns the value of a name, the last one if the name occurs twice; `None` if it does not occur.
    #[must_use]
    #[inline]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(have, _)| have == name).map(|(_, value)| value.as_ref())
    }

    /// Returns the pairs in order.
    #[inline]
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }
}

/// Creates a descriptor from all its pairs at once, in order. Faster than a chain of [`Descriptor::with`], where each call
/// may move the descriptor.
///
/// # Examples
/// ```
/// use tidegate::policy::Descriptor;
///
/// let request = Descriptor::from([("client.ip", "203.0.113.9"), ("request.method", "GET")]);
/// assert_eq!(request.value("request.method"), Some("GET"));
/// ```
impl<'a, N: Into<Cow<'a, str>>, V: Into<Cow<'a, str>>, const COUNT: usize> From<[(N, V); COUNT]>
    for Descriptor<'a>
{
    #[inline]
    fn from(pairs: [(N, V); COUNT]) -> Self {
        let mut all = Self::new();
        all.pairs.extend(pairs.map(|(name, value)| (name.into(), value.into())));
        all
    }
}

/// A number that a text reads as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// A whole number, at most [`Rate::MAX_COUNT`] away from zero; beyond that it is cut.
    Whole(i64),
    /// A finite number with a fraction.
    Fraction(f64),
}

impl Number {
    /// Returns the number as units, rounded up; `None` below zero.
    pub(super) fn units(self) -> Option<u64> {
        match self {
            Self::Whole(whole) => u64::try_from(whole).ok(),
            // A fraction is far smaller than 2^60.
            Self::Fraction(fraction) => (fraction >= 0.0).then(|| fraction.ceil() as u64),
        }
    }
}

/// Reads a text as a decimal number: a sign or none, then digits, then a fraction or an exponent or neither. `None` for
/// any other text, and for the words that Rust reads as numbers, such as `infinity`.
pub(super) fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    const MOST: i64 = Rate::MAX_COUNT as i64;
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Number::Whole(whole.clamp(-MOST, MOST)));
    }
    // At that size, and with more digits than an integer has, every number is whole. A cast saturates.
    let number = text.parse::<f64>().ok()?;
    Some(match number.fract() == 0.0 || number.is_infinite() {
        true => Number::Whole((number as i64).clamp(-MOST, MOST)),
        false => Number::Fraction(number),
    })
}

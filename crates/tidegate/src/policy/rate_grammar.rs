//! How a rate and a span of time are written: `100/s`, `60/min`, `100/10min`, `unlimited`; `200ms`, `1h30min`.
//!
//! One grammar for the file, the command line, traffic, logs and what is printed. `m` is a minute, as everywhere but in patterns of
//! dates; `M` is refused, because some programs read it as a month. A month is 30 days and a year 365 days: spans must have one length.
//! Where the calendar's own months are meant, a window says `calendar: ZONE`.

mod meant;
mod span;
mod unit;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use self::span::span;
pub use self::unit::{Unit, UnitError};

/// Why a text is no rate or no span.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A rate as other systems write it.
    #[error("\"{text}\" is not how a rate is written here; write {rate}")]
    OtherForm {
        /// The rate as written.
        text: String,
        /// The same rate, as it is read.
        rate: WrittenRate,
    },
    /// Nothing like a rate.
    #[error("\"{text}\" is not a rate; write 100/s, 60/min or unlimited")]
    Rate {
        /// The text.
        text: String,
    },
    /// A number alone.
    #[error("\"{text}\" does not say per what; write {text}/s, {text}/min or {text}/day")]
    NoPeriod {
        /// The text.
        text: String,
    },
    /// No unit.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// Not a whole number, or one that does not fit.
    #[error("\"{text}\" is not a whole number from 1 to 2^60")]
    Number {
        /// The number as written.
        text: String,
    },
    /// A rate of nothing.
    #[error("\"{text}\" lets nothing pass; use 1 or more, or access.deny to refuse everyone")]
    Zero {
        /// The rate as written.
        text: String,
    },
    /// A rate per no time at all.
    #[error("\"{text}\" has a period of 0; write {count}/{unit}, or {count}/10{unit} for ten of those", unit = .unit.name())]
    NoTime {
        /// The rate as written.
        text: String,
        /// How many.
        count: u64,
        /// The unit of the period.
        unit: Unit,
    },
    /// Longer than any clock runs.
    #[error("\"{text}\" is longer than 146 years")]
    TooLong {
        /// The span as written.
        text: String,
    },
    /// Nothing like a span.
    #[error("\"{text}\" is not a span of time; write 200ms, 10s or 1h30min")]
    Span {
        /// The text.
        text: String,
    },
    /// A span that is a number alone.
    #[error("\"{text}\" has no unit; write {text}ms, {text}s or {text}min")]
    NoUnit {
        /// The text.
        text: String,
    },
    /// A number with decimals that are too many or too fine.
    #[error(
        "\"{text}\" has decimals that are no whole number of nanoseconds, or more than nine; write 1.5s or 1500ms"
    )]
    Decimals {
        /// The number.
        text: String,
    },
}

/// A rate as written: so many per so many units, or unlimited.
///
/// Keeps the words of its author: `100/10min` prints as `100/10min`, not as `10/min`, which is another limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrittenRate {
    /// No limit, on purpose.
    Unlimited,
    /// `count` per `times` units.
    Per {
        /// How many; 1 to 2⁶⁰.
        count: u64,
        /// How many units make the period; 1 or more.
        times: u64,
        /// The unit.
        unit: Unit,
    },
}

/// The largest count, the largest period: what core accepts.
const MAX_COUNT: u64 = tidegate_core::Rate::MAX_COUNT;
const MAX_PERIOD: Duration = tidegate_core::Rate::MAX_PERIOD;

impl WrittenRate {
    /// Returns the period; `None` when unlimited.
    #[must_use]
    pub fn period(self) -> Option<Duration> {
        match self {
            Self::Unlimited => None,
            Self::Per { times, unit, .. } => multiply(unit.length(), times),
        }
    }
}

fn multiply(length: Duration, times: u64) -> Option<Duration> {
    let nanos = length.as_nanos().checked_mul(u128::from(times))?;
    (nanos <= MAX_PERIOD.as_nanos()).then(|| tidegate_core::time::span(nanos))
}

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Per { count, times: 1, unit } => write!(f, "{count}/{}", unit.name()),
            Self::Per { count, times, unit } => write!(f, "{count}/{times}{}", unit.name()),
        }
    }
}

impl FromStr for WrittenRate {
    type Err = GrammarError;

    /// Reads `COUNT/[TIMES]UNIT` or `unlimited`. Digits may be grouped with `_` and followed by `k` for thousand.
    fn from_str(text: &str) -> Result<Self, GrammarError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let other_form =
            || Some(GrammarError::OtherForm { text: text.to_owned(), rate: meant::meant(text)? });
        let Some((count, period)) = text.split_once('/') else {
            let text = text.to_owned();
            let is_number = whole_number(&text).is_ok();
            let plain = if is_number { GrammarError::NoPeriod { text } } else { GrammarError::Rate { text } };
            return Err(other_form().unwrap_or(plain));
        };
        let count = whole_number(count.trim()).map_err(|error| other_form().unwrap_or(error))?;
        if count == 0 {
            return Err(GrammarError::Zero { text: text.to_owned() });
        }
        let (times, unit) = counted_unit(period.trim())?;
        if times == 0 {
            return Err(GrammarError::NoTime { text: text.to_owned(), count, unit });
        }
        let rate = Self::Per { count, times, unit };
        if rate.period().is_none() {
            return Err(GrammarError::TooLong { text: text.to_owned() });
        }
        Ok(rate)
    }
}

/// Reads a whole number: digits, `_` between digits, `k` for thousand.
///
/// # Errors
/// [`GrammarError::Number`].
pub(crate) fn whole_number(text: &str) -> Result<u64, GrammarError> {
    let refuse = || GrammarError::Number { text: text.to_owned() };
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1000),
        None => (text, 1),
    };
    let outside = digits.starts_with('_') || digits.ends_with('_') || digits.is_empty();
    if outside || !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') {
        return Err(refuse());
    }
    let plain: String = digits.chars().filter(|digit| *digit != '_').collect();
    let number: u64 = plain.parse().map_err(|_| refuse())?;
    number.checked_mul(factor).filter(|number| *number <= MAX_COUNT).ok_or_else(refuse)
}

/// Reads `min`, `10min`, `10 min`, and any other span as so many of the largest unit that it is whole in: `1h30min` as 90 minutes. The
/// number may be 0.
fn counted_unit(text: &str) -> Result<(u64, Unit), GrammarError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if !digits.is_empty() && (unit.is_empty() || unit.contains(|c: char| c == '.' || c.is_ascii_digit())) {
        return Ok(Unit::largest_of(span(text)?));
    }
    let unit = unit.trim().parse()?;
    let times = if digits.is_empty() { 1 } else { whole_number(digits)? };
    Ok((times, unit))
}

#[cfg(test)]
mod tests;

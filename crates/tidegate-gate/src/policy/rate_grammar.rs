//! The grammar of rates and spans of time: `100/s`, `60/min`, `100/10min`, `unlimited`; `200ms`, `1h30min`.
//!
//! The same grammar serves the file, the command line, traffic, logs and all output. `m` is a minute, as everywhere
//! except in date patterns; `M` is refused, because some programs read it as a month. A month is 30 days and a year 365
//! days, since a span must have a fixed length. For windows of calendar months, a limit has `calendar: ZONE`.

mod duration;
mod error;
mod foreign_forms;
mod number;
mod unit;
mod written_rate;

use std::str::FromStr;

pub use self::duration::span;
pub use self::error::GrammarError;
use self::number::plain_number;
#[cfg(feature = "config")]
pub use self::number::whole_number;
pub use self::unit::{Unit, UnitError};
pub use self::written_rate::WrittenRate;

impl FromStr for WrittenRate {
    type Err = GrammarError;

    /// Parses `COUNT/[TIMES]UNIT` or `unlimited`. Digits may be grouped with `_` and followed by `k` for thousand.
    fn from_str(text: &str) -> Result<Self, GrammarError> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let other_form =
            || Some(GrammarError::OtherForm { text: text.to_owned(), rate: foreign_forms::meant(text)? });
        let Some((count, period)) = text.split_once('/') else {
            let text = text.to_owned();
            let plain = match plain_number(&text) {
                Ok(0) => GrammarError::Zero { text },
                Ok(_) => GrammarError::NoPeriod { text },
                Err(_) => GrammarError::Rate { text },
            };
            return Err(other_form().unwrap_or(plain));
        };
        let count = plain_number(count.trim()).map_err(|error| other_form().unwrap_or(error))?;
        if count == 0 {
            return Err(GrammarError::Zero { text: text.to_owned() });
        }
        let (times, unit) = counted_unit(period.trim()).map_err(|error| other_form().unwrap_or(error))?;
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

/// Parses `min`, `10min` or `10 min`. Any other span is converted to the largest unit that divides it: `1h30min` is 90
/// minutes. The number may be 0.
fn counted_unit(text: &str) -> Result<(u64, Unit), GrammarError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if !digits.is_empty() && (unit.is_empty() || unit.contains(|c: char| c == '.' || c.is_ascii_digit())) {
        return Ok(Unit::largest_of(span(text)?));
    }
    let unit = unit.trim().parse()?;
    let times = if digits.is_empty() { 1 } else { plain_number(digits)? };
    Ok((times, unit))
}

#[cfg(test)]
mod tests;

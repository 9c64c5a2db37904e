//! Parses spans of time: `200ms`, `10s`, `1h30min`, `1.5s`.

use std::time::Duration;

use super::error::GrammarError;
use super::number::plain_number;
use super::unit::Unit;
use super::written_rate::MAX_PERIOD;

/// The most decimals of a number: a second has nine down to the nanosecond.
const DECIMALS: usize = 9;

/// Parses a span of time: one or more pairs of number and unit, such as `200ms`, `10s`, `1h30min`, `2 min`, `1.5s`.
///
/// The range is zero to 146 years. Exact: a number with decimals must be a whole number of nanoseconds.
///
/// # Errors
/// [`GrammarError`] with the part that is wrong.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::policy::span;
/// assert_eq!(span("1h30min"), Ok(Duration::from_secs(5400)));
/// assert_eq!(span("1h30m"), span("1.5h"));
/// assert_eq!(span("90").unwrap_err().to_string(), "\"90\" has no unit; write 90ms, 90s or 90min");
/// ```
pub fn span(text: &str) -> Result<Duration, GrammarError> {
    let refuse = || GrammarError::Span { text: text.to_owned() };
    let mut rest = text.trim();
    let mut total = 0_u128;
    if rest.is_empty() {
        return Err(refuse());
    }
    while !rest.is_empty() {
        let (number, after) = leading(rest, |c| matches!(c, '0'..='9' | '_' | '.'));
        let (unit, after) = leading(after.trim_start(), char::is_alphabetic);
        if unit.is_empty() && after.is_empty() && number == text.trim() && plain_number(number).is_ok() {
            return Err(GrammarError::NoUnit { text: number.to_owned() });
        }
        if number.is_empty() || unit.is_empty() {
            return Err(refuse());
        }
        let length = unit.parse::<Unit>()?.length().as_nanos();
        // Each part is below 2^115 ns; the sum is checked after each part.
        total += nanos(number, length)?;
        if total > MAX_PERIOD.as_nanos() {
            return Err(GrammarError::TooLong { text: text.to_owned() });
        }
        rest = after.trim_start();
    }
    Ok(tidegate_core::time::span(total))
}

/// Splits off the leading characters that satisfy `of`.
fn leading(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !of(c)).unwrap_or(text.len()))
}

/// Returns a number of units in nanoseconds.
fn nanos(number: &str, length: u128) -> Result<u128, GrammarError> {
    let Some((whole, decimals)) = number.split_once('.') else {
        return Ok(u128::from(plain_number(number)?) * length);
    };
    let refuse = || GrammarError::Decimals { text: number.to_owned() };
    let is_plain =
        !whole.is_empty() && !decimals.is_empty() && decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || decimals.len() > DECIMALS {
        return Err(refuse());
    }
    let parts = 10_u128.pow(u32::try_from(decimals.len()).map_err(|_| refuse())?);
    let part = decimals.parse::<u128>().map_err(|_| refuse())? * length;
    if !part.is_multiple_of(parts) {
        return Err(refuse());
    }
    Ok(u128::from(plain_number(whole)?) * length + part / parts)
}

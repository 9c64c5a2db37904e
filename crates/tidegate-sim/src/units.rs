//! How numbers are written: in JSON, where the name tells the unit, and for people. In JSON, spans are milliseconds under
//! names that end in `_ms`, points in time are RFC 3339 text under names that end in `_at`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize as _, Serializer};
use serde_json::Number;
use tidegate::Tick;

/// Returns a span in milliseconds, as an integer if it is a whole number of them.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_sim::millis;
/// assert_eq!(millis(Duration::from_secs(60)).to_string(), "60000");
/// assert_eq!(millis(Duration::from_micros(1_500)).to_string(), "1.5");
/// ```
#[must_use]
pub fn millis(span: Duration) -> Number {
    let nanos = span.as_nanos();
    let whole = u64::try_from(nanos / 1_000_000).ok().filter(|_| nanos.is_multiple_of(1_000_000));
    // A finite number always has a JSON form.
    whole.map(Number::from).or_else(|| Number::from_f64(nanos as f64 / 1e6)).unwrap_or_else(|| 0.into())
}

/// Returns a point in time as RFC 3339 text in UTC, with up to nine digits of fraction. Generated traffic
/// begins in 1970.
///
/// # Examples
/// ```
/// use tidegate::Tick;
/// use tidegate_sim::rfc3339;
/// assert_eq!(rfc3339(Tick::from_nanos(1_500_000_000)), "1970-01-01T00:00:01.5Z");
/// ```
#[must_use]
pub fn rfc3339(at: Tick) -> String {
    // 64 bits of nanoseconds end in the year 2554; RFC 3339 reaches the year 9999.
    Timestamp::from_nanosecond(i128::from(at.as_nanos())).unwrap_or(Timestamp::MAX).to_string()
}

pub(crate) fn span<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    millis(*span).serialize(to)
}

pub(crate) fn maybe_span<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    span.map(millis).serialize(to)
}

pub(crate) fn time<S: Serializer>(at: &Tick, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&rfc3339(*at))
}

pub(crate) fn maybe_time<S: Serializer>(at: &Option<Tick>, to: S) -> Result<S::Ok, S::Error> {
    at.map(rfc3339).serialize(to)
}

/// Formats a count with commas between thousands: `1,204,331`.
///
/// # Examples
/// ```
/// use tidegate_sim::grouped;
/// assert_eq!([0, 999, 1_000, 1_204_331].map(grouped), ["0", "999", "1,000", "1,204,331"]);
/// ```
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Writes a share as a percentage, with two decimals below 10 % and one from there on.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        p if p < 0.01 => "< 0.01 %".to_owned(),
        p if p < 10.0 => format!("{p:.2} %"),
        p => format!("{p:.1} %"),
    }
}

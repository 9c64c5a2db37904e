//! Units in JSON output: the name tells the unit. Spans are milliseconds under names that end in `_ms`, points in time
//! are RFC 3339 text under names that end in `_at`.

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

//! Rounds durations for answers, always up: a client that is told one second must not come back earlier.

use std::time::Duration;

/// The longest wait in answers, in seconds: the largest integer of a structured header field (RFC 9651), some 30 million
/// years. A longer one is shown as this, in every unit, so that all numbers of an answer say the same.
const LONGEST_SECS: u64 = 999_999_999_999_999;

/// Rounds a duration up to whole seconds; at most 999,999,999,999,999.
#[must_use]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "headers alone count seconds"))]
pub fn seconds_up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)).min(LONGEST_SECS)
}

/// Rounds a duration up to whole milliseconds; at most 999,999,999,999,999,000.
#[must_use]
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(LONGEST_SECS * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(seconds_up(Duration::from_nanos(1)), 1);
        assert_eq!(seconds_up(Duration::from_secs(3)), 3);
        assert_eq!(seconds_up(Duration::MAX), 999_999_999_999_999);
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::MAX), 999_999_999_999_999_000);
    }
}

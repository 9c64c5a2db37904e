//! Rounds durations for answers, always up: a client that is told one second must not come back earlier.

use std::time::Duration;

/// Rounds a duration up to whole seconds.
#[must_use]
#[cfg_attr(not(feature = "http"), allow(dead_code, reason = "headers alone count seconds"))]
pub(crate) fn seconds_up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Rounds a duration up to whole milliseconds; saturates at `u64::MAX`.
#[must_use]
pub fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(seconds_up(Duration::from_nanos(1)), 1);
        assert_eq!(seconds_up(Duration::from_secs(3)), 3);
        assert_eq!(seconds_up(Duration::MAX), u64::MAX);
        assert_eq!(millis_up(Duration::from_nanos(1)), 1);
        assert_eq!(millis_up(Duration::MAX), u64::MAX);
    }
}

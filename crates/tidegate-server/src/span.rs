//! Spans of time and moments as answers write them, always rounded up: a client that is told one second must not come early.

use std::time::Duration;

use tidegate::Tick;

/// Rounds a span up to whole seconds.
pub(crate) fn seconds_up(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Rounds a span up to whole milliseconds; a span too long for a `u64` is the largest there is.
pub(crate) fn millis_up(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Writes the moment that lies `after` a tick in RFC 3339, to the next millisecond; the server's ticks count from 1970. `None` for
/// moments beyond the year 9999.
pub(crate) fn moment(at: Tick, after: Duration) -> Option<String> {
    let nanos = u128::from(at.as_nanos()) + after.as_nanos();
    let millis = i64::try_from(nanos.div_ceil(1_000_000)).ok()?;
    jiff::Timestamp::from_millisecond(millis).ok().map(|moment| format!("{moment:.3}"))
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

    #[test]
    fn moments_are_rounded_up() {
        let at = Tick::from_secs(1_800_000_000);
        assert_eq!(moment(at, Duration::from_nanos(1)).as_deref(), Some("2027-01-15T08:00:00.001Z"));
        assert_eq!(moment(at, Duration::ZERO).as_deref(), Some("2027-01-15T08:00:00.000Z"));
        assert_eq!(moment(at, Duration::MAX), None);
    }
}

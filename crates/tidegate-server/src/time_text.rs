//! Formats moments for answers. They are rounded up like durations: a client that is told one second must not return
//! early.

use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use tidegate::{SystemClock, Tick};

/// Prints milliseconds.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Formats the moment `after` a tick of the server in RFC 3339, by the wall clock as it stands now, rounded up to a
/// millisecond. `None` for moments after the year 9999.
pub(crate) fn moment(at: Tick, after: Duration) -> Option<String> {
    wall_moment(SystemClock::wall_time(at), after)
}

/// Formats the moment `after` a tick of the wall clock, like [`moment`].
pub(crate) fn wall_moment(at: Tick, after: Duration) -> Option<String> {
    let nanos = u128::from(at.as_nanos()) + after.as_nanos();
    let millis = i64::try_from(nanos.div_ceil(1_000_000)).ok()?;
    let moment = jiff::Timestamp::from_millisecond(millis).ok()?;
    let mut text = String::with_capacity("2027-01-15T08:00:00.001Z".len());
    PRINTER.print_timestamp(&moment, &mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rounded_up() {
        let at = Tick::from_secs(1_800_000_000);
        assert_eq!(moment(at, Duration::from_nanos(1)).as_deref(), Some("2027-01-15T08:00:00.001Z"));
        assert_eq!(moment(at, Duration::ZERO).as_deref(), Some("2027-01-15T08:00:00.000Z"));
        assert_eq!(moment(at, Duration::MAX), None);
    }
}

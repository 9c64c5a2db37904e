//! How fast waiters are served, so that a caller who cannot be served in time is refused at once.

use std::time::Duration;

use tidegate_core::Tick;

/// The weight of one measurement in the average is 1/8, so about the last dozen turns count.
const WEIGHT: u64 = 8;

/// The average time between two places given to waiters. Measured only while the queue was never empty in between:
/// otherwise it would measure the time between arrivals, not how fast places become free.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last waiter was served, or when the first waiter joined an empty queue. `None` while nobody waits.
    last: Option<Tick>,
    /// Nanoseconds from one place to the next; `None` before the first measurement.
    per_place: Option<u64>,
}

impl Pace {
    /// Records that a waiter joined an empty queue.
    pub(super) fn begin(&mut self, now: Tick) {
        self.last = Some(now);
    }

    /// Records that the queue is empty.
    pub(super) fn end(&mut self) {
        self.last = None;
    }

    /// Records that a waiter was given this many places.
    pub(super) fn turn(&mut self, now: Tick, places: u64) {
        let Some(last) = self.last else { return };
        self.last = Some(now.max(last));
        let took = tidegate_core::time::nanos(now.since(last)) / places.max(1);
        self.per_place = Some(match self.per_place {
            None => took,
            Some(average) => average - average / WEIGHT + took / WEIGHT,
        });
    }

    /// Returns the expected time until this many places have been given; `None` before the first measurement.
    pub(super) fn expected(&self, places: u64) -> Option<Duration> {
        self.per_place.map(|nanos| Duration::from_nanos(nanos.saturating_mul(places)))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_the_turns_and_not_the_idle_time() {
        let mut pace = Pace::default();
        pace.turn(Tick::from_secs(1), 1);
        assert_eq!(pace.expected(1), None, "nobody waited");
        pace.begin(Tick::from_secs(10));
        pace.turn(Tick::from_secs(12), 2);
        assert_eq!(pace.expected(3), Some(Duration::from_secs(3)));
        pace.end();
        pace.begin(Tick::from_secs(1000));
        for second in 1..200 {
            pace.turn(Tick::from_secs(1000 + 9 * second), 1);
        }
        let expected = pace.expected(1).unwrap().as_secs_f64();
        assert!((8.9..=9.0).contains(&expected), "{expected}");
        pace.turn(Tick::EPOCH, u64::MAX);
        assert!(pace.expected(u64::MAX).is_some(), "a clock that steps back is no harm");
    }
}

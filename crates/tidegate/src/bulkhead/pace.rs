//! How fast turns come, so that whoever cannot be served in time is told so at once.

use std::time::Duration;

use tidegate_core::Tick;

/// How much of a new measurement enters the average: an eighth, so that the last dozen turns count.
const WEIGHT: u64 = 8;

/// The average time between two places given to waiters, measured only while somebody waited throughout: the time between two arrivals
/// says nothing of how fast places come back.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The last turn, or when the first waiter came.
    last: Option<Tick>,
    /// Nanoseconds from one place to the next; `None` before the first turn.
    per_place: Option<u64>,
}

impl Pace {
    /// Somebody waits where nobody waited.
    pub(super) fn begin(&mut self, now: Tick) {
        self.last = Some(now);
    }

    /// Nobody waits any more.
    pub(super) fn end(&mut self) {
        self.last = None;
    }

    /// A turn came to a waiter for so many places.
    pub(super) fn turn(&mut self, now: Tick, places: u64) {
        let Some(last) = self.last else { return };
        self.last = Some(now.max(last));
        let took = tidegate_core::time::nanos(now.since(last)) / places.max(1);
        self.per_place = Some(match self.per_place {
            None => took,
            Some(average) => average - average / WEIGHT + took / WEIGHT,
        });
    }

    /// How long it takes to give so many places; `None` where no turn was measured yet.
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

//! Steps of the wall clock, which the ticks do not follow.
//!
//! The system adjusts the speed of both clocks alike, so their difference changes only when the wall clock is set: by a
//! person, by a time service that finds it far off, or when the machine wakes up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::time::WallAhead;

/// How often the wall clock is read, in nanoseconds.
const EVERY: u64 = Duration::from_secs(1).as_nanos() as u64;

/// A difference that changes by less is not followed, in nanoseconds: time services work smaller ones off by the speed.
const LEAST: u64 = Duration::from_millis(100).as_nanos() as u64;

/// Three readings that take longer are not used, in nanoseconds: the thread was held up between them.
const LONGEST: u64 = Duration::from_millis(10).as_nanos() as u64;

/// How far the wall clock is ahead of the ticks, and when that was last looked at.
#[derive(Debug)]
pub(super) struct WallSteps {
    ahead: OnceLock<WallAhead>,
    looked: AtomicU64,
}

impl WallSteps {
    pub(super) const fn new() -> Self {
        Self { ahead: OnceLock::new(), looked: AtomicU64::new(0) }
    }

    pub(super) fn ahead(&self) -> &WallAhead {
        self.ahead.get_or_init(WallAhead::default)
    }

    /// Says whether the caller has to read the wall clock. Of several concurrent callers, only one gets `true`.
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        // Relaxed: it only chooses who reads.
        let looked = self.looked.load(Ordering::Relaxed);
        now.saturating_sub(looked) >= EVERY
            && self.looked.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes the time of the wall clock, read between two readings of the ticks.
    pub(super) fn take(&self, before: u64, wall: u64, after: u64) {
        if after.saturating_sub(before) > LONGEST {
            return;
        }
        let found = i64::try_from(i128::from(wall) - i128::from(before));
        let Some(found) = found.ok().filter(|found| found.abs_diff(self.ahead().nanos()) >= LEAST) else {
            return;
        };
        self.ahead().set(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn steps_are_followed_and_jitter_is_not() {
        let wall = WallSteps::new();
        let start = 1_700_000_000 * SECOND;
        let ahead = |wall: &WallSteps| wall.ahead().nanos();
        wall.take(start, start + 1000, start + 2000);
        assert_eq!(ahead(&wall), 0, "the two are read one after the other");
        wall.take(start, start + 99_999_999, start + 2000);
        assert_eq!(ahead(&wall), 0);
        // Started 5.5 h fast, and corrected.
        wall.take(start, start - 19_800 * SECOND, start + 2000);
        assert_eq!(ahead(&wall), -19_800_000_000_000);
        wall.take(start, start, start + LONGEST + 1);
        assert_eq!(ahead(&wall), -19_800_000_000_000, "held up between the readings");
        wall.take(start, start, start);
        assert_eq!(ahead(&wall), 0);
        wall.take(start, u64::MAX, start);
        assert_eq!(ahead(&wall), 0, "no time of this world");
    }

    #[test]
    fn one_caller_a_second_looks() {
        let wall = WallSteps::new();
        assert!(wall.is_due(5 * SECOND) && !wall.is_due(5 * SECOND) && !wall.is_due(6 * SECOND - 1));
        assert!(wall.is_due(6 * SECOND));
        assert!(!wall.is_due(4 * SECOND));
    }
}

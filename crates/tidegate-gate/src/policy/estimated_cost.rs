//! Learns the estimated cost of a policy's requests: a quantile of their real costs.
//!
//! Checks read one number and take no lock. The quantile covers the last 512 to 1,024 settlements: two histograms
//! record every cost, each is emptied when it holds 1,024, the two half a cycle apart, and the fuller one is read.
//! Settlements record under a short lock of the policy.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tidegate_core::{Cost, Rate};

/// The number of costs at which a histogram is emptied; the other one then holds half as many.
const TURN: u64 = 1024;
/// With fewer settlements the configured start holds, since they say little about a quantile such as 90 %.
const ENOUGH: u64 = Learning::ENOUGH;
/// One significant decimal digit: an estimate is less than a sixteenth above the true quantile, and never below it.
const DIGITS: u8 = 1;

/// How a policy learns its estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learning {
    /// The estimate until 20 requests have been settled.
    pub start: Cost,
    /// The share of requests, in percent from 1 to 100, that cost at most the estimate.
    pub percent: u8,
}

impl Learning {
    /// The number of settlements needed for an estimate; until then [`Learning::start`] holds.
    pub const ENOUGH: u64 = 20;

    /// Starts with `start`, and later estimates the cost that 90 % of the requests do not exceed.
    #[must_use]
    pub const fn from(start: Cost) -> Self {
        Self { start, percent: 90 }
    }

    /// Sets another share, in percent, clamped to 1 to 100.
    #[must_use]
    pub const fn percent(mut self, percent: u8) -> Self {
        self.percent = if percent == 0 {
            1
        } else if percent > 100 {
            100
        } else {
            percent
        };
        self
    }
}

/// The costs that one policy has learned. At most 4 KiB, allocated at the first settlement.
#[derive(Debug)]
pub(super) struct Learned {
    /// 0 until enough is known.
    estimate: AtomicU64,
    percent: AtomicU64,
    seen: Mutex<Option<SeenCosts>>,
}

#[derive(Debug)]
struct SeenCosts {
    fuller: Histogram<u16>,
    newer: Histogram<u16>,
}

impl Learned {
    pub(super) fn new(learning: Learning) -> Self {
        Self {
            estimate: AtomicU64::new(0),
            percent: AtomicU64::new(u64::from(learning.percent)),
            seen: Mutex::new(None),
        }
    }

    /// Returns the estimated cost of a request; `None` until enough is known.
    pub(super) fn estimate(&self) -> Option<Cost> {
        // Relaxed: an independent number, which orders nothing.
        Cost::new(self.estimate.load(Ordering::Relaxed))
    }

    /// Returns the number of settlements behind the estimate, or recorded so far. Takes the lock.
    pub(super) fn settlements(&self) -> u64 {
        self.seen.lock().as_ref().map_or(0, |seen| seen.fuller.len())
    }

    /// Sets another share, and applies it to what has been learned too.
    pub(super) fn set_percent(&self, learning: Learning) {
        // Relaxed: later settlements read it under the lock below.
        self.percent.store(u64::from(learning.percent), Ordering::Relaxed);
        if let Some(seen) = &*self.seen.lock() {
            self.work_out(seen);
        }
    }

    pub(super) fn learn(&self, real: Cost) {
        let mut seen = self.seen.lock();
        if seen.is_none() {
            *seen = SeenCosts::new();
        }
        let Some(seen) = &mut *seen else { return };
        seen.record(real.units());
        self.work_out(seen);
    }

    fn work_out(&self, seen: &SeenCosts) {
        if seen.fuller.len() < ENOUGH {
            return;
        }
        // The rank is computed in integers, and its middle used as the share: as a float, 0.07 of 100 is slightly more
        // than 7.
        let count = seen.fuller.len();
        let rank = (count * self.percent.load(Ordering::Relaxed)).div_ceil(100).max(1);
        let share = (rank as f64 - 0.5) / count as f64;
        let units = seen.fuller.value_at_quantile(share).clamp(1, Rate::MAX_COUNT);
        self.estimate.store(units, Ordering::Relaxed);
    }
}

impl SeenCosts {
    fn new() -> Option<Self> {
        // Fails only for invalid bounds; these constants are valid.
        let empty = || Histogram::new_with_bounds(1, Rate::MAX_COUNT, DIGITS).ok();
        Some(Self { fuller: empty()?, newer: empty()? })
    }

    fn record(&mut self, units: u64) {
        let units = units.min(Rate::MAX_COUNT);
        self.fuller.saturating_record(units);
        // The first half cycle is recorded in one histogram only; from then on the two are half a cycle apart.
        if self.fuller.len() > TURN / 2 {
            self.newer.saturating_record(units);
        }
        if self.fuller.len() >= TURN {
            std::mem::swap(&mut self.fuller, &mut self.newer);
            self.newer.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use tidegate_core::{Algorithm as _, Ask, Quota, Tick, Transition};
    use tidegate_limits::priority::most_at_once;

    use super::*;

    fn learned(percent: u8) -> Learned {
        Learned::new(Learning::from(Cost::ONE).percent(percent))
    }

    fn learn(learned: &Learned, units: u64) {
        learned.learn(Cost::new(units).unwrap());
    }

    #[test]
    fn little_is_not_enough_and_old_costs_are_forgotten() {
        let learned = learned(50);
        (0..19).for_each(|_| learn(&learned, 100));
        assert_eq!(learned.estimate(), None);
        learn(&learned, 100);
        assert_eq!(learned.estimate().map(Cost::units), Some(103), "the upper end of a sixteenth");
        (0..5000).for_each(|_| learn(&learned, 3000));
        assert!(learned.estimate().unwrap().units() >= 3000);
        (0..2 * TURN).for_each(|_| learn(&learned, 10));
        assert_eq!(learned.estimate().map(Cost::units), Some(10));
        learned.set_percent(Learning::from(Cost::ONE).percent(1));
        learn(&learned, Rate::MAX_COUNT);
        assert_eq!(learned.estimate().map(Cost::units), Some(10));
        learned.set_percent(Learning::from(Cost::ONE).percent(100));
        assert_eq!(learned.estimate().map(Cost::units), Some(Rate::MAX_COUNT));
    }

    proptest! {
        /// Compared with a sorted list of the same costs: the estimate is at least the quantile, and less than a sixteenth above it.
        #[test]
        fn an_estimate_is_the_quantile_rounded_up(
            costs in prop::collection::vec(1..1_000_000_000_000_u64, 20..512),
            percent in 1..=100_u8,
        ) {
            let learned = learned(percent);
            costs.iter().for_each(|units| learn(&learned, *units));
            let mut sorted = costs;
            sorted.sort_unstable();
            let rank = (sorted.len() * usize::from(percent)).div_ceil(100).max(1);
            let (exact, found) = (sorted[rank - 1], learned.estimate().unwrap().units());
            prop_assert!(found >= exact && found - exact <= exact / 16, "{found} for {exact}");
        }
    }

    #[test]
    fn what_a_full_limit_grants_is_granted_and_one_more_is_not() {
        let quotas = [
            Quota::per_second(5).burst(20).gcra().unwrap(),
            Quota::per_minute(7).token_bucket().unwrap(),
            Quota::per_minute(7).interval_bucket().unwrap(),
            Quota::per_minute(9).fixed_window().unwrap(),
            Quota::per_minute(9).sliding_window(10).unwrap(),
            Quota::per_minute(9).sliding_counter().unwrap(),
            Quota::per_minute(9).sliding_log().unwrap(),
            Quota::per_second(3).leaky_bucket().unwrap(),
            Quota::per_second(1).leaky_queue(50).unwrap(),
        ];
        for quota in &quotas {
            for wait in [Duration::ZERO, Duration::from_secs(3)] {
                let most = most_at_once(quota, wait);
                let now = Tick::from_secs(1 << 32);
                let allowed = |units: u64| {
                    let ask = Ask::within(now, Cost::new(units).unwrap(), wait);
                    matches!(quota.decide(&quota.fresh(now), ask), Transition::Allowed { .. })
                };
                assert!(allowed(most), "{quota:?} {most}");
                assert!(!allowed(most + 1), "{quota:?} {most}");
            }
        }
    }
}

//! An estimate that a policy learns: a quantile of what its requests really cost.
//!
//! Checks read one number and take no lock; settlements record under a short lock of the policy's own. The quantile is that of the last
//! 512 to 1,024 settlements, so that it follows what requests cost now: two histograms record every cost, each is emptied at 1,024, half
//! of that apart from the other, and the fuller one is read.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Tick, Transition};

/// A histogram is emptied once it has so many costs and the other has half as many.
const TURN: u64 = 1024;
/// With fewer settlements the stated number holds: they say little of a quantile such as 90 %.
const ENOUGH: u64 = Learning::ENOUGH;
/// One decimal digit: an estimate is above the true quantile by less than a sixteenth, and never below it.
const DIGITS: u8 = 1;

/// How a policy learns its estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Learning {
    /// The estimate until 20 requests were settled.
    pub start: Cost,
    /// Which share of requests, in percent from 1 to 100, costs at most what is estimated.
    pub percent: u8,
}

impl Learning {
    /// Settlements that are needed for an estimate: [`Learning::start`] holds until so many were seen.
    pub const ENOUGH: u64 = 20;

    /// Starts from `start`, and then estimates what 90 % of the requests cost at most.
    #[must_use]
    pub const fn from(start: Cost) -> Self {
        Self { start, percent: 90 }
    }

    /// Chooses another share, in percent; 1 to 100, others are cut to that.
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

/// What one policy has learnt. At most 4 KiB, taken at the first settlement.
#[derive(Debug)]
pub(super) struct Learned {
    /// 0 while too little is known.
    estimate: AtomicU64,
    percent: AtomicU64,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
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

    /// Returns what a request is estimated to cost; `None` while too little is known.
    pub(super) fn estimate(&self) -> Option<Cost> {
        // Relaxed: a number by itself, which orders nothing.
        Cost::new(self.estimate.load(Ordering::Relaxed))
    }

    /// Returns how many settlements the estimate is, or will be, worked out from. Takes the lock.
    pub(super) fn settlements(&self) -> u64 {
        self.seen.lock().as_ref().map_or(0, |seen| seen.fuller.len())
    }

    /// Takes another share, of what it has learnt as well.
    pub(super) fn set_percent(&self, learning: Learning) {
        // Relaxed: read under the lock below by whoever learns next.
        self.percent.store(u64::from(learning.percent), Ordering::Relaxed);
        if let Some(seen) = &*self.seen.lock() {
            self.work_out(seen);
        }
    }

    pub(super) fn learn(&self, real: Cost) {
        let mut seen = self.seen.lock();
        if seen.is_none() {
            *seen = Seen::new();
        }
        let Some(seen) = &mut *seen else { return };
        seen.record(real.units());
        self.work_out(seen);
    }

    fn work_out(&self, seen: &Seen) {
        if seen.fuller.len() < ENOUGH {
            return;
        }
        // The rank in whole numbers, and then its middle as a share: as a float, 0.07 of 100 is slightly more than 7.
        let count = seen.fuller.len();
        let rank = (count * self.percent.load(Ordering::Relaxed)).div_ceil(100).max(1);
        let share = (rank as f64 - 0.5) / count as f64;
        let units = seen.fuller.value_at_quantile(share).clamp(1, Rate::MAX_COUNT);
        self.estimate.store(units, Ordering::Relaxed);
    }
}

impl Seen {
    fn new() -> Option<Self> {
        // Fails only for bounds that make no sense; these are constants that do.
        let empty = || Histogram::new_with_bounds(1, Rate::MAX_COUNT, DIGITS).ok();
        Some(Self { fuller: empty()?, newer: empty()? })
    }

    fn record(&mut self, units: u64) {
        let units = units.min(Rate::MAX_COUNT);
        self.fuller.saturating_record(units);
        // The first half turn goes to one of them alone; from then on they are half a turn apart.
        if self.fuller.len() > TURN / 2 {
            self.newer.saturating_record(units);
        }
        if self.fuller.len() >= TURN {
            std::mem::swap(&mut self.fuller, &mut self.newer);
            self.newer.reset();
        }
    }
}

/// Returns the most that a full limit grants in one ask that waits at most `max_wait`, 1 or more.
pub(crate) fn most_at_once(quota: &Quota, max_wait: std::time::Duration) -> u64 {
    let now = Tick::from_secs(1 << 32);
    let fresh = quota.fresh(now);
    let grants = |units: u64| {
        let cost = Cost::new(units).unwrap_or_default();
        matches!(quota.decide(&fresh, Ask::within(now, cost, max_wait)), Transition::Allowed { .. })
    };
    let at_once = quota.standing(&fresh, now).limit.clamp(1, Rate::MAX_COUNT);
    if grants(at_once) && (max_wait.is_zero() || at_once == Rate::MAX_COUNT) {
        return at_once;
    }
    // A wait may allow more than a full limit holds, and a queue less than its places: the most is searched for in between.
    let (mut granted, mut refused) = if grants(at_once) { (at_once, at_once * 2) } else { (1, at_once) };
    while granted < Rate::MAX_COUNT && grants(refused) {
        (granted, refused) = (refused, refused.saturating_mul(2));
    }
    while refused - granted > 1 {
        let middle = granted + (refused - granted) / 2;
        if grants(middle) { granted = middle } else { refused = middle }
    }
    granted.min(Rate::MAX_COUNT)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

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
        /// Against a sorted list of the same costs: at least the quantile, and less than a sixteenth above it.
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

//! Limits that have several levels, one of which is in force: a rate that follows a number between a floor and a ceiling,
//! and an adaptive limit whose law depends on how busy the processor is.
//!
//! The state of such an adaptive limit lies in the store, one state per key, and a reading of the processor cannot reach
//! them all. So the limit exists in two versions, for an idle and for a busy processor. The reading takes effect for a key
//! when that key is next used.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::concurrency::{Adaptive, AdaptiveConcurrency};
use tidegate_core::signal_rate::SignalRate;
use tidegate_core::{Quota, QuotaError, Rate};

use super::policy::Limit;
use super::source::Source;

/// A rate that falls from a ceiling to a floor while a number rises from one mark to another; see [`SignalRate`] for how
/// changes are smoothed.
///
/// The rate in force is one of 17 evenly spaced levels, never above the rate that the law calculates: if the limit changed
/// slightly with each reading, every key would have to be carried over to a new limit each time.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::Quota;
/// use tidegate::limiter::Rate;
/// use tidegate::policy::{Follows, Limit, Source};
///
/// let per_second = |count| Rate::new(count, Duration::from_secs(1));
/// let follows = Follows::new(Source::Memory, per_second(100)?..=per_second(1000)?, 70.0..=90.0, |rate| {
///     Quota::per(rate.count(), rate.period()).gcra()
/// })?;
/// let limit = Limit::following(follows, "1000/s, down to 100/s as memory goes from 70% to 90%");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Follows {
    source: Source,
    law: SignalRate,
    floor: u64,
    ceiling: u64,
    /// What both are over.
    period: Duration,
    /// The limit at each level, from the floor to the ceiling.
    levels: Box<[Arc<Quota>]>,
}

// The law's numbers are finite, so equality is reflexive.
impl Eq for Follows {}

impl Follows {
    /// The number of steps between the floor and the ceiling.
    pub const STEPS: usize = 16;

    /// Creates it from the source of the number, the rates (both over one period), the marks in the unit of the number,
    /// and a function that builds the limit for a rate.
    ///
    /// # Errors
    /// [`QuotaError`] from [`SignalRate::new`] or from `quota`.
    pub fn new(
        source: Source,
        rates: RangeInclusive<Rate>,
        marks: RangeInclusive<f64>,
        mut quota: impl FnMut(Rate) -> Result<Quota, QuotaError>,
    ) -> Result<Self, QuotaError> {
        let law = SignalRate::new(rates.clone(), marks)?;
        let (floor, ceiling) = rates.into_inner();
        let levels = (0..=Self::STEPS).map(|step| {
            let rate = Rate::new(count_at(floor.count(), ceiling.count(), step), ceiling.period())?;
            quota(rate).map(Arc::new)
        });
        let levels = levels.collect::<Result<_, _>>()?;
        let period = ceiling.period();
        Ok(Self { source, law, floor: floor.count(), ceiling: ceiling.count(), period, levels })
    }

    /// Returns the source of the number that the rate follows.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the law that the rate follows.
    pub(super) const fn law(&self) -> &SignalRate {
        &self.law
    }

    /// Returns the limit at each level, from the floor to the ceiling.
    pub(super) fn levels(&self) -> &[Arc<Quota>] {
        &self.levels
    }

    /// Returns the limit at the ceiling.
    pub(super) fn ceiling(&self) -> &Arc<Quota> {
        &self.levels[Self::STEPS]
    }

    /// Returns the rate at a level; `None` if there is no such level.
    pub(super) fn rate_at(&self, level: usize) -> Option<Rate> {
        let count = (level <= Self::STEPS).then(|| count_at(self.floor, self.ceiling, level))?;
        Rate::new(count, self.period).ok()
    }

    /// Returns the highest level whose rate is at most the rate of the law.
    pub(super) fn level_of(&self, rate: Rate) -> usize {
        let within = |step: &usize| count_at(self.floor, self.ceiling, *step) <= rate.count();
        (0..=Self::STEPS).rev().find(within).unwrap_or(0)
    }
}

/// Returns the count at a step between the floor and the ceiling, rounded down.
fn count_at(floor: u64, ceiling: u64, step: usize) -> u64 {
    let range = u128::from(ceiling - floor);
    // At most the range, which fits an `u64`.
    floor + (range * step as u128 / Follows::STEPS as u128) as u64
}

/// The levels of a limit, and which one is in force.
#[derive(Debug)]
pub(super) struct Levels {
    quotas: Box<[Arc<Quota>]>,
    at: AtomicUsize,
}

impl Levels {
    pub(super) fn of(follows: &Follows) -> Self {
        Self { quotas: follows.levels.clone(), at: AtomicUsize::new(Follows::STEPS) }
    }

    /// Creates levels with the first limit in force.
    fn from_first(quotas: [Arc<Quota>; 2]) -> Self {
        Self { quotas: Box::new(quotas), at: AtomicUsize::new(0) }
    }

    #[inline]
    pub(super) fn in_force(&self) -> &Arc<Quota> {
        // Relaxed: the quotas never change, and it does not matter which one a check sees while the level changes.
        &self.quotas[self.at.load(Ordering::Relaxed)]
    }

    /// Returns which limit is in force, counted from 0.
    pub(super) fn level(&self) -> usize {
        // Relaxed: as above.
        self.at.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, level: usize) {
        // Relaxed: as above.
        self.at.store(level.min(self.quotas.len() - 1), Ordering::Relaxed);
    }
}

/// Returns the processor use, in percent, from which the processor counts as busy for a limit; `None` for limits that
/// do not depend on it.
pub(super) fn busy_from(limit: &Limit) -> Option<f64> {
    adaptive_by_cpu(limit).map(|(_, from)| f64::from(from) / 10.0)
}

/// Returns both versions of the limit: idle, and busy.
pub(super) fn busy_levels(limit: &Limit) -> Option<Levels> {
    let (guard, _) = adaptive_by_cpu(limit)?;
    let with = |thousandths| Arc::new(Quota::from(guard.clone().cpu(thousandths)));
    Some(Levels::from_first([with(0), with(1000)]))
}

fn adaptive_by_cpu(limit: &Limit) -> Option<(&AdaptiveConcurrency, u16)> {
    match limit.terms.quota.as_deref()? {
        Quota::Adaptive(guard) => match guard.law() {
            Adaptive::Bbr(law) => Some((guard, law.busy_from())),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_go_from_the_floor_to_the_ceiling_and_none_is_above_the_law() {
        let per_second = |count| Rate::new(count, Duration::from_secs(1)).unwrap();
        for (floor, ceiling) in [(100, 1000), (1, 3), (5, 5), (1, 1 << 60)] {
            let quota = |rate: Rate| Quota::per(rate.count(), rate.period()).gcra();
            let rates = per_second(floor)..=per_second(ceiling);
            let follows = Follows::new(Source::Memory, rates, 70.0..=90.0, quota).unwrap();
            assert_eq!(count_at(floor, ceiling, 0), floor);
            assert_eq!(follows.level_of(per_second(ceiling)), Follows::STEPS);
            for rate in [floor, floor + (ceiling - floor) / 2, ceiling] {
                let level = follows.level_of(per_second(rate));
                assert!(count_at(floor, ceiling, level) <= rate, "{rate} of {floor} to {ceiling}");
            }
        }
    }
}

//! The part of a limit that is kept for requests of higher priority.

use std::fmt;
use std::time::Duration;

use tidegate_core::{Algorithm as _, Ask, Cost, Criticality, Priority, Quota, Rate, Tick, Transition};

use crate::store::kept_back;

/// How much of a limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A number of units or places.
    Units(u64),
    /// A share of the limit's capacity, in percent from 0 to 100, rounded up.
    Percent(u8),
}

impl Kept {
    fn units(self, capacity: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Percent(percent) => {
                let units = (u128::from(capacity) * u128::from(percent)).div_ceil(100);
                u64::try_from(units).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => units.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The parts of a limit that only requests of at least a certain level may use; by default none.
///
/// A request below a level must leave the part of that level, and may use the rest. The parts are nested: the part for
/// `critical-plus` lies within the part for `critical`. 100 % refuses all requests below the level, without a separate
/// policy.
///
/// Within a level, requests of higher [cohorts](crate::priority::Cohorts) must leave more: cohort 0 leaves what its
/// level must leave, and with each further one of 128 cohorts a request leaves one more 128th of what the next lower
/// level must leave in addition. So the users of one level are refused one after the other, and each of them after all
/// users of lower levels. If the lower level must leave no more, or is refused altogether (100 %), its own level alone
/// decides.
///
/// # Examples
/// ```
/// use tidegate::clock::ManualClock;
/// use tidegate::gate::Check;
/// use tidegate::policy::{Descriptor, KeepFor, Kept, Limit, Policy, PolicySet};
/// use tidegate::priority::Criticality;
/// use tidegate::{Cost, Gate, Quota};
///
/// let mut limit = Limit::new(Quota::per_minute(10).gcra()?, "10/min");
/// limit.keep_for = KeepFor::default().with(Criticality::Critical, Kept::Percent(20));
/// let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("all", limit)])?, 1000)?.with_clock(ManualClock::default());
/// let request = Descriptor::new();
/// let report = Check::of(&request).priority(Criticality::Sheddable);
/// let allowed = (0..20).filter(|_| gate.check(report).now().is_ok_and(|decision| decision.allowed)).count();
/// assert_eq!(allowed, 8, "two of ten are kept for critical requests");
/// assert!(gate.check(&request).now()?.allowed, "and this is one");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepFor {
    kept: [Option<Kept>; Criticality::ALL.len()],
}

impl KeepFor {
    /// Keeps a part for requests of at least a level; replaces an earlier part of that level.
    #[must_use]
    pub const fn with(mut self, level: Criticality, kept: Kept) -> Self {
        self.kept[level as usize] = Some(kept);
        self
    }

    /// Says whether nothing is kept.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the kept parts with their levels, the least important level first.
    pub fn parts(&self) -> impl Iterator<Item = (Criticality, Kept)> {
        Criticality::ALL.into_iter().zip(self.kept).filter_map(|(level, kept)| Some((level, kept?)))
    }

    /// Returns how much a request of a priority must leave of a limit with the given capacity in units or places.
    #[must_use]
    pub fn kept_back(&self, priority: Priority, capacity: u64) -> u64 {
        let level = priority.level();
        let kept = self.kept_from(level, capacity);
        if priority.cohort() == 0 { kept } else { graded(kept, self.kept_below(level, capacity), priority) }
    }

    /// Returns how much a request of a level must leave, in cohort 0.
    pub fn kept_from(&self, level: Criticality, capacity: u64) -> u64 {
        let above = self.parts().filter(|(other, _)| *other > level);
        above.map(|(_, kept)| kept.units(capacity)).max().unwrap_or(0)
    }

    /// Returns how much a cohort beyond the last of a level would leave: what the next lower level must leave, unless all
    /// of its requests are refused.
    pub fn kept_below(&self, level: Criticality, capacity: u64) -> u64 {
        let own = self.parts().filter(|(other, kept)| *other == level && *kept != Kept::Percent(100));
        own.map(|(_, kept)| kept.units(capacity)).fold(self.kept_from(level, capacity), u64::max)
    }

    /// Returns how much a request of a priority and a cost must leave of a limit that currently allows `limit` places.
    pub fn kept_in_places(&self, priority: Priority, quota: &Quota, limit: u64, cost: Cost) -> u64 {
        kept_back::in_places(quota, self.kept_back(priority, kept_back::whole(quota)), limit, cost)
    }

    /// Returns how many of the 128 cohorts of a level pass a limit that currently allows `limit` places or units, of which
    /// `remaining` are left: the earlier cohorts, from 0 on.
    pub fn cohorts_admitted(
        &self,
        level: Criticality,
        quota: &Quota,
        limit: u64,
        remaining: u64,
        cost: Cost,
    ) -> u8 {
        let passes = |cohort: &u8| {
            let priority = Priority::of(level).in_cohort(*cohort).unwrap_or_default();
            let kept_back = self.kept_in_places(priority, quota, limit, cost);
            cost.units().saturating_add(kept_back) <= remaining
        };
        // A later cohort never leaves less, so the first that is refused ends them.
        (0..Priority::COHORTS).take_while(passes).fold(0, |count, _| count + 1)
    }

    /// Returns the smallest capacity of a limit in which a request of a priority finds `units` besides what it must
    /// leave; `None` if no capacity is enough.
    #[must_use]
    pub fn least_capacity(&self, priority: Priority, units: u64) -> Option<u64> {
        let level = priority.level();
        let least = self.least_beside(units, |other, _| other > level)?;
        if priority.cohort() == 0 {
            return Some(least);
        }
        let enough = self.least_beside(units, |other, kept| {
            other > level || other == level && kept != Kept::Percent(100)
        })?;
        // What is left besides a share never falls as the capacity grows.
        let (mut least, mut enough) = (least, enough);
        while least < enough {
            let between = least + (enough - least) / 2;
            if between.saturating_sub(self.kept_back(priority, between)) >= units {
                enough = between;
            } else {
                least = between + 1;
            }
        }
        Some(least)
    }

    fn least_beside(&self, units: u64, which: impl Fn(Criticality, Kept) -> bool) -> Option<u64> {
        let parts = self.parts().filter(|(level, kept)| which(*level, *kept));
        parts.map(|(_, kept)| kept).try_fold(units, |least, kept| {
            let needed = match kept {
                Kept::Units(kept) => units.checked_add(kept),
                Kept::Percent(percent) => {
                    let rest = 100u128.checked_sub(u128::from(percent)).filter(|rest| *rest > 0)?;
                    u64::try_from((u128::from(units) * 100).div_ceil(rest)).ok()
                }
            };
            needed.map(|needed| least.max(needed))
        })
    }

    /// Checks the parts against a limit that delays requests by at most `max_wait`.
    ///
    /// # Errors
    /// [`KeepForError`] for the first part that the limit cannot keep.
    pub fn check(&self, quota: &Quota, max_wait: Duration) -> Result<(), KeepForError> {
        if !self.is_nothing() && grants_any_cost(quota) {
            return Err(KeepForError::AnyCost);
        }
        let capacity = kept_back::whole(quota);
        let most = if kept_back::moves(quota) {
            if let Some((level, kept)) = self.parts().find(|(_, kept)| matches!(kept, Kept::Units(1..))) {
                return Err(KeepForError::Moves { level, kept });
            }
            capacity
        } else {
            // This is less than the capacity of a queue if a request in its last place would wait for longer than
            // `max_wait`.
            most_at_once(quota, max_wait)
        };
        let mut below: Option<(Criticality, Kept)> = None;
        for (level, kept) in self.parts() {
            if level == Criticality::Sheddable {
                return Err(KeepForError::Everybody);
            }
            if let Kept::Percent(percent) = kept
                && percent > 100
            {
                return Err(KeepForError::Percent { level, percent });
            }
            let units = kept.units(capacity);
            if units >= capacity && kept != Kept::Percent(100) {
                return Err(KeepForError::All { level, kept, capacity });
            }
            if units >= most && units < capacity {
                return Err(KeepForError::MaxWait { level, units, most });
            }
            if let Some((lower, part)) = below
                && units > part.units(capacity)
            {
                return Err(KeepForError::Order { level, kept, lower, part });
            }
            below = Some((level, kept));
        }
        Ok(())
    }
}

/// Returns how much a request of a cohort must leave: between what its level and what the next lower level must leave,
/// rounded down, so that it is less than the latter if the two differ.
pub fn graded(kept: u64, below: u64, priority: Priority) -> u64 {
    let more = u128::from(below.saturating_sub(kept)) * u128::from(priority.cohort());
    // Exact: at most `below`.
    kept + (more / u128::from(Priority::COHORTS)) as u64
}

/// Returns whether a limit grants any cost as soon as it grants one unit: the next request pays by waiting.
const fn grants_any_cost(quota: &Quota) -> bool {
    matches!(quota, Quota::WarmUp(_) | Quota::GuavaBursty(_) | Quota::GuavaWarming(_))
}

/// Why a limit cannot keep a part. Prints as a sentence about `keep_for`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeepForError {
    /// The algorithm grants any cost as soon as it grants one unit.
    #[error(
        "keep_for: this limit grants any cost as soon as it grants one, so no part of it can be reserved; use gcra or token-bucket"
    )]
    AnyCost,
    /// A part is kept for all requests.
    #[error(
        "keep_for.sheddable keeps a part for everybody, since no request is below sheddable; name a higher level"
    )]
    Everybody,
    /// A share above 100 %.
    #[error("keep_for.{level}: {percent}% is more than all; use 0% to 100%")]
    Percent {
        /// The level of the part.
        level: Criticality,
        /// The share.
        percent: u8,
    },
    /// The whole limit is kept.
    #[error(
        "keep_for.{level}: {kept} is all of a limit of {capacity}, and nothing would be left for others; keep less, or write 100%"
    )]
    All {
        /// The level of the part.
        level: Criticality,
        /// The part.
        kept: Kept,
        /// The capacity of the limit.
        capacity: u64,
    },
    /// The part is all that a full limit grants at once or within the longest delay. That is less than the capacity for
    /// a queue, and for a pacer that saves up nothing for keys that it has not seen.
    #[error(
        "keep_for.{level}: {units} are kept, and a full limit grants no more than {most} within max_wait, so nothing would be left for others; keep less, raise max_wait, or write 100%"
    )]
    MaxWait {
        /// The level of the part.
        level: Criticality,
        /// The kept units or places.
        units: u64,
        /// How many units or places are granted at once or within the longest delay.
        most: u64,
    },
    /// A number of places of a limit that moves: at times it may exceed the whole limit.
    #[error("keep_for.{level}: {kept} is not part of a limit that moves; write a share of it, as 20%")]
    Moves {
        /// The level of the part.
        level: Criticality,
        /// The part.
        kept: Kept,
    },
    /// More is kept for a higher level than for a lower one.
    #[error(
        "keep_for.{level}: {kept} is more than the {part} kept for {lower}; {level} may use all that is kept for {lower}, so keep {part} or less for it"
    )]
    Order {
        /// The higher level.
        level: Criticality,
        /// The part for it.
        kept: Kept,
        /// The lower level.
        lower: Criticality,
        /// The part for the lower level.
        part: Kept,
    },
}

impl KeepForError {
    /// Returns the level whose part cannot be kept; `None` if the limit cannot keep any part.
    #[must_use]
    pub const fn level(&self) -> Option<Criticality> {
        match self {
            Self::AnyCost => None,
            Self::Everybody => Some(Criticality::Sheddable),
            Self::Percent { level, .. } | Self::All { level, .. } | Self::Moves { level, .. } => Some(*level),
            Self::MaxWait { level, .. } | Self::Order { level, .. } => Some(*level),
        }
    }
}

/// Returns the most units that a full limit grants in one request that waits at most `max_wait`; 1 or more.
#[doc(hidden)]
pub fn most_at_once(quota: &Quota, max_wait: Duration) -> u64 {
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
    // A wait may allow more than a full limit holds, and a queue may allow less than its places, so the most is found
    // by search.
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
    use proptest::prelude::*;
    use tidegate_core::rate::ColdFactor;

    use super::Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
    use super::*;

    #[test]
    fn each_level_leaves_what_is_kept_for_those_above_it() {
        let nested = KeepFor::default().with(Critical, Kept::Percent(20)).with(CriticalPlus, Kept::Units(5));
        let left = |capacity| Criticality::ALL.map(|level| nested.kept_back(level.into(), capacity));
        assert_eq!(left(100), [20, 20, 5, 0]);
        assert_eq!(left(33), [7, 7, 5, 0], "shares are rounded up");
        assert_eq!(left(u64::MAX)[0], u64::MAX.div_ceil(5));
        assert_eq!(KeepFor::default().kept_back(Sheddable.into(), 100), 0);
    }

    #[test]
    fn a_cohort_leaves_its_part_of_what_the_next_lower_level_leaves_in_addition() {
        let nested = KeepFor::default().with(Critical, Kept::Percent(20)).with(CriticalPlus, Kept::Units(5));
        let left = |level, cohort| nested.kept_back(Priority::of(level).in_cohort(cohort).unwrap(), 100);
        assert_eq!([0, 1, 9, 64, 127].map(|cohort| left(Critical, cohort)), [5, 5, 6, 12, 19]);
        assert_eq!([0, 26, 64, 127].map(|cohort| left(CriticalPlus, cohort)), [0, 1, 2, 4]);
        assert_eq!([0, 127].map(|cohort| left(SheddablePlus, cohort)), [20, 20], "sheddable leaves no more");
        assert_eq!([0, 127].map(|cohort| left(Sheddable, cohort)), [20, 20]);
        let banned =
            KeepFor::default().with(Critical, Kept::Percent(100)).with(CriticalPlus, Kept::Percent(10));
        let critical = Priority::of(Critical).in_cohort(127).unwrap();
        assert_eq!(banned.kept_back(critical, 100), 10, "to refuse others is no part of it");
    }

    #[test]
    fn the_cohorts_that_pass_are_those_that_leave_enough() {
        let nested = KeepFor::default().with(Critical, Kept::Percent(20)).with(CriticalPlus, Kept::Units(5));
        let quota = Quota::per_second(100).gcra().unwrap();
        let admitted = |level, remaining| nested.cohorts_admitted(level, &quota, 100, remaining, Cost::ONE);
        assert_eq!([5, 6, 13, 20, 21].map(|left| admitted(Critical, left)), [0, 9, 69, 128, 128]);
        assert_eq!([20, 21].map(|left| admitted(Sheddable, left)), [0, 128], "its cohorts leave the same");
        let each = |level: Criticality, remaining: u64| {
            let passes = |cohort: &u8| {
                nested.kept_back(Priority::of(level).in_cohort(*cohort).unwrap(), 100) < remaining
            };
            (0..128).filter(passes).count()
        };
        for remaining in 0..=100 {
            for level in Criticality::ALL {
                assert_eq!(
                    usize::from(admitted(level, remaining)),
                    each(level, remaining),
                    "{level} {remaining}"
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let kept = |level, kept| KeepFor::default().with(level, kept);
        for (keep_for, capacity, expected) in [
            (kept(Critical, Kept::Percent(0)), 1, ""),
            (kept(Critical, Kept::Percent(100)), 10, ""),
            (kept(Critical, Kept::Units(9)), 10, ""),
            (kept(SheddablePlus, Kept::Units(5)).with(CriticalPlus, Kept::Units(5)), 10, ""),
            (kept(Sheddable, Kept::Units(1)), 10, "keep_for.sheddable keeps a part for everybody"),
            (kept(Critical, Kept::Percent(101)), 10, "keep_for.critical: 101% is more than all"),
            (kept(Critical, Kept::Units(10)), 10, "keep_for.critical: 10 is all of a limit of 10"),
            (kept(Critical, Kept::Percent(1)), 1, "keep_for.critical: 1% is all of a limit of 1"),
            (
                kept(Critical, Kept::Percent(20)).with(CriticalPlus, Kept::Units(3)),
                10,
                "keep_for.critical-plus: 3 is more than the 20% kept for critical; critical-plus may use all",
            ),
        ] {
            let quota = Quota::per_second(capacity).gcra().unwrap();
            let told = keep_for
                .check(&quota, Duration::ZERO)
                .map_or_else(|error| error.to_string(), |()| String::new());
            assert!(told.starts_with(expected) && told.is_empty() == expected.is_empty(), "{told}");
        }
        let warm_up = Quota::per_second(10).warm_up(Duration::from_secs(1), ColdFactor::THREE).unwrap();
        assert_eq!(
            kept(Critical, Kept::Units(1)).check(&warm_up, Duration::ZERO),
            Err(KeepForError::AnyCost)
        );
        assert_eq!(KeepFor::default().check(&warm_up, Duration::ZERO), Ok(()));
    }

    proptest! {
        /// Compared with a linear search from below.
        #[test]
        fn the_least_capacity_is_the_least(
            units in 1..300_u64, share in 0..100_u8, plus in 0..40_u64, cohort in 0..Priority::COHORTS,
        ) {
            let keep_for = KeepFor::default().with(Critical, Kept::Percent(share)).with(CriticalPlus, Kept::Units(plus));
            for level in Criticality::ALL {
                for priority in [Priority::of(level), Priority::of(level).in_cohort(cohort).unwrap()] {
                    let leaves = |capacity: &u64| {
                        capacity.checked_sub(keep_for.kept_back(priority, *capacity)) >= Some(units)
                    };
                    prop_assert_eq!(keep_for.least_capacity(priority, units), (1..40_000).find(leaves));
                }
            }
            let none = KeepFor::default().with(Critical, Kept::Percent(100));
            prop_assert_eq!(none.least_capacity(Sheddable.into(), units), None);
        }

        /// The order of priorities is the order in which requests are refused, whatever the parts.
        #[test]
        fn whoever_is_more_important_leaves_no_more(
            parts: [u8; 3], capacity in 1..=u64::MAX, one in 0..512_usize, other in 0..512_usize,
        ) {
            let mut parts = parts.map(|percent| percent % 101);
            parts.sort_by(|a, b| b.cmp(a));
            let keep_for = Criticality::ALL[1..].iter().zip(parts).fold(KeepFor::default(), |keep_for, (level, part)| {
                keep_for.with(*level, Kept::Percent(part))
            });
            let priority = |at: usize| {
                Priority::of(Criticality::ALL[at / 128]).in_cohort((at % 128) as u8).unwrap()
            };
            let (low, high) = (priority(one).min(priority(other)), priority(one).max(priority(other)));
            let (of_low, of_high) = (keep_for.kept_back(low, capacity), keep_for.kept_back(high, capacity));
            prop_assert!(of_high <= of_low, "{high} leaves {of_high}, {low} {of_low}");
        }
    }
}

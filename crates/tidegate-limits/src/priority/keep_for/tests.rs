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
    let banned = KeepFor::default().with(Critical, Kept::Percent(100)).with(CriticalPlus, Kept::Percent(10));
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
        let passes =
            |cohort: &u8| nested.kept_back(Priority::of(level).in_cohort(*cohort).unwrap(), 100) < remaining;
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
        let told =
            keep_for.check(&quota, Duration::ZERO).map_or_else(|error| error.to_string(), |()| String::new());
        assert!(told.starts_with(expected) && told.is_empty() == expected.is_empty(), "{told}");
    }
    let warm_up = Quota::per_second(10).warm_up(Duration::from_secs(1), ColdFactor::THREE).unwrap();
    assert_eq!(kept(Critical, Kept::Units(1)).check(&warm_up, Duration::ZERO), Err(KeepForError::AnyCost));
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

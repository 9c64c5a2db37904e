//! Compares the envelope with its definition: every span checked, and a bucket asked one request at a time.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::envelope::{Envelope, WindowEnvelope};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Replace, Tick, Transition};

/// A request: when, how many units, and whether it was admitted.
type Asked = (u64, u64, bool);

/// The excess by its definition, in fractions of a unit: the largest over all spans from one request to another.
fn excess(asked: &[Asked], rate: Rate, burst: u64) -> i128 {
    let (count, period) = rate.reduced();
    let mut most = 0;
    for (from, (begin, ..)) in asked.iter().enumerate() {
        let mut units = 0;
        for (end, cost, admitted) in &asked[from..] {
            units += if *admitted { i128::from(*cost) } else { 0 };
            let allowed =
                i128::from(burst) * i128::from(period) + i128::from(end - begin) * i128::from(count);
            most = most.max(units * i128::from(period) - allowed);
        }
    }
    most
}

/// Asks the library's own limit, and keeps the state that follows.
fn admits<A: Algorithm>(quota: &A, state: &mut A::State, now: Tick, units: Cost) -> bool {
    match quota.decide(state, Ask::allow(now, units)) {
        Transition::Allowed { next, .. } => {
            *state = next;
            true
        }
        Transition::Denied { .. } => false,
    }
}

/// Returns the requests with ticks instead of gaps.
fn timed(gaps: Vec<(u64, u64, bool)>) -> Vec<Asked> {
    let mut at = 1_000;
    gaps.into_iter()
        .map(|(gap, cost, admitted)| {
            at += gap;
            (at, cost, admitted)
        })
        .collect()
}

fn gaps() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let gap = prop_oneof![Just(0), 1..30_u64, 1..3_000_u64];
    prop::collection::vec((gap, 0..9_u64, prop::bool::weighted(0.7)), 1..60)
}

proptest! {
    #[test]
    fn excess_is_the_most_of_all_spans(gaps in gaps(), count in 1..40_u64, period in 1..900_u64, burst in 1..20_u64) {
        let rate = Rate::new(count, Duration::from_nanos(period)).unwrap();
        let asked = timed(gaps);
        let mut judge = Envelope::new(rate, burst).unwrap();
        for (at, cost, admitted) in &asked {
            judge.ask(Tick::from_nanos(*at), *cost, *admitted);
        }
        let (parts, unit) = judge.excess_scaled();
        prop_assert_eq!(parts as i128, excess(&asked, rate, burst));
        prop_assert_eq!(judge.excess(), parts.div_ceil(u128::from(unit)) as u64);
        prop_assert_eq!(judge.utilisation().admitted, asked.iter().filter(|(.., yes)| *yes).map(|(_, cost, _)| cost).sum::<u64>());
    }

    /// The ideal is the library's own limit under the same requests, and what that admits is never in excess.
    #[test]
    fn the_ideal_is_one_central_limit(gaps in gaps(), count in 1..40_u64, period in 1..900_u64, burst in 1..20_u64) {
        let quota = Quota::per(count, Duration::from_nanos(period)).burst(burst).gcra().unwrap();
        let mut state = quota.fresh(Tick::EPOCH);
        let mut judge = Envelope::of(&quota).unwrap();
        for (at, cost, _) in timed(gaps) {
            let Some(units) = Cost::new(cost) else { continue };
            let now = Tick::from_nanos(at);
            judge.ask(now, cost, admits(&quota, &mut state, now, units));
        }
        prop_assert_eq!(judge.excess_scaled().0, 0);
        let told = judge.utilisation();
        prop_assert_eq!(told.admitted, told.ideal);
    }

    /// A limit is changed in use to a smaller, larger, faster or slower one. The ideal is the library's own limit,
    /// which carries over what was spent. Regression: the envelope granted the new limit's whole burst again.
    #[test]
    fn the_ideal_of_a_changed_limit_is_one_that_was_changed(
        gaps in gaps(),
        limits in prop::collection::vec((1..40_u64, 1..900_u64, 1..20_u64), 2..5),
    ) {
        let quota = |(count, period, burst): (u64, u64, u64)| {
            Quota::per(count, Duration::from_nanos(period)).burst(burst).gcra().unwrap()
        };
        let mut quotas = limits.into_iter().map(quota);
        let mut quota = quotas.next().unwrap();
        let mut state = quota.fresh(Tick::EPOCH);
        let mut judge = Envelope::of(&quota).unwrap();
        for (number, (at, cost, _)) in timed(gaps).into_iter().enumerate() {
            let now = Tick::from_nanos(at);
            if let Some(next) = quotas.next().filter(|_| number % 7 == 6) {
                state = next.carry(&quota, &state, now, Replace::AsIs);
                quota = next;
                let (rate, burst) = quota.flow().unwrap();
                judge.change(now, rate, burst).unwrap();
            }
            let Some(units) = Cost::new(cost) else { continue };
            judge.ask(now, cost, admits(&quota, &mut state, now, units));
        }
        prop_assert_eq!(judge.excess_scaled().0, 0);
        let told = judge.utilisation();
        prop_assert_eq!(told.admitted, told.ideal);
    }

    #[test]
    fn the_excess_of_windows_is_that_of_the_fullest(asked in prop::collection::vec((0..4_u64, 0..9_u64, 0..9_u64), 0..40), limit in 1..30_u64) {
        let (mut judge, mut window, mut windows) = (WindowEnvelope::new(limit), 1, vec![(0_u64, 0_u64); 200]);
        for (later, asked, admitted) in asked {
            window += later;
            judge.batch(window, asked, admitted);
            windows[window as usize].0 += asked;
            windows[window as usize].1 += admitted;
        }
        let excess = windows.iter().map(|(_, admitted)| admitted.saturating_sub(limit)).max().unwrap();
        let ideal: u64 = windows.iter().map(|(asked, _)| *asked.min(&limit)).sum();
        prop_assert_eq!((judge.excess(), judge.utilisation().ideal), (excess, ideal));
    }
}

/// Units that nodes still grant under the old limit are in excess of the new one; earlier excess stays.
#[test]
fn what_is_granted_beyond_a_changed_limit_is_in_excess() {
    let per_second = |count| Rate::new(count, Duration::from_secs(1)).unwrap();
    let at = Tick::from_secs(1);
    let mut judge = Envelope::new(per_second(100), 100).unwrap();
    judge.ask(at, 90, true);
    judge.change(at, per_second(50), 50).unwrap();
    assert_eq!(judge.excess(), 0, "ninety were the old limit's");
    judge.batch(at, 10, 10);
    assert_eq!((judge.excess(), judge.utilisation().ideal), (10, 90), "and nothing is left of fifty");
    judge.batch(at.after(Duration::from_secs(1)), 100, 50);
    assert_eq!((judge.excess(), judge.utilisation().ideal), (10, 140));
    judge.change(at.after(Duration::from_secs(1)), per_second(3), 1_000).unwrap();
    assert_eq!(judge.excess(), 10, "as many units, whatever a unit weighs");
    assert!(judge.change(at, per_second(1), 0).is_err());
}

#[test]
fn asks_that_come_late_count_at_the_latest_tick_and_numbers_at_their_edges_saturate() {
    let rate = Rate::new(1, Duration::from_secs(1)).unwrap();
    let mut judge = Envelope::new(rate, 1).unwrap();
    judge.ask(Tick::from_secs(9), 1, true);
    judge.ask(Tick::from_secs(3), 1, true);
    assert_eq!(judge.excess(), 1);
    judge.restart();
    assert_eq!((judge.excess(), judge.utilisation().admitted), (1, 0), "the span goes on");
    for _ in 0..3 {
        judge.batch(Tick::MAX, u64::MAX, u64::MAX);
    }
    assert_eq!((judge.excess(), judge.utilisation().admitted), (u64::MAX, u64::MAX));
}

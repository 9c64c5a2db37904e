//! Every interleaving of a few callers and a clock: no caller enters beyond the bound, and no breaker is stuck.

use std::time::Duration;

use tidegate_core::breaker::Condition;
use tidegate_core::{Ask, Cost, Guard, Outcome, Receipt, Tick, Transition};

use crate::breaker_model::model::{Judges, Looks, Terms};
use crate::breaker_model::{Pair, START, Step};

/// At most two probes, in two steps; open for two nanoseconds, and places live for three.
const TERMS: Terms = Terms {
    looks: Looks::Back(2),
    failure_ratio: Some(0.5),
    slow_ratio: None,
    consecutive: None,
    failures: None,
    min_calls: 2,
    above: false,
    strict: false,
    every: None,
    open_for: 2,
    longest: 4,
    growth: 2,
    probes: 1,
    ttl: 3,
    judges: Judges::Successes(2),
    steps: 1,
    healthy: None,
};

const STEPS: [Step; 7] = [
    Step::Enter,
    Step::Leave(0, Outcome::Success),
    Step::Leave(0, Outcome::Failure),
    Step::Leave(1, Outcome::Failure),
    Step::Leave(0, Outcome::Ignored),
    Step::Clock(1),
    Step::Clock(2),
];

fn walk(pair: &Pair, left: u32, ends: &mut u64) {
    if left == 0 {
        *ends += 1;
        is_not_stuck(pair);
        return;
    }
    for step in STEPS {
        let mut next = pair.clone();
        next.step(step);
        walk(&next, left - 1, ends);
    }
}

/// All callers inside are lost: after the open time and their places' time to live, a call enters, and a few successful
/// ones close the breaker.
fn is_not_stuck(pair: &Pair) {
    let (breaker, mut state) = (&pair.breaker, pair.state.clone());
    let mut now = Tick::from_nanos(pair.now.max(START)).after(Duration::from_nanos(10));
    // One of the calls may find a window of which half has failed already, and open the breaker once more.
    for _ in 0..7 {
        let Transition::Allowed { next, receipt, .. } = breaker.enter(&state, Ask::allow(now, Cost::ONE))
        else {
            panic!("stuck: {state:?}");
        };
        state = breaker.leave(&next, now, &receipt, Outcome::Success);
        now = now.after(Duration::from_nanos(10));
    }
    assert_eq!(breaker.condition(&state, now), Condition::Closed, "{:?}", pair.state);
}

#[test]
fn every_sequence_of_six_steps_is_as_the_list_and_ends_well() {
    let mut ends = 0;
    let mut tripped = Pair::new(&TERMS);
    // Starts from a breaker that has just tripped, which few steps do not reach otherwise.
    for step in [Step::Enter, Step::Enter, STEPS[2], STEPS[2]] {
        tripped.step(step);
    }
    walk(&tripped, 6, &mut ends);
    walk(&Pair::new(&TERMS), 5, &mut ends);
    assert_eq!(ends, 7u64.pow(6) + 7u64.pow(5));
}

fn entered(pair: &mut Pair) -> Receipt {
    pair.step(Step::Enter);
    pair.held.last().unwrap().1
}

#[test]
fn a_probe_that_is_lost_does_not_strand_it() {
    let mut pair = Pair::new(&TERMS);
    for step in [Step::Enter, Step::Enter, STEPS[2], STEPS[2], Step::Clock(2)] {
        pair.step(step);
    }
    let lost = entered(&mut pair);
    let at = |now: u64| Ask::allow(Tick::from_nanos(now), Cost::ONE);
    assert!(matches!(pair.breaker.enter(&pair.state, at(pair.now + 2)), Transition::Denied { .. }));
    let Transition::Allowed { next, .. } = pair.breaker.enter(&pair.state, at(pair.now + 3)) else {
        panic!("its place is free again");
    };
    let late = pair.breaker.leave(&next, Tick::from_nanos(pair.now + 3), &lost, Outcome::Success);
    assert_eq!(late, next, "what comes too late says nothing, and takes nobody's place");
}

/// Counters have a bounded window while closed: after a million good calls, an outage is noticed within the window.
#[test]
fn a_long_good_time_does_not_hide_an_outage() {
    let breaker = tidegate_core::breaker::CircuitBreaker::builder().jitter(0.0).build().unwrap();
    let mut state = breaker.fresh(Tick::EPOCH);
    let mut call = |at: Duration, outcome| {
        let now = Tick::EPOCH.after(at);
        let receipt = breaker.enter_in_place(&mut state, Ask::allow(now, Cost::ONE), &mut |_| ())?;
        breaker.leave_in_place(&mut state, now, &receipt, None, outcome, &mut |_| ());
        Ok::<_, tidegate_core::Retry>(())
    };
    for nth in 0..1_000_000 {
        call(Duration::from_millis(nth), Outcome::Success).unwrap();
    }
    // A thousand calls a second: before the window is over, half of its calls have failed.
    let outage = Duration::from_secs(1_000);
    let failed =
        (0..20_000).take_while(|nth| call(outage + Duration::from_millis(*nth), Outcome::Failure).is_ok());
    assert!((4_000..=5_000).contains(&failed.count()));
}

#[test]
fn a_probe_that_is_cancelled_closes_nothing_and_opens_nothing() {
    let mut pair = Pair::new(&TERMS);
    for step in [Step::Enter, Step::Enter, STEPS[2], STEPS[2], Step::Clock(2)] {
        pair.step(step);
    }
    for _ in 0..100 {
        entered(&mut pair);
        assert!(matches!(
            pair.breaker.condition(&pair.state, Tick::from_nanos(pair.now)),
            Condition::HalfOpen { in_flight: 1, at_most: 1, step: 0, .. }
        ));
        pair.step(Step::Leave(0, Outcome::Ignored));
    }
}

//! Visits every state that three callers, a clock and a person can bring a breaker into within a number of steps, each
//! once. Checks what holds in all of them, and that each has a way back to closed.
//!
//! [`crate::breaker_model::small_world`] walks sequences beside the plain model, but only a few steps deep, because many orders reach
//! the same state. This search merges equal states, so it goes deeper. It tracks the callers inside by itself, and asks
//! the breaker only for its answers.

use std::collections::HashSet;
use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, CircuitBreakerState, Condition, Force, Forced};
use tidegate_core::{Ask, Cost, Guard, Outcome, Receipt, State, Tick, Transition};

use crate::breaker_model::model::{Judges, Looks, Terms};
use crate::breaker_model::{START, built};

/// The most callers inside at once.
const CALLERS: usize = 3;

/// How long a forced state lasts, in nanoseconds.
const FORCED_FOR: u64 = 2;

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
    open_for: 1,
    longest: 1,
    growth: 1,
    probes: 1,
    ttl: 2,
    judges: Judges::Successes(2),
    steps: 1,
    healthy: None,
};

/// A caller that is inside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Caller {
    entered: u64,
    /// The number of the half-open period in which it is a probe; `None` if it entered a closed breaker.
    trying: Option<u32>,
    /// The receipt's tick and mark, in a form that can be compared and hashed.
    mark: (Tick, [u64; 4]),
}

#[derive(Clone)]
struct World {
    state: CircuitBreakerState,
    now: u64,
    /// In order of entering.
    held: Vec<(Caller, Receipt)>,
    /// How often the breaker became half-open.
    tried: u32,
    forced: Option<(Force, u64)>,
}

/// Returns what is visible of a breaker from outside.
fn seen(breaker: &CircuitBreaker, state: &CircuitBreakerState, now: u64) -> (Condition, [u32; 3]) {
    let now = Tick::from_nanos(now);
    let totals = breaker.totals(state, now);
    (breaker.condition(state, now), [totals.calls, totals.failures, totals.slow])
}

impl World {
    fn new(breaker: &CircuitBreaker) -> Self {
        let state = breaker.fresh(Tick::from_nanos(START));
        Self { state, now: START, held: Vec::new(), tried: 0, forced: None }
    }

    /// Two worlds with the same identity behave the same from here on.
    fn identity(&self) -> (Vec<u8>, u64, Vec<Caller>) {
        let held = self.held.iter().map(|(caller, _)| *caller).collect();
        (State::Breaker(self.state.clone()).encode(), self.now, held)
    }

    /// Returns every world that one step leads to.
    fn next(&self, breaker: &CircuitBreaker) -> Vec<Self> {
        let mut all = vec![self.later(1)];
        if self.held.len() < CALLERS {
            all.extend(self.enter(breaker));
        }
        for which in 0..self.held.len() {
            for outcome in [Outcome::Success, Outcome::Failure, Outcome::Ignored] {
                all.push(self.leave(breaker, which, outcome));
            }
        }
        for to in [Force::Open, Force::Closed, Force::MetricsOnly, Force::Disabled] {
            all.extend(self.force(breaker, to));
        }
        all
    }

    fn later(&self, nanos: u64) -> Self {
        let mut next = self.clone();
        next.now += nanos;
        next.forced = next.forced.filter(|(_, until)| next.now < *until);
        next
    }

    fn enter(&self, breaker: &CircuitBreaker) -> Option<Self> {
        let (mut next, now) = (self.clone(), Tick::from_nanos(self.now));
        let (before, _) = seen(breaker, &self.state, self.now);
        match breaker.enter(&self.state, Ask::allow(now, Cost::ONE)) {
            Transition::Allowed { next: state, receipt, .. } => {
                let was_open = matches!(before, Condition::Open { .. });
                if let Condition::Open { until, .. } = before {
                    assert!(until <= now, "nobody enters an open breaker: {before:?}");
                }
                assert!(
                    !matches!(before, Condition::Forced { to: Force::Open, .. }),
                    "nor one that is forced open"
                );
                let (after, _) = seen(breaker, &state, self.now);
                let is_probe = matches!(after, Condition::HalfOpen { .. });
                assert!(is_probe || !was_open);
                next.tried += u32::from(was_open);
                let mark = (receipt.at, receipt.mark);
                let caller = Caller { entered: self.now, trying: is_probe.then_some(next.tried), mark };
                next.held.push((caller, receipt));
                next.state = state;
                Some(next)
            }
            Transition::Denied { .. } => {
                assert!(!matches!(before, Condition::Closed), "a closed breaker refuses nobody");
                None
            }
        }
    }

    fn leave(&self, breaker: &CircuitBreaker, which: usize, outcome: Outcome) -> Self {
        let mut next = self.clone();
        let (caller, receipt) = next.held.remove(which);
        next.state = breaker.leave(&self.state, Tick::from_nanos(self.now), &receipt, outcome);
        let (before, after) = (seen(breaker, &self.state, self.now), seen(breaker, &next.state, self.now));
        let lapsed = self.now >= caller.entered + TERMS.ttl;
        if lapsed {
            assert_eq!(before, after, "what comes after its time says nothing");
        } else if outcome == Outcome::Ignored {
            let in_flight = |condition: Condition| match condition {
                Condition::HalfOpen { in_flight, .. } => (in_flight, "half-open"),
                other => (0, other.as_str()),
            };
            let ((inside, was), (left, is)) = (in_flight(before.0), in_flight(after.0));
            let step = |condition| if let Condition::HalfOpen { step, .. } = condition { step } else { 0 };
            assert_eq!((was, before.1, step(before.0)), (is, after.1, step(after.0)), "no evidence");
            assert!(left <= inside);
        }
        next
    }

    /// A person forces a state for a while. Only if none is forced, since a second one replaces the first.
    fn force(&self, breaker: &CircuitBreaker, to: Force) -> Option<Self> {
        if self.forced.is_some() {
            return None;
        }
        let (mut next, until) = (self.clone(), self.now + FORCED_FOR);
        let forced = Forced::new(to, Some(Tick::from_nanos(until)), "");
        breaker.force_in_place(&mut next.state, Tick::from_nanos(self.now), Some(forced), &mut |_| ());
        next.forced = Some((to, until));
        Some(next)
    }

    /// Checks what holds in every state.
    fn check(&self, breaker: &CircuitBreaker) {
        let (condition, _) = seen(breaker, &self.state, self.now);
        match (self.forced, condition) {
            (Some((to, until)), Condition::Forced { to: shown, until: ends }) => {
                assert_eq!((to, Some(Tick::from_nanos(until))), (shown, ends));
            }
            (None, Condition::Forced { .. }) => panic!("a forced state outlives its end: {condition:?}"),
            (Some(forced), other) => panic!("{forced:?} is not in force: {other:?}"),
            (None, Condition::HalfOpen { step, in_flight, at_most, .. }) => {
                let here = |caller: &Caller| {
                    caller.trying == Some(self.tried) && self.now < caller.entered + TERMS.ttl
                };
                let inside = self.held.iter().filter(|(caller, _)| here(caller)).count() as u64;
                assert_eq!(in_flight, inside, "{condition:?}");
                assert!(in_flight <= at_most && at_most <= 1 << step, "{condition:?}");
                // As many as are shown may enter: the places of the step, or the calls that are still to be judged.
                let ask = Ask::allow(Tick::from_nanos(self.now), Cost::ONE);
                let enters = matches!(breaker.enter(&self.state, ask), Transition::Allowed { .. });
                assert_eq!(enters, in_flight < at_most, "{condition:?}");
            }
            (None, _) => {}
        }
        self.recovers(breaker);
    }

    /// All callers inside are lost, and from then on every call succeeds: the breaker closes.
    fn recovers(&self, breaker: &CircuitBreaker) {
        let mut state = self.state.clone();
        let mut now = Tick::from_nanos(self.now);
        for _ in 0..8 {
            now = now.after(Duration::from_nanos(FORCED_FOR + TERMS.ttl));
            let Transition::Allowed { next, receipt, .. } = breaker.enter(&state, Ask::allow(now, Cost::ONE))
            else {
                panic!("stuck: {:?}", self.state)
            };
            state = breaker.leave(&next, now, &receipt, Outcome::Success);
        }
        assert_eq!(breaker.condition(&state, now), Condition::Closed, "{:?}", self.state);
    }
}

/// Visits every state within this many steps. Returns how many states there are.
fn visit(terms: &Terms, steps: usize) -> usize {
    let breaker = built(terms);
    let first = World::new(&breaker);
    let mut known = HashSet::from([first.identity()]);
    let mut edge = vec![first];
    for _ in 0..steps {
        let mut beyond = Vec::new();
        for world in edge.iter().flat_map(|world| world.next(&breaker)) {
            if known.insert(world.identity()) {
                world.check(&breaker);
                beyond.push(world);
            }
        }
        edge = beyond;
    }
    known.len()
}

#[test]
fn every_state_of_three_callers_keeps_the_bound_and_has_a_way_back() {
    let judged = [Judges::Successes(2), Judges::Batch(2)];
    let slow = Terms { slow_ratio: Some((0, 0.5)), ..TERMS };
    let consecutive = Terms { failure_ratio: None, consecutive: Some(1), ..TERMS };
    let mut visited = 0;
    for terms in [TERMS, slow, consecutive] {
        for judges in judged {
            visited += visit(&Terms { judges, ..terms.clone() }, 8);
        }
    }
    println!("{visited} states");
    // 56,324 when this was written; far fewer would mean that the search ended early.
    assert!(visited > 50_000, "{visited} states");
}

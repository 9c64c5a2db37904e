//! Every sequence of up to six events over up to four ticks, by itself and without a model: what a breaker promises whatever happens.
//!
//! * It is never stuck: whoever is lost, a call enters in time, and good calls close it.
//! * Half-open, no more probes are inside than are allowed.
//! * A probe that is cancelled is no evidence: nothing of the state changes but its place.

use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, CircuitBreakerState, Condition, Evaluate, Judgement};
use tidegate_core::{Ask, Cost, Guard, Outcome, Receipt, Tick, Transition};

/// The length of a tick: the shortest span at which figures are compared.
const TICK: Duration = Duration::from_millis(1);
/// For how many ticks a probe holds its place.
const TTL: u32 = 2;
const MOST_TICKS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Enter,
    /// Of those inside, the one who came first.
    First(Outcome),
    /// The one who came last.
    Last(Outcome),
    Tick,
}

const EVENTS: [Event; 6] = [
    Event::Enter,
    Event::First(Outcome::Success),
    Event::First(Outcome::Failure),
    Event::First(Outcome::Ignored),
    Event::Last(Outcome::Ignored),
    Event::Tick,
];

#[derive(Clone)]
struct World {
    breaker: CircuitBreaker,
    state: CircuitBreakerState,
    now: Tick,
    ticks: u32,
    /// Counts the events after which it was not half-open: probes between two of them are of one try.
    tries: u32,
    /// Those inside, with the try whose probe each is.
    inside: Vec<(Receipt, Option<u32>)>,
}

impl World {
    fn new(breaker: CircuitBreaker) -> Self {
        let now = Tick::from_secs(3600);
        let state = breaker.fresh(now);
        Self { breaker, state, now, ticks: 0, tries: 0, inside: Vec::new() }
    }

    fn condition(&self) -> Condition {
        self.breaker.condition(&self.state, self.now)
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Tick => {
                self.now = self.now.after(TICK);
                self.ticks += 1;
            }
            Event::Enter => self.enter(),
            Event::First(outcome) if !self.inside.is_empty() => {
                let receipt = self.inside.remove(0).0;
                self.leave(&receipt, outcome);
            }
            Event::Last(outcome) if !self.inside.is_empty() => {
                let receipt = self.inside.pop().unwrap().0;
                self.leave(&receipt, outcome);
            }
            Event::First(_) | Event::Last(_) => {}
        }
        self.holds_no_more_probes_than_are_allowed();
    }

    fn enter(&mut self) {
        let ask = Ask::allow(self.now, Cost::ONE);
        let mut in_place = self.state.clone();
        let entered = self.breaker.enter_in_place(&mut in_place, ask, &mut |_| ());
        match (self.breaker.enter(&self.state, ask), entered) {
            (Transition::Allowed { next, receipt, .. }, Ok(again)) => {
                assert_eq!((&next, receipt), (&in_place, again), "one law, copied or in place");
                self.state = next;
                let is_probe = matches!(self.condition(), Condition::HalfOpen { .. });
                self.inside.push((receipt, is_probe.then_some(self.tries)));
            }
            (Transition::Denied { retry }, Err(again)) => {
                assert_eq!(retry, again);
                if let Some(wait) = retry.after() {
                    let then = Ask::allow(self.now.after(wait), Cost::ONE);
                    assert!(matches!(self.breaker.enter(&self.state, then), Transition::Allowed { .. }));
                }
            }
            (one, other) => panic!("{one:?} and {other:?} of {:?}", self.state),
        }
    }

    fn leave(&mut self, receipt: &Receipt, outcome: Outcome) {
        let before = self.condition();
        self.state = self.breaker.leave(&self.state, self.now, receipt, outcome);
        if outcome != Outcome::Ignored {
            return;
        }
        match (before, self.condition()) {
            (
                Condition::HalfOpen { step, at_most, totals, in_flight: before },
                Condition::HalfOpen {
                    step: same_step,
                    at_most: same_most,
                    totals: same_totals,
                    in_flight: after,
                },
            ) => {
                assert_eq!((step, at_most, totals), (same_step, same_most, same_totals));
                assert!(before - after <= 1 && after <= before);
            }
            (before, after) => assert_eq!(before, after),
        }
    }

    fn holds_no_more_probes_than_are_allowed(&mut self) {
        let Condition::HalfOpen { step, in_flight, at_most, .. } = self.condition() else {
            self.tries += 1;
            return;
        };
        assert_eq!(at_most, self.breaker.probes() << step);
        assert!(in_flight <= at_most, "{:?}", self.state);
        // Counted apart from what the state says: probes of this try that are inside and whose places have not lapsed.
        let of_this_try = self
            .inside
            .iter()
            .filter(|(receipt, tried)| *tried == Some(self.tries) && self.now < receipt.at.after(TICK * TTL));
        assert!(of_this_try.count() as u64 <= at_most, "{:?}", self.inside);
    }

    /// Everybody inside is lost, and nothing happens for as long as it can be open and places are held.
    fn is_not_stuck(&self) {
        let (mut state, mut now) = (self.state.clone(), self.now.after(TICK * 20));
        for _ in 0..9 {
            let Transition::Allowed { next, receipt, .. } =
                self.breaker.enter(&state, Ask::allow(now, Cost::ONE))
            else {
                panic!("stuck: {state:?}")
            };
            state = self.breaker.leave(&next, now, &receipt, Outcome::Success);
            now = now.after(TICK * 20);
        }
        assert_eq!(self.breaker.condition(&state, now), Condition::Closed, "{:?}", self.state);
    }
}

fn walk(world: &World, left: u32, ends: &mut u64) {
    world.is_not_stuck();
    if left == 0 {
        *ends += 1;
        return;
    }
    for event in EVENTS {
        if event == Event::Tick && world.ticks == MOST_TICKS {
            continue;
        }
        let mut next = world.clone();
        next.happens(event);
        walk(&next, left - 1, ends);
    }
}

fn breaker(probes: u64, judgement: Judgement, evaluate: Evaluate) -> CircuitBreaker {
    let builder = CircuitBreaker::builder().consecutive(2).open_for(TICK * 2).open_at_most(TICK * 4);
    let builder = builder.probes(probes).ttl(TICK * TTL).judgement(judgement).steps(1).evaluate(evaluate);
    builder.without_failure_ratio().forget_after(TICK * 10_000).build().unwrap()
}

#[test]
fn whatever_happens_it_is_not_stuck_and_lets_no_more_probes_in_than_it_may() {
    let mut ends = 0;
    for (probes, judgement, evaluate) in [
        (1, Judgement::Successes(2), Evaluate::EachCall),
        (2, Judgement::Batch(2), Evaluate::EachFailure),
        (2, Judgement::Evidence(50_000), Evaluate::Every(TICK)),
    ] {
        let fresh = World::new(breaker(probes, judgement, evaluate));
        walk(&fresh, 6, &mut ends);
        // Six events reach few states of one that is tried: from one that has tripped, and from one that is half-open.
        let mut tripped = fresh.clone();
        for event in [Event::Enter, Event::Enter, EVENTS[2], EVENTS[2], Event::Tick] {
            tripped.happens(event);
        }
        assert!(matches!(tripped.condition(), Condition::Open { .. }), "{:?}", tripped.state);
        tripped.ticks = 0;
        walk(&tripped, 6, &mut ends);
        for event in [Event::Tick, Event::Tick, Event::Enter] {
            tripped.happens(event);
        }
        assert!(matches!(tripped.condition(), Condition::HalfOpen { .. }), "{:?}", tripped.state);
        tripped.ticks = 0;
        walk(&tripped, 6, &mut ends);
    }
    // Of 6^6 sequences those are left out that have five or six ticks.
    assert_eq!(ends, 9 * (6_u64.pow(6) - 6 * 5 - 1));
}

//! Compares the breaker with a plain model over random parameters and histories, and exhaustively in a small world.

mod every_state;
mod hostile;
mod model;
mod small_world;

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::breaker::{CircuitBreaker, CircuitBreakerState, Evaluate, Judgement, Window};
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{
    Algorithm, Ask, Cost, Guard, Outcome, Quota, Receipt, Replace, Retry, State, Tick, Transition,
};

use model::{Caller, Judges, Looks, Model, Refusal, Terms};

/// The next step. Clocks move in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Enter,
    /// One of the callers that entered and have not left, by its index.
    Leave(usize, Outcome),
    Clock(u64),
    ClockBack(u64),
}

/// Two hours from the epoch, in nanoseconds.
pub(crate) const START: u64 = 7_200_000_000_000;

pub(crate) fn built(terms: &Terms) -> CircuitBreaker {
    let span = Duration::from_nanos;
    let mut builder = CircuitBreaker::builder()
        .window(match terms.looks {
            Looks::Back(calls) => Window::Calls(calls as u32),
            Looks::BackInTime { length, buckets } => {
                Window::Time { span: span(length * buckets), buckets: buckets as u32 }
            }
        })
        .without_failure_ratio()
        .min_calls(terms.min_calls as u32)
        .open_for(span(terms.open_for))
        .open_at_most(span(terms.longest))
        .growth(terms.growth as f64)
        .jitter(0.0)
        .probes(terms.probes as u64)
        .ttl(span(terms.ttl))
        .judgement(match terms.judges {
            Judges::Successes(enough) => Judgement::Successes(enough as u32),
            Judges::Batch(all) => Judgement::Batch(all as u32),
            Judges::Evidence(risk) => Judgement::Evidence((risk * 1e6) as u32),
        })
        .steps(terms.steps as u8);
    if let Some(share) = terms.failure_ratio {
        builder = builder.failure_ratio(share);
    }
    if let Some((after, share)) = terms.slow_ratio {
        builder = builder.slow_calls(span(after), share);
    }
    if let Some(failures) = terms.consecutive {
        builder = builder.consecutive(failures as u32);
    }
    if let Some(failures) = terms.failures {
        builder = builder.failures(failures as u32);
    }
    if terms.above {
        builder = builder.above();
    }
    if terms.strict {
        builder = builder.strictly_after();
    }
    if let Some(every) = terms.every {
        builder = builder.evaluate(Evaluate::Every(span(every)));
    }
    builder.forget_after(terms.healthy.map_or(Duration::MAX, span)).build().unwrap()
}

/// A breaker and its model side by side.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) breaker: CircuitBreaker,
    pub(crate) state: CircuitBreakerState,
    pub(crate) model: Model,
    pub(crate) now: u64,
    pub(crate) entered: usize,
    pub(crate) held: Vec<(Caller, Receipt)>,
}

impl Pair {
    pub(crate) fn new(terms: &Terms) -> Self {
        let breaker = built(terms);
        let state = breaker.fresh(Tick::from_nanos(START));
        let model = Model::new(terms.clone(), START);
        Self { breaker, state, model, now: START, entered: 0, held: Vec::new() }
    }

    pub(crate) fn step(&mut self, step: Step) {
        let now = Tick::from_nanos(self.now);
        match step {
            Step::Clock(nanos) => self.now += nanos,
            Step::ClockBack(nanos) => self.now -= nanos,
            Step::Enter => {
                let expected = self.model.enter(self.entered, self.now);
                self.entered += 1;
                match (self.breaker.enter(&self.state, Ask::allow(now, Cost::ONE)), expected) {
                    (Transition::Allowed { wait, next, receipt }, Ok(caller)) => {
                        assert!(wait.is_zero());
                        self.undone(&next, &receipt);
                        self.held.push((caller, receipt));
                        self.state = next;
                    }
                    (Transition::Denied { retry: Retry::After(wait) }, Err(Refusal::After(expected))) => {
                        assert_eq!(wait, Duration::from_nanos(expected));
                    }
                    (Transition::Denied { retry: Retry::Unknown }, Err(Refusal::Unknown)) => {}
                    (ours, theirs) => panic!("{ours:?} and not {theirs:?}"),
                }
            }
            Step::Leave(..) if self.held.is_empty() => {}
            Step::Leave(which, outcome) => {
                let (caller, receipt) = self.held.remove(which % self.held.len());
                let failed = match outcome {
                    Outcome::Ignored => None,
                    outcome => Some(matches!(outcome, Outcome::Failure | Outcome::Overloaded)),
                };
                self.model.leave(caller, self.now, failed);
                self.state = self.breaker.leave(&self.state, now, &receipt, outcome);
            }
        }
        self.compare(step);
    }

    fn compare(&self, step: Step) {
        let now = Tick::from_nanos(self.now);
        let totals = self.breaker.totals(&self.state, now);
        let ours = (
            self.breaker.condition(&self.state, now).as_str(),
            [totals.calls, totals.failures, totals.slow].map(|number| number as usize),
        );
        assert_eq!(ours, self.model.shown(self.now), "{step:?}");
        if let Some((in_flight, most)) = self.model.in_flight(self.now) {
            assert!(in_flight <= most, "{in_flight} probes of {most}");
        }
        // From then on it is as good as new, for new callers and for callers inside.
        if let Some(full) = self.breaker.full_at(&self.state) {
            let full = full.max(now);
            let fresh = self.breaker.fresh(full);
            assert_eq!(
                self.breaker.standing(&self.state, full),
                self.breaker.standing(&fresh, full),
                "{step:?}"
            );
            assert_eq!(self.breaker.totals(&self.state, full), self.breaker.totals(&fresh, full), "{step:?}");
            for (_, receipt) in &self.held {
                let left = self.breaker.leave(&self.state, full, receipt, Outcome::Failure);
                assert_eq!(self.breaker.totals(&left, full), self.breaker.totals(&fresh, full), "{step:?}");
            }
        }
        let state = State::Breaker(self.state.clone());
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        assert!(state.encode().len() <= Quota::from(self.breaker.clone()).largest_state());
    }

    /// Law: leaving without an outcome is the same as not having entered, except that the open time is over.
    fn undone(&self, next: &CircuitBreakerState, receipt: &Receipt) {
        let at = Tick::from_nanos(self.now);
        let back = self.breaker.leave(next, at, receipt, Outcome::Ignored);
        let may_enter = |state: &CircuitBreakerState| self.breaker.standing(state, at).remaining;
        assert_eq!(may_enter(&back), may_enter(&self.state));
        assert_eq!(self.breaker.totals(&back, at), self.breaker.totals(&self.state, at));
    }
}

fn terms() -> impl Strategy<Value = Terms> {
    let looks = prop_oneof![
        (1usize..20).prop_map(Looks::Back),
        (1u64..9, 1u64..8).prop_map(|(length, buckets)| Looks::BackInTime { length, buckets }),
    ];
    let share = || prop::sample::select(vec![0.1, 0.25, 0.5, 0.75, 1.0]);
    let rules = (
        prop::option::of(share()),
        prop::option::of((0u64..8, share())),
        prop::option::weighted(0.3, 1usize..5),
        prop::option::weighted(0.3, 1usize..5),
        (1usize..8, any::<bool>(), any::<bool>()),
    );
    let judges = prop_oneof![
        (1usize..5).prop_map(Judges::Successes),
        (1usize..5).prop_map(Judges::Batch),
        prop::sample::select(vec![0.01, 0.05, 0.2]).prop_map(Judges::Evidence),
    ];
    let opening = (1u64..20, 1u64..60, 1u64..4, 1usize..4, 1u64..30, 0usize..4, prop::option::of(1u64..80));
    (looks, rules, judges, opening).prop_map(|(looks, rules, judges, opening)| {
        let (failure_ratio, slow_ratio, consecutive, failures, (min_calls, above, strict)) = rules;
        let (open_for, more, growth, probes, ttl, steps, healthy) = opening;
        let min_calls = match looks {
            Looks::Back(calls) => min_calls.min(calls),
            Looks::BackInTime { .. } => min_calls,
        };
        // A number that is never reached is refused.
        let failures = match looks {
            Looks::Back(calls) => {
                failures.map(|most| most.min(calls - usize::from(above))).filter(|most| *most > 0)
            }
            Looks::BackInTime { .. } => failures,
        };
        let none = slow_ratio.is_none() && consecutive.is_none() && failures.is_none();
        Terms {
            looks,
            failure_ratio: failure_ratio.or(none.then_some(0.5)),
            slow_ratio,
            consecutive,
            failures,
            min_calls,
            above,
            strict,
            every: None,
            open_for,
            longest: open_for + more,
            growth,
            probes,
            ttl,
            judges,
            steps,
            healthy,
        }
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop::sample::select(vec![
        Outcome::Success,
        Outcome::Success,
        Outcome::CallersFault,
        Outcome::Failure,
        Outcome::Failure,
        Outcome::Overloaded,
        Outcome::Ignored,
    ]);
    let step = prop_oneof![
        5 => Just(Step::Enter),
        5 => (0usize..6, outcome).prop_map(|(which, outcome)| Step::Leave(which, outcome)),
        3 => (0u64..6).prop_map(Step::Clock),
        1 => (0u64..120).prop_map(Step::Clock),
        1 => (0u64..10).prop_map(Step::ClockBack),
    ];
    prop::collection::vec(step, 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn histories_are_decided_as_a_list_is(terms in terms(), steps in steps()) {
        let mut pair = Pair::new(&terms);
        for step in steps {
            pair.step(step);
        }
    }

    /// Figures are evaluated at intervals; spans are in milliseconds here.
    #[test]
    fn figures_are_compared_at_every_multiple(terms in terms(), steps in steps(), every in 1u64..5) {
        const MS: u64 = 1_000_000;
        let Looks::BackInTime { length, buckets } = terms.looks else { return Ok(()) };
        // The model evaluates at each multiple, in units of one.
        let small = Terms { every: Some(every), ..terms.clone() };
        let large = Terms {
            looks: Looks::BackInTime { length: length * MS, buckets },
            every: Some(every * MS),
            slow_ratio: terms.slow_ratio.map(|(after, share)| (after * MS, share)),
            open_for: terms.open_for * MS,
            longest: terms.longest * MS,
            ttl: terms.ttl * MS,
            healthy: terms.healthy.map(|healthy| healthy * MS),
            strict: false,
            ..terms
        };
        let small = Terms { strict: false, ..small };
        let (breaker, mut model, mut now) = (built(&large), Model::new(small, START), START);
        let at = |now: u64| Tick::from_nanos(now * MS);
        let mut state = breaker.fresh(at(now));
        let mut held = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Clock(by) => now += by,
                // Places lapse at round ticks finer than a millisecond. Other tests cover steps back.
                Step::ClockBack(_) => {}
                Step::Enter => {
                    let expected = model.enter(number, now);
                    match breaker.enter(&state, Ask::allow(at(now), Cost::ONE)) {
                        Transition::Allowed { next, receipt, .. } => {
                            held.push((expected.unwrap(), receipt));
                            state = next;
                        }
                        Transition::Denied { .. } => prop_assert!(expected.is_err()),
                    }
                }
                Step::Leave(..) if held.is_empty() => {}
                Step::Leave(which, outcome) => {
                    let (caller, receipt) = held.remove(which % held.len());
                    let failed = (outcome != Outcome::Ignored)
                        .then_some(matches!(outcome, Outcome::Failure | Outcome::Overloaded));
                    model.leave(caller, now, failed);
                    state = breaker.leave(&state, at(now), &receipt, outcome);
                }
            }
            let totals = breaker.totals(&state, at(now));
            let totals = [totals.calls, totals.failures, totals.slow].map(|number| number as usize);
            prop_assert_eq!((breaker.condition(&state, at(now)).as_str(), totals), model.shown(now));
            if let Some(full) = breaker.full_at(&state) {
                let full = full.max(at(now));
                prop_assert_eq!(breaker.condition(&state, full).as_str(), "closed");
            }
        }
    }

    /// A clock was an hour fast and is set back: the breaker is as it was at its last change, and continues from there.
    #[test]
    fn a_fast_clock_leaves_what_it_found(terms in terms(), steps in steps()) {
        let mut pair = Pair::new(&terms);
        steps.iter().for_each(|step| pair.step(*step));
        let quota = Quota::from(pair.breaker.clone());
        let state = State::Breaker(pair.state.clone());
        let set_back = |now: Tick| quota.set_back(&state, now);
        // The tick of the last change is the largest at which the state is not set back.
        let last = (0..=pair.now.saturating_sub(START) + 100).rev().map(|after| Tick::from_nanos(START + after));
        let last = last.into_iter().find(|tick| set_back(tick.before(MAX_STEP_BACK)).is_none()
            && set_back(tick.before(MAX_STEP_BACK).before(Duration::from_nanos(1))).is_some());
        let Some(last) = last else { return Ok(()) };
        let to = last.before(Duration::from_secs(3600));
        let Some(State::Breaker(back)) = set_back(to.before(MAX_STEP_BACK)) else { panic!("it was fast") };
        let breaker = &pair.breaker;
        prop_assert_eq!(breaker.totals(&back, to), breaker.totals(&pair.state, last));
        prop_assert_eq!(breaker.condition(&back, to).as_str(), breaker.condition(&pair.state, last).as_str());
        prop_assert_eq!(breaker.standing(&back, to), breaker.standing(&pair.state, last));
        prop_assert_eq!(State::decode(&State::Breaker(back.clone()).encode()), Ok(State::Breaker(back)));
    }

    /// From any state, other parameters lead to a state that works, or forget it.
    #[test]
    fn a_changed_breaker_takes_over(terms in terms(), other in terms(), steps in steps(), reset in any::<bool>()) {
        let mut pair = Pair::new(&terms);
        steps.iter().for_each(|step| pair.step(*step));
        let (old, new) = (Quota::from(pair.breaker.clone()), Quota::from(built(&other)));
        let (state, now) = (State::Breaker(pair.state.clone()), Tick::from_nanos(pair.now));
        let how = if reset { Replace::Reset } else { Replace::AsIs };
        let carried = new.carry(&old, &state, now, how);
        prop_assert!(carried.encode().len() <= new.largest_state().max(old.largest_state()));
        if reset {
            prop_assert_eq!(new.standing(&carried, now).remaining, 1);
        }
        let is_open = |quota: &Quota, state: &State| {
            matches!(quota.decide(state, Ask::allow(now, Cost::ONE)), Transition::Denied { retry: Retry::After(_) })
        };
        prop_assert!(reset || terms.strict || other.strict || is_open(&old, &state) == is_open(&new, &carried));
        for (_, receipt) in &pair.held {
            let _ = new.decide(&new.settle(&carried, now, receipt, 0), Ask::allow(Tick::MAX, Cost::MAX));
        }
    }
}

//! Queries of a breaker's state at a tick. They change nothing.

use std::borrow::Cow;

use super::by_time::Due;
use super::forced::{Forced, WouldTrip};
use super::judgement::Judgement;
use super::machine::ChangeReporter;
use super::parameters::CircuitBreaker;
use super::rules::BreakerThresholds;
use super::state::{CircuitBreakerState, Condition, Phase};
use super::window::Totals;
use crate::guard::Guard as _;
use crate::time::Tick;

impl CircuitBreaker {
    /// Returns the names of the parameters in which another breaker differs, as policy files write them; empty if the two
    /// are equal.
    #[must_use]
    pub fn differs_in(&self, other: &Self) -> Vec<&'static str> {
        let (ours, theirs) = (&*self.parameters, &*other.parameters);
        let judged_by = |by: &Judgement| match by {
            Judgement::Successes(_) => "close_after",
            Judgement::Batch(_) => "judge_calls",
            Judgement::Evidence(_) => "risk",
        };
        let fails = |of: &BreakerThresholds| (of.failure_ratio, of.failures);
        let differences = [
            ("window", ours.window != theirs.window),
            ("failures", fails(&ours.rules) != fails(&theirs.rules)),
            ("consecutive", ours.rules.consecutive != theirs.rules.consecutive),
            ("slow_calls", ours.rules.slow_ratio != theirs.rules.slow_ratio),
            ("slow_after", ours.slow_after != theirs.slow_after),
            ("min_calls", ours.rules.min_calls != theirs.rules.min_calls),
            ("trips", ours.rules.above != theirs.rules.above),
            ("shed_at_most", ours.shed_at_most != theirs.shed_at_most),
            ("overloaded", ours.overload_fails != theirs.overload_fails),
            ("evaluate", ours.evaluate != theirs.evaluate),
            ("open_for", ours.open.first != theirs.open.first),
            ("open_at_most", ours.open.longest != theirs.open.longest),
            ("growth", ours.open.growth != theirs.open.growth),
            ("jitter", (ours.open.jitter, ours.open.seed) != (theirs.open.jitter, theirs.open.seed)),
            ("probes", ours.probes.max() != theirs.probes.max()),
            ("ttl", ours.probes.time_to_live() != theirs.probes.time_to_live()),
            (judged_by(&theirs.judgement), ours.judgement != theirs.judgement),
            ("steps", ours.steps != theirs.steps),
            ("forget_after", ours.forget_after != theirs.forget_after),
        ];
        differences.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// Returns the state of a key that is reset at `at`: nothing is counted, calls in flight do not count when they end,
    /// and a state that a person has forced stays until it ends by itself or by hand.
    #[must_use]
    pub fn reset(&self, state: &CircuitBreakerState, at: Tick) -> CircuitBreakerState {
        let mut next = self.fresh(at);
        if let Some(forced) = self.forced(state, at) {
            self.force_in_place(&mut next, at, Some(forced), &mut |_| ());
        }
        next
    }

    /// Returns the state as of `now`: with expired open times and advanced windows. Copies the state only if a
    /// visible part of it changes. That an old trip no longer counts is not visible before the next trip, so it
    /// copies nothing.
    pub(super) fn at<'s>(
        &self,
        state: &'s CircuitBreakerState,
        now: Tick,
    ) -> (Cow<'s, CircuitBreakerState>, Tick) {
        let at = now.max(state.inner.last);
        if self.due(&state.inner, at) == Due::Nothing {
            return (Cow::Borrowed(state), at);
        }
        let mut state = state.clone();
        self.advance(&mut state.inner, at, &mut ChangeReporter { report: &mut |_| () });
        (Cow::Owned(state), at)
    }

    /// Returns the condition of the breaker at `now`; changes nothing.
    #[must_use]
    pub fn condition(&self, state: &CircuitBreakerState, now: Tick) -> Condition {
        let (state, at) = self.at(state, now);
        self.condition_of(&state.inner, at)
    }

    /// Returns the calls in the window of a closed breaker, or in the current step of a half-open one; changes
    /// nothing.
    #[must_use]
    pub fn totals(&self, state: &CircuitBreakerState, now: Tick) -> Totals {
        let (state, at) = self.at(state, now);
        match &state.inner.phase {
            Phase::Closed { outcomes, .. } => outcomes.clone().totals(at),
            Phase::HalfOpen { totals, .. } => *totals,
            Phase::Open { .. } => Totals::default(),
        }
    }

    /// Returns the state that a person has forced the breaker into, if any.
    #[must_use]
    pub fn forced(&self, state: &CircuitBreakerState, now: Tick) -> Option<Forced> {
        self.at(state, now).0.inner.forced.clone()
    }

    /// Returns how often a breaker that only measures would have opened since it was forced into that state; `None` if
    /// it would not have opened, or is in another state.
    #[must_use]
    pub fn would_trip(&self, state: &CircuitBreakerState, now: Tick) -> Option<WouldTrip> {
        self.at(state, now).0.inner.would_trip
    }
}

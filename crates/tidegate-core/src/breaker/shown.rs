//! Queries of a breaker's state at a tick. They change nothing.

use std::borrow::Cow;

use super::by_time::Due;
use super::forced::{Forced, WouldTrip};
use super::machine::ChangeReporter;
use super::parameters::CircuitBreaker;
use super::state::{CircuitBreakerState, Condition, Phase};
use super::window::Totals;
use crate::time::Tick;

impl CircuitBreaker {
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

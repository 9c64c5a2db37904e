//! The breaker as a guard: transitions for stores, and what becomes of a state when its breaker is changed.

use core::time::Duration;

use super::by_time::Due;
use super::forced::{Force, Forced};
use super::outcomes::Outcomes;
use super::parameters::{CircuitBreaker, Evaluate};
use super::state::{CircuitBreakerState, Inner, Phase};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::guard::{Guard, Outcome};
use crate::time::Tick;

/// A call is one call, whatever it costs. To enter and to leave copies the state, window included; a refusal copies nothing.
impl Guard for CircuitBreaker {
    type State = CircuitBreakerState;

    fn fresh(&self, now: Tick) -> CircuitBreakerState {
        CircuitBreakerState { is: Box::new(Inner::fresh(now)) }
    }

    /// Refuses while it is open, with the time that is left of that, and while half-open with as many probes in flight as may be.
    fn enter(&self, state: &CircuitBreakerState, ask: Ask) -> Transition<CircuitBreakerState> {
        let at = ask.now.max(state.is.last);
        if let Some(Some(retry)) = self.refused_at(&state.is, at) {
            return Transition::Denied { retry };
        }
        let mut next = state.clone();
        match self.enter_in_place(&mut next, ask, &mut |_| ()) {
            Ok(receipt) => Transition::Allowed { wait: Duration::ZERO, next, receipt },
            Err(retry) => Transition::Denied { retry },
        }
    }

    fn leave(
        &self,
        state: &CircuitBreakerState,
        now: Tick,
        receipt: &Receipt,
        outcome: Outcome,
    ) -> CircuitBreakerState {
        let mut next = state.clone();
        self.leave_in_place(&mut next, now, receipt, outcome, &mut |_| ());
        next
    }

    /// The limit is one: whether the next call may enter. `reset_after` is the time until that, where time alone decides; while
    /// half-open, the time until nobody has used it for so long that it is as new, [`Duration::MAX`] where it never is.
    fn standing(&self, state: &CircuitBreakerState, now: Tick) -> Standing {
        let at = now.max(state.is.last);
        // Without the copy that working it out takes: it is asked with each refusal.
        if let Due::Trip { until } = self.due(&state.is, at) {
            let retry = self.refused_until(until, at);
            let reset_after = retry.and_then(Retry::after).unwrap_or_default();
            return Standing { limit: 1, remaining: u64::from(retry.is_none()), debt: 0, reset_after };
        }
        let (state, at) = self.at(state, now);
        let is = &*state.is;
        let retry = self.refusal(is, at);
        let idle = is.idle_at(self.by.healthy);
        let reset_after = match (&is.forced, &is.phase, retry) {
            (None, Phase::HalfOpen { .. }, _) if idle != Tick::MAX => idle.since(at),
            (None, Phase::HalfOpen { .. }, _) => Duration::MAX,
            (_, _, None) => Duration::ZERO,
            (_, _, Some(retry)) => retry.after().unwrap_or(Duration::MAX),
        };
        Standing { limit: 1, remaining: u64::from(retry.is_none()), debt: 0, reset_after }
    }

    /// What calls said stays said where the window is the same; otherwise it begins anew. An open breaker stays open for as long as it
    /// was to, a half-open one goes on with as many probes as there may be now. `Reset` forgets all of it, and what a person forced.
    fn carry(&self, _: &Self, state: &CircuitBreakerState, now: Tick, how: Replace) -> CircuitBreakerState {
        if how == Replace::Reset {
            // A nanosecond later, so that nobody enters at the tick of those who were forgotten.
            return self.fresh(now.max(state.is.last).after(Duration::from_nanos(1)));
        }
        let (next, at) = self.at(state, now);
        let mut next = next.into_owned();
        let is = &mut *next.is;
        match &mut is.phase {
            Phase::Closed { outcomes, consecutive, .. } => {
                if !outcomes.is_of(self.by.window) {
                    *outcomes = Outcomes::None;
                }
                if self.by.rules.consecutive.is_none() {
                    *consecutive = 0;
                }
            }
            Phase::HalfOpen { step, .. } => *step = (*step).min(self.by.steps),
            Phase::Open { .. } => {}
        }
        is.last = at;
        next
    }

    fn full_at(&self, state: &CircuitBreakerState) -> Option<Tick> {
        let is = &*state.is;
        let idle = is.idle_at(self.by.healthy);
        let quiet = match (&is.forced, &is.phase) {
            (Some(Forced { to: Force::Open, .. }), _) | (_, Phase::Open { .. } | Phase::HalfOpen { .. }) => {
                None
            }
            (_, Phase::Closed { consecutive: 1.., .. }) => None,
            (forced, Phase::Closed { since, outcomes, .. }) => outcomes.empty_at().map(|empty| {
                let ended = forced.as_ref().map_or(Tick::EPOCH, |forced| forced.until);
                let recovered = is.recovered_at(*since, self.by.healthy);
                // Never before the last change, so that it is full from then on.
                empty.max(is.busy_until).max(recovered).max(ended).max(is.last)
            }),
        };
        let quiet = quiet.filter(|at| self.is_still_closed(state, *at)).unwrap_or(Tick::MAX);
        let full = quiet.min(idle);
        (full != Tick::MAX).then_some(full)
    }
}

impl CircuitBreaker {
    /// Says whether a closed breaker that nobody uses any more is closed at `at`: one that compares its figures now and then may trip
    /// after the last call.
    fn is_still_closed(&self, state: &CircuitBreakerState, at: Tick) -> bool {
        let compares_later = matches!(self.by.evaluate, Evaluate::Every(_));
        at != Tick::MAX && (!compares_later || matches!(self.at(state, at).0.is.phase, Phase::Closed { .. }))
    }
}

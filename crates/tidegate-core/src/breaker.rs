//! Circuit breakers: guards that refuse calls to a service that fails, and let them back in by steps.
//!
//! ```text
//!            a figure reaches its threshold              the open time is over
//!   closed ─────────────────────────────────▶ open ─────────────────────────────▶ half-open
//!     ▲                                         ▲     the first call is a probe      │   │ ▲
//!     │                                         └────────────────────────────────────┘   └─┘
//!     │                                              the calls say that it is ill        they say that it is well:
//!     │                                                                                  twice as many may be in flight,
//!     └───────────────────────────────────────────────────────────────────────────────── after the last step all
//! ```
//!
//! * Half-open a breaker is a bulkhead with few places, and the places lapse. So no breaker stays half-open because a
//!   holder never came back. A cancelled probe gives its place back.
//! * The calls of each step are judged by a [`Judgement`]. Each step doubles how many calls may be in flight, instead
//!   of letting a share of all calls through: work in flight is what overwhelms a recovering service, and a limit on
//!   it needs neither counts of refusals nor random numbers.
//! * A breaker that [sheds](BreakerBuilder::shed_at_most) stays closed, and refuses by chance the share of calls that
//!   goes beyond what its threshold allows.
//! * A person can [`Force`] the breaker into a state, for a time and with a reason.
//!
//! Profiles named after other libraries compare in the same way as those libraries; see the methods of
//! [`CircuitBreaker`].

mod builder;
mod forced;
mod judgement;
mod machine;
mod outcomes;
mod parameters;
mod profiles;
mod rules;
mod shed;
mod shown;
mod state;

use core::time::Duration;

use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::guard::{Guard, Outcome};
use crate::time::Tick;
use outcomes::Outcomes;
use shown::Due;
use state::{Phase, StateFields};

pub use builder::BreakerBuilder;
pub use forced::{Force, Forced, WouldTrip};
pub use judgement::Judgement;
pub use machine::{Cause, Change};
pub use outcomes::{Totals, Window};
pub use parameters::{CircuitBreaker, Evaluate};
pub use profiles::SentinelRule;
pub use rules::Figure;
pub use shown::Admitted;
pub use state::{CircuitBreakerState, Condition};

/// A call counts as one call, whatever its cost. Entering and leaving copy the state, window included; a refusal
/// copies nothing.
impl Guard for CircuitBreaker {
    type State = CircuitBreakerState;

    fn fresh(&self, now: Tick) -> CircuitBreakerState {
        CircuitBreakerState { inner: Box::new(StateFields::fresh(now)) }
    }

    /// Refuses while open, with the open time that is left, while half-open if the allowed number of probes is in
    /// flight, and while shedding by chance.
    fn enter(&self, state: &CircuitBreakerState, ask: Ask) -> Transition<CircuitBreakerState> {
        let at = ask.now.max(state.inner.last);
        if let Some(Some(retry)) = self.refused_at(&state.inner, at) {
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
        self.leave_in_place(&mut next, now, receipt, None, outcome, &mut |_| ());
        next
    }

    /// The limit is 1, and `remaining` says whether the next call may enter. `reset_after` is the time until it may,
    /// if time alone decides; while shedding, until the window is empty, zero for a window of calls; while half-open,
    /// until the idle breaker becomes new, [`Duration::MAX`] if it never does.
    fn standing(&self, state: &CircuitBreakerState, now: Tick) -> Standing {
        let at = now.max(state.inner.last);
        // Avoids copying the state, because this is called with each refusal.
        if let Due::Trip { until } = self.due(&state.inner, at) {
            let retry = self.refused_until(until, at);
            let reset_after = retry.and_then(Retry::after).unwrap_or_default();
            return Standing { limit: 1, remaining: u64::from(retry.is_none()), debt: 0, reset_after };
        }
        let (state, at) = self.at(state, now);
        let inner = &*state.inner;
        let retry = self.refusal(inner, at);
        let idle = inner.idle_at(self.parameters.forget_after);
        let reset_after = match (&inner.forced, &inner.phase, retry) {
            (None, Phase::HalfOpen { .. }, _) if idle != Tick::MAX => idle.since(at),
            (None, Phase::HalfOpen { .. }, _) => Duration::MAX,
            (_, _, None) => Duration::ZERO,
            (None, Phase::Closed { outcomes, .. }, Some(_)) => {
                outcomes.empty_at().unwrap_or_default().since(at)
            }
            (_, _, Some(retry)) => retry.after().unwrap_or(Duration::MAX),
        };
        Standing { limit: 1, remaining: u64::from(retry.is_none()), debt: 0, reset_after }
    }

    /// Outcomes are kept if the window is the same. An open breaker stays open for as long as before; a half-open one
    /// continues with the number of probes now allowed. `Reset` forgets everything, including a forced state.
    fn carry(&self, _: &Self, state: &CircuitBreakerState, now: Tick, how: Replace) -> CircuitBreakerState {
        if how == Replace::Reset {
            // A nanosecond later, so that new calls cannot enter at the tick of the calls that were forgotten.
            return self.fresh(now.max(state.inner.last).after(Duration::from_nanos(1)));
        }
        let (next, at) = self.at(state, now);
        let mut next = next.into_owned();
        let inner = &mut *next.inner;
        match &mut inner.phase {
            Phase::Closed { outcomes, consecutive, shedding, .. } => {
                *shedding &= self.parameters.shed_at_most.is_some();
                if !outcomes.is_of(self.parameters.window) {
                    *outcomes = Outcomes::None;
                }
                if self.parameters.rules.consecutive.is_none() {
                    *consecutive = 0;
                }
            }
            Phase::HalfOpen { step, .. } => *step = (*step).min(self.parameters.steps),
            Phase::Open { .. } => {}
        }
        inner.last = at;
        next
    }

    fn full_at(&self, state: &CircuitBreakerState) -> Option<Tick> {
        let inner = &*state.inner;
        let quiet = self.quiet_at(inner).filter(|at| self.is_still_closed(state, *at)).unwrap_or(Tick::MAX);
        let full = quiet.min(inner.idle_at(self.parameters.forget_after));
        (full != Tick::MAX).then_some(full)
    }
}

impl CircuitBreaker {
    /// Returns the tick from which a closed breaker that is no longer used is as good as new; `None` if never.
    fn quiet_at(&self, inner: &StateFields) -> Option<Tick> {
        match (&inner.forced, &inner.phase) {
            (Some(Forced { to: Force::Open, .. }), _) | (_, Phase::Open { .. } | Phase::HalfOpen { .. }) => {
                None
            }
            (_, Phase::Closed { consecutive: 1.., .. }) => None,
            (forced, Phase::Closed { since, outcomes, .. }) => outcomes.empty_at().map(|empty| {
                let ended = forced.as_ref().map_or(Tick::EPOCH, |forced| forced.until);
                let recovered = inner.recovered_at(*since, self.parameters.forget_after);
                let remembered = inner.busy_until.after(self.parameters.counted_beyond_ttl());
                // Not before the last change, so that it holds from then on.
                empty.max(remembered).max(recovered).max(ended).max(inner.last)
            }),
        }
    }

    /// Says whether an unused closed breaker is still closed at `at`. One that compares its figures at intervals may
    /// trip after the last call.
    fn is_still_closed(&self, state: &CircuitBreakerState, at: Tick) -> bool {
        let compares_later = matches!(self.parameters.evaluate, Evaluate::Every(_));
        at != Tick::MAX
            && (!compares_later || matches!(self.at(state, at).0.inner.phase, Phase::Closed { .. }))
    }
}

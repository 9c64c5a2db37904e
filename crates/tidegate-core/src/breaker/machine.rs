//! The state machine: entering, leaving, and changes by time and by people, in place; the [`Guard`] makes transitions
//! of it for stores. Changes by time are computed from the ticks in the state when a call needs them. So a refusal
//! has nothing to store, and nothing is lost when a store forgets a state that is as good as new.

use core::time::Duration;

use super::forced::{Force, Forced, WouldTrip};
use super::judgement::StepEvidence;
use super::outcomes::{Outcomes, Sample, Totals};
use super::parameters::{CircuitBreaker, Evaluate};
use super::rules::Figure;
use super::state::{CircuitBreakerState, Condition, Phase, StateFields};
use crate::concurrency::ConcurrencyState;
use crate::decision::{Ask, Cost, Receipt, Retry, Transition};
use crate::guard::{Guard, Outcome};
use crate::time::Tick;

/// The value that receipts keep of the count of changes. It is never zero, as in the receipts of other guards.
const fn life(epoch: u64) -> u128 {
    (1 << 64) | epoch as u128
}

/// A change of a breaker's state, as reported to its observers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// When it changed.
    pub at: Tick,
    /// The condition before.
    pub from: Condition,
    /// The condition after.
    pub to: Condition,
    /// Why it changed.
    pub cause: Cause,
}

/// Why a breaker changed its state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A figure reached its threshold, or the probes failed while half-open.
    Tripped(Figure),
    /// The breaker only measures; this figure would have tripped it. Its state does not change.
    WouldTrip(Figure),
    /// A call came after the open time was over; it is the first probe.
    Waited,
    /// The calls of a step went well: more calls are admitted, or all. Or so few calls in the window still fail that
    /// none are shed any more.
    Recovered(Totals),
    /// A person forced it into a state.
    Forced(Forced),
    /// A forced state ended, by itself or by a person.
    Released,
    /// It was idle for so long that it became new.
    Idle,
}

impl CircuitBreaker {
    /// Enters in place: changes `state` and returns the receipt, or when to retry. `tell` is called for each change
    /// of condition. A refusal changes only what time has changed by itself. A closed breaker allocates nothing.
    ///
    /// # Errors
    /// [`Retry`] if the call may not enter.
    pub fn enter_in_place(
        &self,
        state: &mut CircuitBreakerState,
        ask: Ask,
        tell: &mut dyn FnMut(Change),
    ) -> Result<Receipt, Retry> {
        let inner = &mut *state.inner;
        let at = ask.now.max(inner.last);
        self.advance(inner, at, tell);
        if let Some(retry) = self.refusal(inner, at) {
            return Err(retry);
        }
        if let Phase::Open { .. } = inner.phase {
            let from = self.condition_of(inner, at);
            inner.epoch = inner.epoch.wrapping_add(1);
            inner.phase = Phase::HalfOpen {
                step: 0,
                inside: self.parameters.probes.fresh(at),
                totals: Totals::default(),
            };
            tell(Change { at, from, to: self.condition_of(inner, at), cause: Cause::Waited });
        }
        let mut lapses = Tick::EPOCH;
        if let Phase::HalfOpen { step, inside, .. } = &mut inner.phase {
            match self.parameters.places(*step).enter(inside, Ask::allow(at, Cost::ONE)) {
                Transition::Allowed { next, receipt, .. } => {
                    *inside = next;
                    lapses = Tick::from_nanos(u64::try_from(receipt.marks().0).unwrap_or(u64::MAX));
                }
                Transition::Denied { retry } => return Err(retry),
            }
        }
        inner.last = at;
        inner.busy_until = inner.busy_until.max(at.after(Duration::from_nanos(self.parameters.ttl())));
        let mark = Receipt::mark(u128::from(lapses.as_nanos()), life(inner.epoch));
        Ok(Receipt { at, act: at, cost: ask.cost, mark })
    }

    /// Leaves in place with an outcome; `tell` is called for each change of condition. Returns whether the exit counts: its
    /// outcome is in the window, or a probe has given up its place. An exit that is too late, or from before the last change
    /// of condition, does not count and changes nothing; nor does an outcome that says nothing of the service, unless it is
    /// a probe's.
    ///
    /// Whether the call was slow depends on the time from [`Receipt::act`] to the beginning of its answer, at the tick
    /// `answered`; `None` if it began when it ended. How long a stream lasts depends on its content and on its reader.
    pub fn leave_in_place(
        &self,
        state: &mut CircuitBreakerState,
        now: Tick,
        receipt: &Receipt,
        answered: Option<Tick>,
        outcome: Outcome,
        tell: &mut dyn FnMut(Change),
    ) -> bool {
        let inner = &mut *state.inner;
        let at = now.max(inner.last);
        self.advance(inner, at, tell);
        if receipt.at < inner.since || receipt.marks().1 != life(inner.epoch) {
            return false;
        }
        let sample = self.parameters.sample(outcome, answered.unwrap_or(at).since(receipt.act));
        match &mut inner.phase {
            Phase::Closed { .. } => {
                let in_time =
                    at < receipt.at.after(self.parameters.counted_for()) || self.parameters.ttl() == u64::MAX;
                sample.filter(|_| in_time).is_some_and(|sample| self.count(inner, at, sample, tell))
            }
            Phase::HalfOpen { step, inside, .. } => {
                let place = Receipt { cost: Cost::ONE, ..*receipt };
                let left = self.parameters.places(*step).leave(inside, at, &place, outcome);
                // A place that has lapsed was given up, so the outcome of its holder does not count.
                let counts = left != *inside;
                if counts {
                    *inside = left;
                    inner.last = at;
                    if let Some(sample) = sample {
                        self.judge_probe(inner, at, sample, tell);
                    }
                }
                counts
            }
            Phase::Open { .. } => false,
        }
    }

    /// Forces the breaker into a state, in place, or ends a forced state if `forced` is `None`. After a forced open
    /// state the service is tried by probes; every other forced state ends closed. A forced state that ended by
    /// itself before is reported once.
    pub fn force_in_place(
        &self,
        state: &mut CircuitBreakerState,
        now: Tick,
        forced: Option<Forced>,
        tell: &mut dyn FnMut(Change),
    ) {
        let inner = &mut *state.inner;
        let at = now.max(inner.last);
        self.advance(inner, at, tell);
        let from = self.condition_of(inner, at);
        let Some(forced) = forced.filter(|forced| forced.until > at) else {
            if let Some(ended) = inner.forced.take() {
                self.release(inner, at, &ended);
                inner.last = at;
                tell(Change { at, from, to: self.condition_of(inner, at), cause: Cause::Released });
            }
            return;
        };
        let keeps = matches!(inner.phase, Phase::Closed { .. }) && forced.to != Force::Open;
        if forced.to == Force::Open {
            inner.phase = Phase::Open { since: at, until: forced.until, by: None };
        } else if !keeps {
            inner.phase = Phase::closed(at);
        }
        if !keeps {
            inner.epoch = inner.epoch.wrapping_add(1);
        }
        if let (Force::Disabled, Phase::Closed { outcomes, consecutive, .. }) = (forced.to, &mut inner.phase)
        {
            // The outcomes from before would be judged together with those after it, however long it lasts.
            (*outcomes, *consecutive) = (Outcomes::None, 0);
        }
        (inner.last, inner.forced, inner.would_trip) = (at, Some(forced.clone()), None);
        tell(Change { at, from, to: self.condition_of(inner, at), cause: Cause::Forced(forced) });
    }

    /// Returns why a call may not enter, for a state that is advanced to `at`.
    pub(super) fn refusal(&self, inner: &StateFields, at: Tick) -> Option<Retry> {
        match (&inner.forced, &inner.phase) {
            (Some(Forced { to: Force::Open, until: Tick::MAX, .. }), _) => Some(Retry::Unknown),
            (Some(Forced { to: Force::Open, until, .. }), _) => Some(Retry::After(until.since(at))),
            (Some(_), _) => None,
            (None, Phase::Closed { .. }) => {
                (self.parameters.shed_at_most.is_some() && self.sheds(inner, at)).then_some(Retry::Unknown)
            }
            (None, Phase::Open { until, .. }) => self.refused_until(*until, at),
            (None, Phase::HalfOpen { step, inside, totals }) => {
                (self.probe_room(*step, inside, *totals, at).1 == 0).then_some(Retry::Unknown)
            }
        }
    }

    pub(super) fn advance(&self, inner: &mut StateFields, at: Tick, tell: &mut dyn FnMut(Change)) {
        let idle = inner.idle_at(self.parameters.forget_after);
        if idle != Tick::MAX && at >= idle {
            if self.parameters.shed_at_most.is_some() {
                self.note_shedding(inner, at, tell);
            }
            let from = self.condition_of(inner, at);
            *inner = StateFields::fresh(at);
            if from != Condition::Closed {
                tell(Change { at, from, to: Condition::Closed, cause: Cause::Idle });
            }
            return;
        }
        if let Some(ended) = inner.forced.take_if(|forced| forced.until <= at && forced.until != Tick::MAX) {
            let from = Condition::Forced { to: ended.to, until: ended.until() };
            let when = ended.until;
            self.release(inner, when, &ended);
            tell(Change { at: when, from, to: self.condition_of(inner, when), cause: Cause::Released });
        }
        if let Phase::Closed { .. } = inner.phase {
            inner.last_open_time = self.remembered(inner, at);
            if let Some((when, figure)) = self.tripped_by_time(inner, at) {
                self.threshold_reached(inner, when, figure, tell);
            }
            if self.parameters.shed_at_most.is_some() {
                self.note_shedding(inner, at, tell);
            }
        }
    }

    fn release(&self, inner: &mut StateFields, at: Tick, ended: &Forced) {
        inner.would_trip = None;
        if ended.to == Force::Open {
            // The open time ends a nanosecond earlier if the first probe must come strictly after it, so that a probe
            // may enter at once.
            let until = at.before(Duration::from_nanos(u64::from(self.parameters.open.strict)));
            inner.phase = Phase::Open { since: at, until, by: None };
            inner.epoch = inner.epoch.wrapping_add(1);
        }
    }

    /// Counts one call while closed. Returns false for a disabled breaker, which counts nothing.
    fn count(&self, inner: &mut StateFields, at: Tick, sample: Sample, tell: &mut dyn FnMut(Change)) -> bool {
        inner.last = at;
        let Phase::Closed { outcomes, consecutive, .. } = &mut inner.phase else { return false };
        if matches!(&inner.forced, Some(Forced { to: Force::Disabled, .. })) {
            return false;
        }
        outcomes.add(self.parameters.window, at, sample);
        if self.parameters.rules.consecutive.is_some() {
            *consecutive = if sample.failed { consecutive.saturating_add(1) } else { 0 };
        }
        let now = match self.parameters.evaluate {
            Evaluate::EachCall => true,
            Evaluate::EachFailure => sample.failed,
            Evaluate::Every(_) => false,
        };
        if self.parameters.shed_at_most.is_some() && inner.forced.is_none() {
            self.note_shedding(inner, at, tell);
        } else if now {
            let totals = outcomes.totals(at);
            if let Some(figure) = self.parameters.rules.tripped_by(totals, *consecutive) {
                self.threshold_reached(inner, at, figure, tell);
            }
        }
        true
    }

    fn threshold_reached(
        &self,
        inner: &mut StateFields,
        at: Tick,
        figure: Figure,
        tell: &mut dyn FnMut(Change),
    ) {
        match inner.forced.as_ref().map(|forced| forced.to) {
            None => self.trip(inner, at, figure, tell),
            Some(Force::MetricsOnly) => {
                let Phase::Closed { outcomes, consecutive, .. } = &mut inner.phase else { return };
                (*outcomes, *consecutive) = (Outcomes::None, 0);
                inner.would_trip = Some(WouldTrip::once_more(inner.would_trip, at, figure));
                let same = self.condition_of(inner, at);
                tell(Change { at, from: same, to: same, cause: Cause::WouldTrip(figure) });
            }
            Some(_) => {}
        }
    }

    fn trip(&self, inner: &mut StateFields, at: Tick, figure: Figure, tell: &mut dyn FnMut(Change)) {
        let from = self.condition_of(inner, at);
        let until = self.open_until(inner, inner.last_open_time, at);
        inner.last_open_time = self.parameters.open.next(inner.last_open_time);
        inner.phase = Phase::Open { since: at, until, by: Some(figure) };
        inner.epoch = inner.epoch.wrapping_add(1);
        tell(Change { at, from, to: self.condition_of(inner, at), cause: Cause::Tripped(figure) });
    }

    fn judge_probe(&self, inner: &mut StateFields, at: Tick, sample: Sample, tell: &mut dyn FnMut(Change)) {
        let from = self.condition_of(inner, at);
        let Phase::HalfOpen { step, totals, .. } = &mut inner.phase else { return };
        totals.add(sample);
        let went = *totals;
        match self.parameters.judgement.of(&self.parameters.rules, went, sample) {
            StepEvidence::Undecided => return,
            StepEvidence::Ill(figure) => return self.trip(inner, at, figure, tell),
            StepEvidence::Well if *step < self.parameters.steps => {
                (*step, *totals) = (*step + 1, Totals::default());
            }
            StepEvidence::Well => {
                inner.phase = Phase::closed(at);
                inner.epoch = inner.epoch.wrapping_add(1);
            }
        }
        tell(Change { at, from, to: self.condition_of(inner, at), cause: Cause::Recovered(went) });
    }

    /// Returns how many probes are in flight, and how many more may enter: bounded by the places of this step, and by
    /// the calls that its judgement still needs.
    fn probe_room(&self, step: u8, inside: &ConcurrencyState, totals: Totals, at: Tick) -> (u64, u64) {
        let standing = self.parameters.places(step).standing(inside, at);
        let in_flight = standing.limit.saturating_sub(standing.remaining);
        let most = self.parameters.judgement.most().map_or(u64::MAX, u64::from);
        let left = most.saturating_sub(u64::from(totals.calls)).saturating_sub(in_flight);
        (in_flight, standing.remaining.min(left))
    }

    pub(super) fn condition_of(&self, inner: &StateFields, at: Tick) -> Condition {
        if let Some(forced) = &inner.forced {
            return Condition::Forced { to: forced.to, until: forced.until() };
        }
        match &inner.phase {
            Phase::Closed { .. } => self.closed_or_shedding(inner, at),
            Phase::Open { since, until, by } => Condition::Open { since: *since, until: *until, by: *by },
            Phase::HalfOpen { step, inside, totals } => {
                let (in_flight, more) = self.probe_room(*step, inside, *totals, at);
                Condition::HalfOpen { step: *step, in_flight, at_most: in_flight + more, totals: *totals }
            }
        }
    }
}

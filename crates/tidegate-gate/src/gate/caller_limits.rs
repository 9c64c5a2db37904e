//! Limits that callers bring, under keys of their own that belong to no policy.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::Gate;
use super::in_flight::InFlight;
use tidegate_limits::Precision;
use tidegate_limits::store::{Answer, Charge, Op, Settled, Settling, Step, StepClock, StoreError};

/// A charge that is settled when that is asked for: at once by [`SettlingCharge::now`], or awaited as a future, which also
/// waits for an engine that answers later. See [`Gate::settle_charge`].
///
/// # Errors
/// [`StoreError`] if the store did not settle it.
///
/// # Cancel safety
/// If the future is dropped before completion, an engine that is being asked settles the charge all the same, and the
/// answer is not written.
#[must_use = "a charge is not settled before that is asked for: call `now`, or await it"]
pub struct SettlingCharge<'a> {
    gate: &'a Gate,
    op: Op<'a>,
    charge: Charge<'a>,
    out: &'a mut Settled,
    later: Option<InFlight<'a, Answer>>,
}

impl SettlingCharge<'_> {
    /// Settles without waiting.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not settle it; [`StoreError::MustWait`] if an engine would have to be asked,
    /// which was not done.
    pub fn now(self) -> Result<(), StoreError> {
        match self.gate.begin_charge(self.op, self.charge, self.out)? {
            Settling::Done(done) => done,
            // Dropped without being polled, so the engine was not asked.
            Settling::Later(_) => Err(StoreError::MustWait),
        }
    }
}

impl Future for SettlingCharge<'_> {
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, op, charge, out, later } = self.get_mut();
        let later = match later {
            Some(later) => later,
            None => match gate.begin_charge(*op, *charge, out)? {
                Settling::Done(done) => return Poll::Ready(done),
                Settling::Later(asked) => later.insert(InFlight::to_its_end(asked, &gate.background)),
            },
        };
        **out = ready!(Pin::new(later).poll(cx))?;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for SettlingCharge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettlingCharge").field("op", &self.op).finish_non_exhaustive()
    }
}

impl Gate {
    /// Settles a charge of a key that belongs to no policy, in the store that the gate was created with: a limit that a
    /// caller brings under its own name. Such a key begins with
    /// [`CALLER_LIMIT`](crate::policy::key_space::CALLER_LIMIT).
    ///
    /// Writes to `out`, which the caller can reuse; the result contains no receipts.
    pub const fn settle_charge<'a>(
        &'a self,
        op: Op<'a>,
        charge: Charge<'a>,
        out: &'a mut Settled,
    ) -> SettlingCharge<'a> {
        SettlingCharge { gate: self, op, charge, out, later: None }
    }

    fn begin_charge(
        &self,
        op: Op<'_>,
        charge: Charge<'_>,
        out: &mut Settled,
    ) -> Result<Settling, StoreError> {
        let store = self.routes.of(None)?;
        let tag = self.routes.tag(store, charge.key);
        // As in a check, a slightly old tick is good enough for permitting.
        let by_tick =
            self.precision != Precision::Exact && matches!(op, Op::Take) && !self.routes.own_waits();
        let (now, clock) = if by_tick {
            (self.time.recent(), StepClock::Fresh(self.time.fresh()))
        } else {
            (self.time.now(), StepClock::Engine)
        };
        let step = Step { now, clock, tag, receipts: false, watched: false, op, charges: &[charge] };
        Ok(self.routes.store(store).settle_into(&step, out))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_core::{Cost, Quota, Retry};

    use super::*;
    use crate::policy::PolicySet;
    use tidegate_limits::ManualClock;
    use tidegate_limits::store::PlainStore;

    #[test]
    fn a_charge_is_taken_a_look_is_not_and_what_is_left_over_of_an_answer_is_gone() {
        let clock = Arc::new(ManualClock::default());
        let gate = Gate::new(PolicySet::default(), PlainStore::default());
        let gate = gate.with_clock(Arc::clone(&clock));
        let quota = Arc::new(Quota::per_second(1).burst(2).gcra().unwrap());
        let mut out = Settled::default();
        let mut ask = |op| {
            gate.settle_charge(op, Charge::new(b"key", &quota, Cost::ONE), &mut out).now().unwrap();
            let line = out.lines[0].decision;
            (out.lines.len(), out.allowed, line.standing.remaining, line.retry())
        };
        assert_eq!(ask(Op::Peek), (1, true, 2, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, true, 1, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, true, 0, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, false, 0, Retry::After(Duration::from_secs(1))));
        clock.advance(Duration::from_secs(1));
        assert_eq!(ask(Op::Take), (1, true, 0, Retry::After(Duration::ZERO)));
    }
}

//! The calls of a breaker: how they enter, are refused and end, on the state that its clones share behind a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::{Change, CircuitBreaker, CircuitBreakerState, Condition, Forced};
use tidegate_core::decision::Ruling;
use tidegate_core::{Ask, Cost, Decision, Guard, Outcome, Receipt, Retry, Standing, Tick};

use super::RefusalReason;
use super::keyed::Keys;
use crate::answer::{Answer, Denied};
use crate::clock::Time;
use crate::deferred_panic::DeferredPanic;
use crate::observer::{CallDid, Observer};
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct Refused {
    pub(super) retry: Retry,
    pub(super) reason: RefusalReason,
}

pub(super) type Changes = SmallVec<[Change; 1]>;

pub(super) struct BreakerCore {
    pub(super) law: CircuitBreaker,
    pub(super) time: Time,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Not held while the clock or an observer is called.
    state: Mutex<CircuitBreakerState>,
}

impl BreakerCore {
    pub(super) fn new(law: CircuitBreaker, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = Mutex::new(law.fresh(time.now()));
        Self { law, time, observer, state }
    }

    pub(super) fn enter_unobserved(&self) -> Result<Receipt, Retry> {
        let ask = Ask::allow(self.time.now(), Cost::ONE);
        self.law.enter_in_place(&mut self.state.lock(), ask, &mut |_| ())
    }

    /// Enters, or returns the refusal with its reason; tells the observer. `admit` makes the call, which exists before
    /// the observer is told: if that panics, the call is dropped, and a probe's place becomes free.
    pub(super) fn enter<C>(&self, admit: impl FnOnce(Receipt) -> C) -> Result<C, Refused> {
        let ask = Ask::allow(self.time.now(), Cost::ONE);
        let (entered, changes) = self.change(|law, state, tell| enter(law, state, ask, tell));
        let entered = entered.map(admit);
        self.tell(&changes, entered.as_ref().err().map(told_refusal).as_ref());
        entered
    }

    pub(super) fn leave(&self, receipt: &Receipt, measured: Measured, outcome: Outcome) {
        let now = self.time.now();
        let answered = measured.answered(receipt, now);
        if self.observer.is_none() {
            let state = &mut self.state.lock();
            self.law.leave_in_place(state, now, receipt, answered, outcome, &mut |_| ());
            return;
        }
        let (_, changes) = self.change(|law, state, tell| {
            law.leave_in_place(state, now, receipt, answered, outcome, tell);
        });
        self.tell(&changes, Some(&CallDid::Ended { outcome, took: now.since(receipt.at) }));
    }

    pub(super) fn force(&self, forced: impl FnOnce(Tick) -> Option<Forced>) {
        let now = self.time.now();
        let forced = forced(now);
        let ((), changes) = self.change(|law, state, tell| law.force_in_place(state, now, forced, tell));
        self.tell(&changes, None);
    }

    fn change<R>(
        &self,
        change: impl FnOnce(&CircuitBreaker, &mut CircuitBreakerState, &mut dyn FnMut(Change)) -> R,
    ) -> (R, Changes) {
        let mut changes = Changes::new();
        let result = change(&self.law, &mut self.state.lock(), &mut |change| changes.push(change));
        (result, changes)
    }

    fn tell(&self, changes: &Changes, did: Option<&CallDid>) {
        let Some(observer) = &self.observer else { return };
        let tell = || {
            changes.iter().for_each(|change| observer.on_change(change));
            did.into_iter().for_each(|did| observer.on_call(did));
        };
        // A call may be dropped by a panic of its work.
        DeferredPanic::of(tell).1.resume_unless_panicking();
    }

    pub(super) fn with_state<R>(
        &self,
        read: impl FnOnce(&CircuitBreaker, &CircuitBreakerState, Tick) -> R,
    ) -> R {
        let now = self.time.now();
        read(&self.law, &self.state.lock(), now)
    }
}

pub(super) fn enter(
    law: &CircuitBreaker,
    state: &mut CircuitBreakerState,
    ask: Ask,
    tell: &mut dyn FnMut(Change),
) -> Result<Receipt, Refused> {
    law.enter_in_place(state, ask, tell).map_err(|retry| {
        let reason = match (law.condition(state, ask.now), law.forced(state, ask.now)) {
            (_, Some(forced)) => RefusalReason::Forced(forced),
            (Condition::HalfOpen { .. }, None) => RefusalReason::HalfOpen,
            (Condition::Shedding { .. }, None) => RefusalReason::Shedding,
            _ => RefusalReason::Open,
        };
        Refused { retry, reason }
    })
}

pub(super) fn told_refusal(refused: &Refused) -> CallDid {
    CallDid::Refused { reason: refused.reason.clone(), retry: refused.retry }
}

/// Makes the denial of a breaker. A breaker has no units, so the limit is 1: one call may enter or none.
pub(super) fn refused(retry: Retry) -> Denied {
    let reset_after = retry.after().unwrap_or(Duration::MAX);
    let standing = Standing { limit: 1, remaining: 0, debt: 0, reset_after };
    Answer::decided(Decision { ruling: Ruling::Denied { retry }, standing }, 0).into()
}

/// A call that a [`Breaker`](crate::Breaker) or a [`KeyedBreaker`](crate::KeyedBreaker) has admitted. Dropping it
/// reports no outcome: a panic, or a caller who hung up, is neither success nor failure, and a probe's place becomes
/// free.
#[must_use = "a call that is dropped at once says nothing of the service"]
pub struct Call {
    entered: Entered,
    /// `None` once it has ended.
    receipt: Option<Receipt>,
    measured: Measured,
}

pub(super) enum Entered {
    Breaker(Arc<BreakerCore>),
    /// The breaker of a key, with a copy of the key.
    OfKey(Arc<Keys>, SmallVec<[u8; 32]>),
}

impl Entered {
    fn now(&self) -> Tick {
        match self {
            Self::Breaker(breaker) => breaker.time.now(),
            Self::OfKey(keys, _) => keys.time.now(),
        }
    }
}

impl Call {
    pub(super) fn new(entered: Entered, receipt: Receipt) -> Self {
        Self { entered, receipt: Some(receipt), measured: Measured::default() }
    }

    /// Notes that an answer which is streamed begins now, while the call goes on. Whether the call was slow then
    /// depends on the time until now. Only the first call counts. Reads the clock once.
    pub fn answer_begins(&mut self) {
        self.measured.answer_begins(|| self.entered.now());
    }

    /// Notes that the work begins only now: until now the call waited for a turn of the caller's own, at a rate limit or in
    /// a queue. Whether the call is slow then depends on the time from now on. If there were several waits, call this
    /// after each of them. Reads the clock once.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::CircuitBreaker;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::{Breaker, Outcome};
    ///
    /// let clock = ManualClock::default();
    /// let slow = CircuitBreaker::builder().slow_calls(Duration::from_secs(1), 1.0).min_calls(1);
    /// let stock = Breaker::new(slow)?.with_clock(clock.clone());
    /// let mut call = stock.try_enter()?;
    /// clock.advance(Duration::from_secs(2)); // in our own queue
    /// call.work_begins();
    /// clock.advance(Duration::from_millis(300)); // at the service
    /// call.leave(Outcome::Success);
    /// assert_eq!(stock.state().as_str(), "closed", "the service was not slow");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work_begins(&mut self) {
        self.measured.work_begins(self.entered.now());
    }

    /// Reports how the call went. Its latency is the time since it entered, or since its [work
    /// began](Call::work_begins), until its [answer began](Call::answer_begins) if that was streamed.
    pub fn leave(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(receipt) = self.receipt.take() else { return };
        match &self.entered {
            Entered::Breaker(breaker) => breaker.leave(&receipt, self.measured, outcome),
            Entered::OfKey(keys, key) => keys.leave(key, &receipt, self.measured, outcome),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Outcome::Ignored);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("entered", &self.receipt.map(|receipt| receipt.at))
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// When the work began, if the call waited for its turn before.
    began: Option<Tick>,
    /// When the answer began, if it was streamed.
    answered: Option<Tick>,
}

impl Measured {
    pub(super) const fn work_begins(&mut self, now: Tick) {
        self.began = Some(now);
    }

    /// Notes that the answer begins now. Only the first time counts.
    pub(super) fn answer_begins(&mut self, now: impl FnOnce() -> Tick) {
        if self.answered.is_none() {
            self.answered = Some(now());
        }
    }

    /// Returns the tick until which the law measures the latency, counted from the receipt's tick; `None`: until now.
    pub(super) fn answered(self, receipt: &Receipt, now: Tick) -> Option<Tick> {
        let Some(began) = self.began else { return self.answered };
        Some(receipt.at.after(self.answered.unwrap_or(now).since(began)))
    }
}

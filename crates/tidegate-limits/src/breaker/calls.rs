//! The calls of a breaker: how they enter, are refused and end, on the state that its clones share behind a lock.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::breaker::{Change, CircuitBreaker, CircuitBreakerState, Condition, Force, Forced};
use tidegate_core::decision::Ruling;
use tidegate_core::{Ask, Cost, Decision, Guard, Outcome, Receipt, Retry, Standing, Tick};

use super::RefusalReason;
use super::keyed::Keys;
use crate::answer::{Answer, Denied};
use crate::clock::{Clock, Sleep, Time};
use crate::deferred_panic::DeferredPanic;
use crate::observer::{CallDid, Observer};
use crate::sync::Mutex;
use crate::sync::unexplored::Mutex as UnexploredMutex;

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
    /// Rings at the end of an open time, for the observer. Not held while the clock is called.
    alarm: UnexploredMutex<Option<Sleep>>,
}

impl BreakerCore {
    pub(super) fn new(law: CircuitBreaker, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        let state = Mutex::new(law.fresh(time.now()));
        Self { law, time, observer, state, alarm: UnexploredMutex::new(None) }
    }

    pub(super) fn enter_unobserved(&self) -> Result<Receipt, Retry> {
        let ask = Ask::allow(self.time.now(), Cost::ONE);
        self.law.enter_in_place(&mut self.state.lock(), ask, &mut |_| ())
    }

    /// Enters, or returns the refusal with its reason; tells the observer. `admit` makes the call, which exists before
    /// the observer is told: if that panics, the call is dropped, and a probe's place becomes free.
    pub(super) fn enter<C>(self: &Arc<Self>, admit: impl FnOnce(Receipt) -> C) -> Result<C, Refused> {
        let ask = Ask::allow(self.time.now(), Cost::ONE);
        let (entered, changes) = self.change(|law, state, tell| enter(law, state, ask, tell));
        let entered = entered.map(admit);
        self.tell(&changes, entered.as_ref().err().map(told_refusal).as_ref());
        entered
    }

    pub(super) fn leave(self: &Arc<Self>, receipt: &Receipt, measured: Measured, outcome: Outcome) {
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

    pub(super) fn force(self: &Arc<Self>, forced: impl FnOnce(Tick) -> Option<Forced>) {
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

    fn tell(self: &Arc<Self>, changes: &Changes, did: Option<&CallDid>) {
        let Some(observer) = &self.observer else { return };
        let tell = || {
            changes.iter().for_each(|change| observer.on_change(change));
            did.into_iter().for_each(|did| observer.on_call(did));
        };
        let panicked = DeferredPanic::of(tell).1;
        if let Some(change) = changes.last() {
            self.silence();
            if let Some(until) = open_until(change) {
                self.ring_at(until);
            }
        }
        // A call may be dropped by a panic of its work.
        panicked.resume_unless_panicking();
    }

    fn silence(&self) {
        let earlier = self.alarm.lock().take();
        drop(earlier);
    }

    fn ring_at(self: &Arc<Self>, at: Tick) {
        let core = Arc::downgrade(self);
        let ring = move || {
            if let Some(core) = core.upgrade() {
                core.open_time_ends();
            }
        };
        let Some(sleep) = alarm(self.time.clock(), at, ring) else { return };
        let mut alarm = self.alarm.lock();
        // If another thread was faster, its alarm rings for both.
        let late = if alarm.is_none() { alarm.replace(sleep) } else { Some(sleep) };
        drop(alarm);
        drop(late);
    }

    fn open_time_ends(self: &Arc<Self>) {
        self.silence();
        let now = self.time.now();
        let (ended, changes) = self.change(|law, state, tell| end_open_time(law, state, now, tell));
        self.tell(&changes, None);
        if let Some(left) = ended {
            self.ring_at(now.after(left));
        }
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

/// Wakes nobody, and calls a function instead.
struct Rings<F>(F);

impl<F: Fn() + Send + Sync> Wake for Rings<F> {
    fn wake(self: Arc<Self>) {
        // A panic of an observer would end the thread of a timer on which others wait.
        let _panicked = DeferredPanic::of(&self.0);
    }
}

/// Has `ring` called on the thread of a clock's timer when it reaches a tick, or somewhat earlier, until the sleep is
/// dropped. If the tick has come, it is called at once, and there is no sleep. If the clock has no timer here, there is none
/// either, and the observer is told at the next call.
pub(super) fn alarm(clock: &dyn Clock, at: Tick, ring: impl Fn() + Send + Sync + 'static) -> Option<Sleep> {
    let waker = Waker::from(Arc::new(Rings(ring)));
    let sleeping = || {
        let mut sleep = clock.sleep_until(at);
        let is_over = sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        (!is_over).then_some(sleep)
    };
    let (sleep, _panicked) = DeferredPanic::of(sleeping);
    let sleep = sleep?;
    if sleep.is_none() && clock.now() >= at {
        waker.wake();
    }
    sleep
}

/// Returns when the open time that begins with a change is over.
pub(super) const fn open_until(change: &Change) -> Option<Tick> {
    match change.to {
        Condition::Open { until, .. } => Some(until),
        Condition::Forced { to: Force::Open, until } => until,
        _ => None,
    }
}

/// Lets an open time end without a call, as if a probe had been dropped at once. Returns how much of the time is left, if it
/// is not over.
pub(super) fn end_open_time(
    law: &CircuitBreaker,
    state: &mut CircuitBreakerState,
    now: Tick,
    tell: &mut dyn FnMut(Change),
) -> Option<Duration> {
    let condition = law.condition(state, now);
    if !matches!(condition, Condition::Open { .. } | Condition::Forced { to: Force::Open, until: Some(_) }) {
        return None;
    }
    match law.enter_in_place(state, Ask::allow(now, Cost::ONE), tell) {
        Ok(receipt) => {
            law.leave_in_place(state, now, &receipt, None, Outcome::Ignored, tell);
            None
        }
        Err(retry) => retry.after(),
    }
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

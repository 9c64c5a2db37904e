//! Waiting for capacity.
//!
//! A waiter reserves when it is first polled and sleeps until its tick. So waiters are served in order of arrival
//! without a queue. A deadline that cannot be met is refused at once and costs nothing. No waiter starves, since later
//! small costs cannot take what a large one was promised. The price: if a waiter in the middle goes away, those behind
//! it keep their ticks. The part of its share that they do not rely on goes to later callers, who may then start before
//! them; the rest goes unused. No unit is granted twice.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Cost, NotACost, Tick};

use crate::answer::{Answer, TakeError};
use crate::clock::{Clock, Sleep};
use crate::deadline::{self, Deadline};
use crate::observer::Event;
use crate::reservation::{ChargeOwner, Reservation};

/// A future that ends when its cost may be spent; made by [`crate::Limiter::wait`] and [`crate::KeyedLimiter::wait`].
///
/// Nothing happens before the first poll, which reserves the cost and starts the timeout. It waits no longer than the
/// deadline that the task [carries](crate::deadline::carried) at that moment, whatever its own bound is: a cost that
/// cannot be spent by then is refused at once. Waiters are served first come, first served. It owns its limiter, so it
/// can be stored and spawned. It runs on any executor, with the timer of the limiter's clock. If it does not have to
/// sleep, it does not allocate.
///
/// # Errors
/// At the first poll and with nothing spent: [`TakeError::Denied`] if a deadline cannot be met or the cost can never be
/// allowed, [`TakeError::NotACost`] for zero and less.
///
/// # Cancel safety
/// Dropping it before it ends undoes the charge, like [`Reservation::cancel`]: units that no later waiter relies on are
/// available again at once. Dropping it after it ended changes nothing: the capacity is the caller's.
///
/// # Panics
/// If it is polled again after it ended.
///
/// # Examples
/// ```
/// use tidegate::{Limiter, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Quota::per_second(1000).burst(1).gcra()?)?;
/// limiter.wait(1).await?;
/// // The second unit is there after a millisecond.
/// limiter.wait(1).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a wait does nothing unless awaited"]
pub struct Wait {
    cost: Result<Cost, NotACost>,
    bound: TimeBound,
    stage: WaitStage,
}

enum WaitStage {
    New(Arc<dyn ChargeOwner>),
    Asleep(Box<Reservation>, Sleep),
    Ended,
}

impl std::fmt::Debug for WaitStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::New(_) => f.write_str("New"),
            Self::Asleep(reservation, _) => f.debug_tuple("Asleep").field(&reservation.act()).finish(),
            Self::Ended => f.write_str("Ended"),
        }
    }
}

impl Wait {
    pub(crate) const fn new(source: Arc<dyn ChargeOwner>, cost: Result<Cost, NotACost>) -> Self {
        Self { cost, bound: TimeBound::NONE, stage: WaitStage::New(source) }
    }

    /// Waits for at most `timeout` from the first poll; zero does not wait at all.
    pub const fn within(mut self, timeout: Duration) -> Self {
        self.bound = TimeBound::Within(timeout);
        self
    }

    /// Waits until `deadline` at the latest: an `Instant`, or a tick of the limiter's clock. A deadline that has passed
    /// is refused with [`Retry::Never`](crate::Retry::Never), even with capacity to spare, because no one waits for the
    /// result any more.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.bound = TimeBound::Until(deadline.into());
        self
    }

    /// Reserves now, and returns the [`Reservation`] instead of waiting for it. Unlike
    /// [`Limiter::reserve`](crate::Limiter::reserve), it also observes the deadline that the task carries.
    ///
    /// # Errors
    /// As [`Wait`].
    ///
    /// # Panics
    /// If it was polled before.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::{Limiter, Quota, Tick, deadline};
    ///
    /// let limiter = Limiter::new(Quota::per_second(1))?.with_clock(ManualClock::default());
    /// let _ = limiter.allow();
    /// let in_time = || limiter.wait(1).within(Duration::from_secs(5)).reserve();
    /// assert!(deadline::carry(Tick::from_nanos(999_999_999), in_time).is_err(), "the next unit comes too late");
    /// assert_eq!(deadline::carry(Tick::from_secs(1), in_time)?.wait(), Duration::from_secs(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(mut self) -> Result<Reservation, TakeError> {
        match std::mem::replace(&mut self.stage, WaitStage::Ended) {
            WaitStage::New(source) => self.charge(&source),
            WaitStage::Asleep(..) | WaitStage::Ended => panic!("a wait was used after it had been polled"),
        }
    }

    /// Waits on the calling thread. Not for async code, whose executor it would block.
    ///
    /// # Errors
    /// As [`Wait`].
    ///
    /// # Panics
    /// If it was polled before.
    pub fn blocking(self) -> Result<Answer, TakeError> {
        Ok(self.reserve()?.block())
    }

    fn charge(&self, source: &Arc<dyn ChargeOwner>) -> Result<Reservation, TakeError> {
        let cost = self.cost?;
        let now = source.now();
        match self.bound.max_wait(now, source.clock()) {
            Some(max_wait) => {
                let carried = deadline::carried().map(|until| until.at(source.clock()).since(now));
                let max_wait = carried.map_or(max_wait, |left| left.min(max_wait));
                let held = source.charge(now, cost, max_wait)?;
                Ok(Reservation::new(Arc::clone(source), held))
            }
            None => {
                let answer = source.peek(cost).never();
                if let Some(observer) = source.observer() {
                    let mut event = Event::of(answer, now, cost, Duration::ZERO);
                    event.key = source.digest();
                    observer.on_decision(&event);
                }
                Err(answer.into())
            }
        }
    }
}

impl Future for Wait {
    type Output = Result<Answer, TakeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let WaitStage::New(source) = &this.stage {
            match this.charge(source) {
                Ok(reservation) if !reservation.wait().is_zero() => {
                    let sleep = reservation.clock().sleep_until(reservation.act());
                    this.stage = WaitStage::Asleep(Box::new(reservation), sleep);
                }
                decided => {
                    this.stage = WaitStage::Ended;
                    return Poll::Ready(decided.map(|reservation| reservation.answer()));
                }
            }
        }
        let WaitStage::Asleep(reservation, sleep) = &mut this.stage else {
            panic!("a wait was polled after it had ended");
        };
        let act = reservation.act();
        loop {
            if reservation.clock().now() >= act {
                let answer = reservation.answer();
                this.stage = WaitStage::Ended;
                return Poll::Ready(Ok(answer));
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // It ended early: a timer sleeps a day at most, and a clock may step back.
            if reservation.clock().now() < act {
                *sleep = reservation.clock().sleep_until(act);
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let WaitStage::Asleep(reservation, _) = std::mem::replace(&mut self.stage, WaitStage::Ended) {
            reservation.cancel();
        }
    }
}

/// The end of a wait: a duration after its first poll, or a deadline by the clock in use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeBound {
    Within(Duration),
    Until(Deadline),
}

impl TimeBound {
    /// No bound: waits as long as it takes.
    pub(crate) const NONE: Self = Self::Within(Duration::MAX);

    /// Returns the same bound with its deadline as a tick of `clock`. To be called at the first poll, since an
    /// `Instant` and the clock may drift apart later.
    pub(crate) fn on_clock(self, clock: &dyn Clock) -> Self {
        match self {
            Self::Within(_) => self,
            Self::Until(deadline) => Self::Until(Deadline::Tick(deadline.at(clock))),
        }
    }

    /// Returns the longest wait from `now`, the tick of the first poll; `None` if the bound has passed by then, even if
    /// there is nothing to wait for.
    pub(crate) fn max_wait(self, now: Tick, clock: &dyn Clock) -> Option<Duration> {
        match self {
            Self::Within(timeout) => Some(timeout),
            Self::Until(deadline) => {
                let deadline = deadline.at(clock);
                (now <= deadline).then(|| deadline.since(now))
            }
        }
    }

    /// Returns whether the bound has passed at the first poll. Reads the clock only if there is a deadline.
    pub(crate) fn has_passed(self, clock: &dyn Clock) -> bool {
        matches!(self, Self::Until(_)) && self.max_wait(clock.now(), clock).is_none()
    }

    pub(crate) const fn is_at_once(self) -> bool {
        matches!(self, Self::Within(Duration::ZERO))
    }

    pub(crate) fn until(self, clock: &dyn Clock) -> Option<Tick> {
        match self {
            Self::Within(_) => None,
            Self::Until(deadline) => Some(deadline.at(clock)),
        }
    }

    /// Returns the tick at which the wait ends; `None` if it has no bound. Reads the clock only if needed.
    pub(crate) fn deadline(self, clock: &dyn Clock) -> Option<Tick> {
        match self {
            Self::Within(Duration::MAX) => None,
            Self::Within(timeout) => Some(clock.now().after(timeout)),
            Self::Until(deadline) => Some(deadline.at(clock)),
        }
    }
}

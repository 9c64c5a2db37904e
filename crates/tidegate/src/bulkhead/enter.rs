//! Waiting for a place.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Cost, NotACost, Retry, Tick};

use super::line::Answer;
use super::permit::{Permit, Shared};
use crate::answer::TakeError;
use crate::clock::Sleep;
use crate::deadline::Deadline;
use crate::time_bound::TimeBound;

/// A future that ends with a [`Permit`]; made by [`Bulkhead::enter`](crate::Bulkhead::enter).
///
/// Nothing happens before the first poll: that is when its place in the line is taken and its deadline counted from. First come, first
/// served: nobody enters past those who wait, also not where the first needs more places than are free. It owns its bulkhead, so it
/// can be stored and spawned; it runs on any executor. One that need not wait does not allocate.
///
/// # Errors
/// With no place taken: [`TakeError::Denied`], with [`Retry::Unknown`] when the deadline came first or as many wait as may, with
/// [`Retry::Never`] when more places are asked for than there are, or the deadline had passed before the first poll;
/// [`TakeError::NotACost`] for zero places and less.
///
/// # Cancel safety
/// Dropping it before it ends leaves the line; a place that was given to it meanwhile goes to the next.
///
/// # Panics
/// When polled again after it ended.
#[must_use = "nobody enters unless awaited"]
pub struct Enter {
    shared: Arc<Shared>,
    places: Result<Cost, NotACost>,
    bound: TimeBound,
    stage: Stage,
}

enum Stage {
    New,
    InLine { number: u64, deadline: Option<Tick>, sleep: Option<Sleep> },
    Ended,
}

impl Enter {
    pub(super) const fn new(shared: Arc<Shared>, places: Result<Cost, NotACost>) -> Self {
        Self { shared, places, bound: TimeBound::NONE, stage: Stage::New }
    }

    /// Waits for at most `timeout` from the first poll on; zero means now or not at all.
    pub const fn within(mut self, timeout: Duration) -> Self {
        self.bound = TimeBound::Within(timeout);
        self
    }

    /// Waits until `deadline` at the latest: an `Instant`, or a tick of the bulkhead's clock. A deadline that has passed is refused for good,
    /// even with places to spare: nobody is waiting for the result any more.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.bound = TimeBound::Until(deadline.into());
        self
    }

    /// Enters at once or joins the line. `Ok` is the number in the line and the deadline; `Err` is the answer to a caller who need not wait
    /// or must not.
    fn begin(&mut self, places: Cost, cx: &Context<'_>) -> Result<(u64, Option<Tick>), Answer> {
        let shared = &self.shared;
        self.bound = self.bound.by(&*shared.clock);
        if self.bound.has_passed(&*shared.clock) {
            return Err(Err(shared.line.lock().refused(Retry::Never)));
        }
        // Tried before the clock is read and the waker copied: a caller who need not wait needs neither.
        let answer = shared.line.lock().enter(places);
        if !matches!(&answer, Err(refused) if refused.retry() == Retry::Unknown) {
            return Err(answer);
        }
        if self.bound.is_at_once() {
            return Err(answer);
        }
        let deadline = self.bound.deadline(&*shared.clock);
        let mut waker = Some(cx.waker().clone());
        let number = shared.line.lock().join(places, &mut waker)?;
        Ok((number, deadline))
    }

    fn ended(&mut self, answer: Answer) -> Poll<Result<Permit, TakeError>> {
        self.stage = Stage::Ended;
        Poll::Ready(self.shared.permit(answer).map_err(TakeError::Denied))
    }
}

impl Future for Enter {
    type Output = Result<Permit, TakeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(this.stage, Stage::New) {
            let places = match this.places {
                Ok(places) => places,
                Err(error) => {
                    this.stage = Stage::Ended;
                    return Poll::Ready(Err(error.into()));
                }
            };
            let (number, deadline) = match this.begin(places, cx) {
                Ok(joined) => joined,
                Err(answer) => return this.ended(answer),
            };
            // Set before the clock is asked for a timer, which may panic: the entry is dropped then, and has to leave the line.
            this.stage = Stage::InLine { number, deadline, sleep: None };
        }
        let Stage::InLine { number, deadline, sleep } = &mut this.stage else {
            panic!("an entry was polled after it had ended");
        };
        let shared = &this.shared;
        let waker = cx.waker().clone();
        let (answer, due) = shared.line.lock().ask(*number, waker);
        due.settle();
        if let Some(answer) = answer {
            return this.ended(answer);
        }
        let Some(tick) = *deadline else { return Poll::Pending };
        loop {
            if shared.clock.now() >= tick {
                let mut line = shared.line.lock();
                // A place that was given before this lock is taken, late as it is.
                let (answer, due) = line.give_up(*number);
                let answer = answer.unwrap_or_else(|| Err(line.refused(Retry::Unknown)));
                drop(line);
                due.settle();
                return this.ended(answer);
            }
            if sleep.get_or_insert_with(|| shared.clock.sleep_until(tick)).as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The timer may have ended early, for it sleeps a day at most and a clock may step back: then another one is made.
            *sleep = None;
        }
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        if let Stage::InLine { number, .. } = self.stage {
            let due = self.shared.line.lock().go(number);
            due.settle();
        }
    }
}

impl fmt::Debug for Enter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::New => "new",
            Stage::InLine { .. } => "in line",
            Stage::Ended => "ended",
        };
        f.debug_struct("Enter").field("places", &self.places).field("stage", &stage).finish_non_exhaustive()
    }
}

//! The submitter's side of a job: its result, and the way to call it off.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::job::Job;
use super::line::Place;
use crate::block_on::block_on;

/// Why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The job panicked; the worker goes on.
    #[error("the job panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The job was dropped before it ended: the queue was aborted, or whatever ran it went away.
    #[error("the job was dropped before it ended")]
    Aborted,
}

/// A future of the job's result.
///
/// # Cancel safety
/// Dropping it takes the job out of the queue if it has not started; those behind it move up. A job that has started goes
/// on, and its result is dropped. To let a job run with nobody waiting for it, [`JobHandle::detach`].
#[derive(Debug)]
#[must_use = "dropping the handle cancels the job; detach it to let it run"]
pub struct JobHandle<T> {
    result: Arc<Slot<T>>,
    /// `None` once the job is detached or done.
    place: Option<Place>,
}

impl<T> JobHandle<T> {
    pub(super) const fn new(result: Arc<Slot<T>>, place: Place) -> Self {
        Self { result, place: Some(place) }
    }

    /// Lets the job run with nobody waiting for it.
    pub fn detach(mut self) {
        self.place = None;
    }

    /// Holds the calling thread until the job has ended. Not for async code, nor for the thread that runs the worker.
    ///
    /// # Errors
    /// [`JobError`] when there is no result.
    pub fn join(self) -> Result<T, JobError> {
        block_on(self)
    }
}

impl<T> Future for JobHandle<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.result.outcome.lock();
        match std::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Ended(result) => {
                drop(outcome);
                self.place = None;
                Poll::Ready(result)
            }
            Outcome::Pending(_) => {
                *outcome = Outcome::Pending(Some(cx.waker().clone()));
                Poll::Pending
            }
            Outcome::Taken => panic!("a job handle was polled after it had ended"),
        }
    }
}

impl<T> Drop for JobHandle<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.leave();
        }
    }
}

/// Holds the result, which the worker puts in and the submitter takes out.
#[derive(Debug)]
pub(super) struct Slot<T> {
    outcome: Mutex<Outcome<T>>,
}

#[derive(Debug)]
enum Outcome<T> {
    Pending(Option<Waker>),
    Ended(Result<T, JobError>),
    Taken,
}

/// The worker's end of a slot; puts in [`JobError::Aborted`] if it is dropped before a result was sent.
struct Reply<T>(Arc<Slot<T>>);

impl<T> Reply<T> {
    fn send(&self, result: Result<T, JobError>) {
        let mut outcome = self.0.outcome.lock();
        if let Outcome::Pending(waker) = &mut *outcome {
            let waker = waker.take();
            *outcome = Outcome::Ended(result);
            drop(outcome);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        // Does nothing if a result was sent.
        self.send(Err(JobError::Aborted));
    }
}

/// Wraps work into a job; a panic of the work becomes the job's result.
pub(super) fn job<F>(work: F) -> (Job, Arc<Slot<F::Output>>)
where
    F: Future<Output: Send> + Send + 'static,
{
    let slot = Arc::new(Slot { outcome: Mutex::new(Outcome::Pending(None)) });
    let reply = Reply(Arc::clone(&slot));
    let work = async move {
        let result = {
            let mut work = pin!(work);
            // A future that panicked is not polled again, so nobody sees it half-changed.
            poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(JobError::Panicked { message: message(&*panic) })),
            })
            .await
        };
        reply.send(result);
    };
    (Job { work: Box::pin(work) }, slot)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

//! Work that another thread or task runs: the job, and the slot for its result.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;

/// A job that is due: a future to run now. Dropping it aborts it.
///
/// Polling it never panics: neither if the work panics, nor if dropping an unclaimed result does.
#[must_use = "a job does nothing unless run"]
pub struct Job {
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Job {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // A panic of the work is caught within and becomes its result. What is caught here comes from foreign code that
        // runs afterwards: the drop of a result whose caller has gone, or a waker. It must not end the thread that runs
        // other jobs.
        catch_unwind(AssertUnwindSafe(|| self.work.as_mut().poll(cx))).unwrap_or_else(|panic| {
            discard(panic);
            Poll::Ready(())
        })
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

/// Why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The job panicked; the worker continues.
    #[error("the job panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The job was dropped before it ended: the queue was aborted, or its runner went away.
    #[error("the job was dropped before it ended")]
    Aborted,
}

#[derive(Debug)]
pub(crate) struct Slot<T> {
    outcome: Mutex<JobState<T>>,
}

#[derive(Debug)]
enum JobState<T> {
    Pending(Option<Waker>),
    Ended(Result<T, JobError>),
    Taken,
}

impl<T> Slot<T> {
    /// Takes the result out, once. Until there is one, registers the caller's waker in place of an earlier one.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, JobError>> {
        // Wakers are foreign code: cloned before the lock is taken, and dropped after it is released.
        let waker = cx.waker().clone();
        let mut outcome = self.outcome.lock();
        let before = std::mem::replace(&mut *outcome, JobState::Taken);
        if matches!(before, JobState::Pending(_)) {
            *outcome = JobState::Pending(Some(waker));
        }
        drop(outcome);
        match before {
            JobState::Ended(result) => Poll::Ready(result),
            JobState::Pending(_) => Poll::Pending,
            JobState::Taken => panic!("a job's result was asked for after it had been taken"),
        }
    }
}

/// The worker's end of a slot. Stores [`JobError::Aborted`] if it is dropped before a result was sent.
struct Reply<T>(Arc<Slot<T>>);

impl<T> Reply<T> {
    fn send(&self, result: Result<T, JobError>) {
        let mut outcome = self.0.outcome.lock();
        if let JobState::Pending(waker) = &mut *outcome {
            let waker = waker.take();
            *outcome = JobState::Ended(result);
            drop(outcome);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        // Has no effect if a result was sent.
        self.send(Err(JobError::Aborted));
    }
}

pub(crate) fn job<F>(work: F) -> (Job, Arc<Slot<F::Output>>)
where
    F: Future<Output: Send> + Send + 'static,
{
    let slot = Arc::new(Slot { outcome: Mutex::new(JobState::Pending(None)) });
    let reply = Reply(Arc::clone(&slot));
    let work = async move {
        let result = {
            let mut work = pin!(work);
            // A future that panicked is not polled again, so its inconsistent state is never seen.
            poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Ok),
                Err(panic) => Poll::Ready(Err(JobError::Panicked { message: message_of(panic) })),
            })
            .await
        };
        reply.send(result);
    };
    (Job { work: Box::pin(work) }, slot)
}

pub(crate) fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message").to_owned();
    discard(panic);
    text
}

/// Drops a panic's payload. The drop is foreign code and may panic itself: that second payload is leaked, since its
/// drop could panic again.
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        let _leaked = ManuallyDrop::new(second);
    }
}

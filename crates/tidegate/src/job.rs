//! Work that is run elsewhere: the work itself, and the place where its result is fetched.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// A job that is due: a future to run now. Dropping it aborts it.
///
/// Polling it does not panic: neither where the work does, nor where dropping a result does that nobody waits for any more.
#[must_use = "a job does nothing unless run"]
pub struct Job {
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Job {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // The work's own panics are caught within and become its result. What comes through is foreign code that runs afterwards: a result
        // that is dropped because its caller has gone, a waker. It must not take the thread that runs other jobs with it.
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

/// Holds the result, which the worker puts in and the submitter takes out.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    outcome: Mutex<Outcome<T>>,
}

#[derive(Debug)]
enum Outcome<T> {
    Pending(Option<Waker>),
    Ended(Result<T, JobError>),
    Taken,
}

impl<T> Slot<T> {
    /// Takes the result out, once; until there is one, the last who asked is woken for it.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<T, JobError>> {
        // Wakers are foreign code: copied before the lock, and dropped after it.
        let waker = cx.waker().clone();
        let mut outcome = self.outcome.lock();
        let before = std::mem::replace(&mut *outcome, Outcome::Taken);
        if matches!(before, Outcome::Pending(_)) {
            *outcome = Outcome::Pending(Some(waker));
        }
        drop(outcome);
        match before {
            Outcome::Ended(result) => Poll::Ready(result),
            Outcome::Pending(_) => Poll::Pending,
            Outcome::Taken => panic!("a job's result was asked for after it had been taken"),
        }
    }
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
pub(crate) fn job<F>(work: F) -> (Job, Arc<Slot<F::Output>>)
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
                Err(panic) => Poll::Ready(Err(JobError::Panicked { message: message_of(panic) })),
            })
            .await
        };
        reply.send(result);
    };
    (Job { work: Box::pin(work) }, slot)
}

/// Returns what a panic said in words, and discards it.
pub(crate) fn message_of(panic: Box<dyn Any + Send>) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no message").to_owned();
    discard(panic);
    text
}

/// Drops what a panic carries. That is foreign code, and may panic in turn: what the second panic carries is leaked, or there would be no end.
fn discard(panic: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        let _leaked = ManuallyDrop::new(second);
    }
}

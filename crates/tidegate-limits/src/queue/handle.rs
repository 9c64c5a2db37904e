//! The submitter's handle on a job: it returns the result, and cancels the job.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::waiting_jobs::JobPlace;
use crate::block_on::block_on;
use crate::job::{JobError, Slot};

/// A future of a job's result.
///
/// # Cancel safety
/// Dropping it removes the job from the queue if it has not started; the jobs behind it move up. A job that has
/// started continues, and its result is dropped. To let a job run without waiting for it, use [`JobHandle::detach`].
#[derive(Debug)]
#[must_use = "dropping the handle cancels the job; detach it to let it run"]
pub struct JobHandle<T> {
    result: Arc<Slot<T>>,
    /// `None` once the job is detached or done.
    place: Option<JobPlace>,
}

impl<T> JobHandle<T> {
    pub(super) const fn new(result: Arc<Slot<T>>, place: JobPlace) -> Self {
        Self { result, place: Some(place) }
    }

    /// Lets the job run without a handle; its result is dropped.
    pub fn detach(mut self) {
        self.place = None;
    }

    /// Blocks the calling thread until the job has ended. Not for async code, nor for the thread that runs the
    /// worker.
    ///
    /// # Errors
    /// [`JobError`] if the job has no result.
    pub fn join(self) -> Result<T, JobError> {
        block_on(self)
    }
}

impl<T> Future for JobHandle<T> {
    type Output = Result<T, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.result.poll(cx);
        if polled.is_ready() {
            self.place = None;
        }
        polled
    }
}

impl<T> Drop for JobHandle<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            place.leave();
        }
    }
}

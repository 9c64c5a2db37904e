//! The submitter's side of a job: its result, and the way to call it off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::line::Place;
use crate::block_on::block_on;
use crate::job::{JobError, Slot};

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

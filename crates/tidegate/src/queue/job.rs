//! A job that is due.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A job that is due: a future to run now. Dropping it aborts it.
#[must_use = "a job does nothing unless run"]
pub struct Job {
    pub(super) work: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Job {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.work.as_mut().poll(cx)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

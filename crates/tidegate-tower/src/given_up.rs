//! Records in a thread-local flag whether a future is being dropped because its time is up.
//!
//! A future that is dropped does not learn the reason. If the caller hung up, the drop says nothing about the work. If
//! the deadline of a [`DeadlineLayer`](crate::DeadlineLayer) has passed, the work took too long, and a limit that
//! adapts to latencies must learn of it: otherwise a service that hangs would never lower the limit. So the deadline
//! layer sets the flag on this thread while it drops the inner future.
//!
//! A second flag is set by a call that is dropped while it waits for its turn, in a concurrency layer's queue or for a
//! rate limit layer's permit. The service was not called then, so the timeout is not its failure. The layers around
//! that call read the flag when they are dropped, which is after the call.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tidegate::Outcome;

thread_local! {
    static TIMEOUT_IS_FAILURE: Cell<bool> = const { Cell::new(false) };
    static NOT_CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Part of a call that waits for its turn: dropped, it records that the service was not called.
pub(crate) struct NotCalled;

impl Drop for NotCalled {
    fn drop(&mut self) {
        NOT_CALLED.set(true);
    }
}

pin_project! {
    /// The future of the inner service of a layer that reports how calls end. When it is dropped, it first clears the
    /// flag of [`NotCalled`], so that the flag then tells about this call and not about an earlier one.
    pub(crate) struct Made<F> {
        // Comes first, so it is dropped before the future.
        begin: Begin,
        #[pin]
        future: F,
    }
}

/// Forgets, when dropped, what earlier calls recorded.
struct Begin;

impl Drop for Begin {
    fn drop(&mut self) {
        NOT_CALLED.set(false);
    }
}

impl<F> Made<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { begin: Begin, future }
    }
}

impl<F: Future> Future for Made<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

/// Restores the flag of this thread when dropped, also if the code in between panics.
struct Restore {
    before: bool,
}

impl Drop for Restore {
    fn drop(&mut self) {
        TIMEOUT_IS_FAILURE.set(self.before);
    }
}

/// Runs `work`, which drops a future. While it runs, a flag of this thread says whether the timeout counts as a failure
/// of that future.
pub(crate) fn dropping_for_timeout<T>(timeout_is_failure: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore { before: TIMEOUT_IS_FAILURE.replace(timeout_is_failure) };
    NOT_CALLED.set(false);
    work()
}

/// Returns the outcome of work that is being dropped: a failure within [`dropping_for_timeout`] if the timeout counts and
/// the service was called, else ignored.
pub(crate) fn outcome_of_drop() -> Outcome {
    if TIMEOUT_IS_FAILURE.get() && !NOT_CALLED.get() { Outcome::Failure } else { Outcome::Ignored }
}

/// Returns the outcome of an answer whose body is being dropped before it has ended: as [`outcome_of_drop`], and the
/// service was called.
pub(crate) fn outcome_of_dropped_body() -> Outcome {
    if TIMEOUT_IS_FAILURE.get() { Outcome::Failure } else { Outcome::Ignored }
}

//! Callers who wait for engines, and callers who cannot.

use std::task::{Context, Poll, Waker};

/// What happens where an engine answers later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The caller waits.
    Yes,
    /// The caller cannot, and is told so; the engine is not asked.
    No,
    /// Nobody wants the answer: the engine is asked in the background.
    Unwatched,
}

/// Runs a future that never has to wait.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing is awaited where the caller cannot wait"),
    }
}

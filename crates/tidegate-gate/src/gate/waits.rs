//! Whether a caller waits for engines.

use std::task::{Context, Poll, Waker};

/// What happens if an engine answers later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The caller waits for the answer.
    Yes,
    /// The caller cannot wait and gets an error; the engine is not asked.
    No,
    /// No caller wants the answer: the engine is asked in the background.
    Unwatched,
}

/// Runs a future that never has to wait. Panics if it does.
pub(super) fn run_without_waiting<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing is awaited where the caller cannot wait"),
    }
}

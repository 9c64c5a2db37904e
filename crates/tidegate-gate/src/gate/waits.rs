//! Whether a caller waits for engines, and the values that let it choose.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use tidegate_limits::store::StoreError;

/// What happens if an engine answers later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
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

/// How far something is that is asked at the first poll.
pub(super) enum Progress<'a, T> {
    /// Nobody was asked yet.
    Asked,
    /// Engines are being asked.
    Waits(BoxFuture<'a, Result<T, StoreError>>),
    /// The answer was handed out.
    Over,
}

impl<T> Progress<'_, T> {
    /// Polls what is being awaited. Panics if the answer was handed out before, or nobody was asked.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, StoreError>> {
        let Self::Waits(later) = self else { unreachable!("polled after its answer was handed out") };
        let polled = later.as_mut().poll(cx);
        if polled.is_ready() {
            *self = Self::Over;
        }
        polled
    }
}

/// Something that stores are asked when the answer is wanted: at once by [`Asking::now`], or awaited as a future, which also
/// waits for engines that answer later.
///
/// Each method that returns one says what its answer is, and what a future that is dropped before completion leaves behind.
/// Dropped before it was polled, it has asked nobody. Takes two allocations.
#[must_use = "nobody is asked before the answer is wanted: call `now`, or await it"]
pub struct Asking<'a, T>(Stage<'a, T>);

enum Stage<'a, T> {
    Asked(Box<dyn FnOnce(Waits) -> BoxFuture<'a, T> + Send + 'a>),
    Waits(BoxFuture<'a, T>),
    Over,
}

impl<'a, T> Asking<'a, T> {
    /// Makes an answer that `ask` finds, for a caller that waits or does not.
    pub(crate) fn new<F>(ask: impl FnOnce(Waits) -> F + Send + 'a) -> Self
    where
        F: Future<Output = T> + Send + 'a,
    {
        Self(Stage::Asked(Box::new(move |waits| Box::pin(ask(waits)))))
    }

    /// Asks without waiting. Where an engine would have to be asked, the answer is [`StoreError::MustWait`], and that engine
    /// was not asked.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> T {
        let Stage::Asked(ask) = self.0 else { panic!("not polled before") };
        run_without_waiting(ask(Waits::No))
    }
}

impl<T> Future for Asking<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let stage = &mut self.0;
        let mut later = match std::mem::replace(stage, Stage::Over) {
            Stage::Asked(ask) => ask(Waits::Yes),
            Stage::Waits(later) => later,
            Stage::Over => unreachable!("polled after its answer was handed out"),
        };
        let polled = later.as_mut().poll(cx);
        if polled.is_pending() {
            *stage = Stage::Waits(later);
        }
        polled
    }
}

impl<T> fmt::Debug for Asking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

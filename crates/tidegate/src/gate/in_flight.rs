//! Callers who go away while an engine is being asked.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::background::Background;
use crate::store::{Answer, Later, OwnedStep, Settled, Store};

/// An answer that is awaited. Dropped after its first poll and before it has come, it goes on in the background, for by then the engine may
/// be at work; dropped before that, nothing was asked.
pub(super) struct InFlight<'a, T> {
    later: Option<Later<T>>,
    polled: bool,
    background: &'a Background,
    /// What is done with an answer that nobody waits for.
    then: &'a (dyn Fn(Later<T>) -> Later<()> + Sync),
}

impl<'a, T> InFlight<'a, T> {
    pub(super) fn new(
        later: Later<T>,
        background: &'a Background,
        then: &'a (dyn Fn(Later<T>) -> Later<()> + Sync),
    ) -> Self {
        Self { later: Some(later), polled: false, background, then }
    }
}

impl<'a> InFlight<'a, Answer> {
    /// Awaits an answer that nothing follows from.
    pub(super) fn to_its_end(later: Later<Answer>, background: &'a Background) -> Self {
        Self::new(later, background, &|later| Box::pin(async move { drop(later.await) }))
    }
}

impl<T> Future for InFlight<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.polled = true;
        // Out of its place meanwhile: one that panics is not polled again, in the background or anywhere.
        let mut later = self.later.take().expect("polled until it is ready");
        let polled = later.as_mut().poll(cx);
        if polled.is_pending() {
            self.later = Some(later);
        }
        polled
    }
}

impl<T> Drop for InFlight<'_, T> {
    fn drop(&mut self) {
        if let Some(later) = self.later.take().filter(|_| self.polled) {
            self.background.run((self.then)(later));
        }
    }
}

/// Waits for the answers to steps, and has undone what was charged by those that are given here.
pub(super) fn undo_later(
    store: Arc<dyn Store>,
    steps: Vec<Option<OwnedStep>>,
    later: Later<Vec<Answer>>,
) -> Later<()> {
    Box::pin(async move {
        if steps.iter().all(Option::is_none) {
            // They only looked.
            return;
        }
        for (step, answer) in steps.iter().zip(later.await) {
            let (Some(step), Ok(settled)) = (step, answer) else { continue };
            let undoing = step.with(|step| OwnedStep::undoing(step, &settled)).filter(|_| settled.allowed);
            let Some(undoing) = undoing else { continue };
            let asked = undoing.with(|step| store.settle_into(step, &mut Settled::default()));
            if let crate::store::Settling::Later(later) = asked {
                // An error leaves it charged until time returns it.
                drop(later.await);
            }
        }
    })
}

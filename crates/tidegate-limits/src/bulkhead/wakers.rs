//! Wakers that are called after the lock of the queue is released.

use std::task::Waker;

use smallvec::SmallVec;

use crate::deferred_panic::DeferredPanic;

/// Wakers to call, or only to drop, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "wakers wait to be called"]
pub(super) struct PendingWakers {
    pub(super) to_wake: SmallVec<[Waker; 2]>,
    pub(super) to_drop: Option<Waker>,
}

impl PendingWakers {
    /// Calls the wakers. Not to be called with the lock held. If a waker panics, the others are called all the same: a
    /// waiter that is not woken would hold places without knowing it. Returns the first panic.
    pub(super) fn wake_all(self) -> DeferredPanic {
        let mut first = DeferredPanic::default();
        for waker in self.to_wake {
            first = first.or(DeferredPanic::of(|| waker.wake()).1);
        }
        match self.to_drop {
            None => first,
            Some(waker) => first.or(DeferredPanic::of(|| drop(waker)).1),
        }
    }
}

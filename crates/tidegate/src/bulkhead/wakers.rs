//! Wakers that are called after the lock of the line is released, and the panics of such foreign code.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;

use smallvec::SmallVec;

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
    pub(super) fn wake_all(self) -> HeldPanic {
        let mut first = HeldPanic::default();
        for waker in self.to_wake {
            first = first.or(HeldPanic::of(|| waker.wake()).1);
        }
        match self.to_drop {
            None => first,
            Some(waker) => first.or(HeldPanic::of(|| drop(waker)).1),
        }
    }
}

/// A panic of foreign code, if there was one. It is held back until places are in order, and then resumed.
#[derive(Debug, Default)]
#[must_use = "a panic is resumed"]
pub(super) struct HeldPanic(Option<Box<dyn Any + Send>>);

impl HeldPanic {
    /// Calls foreign code. Returns its result, or its panic.
    pub(super) fn of<T>(foreign: impl FnOnce() -> T) -> (Option<T>, Self) {
        match catch_unwind(AssertUnwindSafe(foreign)) {
            Ok(result) => (Some(result), Self(None)),
            Err(panic) => (None, Self(Some(panic))),
        }
    }

    pub(super) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the first of two panics.
    pub(super) fn or(self, later: Self) -> Self {
        Self(self.0.or(later.0))
    }

    /// Resumes the panic, if there was one.
    pub(super) fn resume(self) {
        if let Some(panic) = self.0 {
            resume_unwind(panic);
        }
    }

    /// Resumes the panic like [`HeldPanic::resume`], but not during another panic, since that would abort the process.
    /// For code that runs when a permit or an entry is dropped.
    pub(super) fn resume_unless_panicking(self) {
        if !std::thread::panicking() {
            self.resume();
        }
    }
}

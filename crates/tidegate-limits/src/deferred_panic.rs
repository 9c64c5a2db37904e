//! Panics of foreign code (clocks, wakers, observers) that are held back until our own state is in order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A panic of foreign code, if there was one. It is held back until places are in order, and then resumed.
#[derive(Debug, Default)]
#[must_use = "a panic is resumed"]
pub(crate) struct DeferredPanic(Option<Box<dyn Any + Send>>);

impl DeferredPanic {
    /// Calls foreign code; returns its result, or its panic.
    pub(crate) fn of<T>(foreign: impl FnOnce() -> T) -> (Option<T>, Self) {
        match catch_unwind(AssertUnwindSafe(foreign)) {
            Ok(result) => (Some(result), Self(None)),
            Err(panic) => (None, Self(Some(panic))),
        }
    }

    pub(crate) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn or(self, later: Self) -> Self {
        Self(self.0.or(later.0))
    }

    pub(crate) fn resume(self) {
        if let Some(panic) = self.0 {
            resume_unwind(panic);
        }
    }

    /// Resumes the panic, but not during another one, since that would abort the process: for code that runs when a
    /// permit, an entry or a call is dropped.
    pub(crate) fn resume_unless_panicking(self) {
        if !std::thread::panicking() {
            self.resume();
        }
    }
}

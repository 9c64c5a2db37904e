//! Records whether one part of a task was woken.
//!
//! The task of a connection is woken for several reasons, and polling hyper for nothing costs as much as deciding a
//! request. So hyper gets its own waker, which records the call and wakes the task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use futures_util::task::AtomicWaker;

/// The waker of one part of a task.
#[derive(Debug)]
pub(super) struct Woken {
    noted: Arc<Noted>,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Noted {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Noted {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release: a thread that reads the flag sees everything that happened before the wake.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Default for Woken {
    /// Starts as woken, so that the part is polled the first time.
    fn default() -> Self {
        let noted = Arc::new(Noted { woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: Arc::clone(&noted).into(), noted }
    }
}

impl Woken {
    /// Returns whether the part was woken since it was last polled. From now on the part wakes the task of `cx`.
    pub(super) fn look(&self, cx: &Context<'_>) -> bool {
        // The waker first, then the flag: a wake-up that comes later wakes the task.
        self.noted.task.register(cx.waker());
        self.noted.woken.load(Ordering::Acquire)
    }

    /// Returns whether the part was woken since it was last polled, for the task that has just looked.
    pub(super) fn is_woken(&self) -> bool {
        self.noted.woken.load(Ordering::Relaxed)
    }

    /// Polls the part, with a context whose waker is this one.
    pub(super) fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        // The flag is reset before the poll, so that a wake-up during the poll counts.
        self.noted.woken.store(false, Ordering::Relaxed);
        poll(&mut Context::from_waker(&self.waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_woken_is_polled_again() {
        let (woken, task) = (Woken::default(), Arc::new(Noted::default()));
        let waker = Waker::from(Arc::clone(&task));
        let cx = Context::from_waker(&waker);
        assert!(woken.look(&cx), "never polled");
        let kept = woken.poll(|cx| cx.waker().clone());
        assert!(!woken.look(&cx));
        kept.wake_by_ref();
        assert!(woken.look(&cx) && task.woken.load(Ordering::Relaxed), "and the task was woken");
        woken.poll(|cx| cx.waker().wake_by_ref());
        assert!(woken.look(&cx), "by itself, while it was polled");
    }
}

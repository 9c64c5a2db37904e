//! Whether somebody waits for something that has come.
//!
//! The task of a connection is woken for several reasons, and to poll hyper for nothing costs as much as deciding a request. So hyper is given a
//! waker of its own, which notes that it was called and wakes the task.

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
        // Release: what came before is seen by whoever takes the note.
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Default for Woken {
    /// As if it had been woken: who has never been polled is polled.
    fn default() -> Self {
        let noted = Arc::new(Noted { woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: Arc::clone(&noted).into(), noted }
    }
}

impl Woken {
    /// Returns whether the part was woken since it was last polled, and will wake the task of `cx` from now on.
    pub(super) fn look(&self, cx: &Context<'_>) -> bool {
        // First the waker, then the note: whoever notes later wakes the task.
        self.noted.task.register(cx.waker());
        self.noted.woken.load(Ordering::Acquire)
    }

    /// Polls the part, which is woken by the context that it is given.
    pub(super) fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        // Before it is polled: what wakes it meanwhile counts.
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

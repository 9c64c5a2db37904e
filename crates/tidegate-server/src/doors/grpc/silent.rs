//! Calls that go on and wait for their caller to say more: such a call is being answered no longer, and its connection may have to make room.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// The calls of one connection that wait for their caller.
#[derive(Debug)]
pub(super) struct SilentCalls {
    waiting: AtomicUsize,
    /// Whether the connection leaves.
    leaving: watch::Sender<bool>,
}

/// A call that waits, counted until it is dropped.
pub(super) struct Silent<'c>(&'c SilentCalls);

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        // Relaxed, as all counts here: the calls of a connection and the connection are tasks of one thread.
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SilentCalls {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), leaving: watch::Sender::new(false) }
    }

    /// Counts a call that waits, until what is returned is dropped.
    pub(super) fn wait(&self) -> Silent<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Silent(self)
    }

    /// Returns how many calls wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Ends the calls that wait, now or when they have answered.
    pub(super) fn end(&self) {
        self.leaving.send_replace(true);
    }

    /// Waits until calls that wait are to end.
    ///
    /// # Cancel safety
    /// Yes.
    pub(super) async fn ended(&self) {
        // An error means that the connection is gone, and the call with it.
        let _ = self.leaving.subscribe().wait_for(|leaving| *leaving).await;
    }
}

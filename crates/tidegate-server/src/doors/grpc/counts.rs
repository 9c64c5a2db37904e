//! Counts the calls of a connection that are being answered, and those that stay open silently.
//!
//! A call that stays open for hours in silence does not make its connection busy: when all places are taken, the
//! connection can lose its place like an idle one. But it does not end for idleness either, because a watcher may wait
//! long for a change. When the connection leaves, such calls are told to end in an orderly way.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::status::{Code, Status};

/// The most calls of one connection that stay open and may be silent. Clients use one call for each service that they
/// watch, and one for reflection.
const MOST_OPEN: usize = 16;

/// The calls of one connection. All atomics are relaxed: the calls and their connection are tasks of one thread.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Calls that are being answered.
    answered: AtomicUsize,
    /// Calls that stay open, silent or not.
    open: AtomicUsize,
    /// Whether the connection is leaving.
    leaving: watch::Sender<bool>,
}

impl Counts {
    /// Counts a call as being answered until [`Counts::ended`].
    pub(super) fn begun(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one [`Counts::begun`].
    pub(super) fn ended(&self) {
        self.answered.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a call that is being answered as silent until the returned value is dropped.
    pub(super) fn silent(&self) -> Silent<'_> {
        self.ended();
        Silent(self)
    }

    /// Returns how many calls are being answered, without silent ones.
    pub(super) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns how many calls stay open.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Tells the calls that stay open to end, now or after their current answer.
    pub(super) fn end_open(&self) {
        self.leaving.send_replace(true);
    }

    /// Counts a call that is being answered as one that stays open too.
    pub(super) fn stay_open(&self) -> Open<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(self)
    }

    /// Like [`Counts::stay_open`], for a call that may be silent from beginning to end.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if [`MOST_OPEN`] calls are open already.
    pub(super) fn keep_open(&self) -> Result<Open<'_>, Status> {
        let open = self.stay_open();
        if self.open() <= MOST_OPEN {
            return Ok(open);
        }
        let message = format!(
            "{MOST_OPEN} calls of this connection are open already; no more may watch or ask for descriptions"
        );
        Err(Status::new(Code::ResourceExhausted, message))
    }
}

/// A call that stays open; counted until this is dropped.
#[derive(Debug)]
pub(super) struct Open<'c>(&'c Counts);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'c> Open<'c> {
    /// Counts the call as silent until the returned value is dropped.
    pub(super) fn silent(&self) -> Silent<'c> {
        self.0.silent()
    }

    /// Waits for `what` while the call counts as silent.
    ///
    /// # Cancel safety
    /// That of `what`.
    pub(super) async fn wait_for<T>(&self, what: impl Future<Output = T>) -> T {
        let _silent = self.silent();
        what.await
    }

    /// Waits until the connection leaves.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn over(&self) {
        // An error means that the connection is gone, and so is the call.
        let _ = self.0.leaving.subscribe().wait_for(|leaving| *leaving).await;
    }
}

/// A call that is silent; counted as such until this is dropped.
pub(super) struct Silent<'c>(&'c Counts);

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        self.0.begun();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_silent_call_is_open_and_not_answered() {
        let counts = Counts::default();
        counts.begun();
        let open = counts.keep_open().unwrap();
        let mut waits = Box::pin(open.wait_for(std::future::pending::<()>()));
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!((counts.answered(), counts.open()), (0, 1));
        drop(waits);
        assert_eq!((counts.answered(), counts.open()), (1, 1));
        drop(open);
        assert_eq!((counts.answered(), counts.open()), (1, 0));
    }

    #[test]
    fn so_many_stay_open_and_no_more() {
        let counts = Counts::default();
        let mut open: Vec<_> = (0..MOST_OPEN).map(|_| counts.keep_open().unwrap()).collect();
        assert_eq!(counts.keep_open().unwrap_err().code, Code::ResourceExhausted);
        open.pop();
        assert!(counts.keep_open().is_ok());
    }
}

//! Counts what the calls of a connection cost: those being answered, those open silently, the limits of a turn, wrong
//! tokens, and bytes held.
//!
//! A call open for hours in silence does not make its connection busy: it can lose its place like an idle one. But it
//! does not end for idleness, since a watcher may wait long. When the connection leaves, such calls are told to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::framing::{Code, Status};
use crate::app::App;
use crate::connections::ConnectionPlace;

/// The most calls of a connection that may be silent: clients use one for each service that they watch, and one for
/// reflection.
const MOST_OPEN: usize = 16;

/// After how many limits others have their turn: about a millisecond.
const SLICE: usize = 256;

/// How many limits a connection's calls have met since others had their turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    limits: AtomicUsize,
    /// The calls beyond the turn, in order.
    queue: tokio::sync::Mutex<()>,
}

impl Turn {
    /// Begins a turn: the connection has read again.
    pub(super) fn begin(&self) {
        self.limits.store(0, Ordering::Relaxed);
    }

    pub(super) fn met(&self, limits: usize) {
        self.limits.fetch_add(limits, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.limits.load(Ordering::Relaxed) >= SLICE
    }

    /// Waits for the next turn, behind other calls of the connection.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next(&self, app: &App) {
        let _first = self.queue.lock().await;
        if self.is_over() {
            // At once, since an answer may have to wait: what counts is that others were ready before.
            drop(app.long_turn().await);
            self.begin();
        }
    }
}

/// The wrong tokens of one connection; after one, no other is looked at for a while.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// Whether there was one: calls without take no lock.
    any: AtomicBool,
    until: Mutex<Option<Instant>>,
}

impl Guesses {
    /// Returns until when no token is looked at; `None` if one may be looked at now.
    pub(super) fn waits_until(&self, now: impl FnOnce() -> Instant) -> Option<Instant> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.until.lock().filter(|until| *until > now())
    }

    /// Records a wrong token. Returns when it may be answered.
    pub(super) fn wrong(&self, now: Instant, wait: Duration) -> Instant {
        self.any.store(true, Ordering::Relaxed);
        let until = now.checked_add(wait).unwrap_or(now);
        *self.until.lock() = Some(until);
        until
    }
}

/// About how many bytes a call takes that waits for its peer, without message or answer.
pub(super) const WAITING_CALL: usize = 8 << 10;

/// The bytes held for the peer: incomplete messages, and answers that wait.
#[derive(Debug)]
pub(super) struct Memory {
    place: Arc<ConnectionPlace>,
    bytes: AtomicUsize,
}

impl Memory {
    pub(super) fn new(place: Arc<ConnectionPlace>) -> Self {
        Self { place, bytes: AtomicUsize::new(0) }
    }

    /// Adds bytes and returns the sum. The connection may be told to end for it ([`ConnectionPlace::hold`]).
    pub(super) fn add(&self, bytes: usize) -> usize {
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.place.hold(all);
        all
    }

    /// Takes back what [`Memory::add`] added.
    pub(super) fn sub(&self, bytes: usize) {
        if bytes > 0 {
            let all = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
            self.place.hold(all);
        }
    }

    /// Adds bytes until the returned value is dropped.
    pub(super) fn holding(&self, bytes: usize) -> Holding<'_> {
        self.add(bytes);
        Holding { all: self, bytes }
    }
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(super) struct Holding<'c> {
    all: &'c Memory,
    bytes: usize,
}

impl Holding<'_> {
    /// Changes the number of bytes. Returns the sum of the connection.
    pub(super) fn set(&mut self, bytes: usize) -> usize {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.all.sub(before.saturating_sub(bytes));
        self.all.add(bytes.saturating_sub(before))
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.all.sub(self.bytes);
    }
}

/// The calls of one connection. All atomics are relaxed: the calls and their connection are tasks of one thread.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    answered: AtomicUsize,
    /// Calls that stay open, silent or not.
    open: AtomicUsize,
    /// Whether the connection is leaving.
    leaving: watch::Sender<bool>,
}

impl CallCounts {
    /// Counts a call as being answered until [`CallCounts::ended`].
    pub(super) fn begun(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one [`CallCounts::begun`].
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

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Tells open calls to end, now or after their current answer.
    pub(super) fn end_open(&self) {
        self.leaving.send_replace(true);
    }

    /// Counts a call that is being answered as open too.
    pub(super) fn stay_open(&self) -> OpenCall<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenCall(self)
    }

    /// As [`CallCounts::stay_open`], for a call that may be silent throughout.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if [`MOST_OPEN`] are open.
    pub(super) fn keep_open(&self) -> Result<OpenCall<'_>, Status> {
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
pub(super) struct OpenCall<'c>(&'c CallCounts);

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'c> OpenCall<'c> {
    /// As [`CallCounts::silent`].
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

/// A call that is silent until this is dropped.
pub(super) struct Silent<'c>(&'c CallCounts);

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
        let counts = CallCounts::default();
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
        let counts = CallCounts::default();
        let mut open: Vec<_> = (0..MOST_OPEN).map(|_| counts.keep_open().unwrap()).collect();
        assert_eq!(counts.keep_open().unwrap_err().code, Code::ResourceExhausted);
        open.pop();
        assert!(counts.keep_open().is_ok());
    }
}

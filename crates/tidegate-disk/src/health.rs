//! Whether what changes gets onto the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How a store and its file are; see [`DiskStore::health`](crate::DiskStore::health).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why nothing can be written at present; `None` while all is well.
    pub error: Option<String>,
    /// For how long that has been so, or for how long all has been well.
    pub since: Duration,
    /// All that changed before this span of time is on disk. While all is well: at most the interval, and what a write takes.
    pub unsaved_for: Duration,
    /// How many writes succeeded. None is made where nothing has changed.
    pub writes: u64,
    /// How many failed.
    pub failures: u64,
    /// How many bytes of pieces were written. The engine adds its own: about a tenth to large writes, some 20 KB to each.
    pub bytes: u64,
    /// What the last write took.
    pub last_write: Duration,
}

/// A change of whether the file can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Whether it can be, from now on.
    pub up: bool,
    /// What went wrong.
    pub reason: String,
    /// For how long it was as it was before.
    pub after: Duration,
}

/// Who is told of changes.
pub(crate) type OnChange = dyn Fn(&Change) + Send + Sync;

/// What is known, and who is told.
pub(crate) struct Watch {
    known: Mutex<Known>,
    told: Option<Box<OnChange>>,
}

#[derive(Debug)]
struct Known {
    error: Option<String>,
    since: Instant,
    saved: Instant,
    writes: u64,
    failures: u64,
    bytes: u64,
    last_write: Duration,
}

impl Watch {
    pub(crate) fn new(told: Option<Box<OnChange>>, now: Instant) -> Self {
        let known = Known {
            error: None,
            since: now,
            saved: now,
            writes: 0,
            failures: 0,
            bytes: 0,
            last_write: Duration::ZERO,
        };
        Self { known: Mutex::new(known), told }
    }

    pub(crate) fn health(&self, now: Instant) -> Health {
        let known = self.known.lock();
        Health {
            error: known.error.clone(),
            since: now.saturating_duration_since(known.since),
            unsaved_for: now.saturating_duration_since(known.saved),
            writes: known.writes,
            failures: known.failures,
            bytes: known.bytes,
            last_write: known.last_write,
        }
    }

    /// Returns why nothing can be written at present.
    pub(crate) fn error(&self) -> Option<String> {
        self.known.lock().error.clone()
    }

    /// Takes note that all that had changed before `began` is on disk; `bytes` were written, if any had to be.
    pub(crate) fn saved(&self, (began, ended): (Instant, Instant), bytes: u64) {
        let mut known = self.known.lock();
        known.saved = began;
        if bytes > 0 {
            known.writes += 1;
            known.bytes += bytes;
            known.last_write = ended.saturating_duration_since(began);
        }
        let Some(reason) = known.error.take() else { return };
        let after = ended.saturating_duration_since(known.since);
        known.since = ended;
        drop(known);
        self.tell(&Change { up: true, reason, after });
    }

    /// Takes note that a write has failed. Told is the first of several.
    pub(crate) fn failed(&self, reason: String, now: Instant) {
        let mut known = self.known.lock();
        known.failures += 1;
        if known.error.replace(reason.clone()).is_some() {
            return;
        }
        let after = now.saturating_duration_since(known.since);
        known.since = now;
        drop(known);
        self.tell(&Change { up: false, reason, after });
    }

    fn tell(&self, change: &Change) {
        // Whatever it does, the thread that writes goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| self.told.iter().for_each(|told| told(change))));
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("known", &self.known).finish_non_exhaustive()
    }
}

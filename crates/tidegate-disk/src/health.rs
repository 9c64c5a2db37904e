//! The health of a store's file: whether changes get onto the disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The state of a store and its file; see [`DiskStore::health`](crate::DiskStore::health).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why nothing can be written at present; `None` if the last write succeeded.
    pub error: Option<String>,
    /// How long the present state (failing or healthy) has lasted.
    pub since: Duration,
    /// All changes older than this are on disk. While healthy, at most the interval and the duration of a write.
    pub unsaved_for: Duration,
    /// The number of successful writes.
    pub writes: u64,
    /// The number of failed writes.
    pub failures: u64,
    /// The bytes of pieces written. The engine adds about a tenth to large writes, and about 20 KB to each.
    pub bytes: u64,
    /// The duration of the last write.
    pub last_write: Duration,
}

/// A change of whether the file can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Whether it can be written from now on.
    pub up: bool,
    /// The error.
    pub reason: String,
    /// How long the previous state lasted.
    pub after: Duration,
}

pub(crate) type OnChange = dyn Fn(&Change) + Send + Sync;

pub(crate) struct HealthWatch {
    known: Mutex<KnownHealth>,
    on_change: Option<Box<OnChange>>,
}

#[derive(Debug)]
struct KnownHealth {
    /// Without its spans, which are counted from these two.
    health: Health,
    since: Instant,
    saved: Instant,
}

impl HealthWatch {
    pub(crate) fn new(on_change: Option<Box<OnChange>>, now: Instant) -> Self {
        let known = KnownHealth { health: Health::default(), since: now, saved: now };
        Self { known: Mutex::new(known), on_change }
    }

    pub(crate) fn health(&self, now: Instant) -> Health {
        let known = self.known.lock();
        Health {
            since: now.saturating_duration_since(known.since),
            unsaved_for: now.saturating_duration_since(known.saved),
            ..known.health.clone()
        }
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.known.lock().health.error.clone()
    }

    /// Records that all changes from before `began` are on disk.
    pub(crate) fn saved(&self, began: Instant, ended: Instant, bytes: u64) {
        let mut known = self.known.lock();
        known.saved = began;
        if bytes > 0 {
            known.health.writes += 1;
            known.health.bytes += bytes;
            known.health.last_write = ended.saturating_duration_since(began);
        }
        let Some(reason) = known.health.error.take() else { return };
        let after = ended.saturating_duration_since(known.since);
        known.since = ended;
        drop(known);
        self.call_on_change(&Change { up: true, reason, after });
    }

    /// Records a failed write; the callback is called for the first of several.
    pub(crate) fn failed(&self, reason: String, now: Instant) {
        let mut known = self.known.lock();
        known.health.failures += 1;
        if known.health.error.replace(reason.clone()).is_some() {
            return;
        }
        let after = now.saturating_duration_since(known.since);
        known.since = now;
        drop(known);
        self.call_on_change(&Change { up: false, reason, after });
    }

    fn call_on_change(&self, change: &Change) {
        // A panic of the callback must not end the writer thread.
        let _ =
            catch_unwind(AssertUnwindSafe(|| self.on_change.iter().for_each(|on_change| on_change(change))));
    }
}

impl std::fmt::Debug for HealthWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("known", &self.known).finish_non_exhaustive()
    }
}

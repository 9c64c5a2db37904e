//! Tells the log of steps that a store could not settle because of what lies under their keys.
//!
//! The store itself answers, so nothing else speaks of it: no outage, and callers are decided for by `on_store_error`. Somebody has
//! written over the store's keys, or too many nodes write one at once; left alone, each node grants its own part for as long as that lasts.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::store::{Answer, StoreError};
use tidegate::{Limiter, Quota};

/// Lines at once.
const BURST: u64 = 3;
/// Lines a minute after that.
const PER_MINUTE: u64 = 1;

/// Which of these errors are told, and how many were not.
#[derive(Debug)]
pub(super) struct KeyErrors {
    store: &'static str,
    often: Limiter,
    left_out: AtomicU64,
}

impl KeyErrors {
    /// Those of a store of this kind.
    pub(super) fn of(store: &'static str) -> Self {
        let quota = Quota::per_minute(PER_MINUTE).burst(BURST).gcra().expect("a rate in range");
        Self { store, often: Limiter::new(quota).expect("a quota in range"), left_out: AtomicU64::new(0) }
    }

    /// Tells of an answer, if it is such an error and not too many were told lately.
    pub(super) fn note(&self, answer: &Answer) {
        let Err(error) = answer else { return };
        if !matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::CellTooLarge { .. } | StoreError::Contended { .. }
        ) {
            return;
        }
        // Relaxed: a number for people.
        if !self.often.admit() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            store = self.store,
            reason = %error,
            why,
            left_out,
            "the store cannot settle a key; on_store_error decides its requests"
        );
    }
}

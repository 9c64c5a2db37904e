//! Logs steps that a store could not settle because of the data under their keys.
//!
//! Nothing else reports these errors: the store answers, so there is no outage, and `on_store_error` decides the
//! requests. The cause is a foreign program that overwrote the store's keys, or too many nodes writing one key at once.
//! While it lasts, each node grants its own part of the limit.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::store::{Answer, StoreError};
use tidegate::{Limiter, Quota};

/// How many lines may be logged at once.
const BURST: u64 = 3;
/// How many lines a minute may be logged after that.
const PER_MINUTE: u64 = 1;

/// Limits how many of these errors are logged, and counts the rest.
#[derive(Debug)]
pub(super) struct KeyErrors {
    store: &'static str,
    often: Limiter,
    left_out: AtomicU64,
}

impl KeyErrors {
    /// Makes the log limit of a store of this kind.
    pub(super) fn of(store: &'static str) -> Self {
        let quota = Quota::per_minute(PER_MINUTE).burst(BURST).gcra().expect("a rate in range");
        Self { store, often: Limiter::new(quota).expect("a quota in range"), left_out: AtomicU64::new(0) }
    }

    /// Logs an answer if it is such an error and the limit of lines allows it.
    pub(super) fn note(&self, answer: &Answer) {
        let Err(error) = answer else { return };
        if !matches!(
            error,
            StoreError::Corrupt { .. } | StoreError::CellTooLarge { .. } | StoreError::Contended { .. }
        ) {
            return;
        }
        // Relaxed: the count stands alone, and only people read it.
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

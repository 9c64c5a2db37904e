//! The breakers that refuse and are not on the list yet.
//!
//! The list is made from notes. A breaker has none if another process put it into its state (this server before a
//! restart, or another node of the same engine), or if time alone did, as a breaker that sheds may begin to when good
//! calls leave its window. It is noted after its first refusal.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The most breakers that wait to be read. Others wait for their next refusal.
const MOST_WAITING: usize = 64;

/// The policy of each breaker and the index of its limit, by key.
pub(super) type LimitsByKey = HashMap<Box<[u8]>, (String, usize)>;

/// Breakers that have refused a request and have no note.
#[derive(Debug, Default)]
pub(crate) struct UnnotedRefusers(Mutex<LimitsByKey>);

impl UnnotedRefusers {
    /// Adds a breaker, unless it waits already or too many do.
    pub(super) fn add(&self, key: &[u8], policy: &str, limit: usize) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < MOST_WAITING && !waiting.contains_key(key) {
            waiting.insert(key.into(), (policy.to_owned(), limit));
        }
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> LimitsByKey {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

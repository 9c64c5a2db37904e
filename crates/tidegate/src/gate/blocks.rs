//! The table of manually blocked keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::Tick;

use crate::policy::Block;

/// The blocks, by policy name and key.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The number of blocks, including those that have ended.
    count: AtomicUsize,
    /// How often a block was set or ended manually.
    changes: AtomicU64,
    pub(super) by_policy: RwLock<ByPolicy>,
}

pub(super) type ByPolicy = HashMap<Box<str>, HashMap<Box<[u8]>, Arc<Block>, RandomState>, RandomState>;

impl Blocks {
    /// Reports whether there may be blocks.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        // Relaxed: of two concurrent checks, it does not matter which sees a new block first.
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn changed(&self) {
        // Relaxed, as in `any`: a caller that has seen the result of the change also sees the count.
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, by_policy: &ByPolicy) -> usize {
        by_policy.values().map(HashMap::len).sum()
    }

    /// Removes the blocks that have ended.
    pub(super) fn tidy(&self, by_policy: &mut ByPolicy, now: Tick) {
        by_policy.retain(|_, keys| {
            keys.retain(|_, block| now < block.until);
            !keys.is_empty()
        });
        self.note(by_policy);
    }

    pub(super) fn note(&self, by_policy: &ByPolicy) {
        // Relaxed, as in `any`; the map itself is under its lock.
        self.count.store(self.count(by_policy), Ordering::Relaxed);
    }
}

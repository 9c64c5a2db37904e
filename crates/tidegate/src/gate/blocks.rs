//! Which keys are refused by hand, for a while and for a reason.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::Tick;

use crate::policy::Block;

/// The blocks, by the name of the policy and the key.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// How many there are, those that have ended included.
    count: AtomicUsize,
    /// How often one was set or ended by hand.
    changes: AtomicU64,
    pub(super) by_policy: RwLock<ByPolicy>,
}

pub(super) type ByPolicy = HashMap<Box<str>, HashMap<Box<[u8]>, Arc<Block>, RandomState>, RandomState>;

impl Blocks {
    /// Says whether there may be blocks.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        // Relaxed: which of two checks at the same time meets a new block first does not matter.
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn changed(&self) {
        // Relaxed, as in `any`; one who asks after the answer to the change sees it.
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, by_policy: &ByPolicy) -> usize {
        by_policy.values().map(HashMap::len).sum()
    }

    /// Drops the blocks that have ended.
    pub(super) fn tidy(&self, by_policy: &mut ByPolicy, now: Tick) {
        by_policy.retain(|_, keys| {
            keys.retain(|_, block| now < block.until);
            !keys.is_empty()
        });
        self.note(by_policy);
    }

    pub(super) fn note(&self, by_policy: &ByPolicy) {
        // Relaxed: as in `any`; the map itself is under its lock.
        self.count.store(self.count(by_policy), Ordering::Relaxed);
    }
}

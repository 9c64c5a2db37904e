//! The table of blocked keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::Tick;

use crate::policy::{AccessEntry, AccessList, Block, Descriptor};

/// The blocks, by policy name and key.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    /// The number of blocks, including those that have ended.
    count: AtomicUsize,
    /// How often a block began or was ended.
    changes: AtomicU64,
    /// Before this tick, in nanoseconds, no room is made for blocks by limits: looking for blocks that have ended takes
    /// as long as there are blocks.
    next_tidy: AtomicU64,
    /// How many blocks by limits did not begin, because there was no room.
    left_out: AtomicU64,
    /// Two hashers, seeded at random: together they tell long keys apart.
    hashers: [foldhash::quality::RandomState; 2],
    pub(super) by_policy: RwLock<ByPolicy>,
    /// The blocks that hold whatever the policies say.
    pub(super) everywhere: RwLock<Everywhere>,
}

/// The blocks of callers for all policies.
#[derive(Debug, Default)]
pub(super) struct Everywhere {
    pub(super) blocks: HashMap<AccessEntry, Arc<Block>, RandomState>,
    /// The entries of `blocks`, for lookups.
    list: AccessList,
}

impl Everywhere {
    /// Returns the entry that a request fits, and its block. The block may have ended.
    pub(super) fn find(&self, request: &Descriptor<'_>) -> Option<(AccessEntry, &Arc<Block>)> {
        let entry = self.list.find(request)?;
        let block = self.blocks.get(&entry)?;
        Some((entry, block))
    }

    /// Removes the blocks that have ended.
    pub(super) fn tidy(&mut self, now: Tick) {
        self.blocks.retain(|_, block| now < block.until);
        self.list = self.blocks.keys().cloned().collect();
    }
}

pub(super) type ByPolicy = HashMap<Box<str>, HashMap<Box<[u8]>, Arc<Block>, RandomState>, RandomState>;

impl BlockTable {
    /// The most keys that may be blocked because they exceeded a limit.
    const MOST_BY_LIMITS: usize = 100_000;
    /// Of a longer key, only the beginning and a fingerprint are kept: callers choose its length.
    const WHOLE_KEY: usize = 64;
    /// The most characters of a key's text that a block by a limit keeps.
    const MOST_TEXT: usize = 160;

    /// Returns what is kept of a key.
    pub(super) fn kept<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        if key.len() <= Self::WHOLE_KEY {
            return Cow::Borrowed(key);
        }
        let [one, other] = self.hashers.each_ref().map(|hasher| hasher.hash_one(key).to_le_bytes());
        // One byte longer than any key that is kept whole.
        let beginning = &key[..Self::WHOLE_KEY + 1 - 16];
        Cow::Owned([beginning, &one, &other].concat())
    }

    /// Returns how many blocks by limits did not begin, because there was no room.
    pub(super) fn left_out(&self) -> u64 {
        // Relaxed: a statistic.
        self.left_out.load(Ordering::Relaxed)
    }

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

    /// Says whether persons have blocked `most` keys or more.
    pub(super) fn has_by_hand(&self, by_policy: &ByPolicy, most: usize) -> bool {
        let by_hand = || by_policy.values().flat_map(HashMap::values).filter(|block| !block.by_limit).count();
        self.count(by_policy) >= most && by_hand() >= most
    }

    /// Begins the block of a key that exceeded a limit, unless the key is blocked; says whether it is. Without room for
    /// it nothing happens: the limit itself still refuses the key.
    pub(super) fn begin(&self, policy: &str, key: &[u8], now: Tick, block: impl FnOnce() -> Block) -> bool {
        let key = self.kept(key);
        let mut by_policy = self.by_policy.write();
        let held = by_policy.get(policy).and_then(|keys| keys.get(&*key));
        held.is_some_and(|held| held.holds(now)) || self.insert(&mut by_policy, policy, &key, now, block)
    }

    /// Takes over what a store says of the block of a key, in place of an earlier block by a limit.
    pub(super) fn know(&self, policy: &str, key: &[u8], now: Tick, block: Block) {
        let key = &*self.kept(key);
        let mut by_policy = self.by_policy.write();
        let held = by_policy.get_mut(policy).and_then(|keys| keys.get_mut(key));
        match held.filter(|held| now < held.until) {
            Some(held) if !held.by_limit => {}
            Some(held) => *held = Arc::new(block),
            None => {
                self.insert(&mut by_policy, policy, key, now, || block);
            }
        }
    }

    /// Ends the block of a key by a limit: the store that keeps it has none.
    pub(super) fn end_by_limit(&self, policy: &str, key: &[u8], now: Tick) {
        if !self.any() || self.get(policy, key).is_none_or(|block| !block.by_limit) {
            return;
        }
        let key = &*self.kept(key);
        let mut by_policy = self.by_policy.write();
        let Some(keys) = by_policy.get_mut(policy) else { return };
        if keys.get(key).is_some_and(|block| block.by_limit) {
            keys.remove(key);
            self.changed();
            self.tidy(&mut by_policy, now);
        }
    }

    /// Goes by the block of a key by a limit until `known_until`, at most until its end.
    pub(super) fn go_on(&self, policy: &str, key: &[u8], now: Tick, known_until: Tick) {
        if !self.any() {
            return;
        }
        let key = &*self.kept(key);
        let mut by_policy = self.by_policy.write();
        let held = by_policy.get_mut(policy).and_then(|keys| keys.get_mut(key));
        if let Some(held) = held.filter(|held| held.by_limit && now < held.until) {
            *held = Arc::new(Block { known_until: known_until.min(held.until), ..Block::clone(held) });
        }
    }

    /// Returns the block of a key, which may have ended.
    pub(super) fn get(&self, policy: &str, key: &[u8]) -> Option<Arc<Block>> {
        self.by_policy.read().get(policy)?.get(&*self.kept(key)).cloned()
    }

    /// Adds a block if there is room; says whether there was.
    fn insert(
        &self,
        by_policy: &mut ByPolicy,
        policy: &str,
        key: &[u8],
        now: Tick,
        block: impl FnOnce() -> Block,
    ) -> bool {
        if !Self::has_room(by_policy, policy) {
            // Relaxed: under the lock.
            if now.as_nanos() >= self.next_tidy.load(Ordering::Relaxed) {
                self.next_tidy.store(now.as_nanos().saturating_add(1_000_000_000), Ordering::Relaxed);
                self.tidy(by_policy, now);
            }
            if !Self::has_room(by_policy, policy) {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        let mut block = block();
        if let Some((end, _)) = block.key.char_indices().nth(Self::MOST_TEXT) {
            block.key = format!("{}\u{2026}", &block.key[..end]).into();
        }
        by_policy.entry(policy.into()).or_default().insert(key.into(), Arc::new(block));
        self.note(by_policy);
        self.changed();
        true
    }

    /// Says whether a policy may have one more block by a limit: it has fewer than all policies leave, so whoever fills
    /// the room of one policy leaves some to each other.
    fn has_room(by_policy: &ByPolicy, policy: &str) -> bool {
        let (own, all) = by_policy.iter().fold((0, 0), |(own, all), (name, keys)| {
            (if **name == *policy { keys.len() } else { own }, all + keys.len())
        });
        own < Self::MOST_BY_LIMITS.saturating_sub(all)
    }

    /// Returns the end of a key's block, if that is known to be in effect.
    pub(super) fn until(&self, policy: &str, key: &[u8], now: Tick) -> Option<Tick> {
        let by_policy = self.by_policy.read();
        let block = by_policy.get(policy)?.get(&*self.kept(key))?;
        block.holds(now).then_some(block.until)
    }

    /// Changes the blocks for all policies, and removes those that have ended.
    pub(super) fn change_everywhere<R>(&self, now: Tick, change: impl FnOnce(&mut Everywhere) -> R) -> R {
        // Both locks, in this order, since `count` is of both.
        let by_policy = self.by_policy.read();
        let mut everywhere = self.everywhere.write();
        let changed = change(&mut everywhere);
        everywhere.tidy(now);
        self.store_count(&by_policy, &everywhere);
        changed
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
        self.store_count(by_policy, &self.everywhere.read());
    }

    fn store_count(&self, by_policy: &ByPolicy, everywhere: &Everywhere) {
        // Relaxed, as in `any`; the maps themselves are under their locks.
        self.count.store(self.count(by_policy) + everywhere.blocks.len(), Ordering::Relaxed);
    }
}

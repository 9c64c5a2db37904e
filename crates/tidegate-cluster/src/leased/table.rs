//! The keys with leases, in parts that are locked one by one, and the draws in flight for them.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::fast::RandomState;
use futures_util::future::{FutureExt as _, Shared};
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{Quota, Tick};
use tidegate_limits::store::{Charge, ChargeRules, Later};

use super::leasable::Terms;
use super::lease::Lease;

/// The number of parts of the table, each under a lock of its own: usually more than there are cores.
const SHARDS: usize = 64;

const LOOKED_AT: usize = 8;

#[derive(Clone)]
pub(super) struct Drawing {
    pub(super) made: Shared<Later<()>>,
    /// Whether it also runs in the background, so that it goes on if all requests that wait for it are dropped.
    in_background: Arc<AtomicBool>,
}

impl Drawing {
    pub(super) fn of(draw: Later<()>) -> Self {
        Self { made: draw.shared(), in_background: Arc::default() }
    }

    pub(super) fn goes_on(&self) -> bool {
        // Relaxed: exactly one caller gets `true`, whichever it is.
        !self.in_background.swap(true, Ordering::Relaxed)
    }
}

pub(super) struct LeasedKey {
    pub(super) key: Arc<[u8]>,
    /// The limit that callers named, compared by its address.
    pub(super) quota: Arc<Quota>,
    pub(super) lease: Lease,
    pub(super) drawing: Option<Drawing>,
    pub(super) settings: ChargeSettings,
}

/// The settings of a key's charges besides its limit, from the last request that took no units on the fast path.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeSettings {
    pub(super) tag: u64,
    pub(super) rules: ChargeRules,
}

impl ChargeSettings {
    pub(super) const fn of(charge: &Charge<'_>, tag: u64) -> Self {
        Self { tag, rules: charge.rules }
    }
}

impl LeasedKey {
    #[inline]
    pub(super) fn is_of(&self, quota: &Arc<Quota>) -> bool {
        Arc::ptr_eq(&self.quota, quota) || self.quota == *quota
    }
}

#[derive(Default)]
pub(super) struct Shard {
    entries: HashMap<u64, LeasedKey, BuildHasherDefault<Hashed>>,
    pub(super) granted: u64,
    pub(super) refused: u64,
}

pub(super) struct LeaseTable {
    hasher: RandomState,
    shards: Box<[Mutex<Shard>]>,
    most: usize,
}

impl LeaseTable {
    pub(super) fn new(keys: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { hasher: RandomState::default(), shards, most: keys.div_ceil(SHARDS).max(1) }
    }

    #[inline]
    pub(super) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Locks the part of a key. While it is held, no other part may be locked, and the engine may not be asked.
    #[inline]
    pub(super) fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.shards[(hash >> 32) as usize % SHARDS].lock()
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    pub(super) const fn capacity(&self) -> usize {
        self.most * SHARDS
    }

    pub(super) const fn most_in_a_shard(&self) -> usize {
        self.most
    }
}

impl Shard {
    /// Returns the entry of a key. Two keys with the same hash, one in 2⁶⁴ pairs, cannot both have one.
    #[inline]
    pub(super) fn get(&mut self, hash: u64, key: &[u8]) -> Option<&mut LeasedKey> {
        self.entries.get_mut(&hash).filter(|entry| *entry.key == *key)
    }

    /// Returns the entry of a key whose lease still has these terms.
    pub(super) fn get_under(&mut self, hash: u64, key: &[u8], terms: &Arc<Terms>) -> Option<&mut LeasedKey> {
        self.get(hash, key).filter(|entry| Arc::ptr_eq(&entry.lease.terms, terms))
    }

    /// Returns the entry of a key, which is made if there is room. A lease of another limit is replaced.
    pub(super) fn entry(
        &mut self,
        hash: u64,
        most: usize,
        now: Tick,
        charge: &Charge<'_>,
        terms: &Arc<Terms>,
        settings: ChargeSettings,
    ) -> Option<&mut LeasedKey> {
        if !self.entries.contains_key(&hash) {
            if self.entries.len() >= most {
                let idle = |(_, entry): &(&u64, &LeasedKey)| entry.lease.is_idle(now);
                let found = self.entries.iter().take(LOOKED_AT).find(idle).map(|(hash, _)| *hash)?;
                self.entries.remove(&found);
            }
            let entry = LeasedKey {
                key: charge.key.into(),
                quota: Arc::clone(charge.quota),
                lease: Lease::new(Arc::clone(terms)),
                drawing: None,
                settings,
            };
            self.entries.insert(hash, entry);
        }
        let entry = self.get(hash, charge.key)?;
        if !entry.is_of(charge.quota) {
            entry.lease = Lease::new(Arc::clone(terms));
            (entry.quota, entry.drawing, entry.settings) = (Arc::clone(charge.quota), None, settings);
        }
        Some(entry)
    }

    pub(super) fn entries(&mut self) -> impl Iterator<Item = &mut LeasedKey> {
        self.entries.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets keys with no units held and no recent requests.
    pub(super) fn forget_idle(&mut self, now: Tick) {
        self.entries.retain(|_, entry| !entry.lease.is_idle(now));
    }
}

impl fmt::Debug for LeaseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("capacity", &self.capacity()).finish_non_exhaustive()
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub(super) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

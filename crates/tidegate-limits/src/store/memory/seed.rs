//! Keys as a table keeps them: hashed under a secret, the seed, or in full.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::ops::Range;
use std::{array, fmt};

use foldhash::SharedSeed;
#[cfg(tidegate_loom)]
use foldhash::quality::FixedState;
#[cfg(not(tidegate_loom))]
use foldhash::quality::FoldHasher;

use super::cache_line::{Lines, WAYS};
use crate::sync::{AtomicU64, Ordering, fence};

/// The secret under which a [`MemoryStore`](super::MemoryStore) hashes keys.
///
/// Under the same seed a key has the same fingerprint, so an exported table means the same keys in the next process.
/// The seed is a secret: an attacker who knows it can make keys that evict a victim's key, or that share a victim's
/// limit. Keep it where a private key would be kept: readable by the process alone, apart from the exports, and in no
/// log. `Debug` does not print it.
///
/// # Examples
/// ```
/// use tidegate::store::Seed;
///
/// let seed = Seed::random();
/// let kept = seed.expose();
/// assert_eq!(Seed::from_bytes(kept).expose(), kept);
/// assert_eq!(format!("{seed:?}"), "Seed(..)");
/// ```
#[derive(Clone)]
pub struct Seed([u64; 4]);

impl Seed {
    /// Draws a seed from the system's randomness.
    #[must_use]
    pub fn random() -> Self {
        // SipHash under keys that the standard library drew from the system.
        let random = RandomState::new();
        Self([0_u64, 1, 2, 3].map(|part| random.hash_one(part)))
    }

    /// Makes a seed from the bytes that [`Seed::expose`] returned.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let (parts, _) = bytes.as_chunks::<8>();
        Self(array::from_fn(|part| u64::from_le_bytes(parts[part])))
    }

    /// Returns the secret itself, to be stored for the next process.
    #[must_use]
    pub fn expose(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (part, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *part = number.to_le_bytes();
        }
        bytes
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg_attr(tidegate_loom, expect(dead_code, reason = "models hash without a seed"))]
pub(super) struct Hashing {
    own: u64,
    shared: SharedSeed,
    long: [u64; 2],
}

impl Hashing {
    pub(super) fn new(seed: &Seed) -> Self {
        let [own, shared, low, high] = seed.0;
        Self { own, shared: SharedSeed::from_u64(shared), long: [low, high] }
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, key: &[u8]) -> u64 {
        // The same as `hash_one`, which is not always inlined.
        #[cfg(not(tidegate_loom))]
        let mut hasher = FoldHasher::with_seed(self.own, &self.shared);
        // A model runs many times, and its keys have to lie in the same lines each time.
        #[cfg(tidegate_loom)]
        let mut hasher = FixedState::default().build_hasher();
        hasher.write_usize(key.len());
        hasher.write(key);
        hasher.finish()
    }

    /// Two hashes of a long key that are independent of its fingerprint: SipHash, of the secret and then the key.
    pub(super) fn long(&self, key: &[u8]) -> [u64; 2] {
        self.long.map(|secret| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(secret);
            hasher.write(key);
            hasher.finish()
        })
    }

    /// Returns a number that is the same for every table that hashes as this one does.
    pub(super) fn probe(&self) -> u64 {
        const KEY: &[u8] = b"a key of more than sixteen bytes, to tell tables apart";
        let [low, high] = self.long(KEY);
        self.fingerprint(KEY) ^ low.rotate_left(21) ^ high.rotate_left(42)
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing(..)")
    }
}

// Keeps keys in full besides their fingerprints, for limits where two keys must not be taken for the same one.
//
// A full key takes sixteen bytes for each slot, in separate lines: a check has a second cache miss, which overlaps with
// the first; keys are compared while the slot is seized. Of a key longer than [`LONGEST`], 120 bits are kept, from two
// SipHash values under keys of the process. Two of `n` longer keys are taken for the same one only if they agree in
// these and in the 48 bits of their slots' names: odds of about `n² · 2⁻¹⁶⁹`.

/// The longest key, in bytes, that is kept as it is; the sixteenth byte holds its length.
const LONGEST: usize = 15;

/// The last byte of a longer key, in place of the length.
const LONGER: u8 = 0xFF;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FullKey([u64; 2]);

impl FullKey {
    pub(super) fn of(key: &[u8], hashing: &Hashing) -> Self {
        let mut bytes = [0; LONGEST + 1];
        if let Some(room) = bytes[..LONGEST].get_mut(..key.len()) {
            room.copy_from_slice(key);
            bytes[LONGEST] = key.len() as u8;
        } else {
            let [low, high] = hashing.long(key);
            bytes[..8].copy_from_slice(&low.to_le_bytes());
            bytes[8..].copy_from_slice(&high.to_le_bytes());
            bytes[LONGEST] = LONGER;
        }
        Self::from_bytes(bytes)
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(array::from_fn(|half| u64::from_le_bytes(array::from_fn(|byte| bytes[half * 8 + byte]))))
    }

    pub(super) fn to_bytes(self) -> [u8; 16] {
        let [low, high] = self.0.map(u64::to_le_bytes);
        array::from_fn(|byte| if byte < 8 { low[byte] } else { high[byte - 8] })
    }
}

#[derive(Debug, Default)]
#[cfg_attr(not(tidegate_loom), derive(bytemuck::Zeroable))]
struct KeptKey {
    low: AtomicU64,
    high: AtomicU64,
}

#[derive(Debug)]
pub(super) struct FullKeys {
    kept: Lines<KeptKey>,
}

// All accesses below are Relaxed: a slot's key is written under the lock of its line while the slot is seized, and read
// under one of the two, or before and after the word, as the slot's name is.
impl FullKeys {
    pub(super) fn new(lines: usize) -> Option<Self> {
        Lines::new(lines).map(|kept| Self { kept })
    }

    /// Returns the key of a slot; its line must be locked or the slot seized.
    pub(super) fn at(&self, line: usize, slot: usize) -> FullKey {
        let kept = &self.kept.get(line)[slot];
        FullKey([kept.low.load(Ordering::Relaxed), kept.high.load(Ordering::Relaxed)])
    }

    pub(super) fn prefault(&self, pages: Range<usize>) -> usize {
        let prefault = |kept: &KeptKey| {
            let _ = kept.low.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        };
        self.kept.pages(pages).map(prefault).count()
    }

    #[inline]
    pub(super) fn holds(&self, line: usize, slot: usize, key: FullKey) -> bool {
        let kept = &self.kept.get(line)[slot];
        let FullKey([low, high]) = key;
        (kept.low.load(Ordering::Relaxed) ^ low) | (kept.high.load(Ordering::Relaxed) ^ high) == 0
    }

    pub(super) fn keep(&self, line: usize, slot: usize, key: FullKey) {
        let kept = &self.kept.get(line)[slot];
        let FullKey([low, high]) = key;
        // Release, with the fence in `Slot::read`: who sees any of the key also sees the slot seized.
        fence(Ordering::Release);
        kept.low.store(low, Ordering::Relaxed);
        kept.high.store(high, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn touch(&self, line: usize) -> u64 {
        self.kept.get(line)[0].low.load(Ordering::Relaxed)
    }
}

const _: () = assert!(size_of::<[KeptKey; WAYS]>() == 64 || cfg!(tidegate_loom));

//! The seed: the secret under which a table hashes keys.

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

use foldhash::SharedSeed;
#[cfg(tidegate_loom)]
use foldhash::quality::FixedState;
#[cfg(not(tidegate_loom))]
use foldhash::quality::FoldHasher;

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
        Self(std::array::from_fn(|part| u64::from_le_bytes(parts[part])))
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

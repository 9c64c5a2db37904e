//! Keeps keys in full besides their fingerprints, for limits where two keys must not be taken for the same one.
//!
//! A full key takes sixteen bytes for each slot, in separate lines: a check has a second cache miss, which overlaps
//! with the first; keys are compared while the slot is seized. A key of up to [`LONGEST`] bytes is kept as it is and
//! compared byte by byte. Of a longer key, 120 bits are kept, from two SipHash values under keys of the process: if
//! longer keys were kept as they are, the table would grow with the keys that callers send. Two of `n` longer keys are
//! taken for the same one only if they agree in these 120 bits and in the 48 of their slots' names: odds of about
//! `n² · 2⁻¹⁶⁹`.

use std::array;
use std::ops::Range;

use super::cache_line::WAYS;
use super::cache_lines::Lines;
use super::seed::Hashing;
use crate::sync::{AtomicU64, Ordering};

/// The longest key, in bytes, that is kept as it is; the sixteenth byte holds its length.
const LONGEST: usize = 15;

/// The last byte of a longer key.
const LONGER: u8 = 0xFF;

/// A key in sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FullKey([u64; 2]);

impl FullKey {
    /// Returns the form of a key that is kept.
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

/// The kept key of a slot.
#[derive(Debug, Default)]
#[cfg_attr(not(tidegate_loom), derive(bytemuck::Zeroable))]
struct KeptKey {
    low: AtomicU64,
    high: AtomicU64,
}

/// The keys of all slots.
#[derive(Debug)]
pub(super) struct FullKeys {
    kept: Lines<KeptKey>,
}

// All accesses below are Relaxed: a slot's key is read and written under the lock of its line.
impl FullKeys {
    /// Makes room for the keys of so many lines; `None` where there is no memory.
    pub(super) fn new(lines: usize) -> Option<Self> {
        Lines::new(lines).map(|kept| Self { kept })
    }

    /// Returns the key of a slot; its line must be locked.
    pub(super) fn at(&self, line: usize, slot: usize) -> FullKey {
        let kept = &self.kept.get(line)[slot];
        FullKey([kept.low.load(Ordering::Relaxed), kept.high.load(Ordering::Relaxed)])
    }

    /// Makes the system provide the memory of some pages, as writes do, without changing anything. Returns the number
    /// of pages.
    pub(super) fn prefault(&self, pages: Range<usize>) -> usize {
        let prefault = |kept: &KeptKey| {
            let _ = kept.low.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
        };
        self.kept.pages(pages).map(prefault).count()
    }

    /// Returns whether a slot is that of a key.
    #[inline]
    pub(super) fn holds(&self, line: usize, slot: usize, key: FullKey) -> bool {
        let kept = &self.kept.get(line)[slot];
        let FullKey([low, high]) = key;
        (kept.low.load(Ordering::Relaxed) ^ low) | (kept.high.load(Ordering::Relaxed) ^ high) == 0
    }

    /// Stores the key of a slot.
    pub(super) fn keep(&self, line: usize, slot: usize, key: FullKey) {
        let kept = &self.kept.get(line)[slot];
        let FullKey([low, high]) = key;
        kept.low.store(low, Ordering::Relaxed);
        kept.high.store(high, Ordering::Relaxed);
    }

    /// Reads from a line, to prefetch it while others are looked at.
    #[inline]
    pub(super) fn touch(&self, line: usize) -> u64 {
        self.kept.get(line)[0].low.load(Ordering::Relaxed)
    }
}

const _: () = assert!(size_of::<[KeptKey; WAYS]>() == 64 || cfg!(tidegate_loom));

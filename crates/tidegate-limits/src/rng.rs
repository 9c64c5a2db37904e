//! Random numbers that differ between processes: for jitter, and for choosing which requests are refused. Not for
//! secrets.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::sync::{AtomicU64, Ordering};

/// A uniform sequence of random numbers. Each draw is one atomic addition and a few multiplications.
///
/// # Source
/// Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014 ("SplitMix64").
#[derive(Debug)]
pub(crate) struct Rng(AtomicU64);

impl Default for Rng {
    /// Starts at a random seed, from the keys that the standard library's hasher draws from the operating system.
    fn default() -> Self {
        Self::seeded(RandomState::new().hash_one(0))
    }
}

impl Rng {
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn next(&self) -> u32 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        // Relaxed: each number is independent of other memory.
        let mut mixed = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_a_seed_repeats_them() {
        let (one, two) = (Rng::seeded(7), Rng::seeded(7));
        let mut sixteenths = [0_u32; 16];
        for _ in 0..16_000 {
            let draw = one.next();
            assert_eq!(draw, two.next());
            sixteenths[(draw >> 28) as usize] += 1;
        }
        assert!(sixteenths.iter().all(|count| (850..1150).contains(count)), "{sixteenths:?}");
    }

    #[test]
    fn processes_begin_at_different_numbers() {
        assert_ne!(Rng::default().next(), Rng::default().next());
    }
}

//! Reproducible random attacks.

use std::hash::{BuildHasher as _, RandomState};

/// A stream of random numbers by splitmix64; its whole state is the seed.
pub(crate) struct Seed(u64);

impl Seed {
    /// Takes the seed from `TIDEGATE_ATTACK_SEED`, or a fresh one, and prints it so that a failure can be reproduced.
    pub(crate) fn printed(attack: &str) -> Self {
        let given = std::env::var("TIDEGATE_ATTACK_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(attack));
        println!("{attack}: TIDEGATE_ATTACK_SEED={seed}");
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `bound`, which must be at least 1.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// Draws one of several values.
    pub(crate) fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }

    /// Draws bytes.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

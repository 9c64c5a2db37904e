//! A hasher for keys that are already hashes; it returns them unchanged.

use std::hash::{BuildHasher, Hasher};

/// Uses a `u64` as its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GivenHash;

impl BuildHasher for GivenHash {
    type Hasher = Given;

    fn build_hasher(&self) -> Given {
        Given(0)
    }
}

#[derive(Debug)]
pub(crate) struct Given(u64);

impl Hasher for Given {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

//! Pseudorandom numbers that spread events in time. The same seed gives the same numbers on every machine.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// A sequence of pseudorandom numbers, at its current one.
///
/// # Source
/// SplitMix64: G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed).next()
    }

    /// Returns the next number of the sequence.
    pub(super) const fn next(self) -> Self {
        let mut mixed = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(mixed ^ (mixed >> 31))
    }

    /// Returns the number as a fraction from 0 to below 1.
    pub(super) fn unit(self) -> f64 {
        // The upper 53 bits: the precision of an `f64`.
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Bytes for Jitter {
    fn write(&self, out: &mut Writer) {
        out.u64(self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.u64().map(Self)
    }
}

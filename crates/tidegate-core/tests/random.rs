//! Random numbers that are the same in every run: SplitMix64. A number takes a few instructions, so the models take the
//! time, not the numbers. Every seed is good.

#![allow(dead_code, reason = "no test uses all of it")]

use std::time::Duration;

/// A stream of numbers, with a single number as its state.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `max`, both included.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        let any = self.any();
        max.checked_add(1).map_or(any, |count| any % count)
    }

    /// From 0 to `end − 1`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.up_to(end - 1)
    }

    /// From 1 to `max`, small ones as often as large ones.
    pub(crate) fn one_to(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(max.ilog2()) + 1);
        self.up_to((2u64 << bits.min(62)) - 1).saturating_add(1).min(max)
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.any() as usize % from.len()]
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// From a nanosecond to `max` of them, small ones as often as large ones.
    pub(crate) fn span(&mut self, max: u64) -> Duration {
        Duration::from_nanos(self.one_to(max))
    }
}

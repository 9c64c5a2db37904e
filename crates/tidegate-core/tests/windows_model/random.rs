//! Numbers that look like no pattern and are the same on every run.

#[path = "../splitmix/mod.rs"]
mod splitmix;

use std::time::Duration;

/// One stream of numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// From 0 to `end − 1`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// From 1 to `max`, every order of magnitude as likely as the next.
    pub(crate) fn magnitude(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(max.ilog2()) + 1);
        ((1 << bits) | (self.next() & ((1 << bits) - 1))).min(max)
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn span(&mut self, max: u64) -> Duration {
        Duration::from_nanos(self.magnitude(max))
    }
}

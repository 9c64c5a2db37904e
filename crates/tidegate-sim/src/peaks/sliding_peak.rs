//! The most that one key asked for in any window, in 64 bytes.

use std::time::Duration;

const PARTS: usize = 8;

/// The part of a key's entry that every request touches, in one cache line: with many keys, most of the cost is
/// waiting for memory.
///
/// A sliding window of eight parts: the peak is at least the most within seven eighths of any window, and never more
/// than the most within one window.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct SlidingPeak {
    total: u64,
    slot: u64,
    sum: u64,
    peak: u64,
    parts: [u32; PARTS],
}

impl SlidingPeak {
    /// Returns the length of one part of a window, in nanoseconds.
    pub(crate) fn part(window: Duration) -> u64 {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        window.div_ceil(PARTS as u64)
    }

    /// Returns the most units in one window.
    pub(crate) const fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the sum of all units.
    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Counts an amount. Returns whether it made a new peak.
    #[inline]
    pub(crate) fn count(&mut self, at: u64, part: u64, amount: u64) -> bool {
        self.total = self.total.saturating_add(amount);
        // A step back in time counts as standing still, as in limits.
        let slot = (at / part).max(self.slot);
        if slot - self.slot >= PARTS as u64 {
            self.parts = [0; PARTS];
            self.sum = 0;
        } else {
            for passed in self.slot + 1..=slot {
                let old = &mut self.parts[passed as usize % PARTS];
                self.sum -= u64::from(*old);
                *old = 0;
            }
        }
        self.slot = slot;
        let here = &mut self.parts[slot as usize % PARTS];
        let added = u32::try_from(amount).unwrap_or(u32::MAX).min(u32::MAX - *here);
        *here += added;
        self.sum += u64::from(added);
        let is_peak = self.sum > self.peak;
        if is_peak {
            self.peak = self.sum;
        }
        is_peak
    }
}

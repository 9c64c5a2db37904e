//! The figures of one key.

use std::time::Duration;

use serde::Serialize;
use tidegate::Tick;

use super::frequent::PathCount;
use crate::units;

/// The peak of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPeak {
    /// The key.
    pub key: String,
    /// The units that it asked for.
    pub total: u64,
    /// By how many units `total` may be too low; zero while all keys had room.
    pub missed: u64,
    /// How many of its requests were denied.
    pub denied: u64,
    /// The units that those requests asked for.
    pub denied_units: u64,
    /// When it was first denied.
    #[serde(rename = "first_denied_at", serialize_with = "units::maybe_time")]
    pub first_denied: Option<Tick>,
    /// The most that it asked for in one window, in cost units.
    pub peak: u64,
    /// When that window ended.
    #[serde(serialize_with = "units::time")]
    pub peak_at: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RankedKey<'p> {
    pub(crate) key: &'p [u8],
    pub(crate) peak: u64,
    pub(crate) denied: u64,
    pub(crate) signed_in: bool,
}

/// All that is known of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDetail {
    /// Its peak and its denials.
    pub peak: KeyPeak,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
    /// The number of its requests; `None` if details are not kept.
    pub requests: Option<u64>,
    /// Its most requested paths, at most three; empty if details are not kept or requests have no path.
    pub paths: Vec<PathCount>,
}

impl KeyDetail {
    /// Says whether its numbers are lower bounds: the key was forgotten for a while for lack of room.
    #[must_use]
    pub fn is_floor(&self) -> bool {
        self.peak.missed > 0
    }
}

const PARTS: usize = 8;

/// The part of a key's entry that every request touches, in one cache line: with many keys, most of the cost is waiting
/// for memory.
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

    pub(crate) const fn peak(&self) -> u64 {
        self.peak
    }

    pub(crate) const fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether the amount made a new peak.
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

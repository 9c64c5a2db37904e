//! What was given back or forgotten, counted by key, so that a charge can tell what happened since it was made.
//!
//! A charge reads the counts of its keys before it is made and keeps them; giving it back reads them again. Keys share a fixed
//! number of places by a keyed hash. Two keys that share one make a charge seem to hold less than it does, never more, and only
//! where the other was given back or forgotten in between: with 16,384 places that is seldom, and then a refund gives back
//! too little, or a failure is charged twice.

use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::Tick;

/// 256 KiB, taken when the first charge is kept.
const PLACES: usize = 1 << 14;

/// The counts of all keys.
#[derive(Debug, Default)]
pub(super) struct Marks {
    hasher: RandomState,
    places: OnceLock<Box<[Place]>>,
    /// Held while something is given back: two at once would not see each other in the counts.
    giving: Mutex<()>,
}

#[derive(Debug, Default)]
struct Place {
    /// How often a key was forgotten.
    forgotten: AtomicU64,
    /// By how much time keys are full sooner, in nanoseconds; wraps.
    returned: AtomicU64,
}

/// The counts of one key at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    forgotten: u64,
    returned: u64,
}

impl Marks {
    /// Reads the counts of a key. Before a charge is made, so that whatever is given back at the same time counts as later.
    pub(super) fn of(&self, key: &[u8]) -> Mark {
        let place = self.place(key);
        // Acquire, with Release below: a count that is seen was written after its step was settled, which was thus before a step
        // that is settled from here on.
        Mark {
            forgotten: place.forgotten.load(Ordering::Acquire),
            returned: place.returned.load(Ordering::Acquire),
        }
    }

    /// Takes the turn to give something back.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.giving.lock()
    }

    /// Counts that a key is full so many nanoseconds sooner. After it was settled.
    pub(super) fn returned(&self, key: &[u8], nanos: u64) {
        self.place(key).returned.fetch_add(nanos, Ordering::Release);
    }

    /// Counts a key that was forgotten. After it was settled.
    pub(super) fn forgot(&self, key: &[u8]) {
        self.place(key).forgotten.fetch_add(1, Ordering::Release);
    }

    fn place(&self, key: &[u8]) -> &Place {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
        // A power of two: the lower bits of a hash are as good as any.
        &places[self.hasher.hash_one(key) as usize % PLACES]
    }
}

impl Mark {
    /// Says whether a key was forgotten after this mark was made.
    pub(super) const fn is_forgotten(self, now: Self) -> bool {
        self.forgotten != now.forgotten
    }

    /// Moves the tick at which a limit would have been full to where it is after what was given back since.
    pub(super) const fn moved(self, full_at: Tick, now: Self) -> Tick {
        if self.is_forgotten(now) {
            return Tick::EPOCH;
        }
        let since = now.returned.wrapping_sub(self.returned);
        Tick::from_nanos(full_at.as_nanos().saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_what_came_after_it() {
        let marks = Marks::default();
        let made = marks.of(b"k");
        let full = Tick::from_secs(10);
        assert_eq!(made.moved(full, marks.of(b"k")), full);
        marks.returned(b"k", 3_000_000_000);
        let later = marks.of(b"k");
        assert_eq!(made.moved(full, later), Tick::from_secs(7));
        assert_eq!(later.moved(full, marks.of(b"k")), full);
        marks.forgot(b"k");
        assert!(later.is_forgotten(marks.of(b"k")));
        assert_eq!(later.moved(full, marks.of(b"k")), Tick::EPOCH);
    }
}

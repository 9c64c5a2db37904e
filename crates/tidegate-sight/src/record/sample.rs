//! Which refusals are recorded: of each key one a minute, and all of them up to 50 a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most refusals a second of keys that were recorded in that minute already.
pub(super) const A_SECOND: u64 = 50;

/// Keys whose last minute is known, 128 KiB. Two keys that share a place are recorded more often, never less.
const KEYS: usize = 16_384;

/// The bits of a mark that are the minute; the others are the key's.
const MINUTE: u64 = 0xff_ffff;

/// The low bits of a number that count; the others are the second.
const COUNT: u64 = 0xffff;

/// Refusals that were not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Because their keys were recorded in that minute, and enough in that second.
    pub(super) sampled: u64,
    /// Because the queue was full.
    pub(super) full: u64,
}

/// Shared by all threads that decide. Each number is independent of the others, so all accesses are relaxed: two threads
/// at the same moment may record one refusal too many.
#[derive(Debug)]
pub(super) struct Sample {
    keys: Box<[AtomicU64]>,
    second: AtomicU64,
    sampled: AtomicU64,
    full: AtomicU64,
    /// Whether the queue is full: nothing is copied for it then.
    is_full: AtomicBool,
}

impl Sample {
    pub(super) fn new() -> Self {
        Self {
            keys: (0..KEYS).map(|_| AtomicU64::new(0)).collect(),
            second: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            full: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    /// Returns whether a refusal is to be recorded, and counts it if not.
    pub(super) fn wants(&self, key: u64, at_ns: u64) -> bool {
        if self.is_full.load(Ordering::Relaxed) {
            self.count_full();
            return false;
        }
        let second = at_ns / 1_000_000_000;
        // Fingerprints are spread evenly, but not those that several policies share.
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32);
        // Never 0, which is an empty place: minutes begin at 1.
        let mark = (key & !MINUTE) | ((second / 60 + 1) & MINUTE);
        let place = &self.keys[key as usize % KEYS];
        let is_first = place.load(Ordering::Relaxed) != mark;
        if is_first {
            place.store(mark, Ordering::Relaxed);
        }
        let wanted = self.has_room(second) || is_first;
        if !wanted {
            self.sampled.fetch_add(1, Ordering::Relaxed);
        }
        wanted
    }

    /// Takes one of the second's places.
    fn has_room(&self, second: u64) -> bool {
        let second = second.wrapping_mul(COUNT + 1);
        let seen = self.second.load(Ordering::Relaxed);
        let count = if seen & !COUNT == second { seen & COUNT } else { 0 };
        // Read first, since in a flood all threads would write the same line.
        if count >= A_SECOND {
            return false;
        }
        self.second.compare_exchange(seen, second | (count + 1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
            || self.has_room_after_all(second)
    }

    #[cold]
    fn has_room_after_all(&self, second: u64) -> bool {
        let next = |seen: u64| {
            let count = if seen & !COUNT == second { seen & COUNT } else { 0 };
            (count < A_SECOND).then_some(second | (count + 1))
        };
        self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Learns whether the queue is full.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Counts a refusal that found the queue full.
    pub(super) fn count_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the counts.
    pub(super) fn take(&self) -> LeftOut {
        LeftOut {
            sampled: self.sampled.swap(0, Ordering::Relaxed),
            full: self.full.swap(0, Ordering::Relaxed),
        }
    }

    /// Returns counts that could not be written.
    pub(super) fn give_back(&self, left_out: &LeftOut) {
        self.sampled.fetch_add(left_out.sampled, Ordering::Relaxed);
        self.full.fetch_add(left_out.full, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn each_key_is_recorded_once_a_minute_whatever_else_floods() {
        let sample = Sample::new();
        let begin = 1_800_000_000 * SECOND;
        let flood = (0..10_000_u64).filter(|at| sample.wants(1, begin + *at)).count() as u64;
        assert_eq!(flood, A_SECOND);
        for key in 2..1_000 {
            assert!(sample.wants(key, begin + 10_000), "{key}");
        }
        assert_eq!(sample.take(), LeftOut { sampled: 10_000 - A_SECOND, full: 0 });
        assert!(!sample.wants(1, begin + 20_000), "the second is full");
        // The next second has room for all again, and the next minute for each key.
        let more = (0..100_u64).filter(|at| sample.wants(1, begin + SECOND + *at)).count() as u64;
        assert_eq!(more, A_SECOND);
        let minute = begin + 60 * SECOND;
        (0..A_SECOND).for_each(|_| assert!(sample.wants(7, minute)));
        assert!(!sample.wants(7, minute) && sample.wants(1, minute) && !sample.wants(1, minute));
    }

    #[test]
    fn what_could_not_be_written_is_counted_with_the_next() {
        let sample = Sample::new();
        sample.set_full(true);
        assert!(!sample.wants(1, SECOND));
        sample.set_full(false);
        let taken = sample.take();
        assert_eq!((taken.full, sample.take().full), (1, 0));
        assert!(sample.wants(1, SECOND), "it was not recorded before");
        sample.give_back(&taken);
        assert_eq!(sample.take(), taken);
    }
}

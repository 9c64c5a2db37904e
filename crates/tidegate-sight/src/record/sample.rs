//! Which refusals are recorded: all of them up to 50 a second; beyond, of each key one a minute.
//!
//! Callers choose keys, so of keys that are refused for the first time so many a minute are recorded, while a key that is
//! refused minute after minute has its record in any case. It is told from the others by a place in a table, which new
//! keys cannot take as long as it is refused.

use std::array;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The most refusals a second, but for the first of keys in a minute.
pub(super) const A_SECOND: u64 = 50;

/// The most first refusals of new keys in a minute, beyond those.
pub(super) const NEW_A_MINUTE: u64 = 1_000;

/// The places of keys: sets of a cache line each, 128 KiB.
const SETS: usize = 2_048;
const WAYS: usize = 8;

/// The bits of a place that are the minute of the last refusal, and the one that says that there were several; the
/// others are the key's.
const MINUTE: u64 = 0xff_ffff;
const SEVERAL: u64 = 1 << 24;
const TAG: u64 = !(MINUTE | SEVERAL);

/// For how many minutes after its last refusal a key that was refused several times keeps its place from new ones.
const KEPT_FOR: u64 = 10;

/// The low bits of a number that count; the others are the second, or the minute.
const COUNT: u64 = 0xffff;

/// Refusals that were not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Because their keys were refused before in that minute, and enough in that second.
    pub(super) sampled: u64,
    /// Because enough new keys were refused in that minute.
    pub(super) new: u64,
    /// Because the queue was full.
    pub(super) full: u64,
}

/// Shared by all threads that decide. Each number is independent of the others, so all accesses are relaxed: two threads
/// at the same moment may record one refusal too many.
#[derive(Debug)]
pub(super) struct Sample {
    keys: Box<[Set]>,
    second: AtomicU64,
    minute: AtomicU64,
    sampled: AtomicU64,
    new: AtomicU64,
    full: AtomicU64,
    /// Whether the queue is full: nothing is copied for it then.
    is_full: AtomicBool,
    /// Whether what is left of the queue is for keys that are refused minute after minute.
    is_crowded: AtomicBool,
}

#[derive(Debug)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// What is known of the key of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing.
    New,
    /// It was refused before, and not yet in this minute.
    Steady,
    /// It was refused in this minute.
    Again,
}

impl Sample {
    pub(super) fn new() -> Self {
        let set = |_| Set(array::from_fn(|_| AtomicU64::new(0)));
        Self {
            keys: (0..SETS).map(set).collect(),
            second: AtomicU64::new(0),
            minute: AtomicU64::new(0),
            sampled: AtomicU64::new(0),
            new: AtomicU64::new(0),
            full: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
        }
    }

    /// Returns whether a refusal is to be recorded, and counts it if not.
    pub(super) fn wants(&self, key: u64, at_ns: u64) -> bool {
        if self.is_full.load(Ordering::Relaxed) {
            self.count_full();
            return false;
        }
        let second = at_ns / 1_000_000_000;
        // Minutes begin at 1, so no place in use is 0.
        let minute = (second / 60 + 1) & MINUTE;
        // Fingerprints are spread evenly, but not those that several policies share.
        let known = self.know(key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(32), minute);
        if known != Known::Steady && self.is_crowded.load(Ordering::Relaxed) {
            self.count_full();
            return false;
        }
        let left_out = match known {
            _ if takes_room(&self.second, second, A_SECOND) => return true,
            Known::Steady => return true,
            Known::New if takes_room(&self.minute, minute, NEW_A_MINUTE) => return true,
            Known::New => &self.new,
            Known::Again => &self.sampled,
        };
        left_out.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Looks for the place of a key, and gives it one if there is none.
    fn know(&self, key: u64, minute: u64) -> Known {
        let Set(places) = &self.keys[key as usize % SETS];
        let tag = key & TAG;
        for place in places {
            let mark = place.load(Ordering::Relaxed);
            if mark == 0 || mark & TAG != tag {
                continue;
            }
            let now = tag | SEVERAL | minute;
            // Read first, since in a flood all threads would write the same line.
            if mark != now {
                place.store(now, Ordering::Relaxed);
            }
            return if mark & MINUTE == minute { Known::Again } else { Known::Steady };
        }
        let is_kept =
            |mark: u64| mark & SEVERAL != 0 && minute.wrapping_sub(mark & MINUTE) & MINUTE <= KEPT_FOR;
        // From another one on for each key, so that new keys push out each other and none of them for long.
        let first = (key >> 11) as usize % WAYS;
        let ways = || (first..first + WAYS).map(|way| &places[way % WAYS]);
        let empty = ways().find(|place| place.load(Ordering::Relaxed) == 0);
        let free = empty.or_else(|| ways().find(|place| !is_kept(place.load(Ordering::Relaxed))));
        if let Some(place) = free {
            place.store(tag | minute, Ordering::Relaxed);
        }
        Known::New
    }

    /// Learns whether the queue is full.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Learns whether what is left of the queue is for keys that are refused minute after minute.
    pub(super) fn set_crowded(&self, is_crowded: bool) {
        self.is_crowded.store(is_crowded, Ordering::Relaxed);
    }

    /// Counts a refusal that found the queue full.
    pub(super) fn count_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the counts.
    pub(super) fn take(&self) -> LeftOut {
        LeftOut {
            sampled: self.sampled.swap(0, Ordering::Relaxed),
            new: self.new.swap(0, Ordering::Relaxed),
            full: self.full.swap(0, Ordering::Relaxed),
        }
    }

    /// Returns counts that could not be written.
    pub(super) fn give_back(&self, left_out: &LeftOut) {
        self.sampled.fetch_add(left_out.sampled, Ordering::Relaxed);
        self.new.fetch_add(left_out.new, Ordering::Relaxed);
        self.full.fetch_add(left_out.full, Ordering::Relaxed);
    }
}

/// Takes one of the `most` places of a second or a minute, if there is one left.
fn takes_room(places: &AtomicU64, span: u64, most: u64) -> bool {
    let span = span.wrapping_mul(COUNT + 1);
    let next = |seen: u64| {
        let count = if seen & !COUNT == span { seen & COUNT } else { 0 };
        (count < most).then_some(span | (count + 1))
    };
    let seen = places.load(Ordering::Relaxed);
    // Read first, since in a flood all threads would write the same line.
    let Some(taken) = next(seen) else { return false };
    places.compare_exchange(seen, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        || places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
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
        assert_eq!(sample.take(), LeftOut { sampled: 10_000 - A_SECOND, ..LeftOut::default() });
        assert!(!sample.wants(1, begin + 20_000), "the second is full");
        // The next second has room for all again, and the next minute for each key.
        let more = (0..100_u64).filter(|at| sample.wants(1, begin + SECOND + *at)).count() as u64;
        assert_eq!(more, A_SECOND);
        let minute = begin + 60 * SECOND;
        (0..A_SECOND).for_each(|_| assert!(sample.wants(7, minute)));
        assert!(!sample.wants(7, minute) && sample.wants(1, minute) && !sample.wants(1, minute));
    }

    /// More keys come once in each second than there are places in five.
    #[test]
    fn a_flood_of_new_keys_takes_no_record_of_a_key_that_is_refused_steadily() {
        const STEADY: u64 = 7;
        let sample = Sample::new();
        let begin = 1_800_000_000 * SECOND;
        assert!(sample.wants(STEADY, begin - 20 * SECOND) && sample.wants(STEADY, begin - 10 * SECOND));
        let mut key = 1_000_000;
        for minute in 0..20 {
            let (mut flood, mut steady) = (0, 0);
            for second in 0..60 {
                let at = begin + (minute * 60 + second) * SECOND;
                for _ in 0..3_000 {
                    key += 1;
                    flood += u64::from(sample.wants(key, at));
                }
                if second % 20 == 19 {
                    steady += u64::from(sample.wants(STEADY, at));
                }
            }
            assert_eq!(steady, 1, "in minute {minute}");
            assert!(flood <= 60 * A_SECOND + NEW_A_MINUTE, "{flood}");
        }
        assert!(sample.take().new > 3_000_000);
    }

    #[test]
    fn the_last_part_of_the_queue_is_for_keys_that_are_refused_steadily() {
        let sample = Sample::new();
        assert!(sample.wants(1, SECOND));
        sample.set_crowded(true);
        assert!(!sample.wants(1, SECOND) && !sample.wants(2, SECOND) && sample.wants(1, 61 * SECOND));
        assert_eq!(sample.take(), LeftOut { full: 2, ..LeftOut::default() });
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

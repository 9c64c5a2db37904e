//! The shared tick, and the protocol that determines when it is kept.
//!
//! One word holds the whole state, so a reader can never take an old tick for a kept one between two words:
//! * [`ASLEEP`]: no tick is kept. Readers read the clock; when they do so often, one of them wakes the keeper.
//! * [`ASKING`]: the keeper runs and asks whether the tick is still used. Readers read the clock, and the first of
//!   them answers by storing [`WANTED`].
//! * [`WANTED`]: the answer. Readers read the clock until the keeper's next beat, a millisecond at most. No reader
//!   stores a tick: a reader that was delayed between reading the clock and storing would show everybody a tick as
//!   old as the delay.
//! * Any other value is the tick, and the keeper renews it with every beat.
//!
//! The keeper goes to sleep only by exchanging its own unanswered question for `ASLEEP`, in one compare-exchange that
//! an answer would have failed. So a tick that is not kept is never visible, and an idle gap leaves no old tick.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// No tick is kept.
const ASLEEP: u64 = 0;
/// The keeper asks whether the tick is used.
const ASKING: u64 = 1;
/// A reader has answered: the tick is used.
const WANTED: u64 = 2;

/// The keeper is woken when this many readings have found no tick within [`MISSED_WITHIN`].
const MISSES: u32 = 64;
/// The time for [`MISSES`], in nanoseconds: together they mean a hundred thousand checks a second.
const MISSED_WITHIN: u64 = 640_000;

/// A keeper that is later than this, in nanoseconds, counts as dead: a forked process has none.
pub(super) const LATE: u64 = 50_000_000;

/// The word, alone on its cache lines, because every check reads it and the keeper writes it a thousand times a
/// second.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct SharedTick {
    tick: AtomicU64,
    floor: AtomicU64,
    wanted: AtomicBool,
    misses: AtomicU32,
    counted: AtomicU64,
}

impl SharedTick {
    pub(super) const fn new() -> Self {
        Self {
            tick: AtomicU64::new(ASLEEP),
            floor: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            misses: AtomicU32::new(0),
            counted: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn tick(&self) -> Option<u64> {
        // Acquire, paired with the Release of `begin` and `beat`: a reader that sees a tick sees the counter's
        // calibration of that beat.
        let tick = self.tick.load(Ordering::Acquire);
        (tick > WANTED).then_some(tick)
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// For a reader that found no tick and has read the clock. Answers a question if there is one; otherwise returns
    /// whether to wake the keeper.
    pub(super) fn missed(&self, now: u64) -> bool {
        match self.tick.load(Ordering::Relaxed) {
            ASLEEP => {}
            ASKING => {
                let _ = self.tick.compare_exchange(ASKING, WANTED, Ordering::AcqRel, Ordering::Relaxed);
                return false;
            }
            // Answered already, or kept again: until the next beat nobody writes.
            _ => return false,
        }
        // Relaxed, all three: they only estimate how busy it is, and one wake too many or too few does no harm.
        if self.misses.fetch_add(1, Ordering::Relaxed) % MISSES != MISSES - 1 {
            return false;
        }
        let busy = now.saturating_sub(self.counted.swap(now, Ordering::Relaxed)) < MISSED_WITHIN;
        busy && !self.wanted.swap(true, Ordering::Relaxed)
    }

    /// Called by a reader that found the keeper gone: ends the keeping of the tick.
    pub(super) fn give_up(&self, tick: u64) {
        // Fails if the keeper has come back meanwhile.
        let _ = self.tick.compare_exchange(tick, ASLEEP, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, now: u64) {
        self.floor.fetch_max(now, Ordering::AcqRel);
        self.tick.store(now, Ordering::Release);
    }

    pub(super) fn beat(&self, now: u64) {
        let floor = self.floor.fetch_max(now, Ordering::AcqRel).max(now);
        let tick = self.tick.load(Ordering::Relaxed);
        // If a reader answers the question between the load and the exchange, the exchange fails, and the next beat
        // shares a tick again. A tick that was given up is not renewed; `ask` then finds the word `ASLEEP`.
        if tick > ASKING && tick < floor {
            let _ = self.tick.compare_exchange(tick, floor, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Called by the keeper: asks whether the tick is used, and returns whether a reader answered since the last
    /// call.
    pub(super) fn ask(&self) -> bool {
        if self.tick.compare_exchange(ASKING, ASLEEP, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            || self.tick.load(Ordering::Relaxed) == ASLEEP
        {
            self.wanted.store(false, Ordering::Relaxed);
            return false;
        }
        self.tick.store(ASKING, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn busy(shared: &SharedTick, from: u64) -> bool {
        (0..2 * u64::from(MISSES)).any(|miss| shared.missed(from + 1000 * miss))
    }

    #[test]
    fn few_readers_keep_nobody_awake() {
        let shared = SharedTick::new();
        assert!((0..10_000).all(|second| !shared.missed(second * 1000 * MS)), "one check a second");
        assert_eq!(shared.tick(), None);
        assert!(busy(&shared, 10_000_000 * MS), "a million a second");
    }

    #[test]
    fn a_tick_nobody_wants_is_given_up_before_the_keeper_sleeps() {
        let shared = SharedTick::new();
        assert!(busy(&shared, MS));
        shared.begin(5 * MS);
        assert_eq!(shared.tick(), Some(5 * MS));
        shared.beat(6 * MS);
        assert_eq!(shared.tick(), Some(6 * MS));
        assert!(shared.ask(), "the first question: no answer is due yet");
        assert_eq!(shared.tick(), None, "and the tick is out of sight");
        shared.beat(7 * MS);
        assert_eq!(shared.tick(), None, "a beat does not answer the keeper's own question");
        assert!(!shared.missed(8 * MS), "a reader does");
        assert_eq!(shared.tick(), None, "and goes on by its own reading");
        shared.beat(9 * MS);
        assert_eq!(shared.tick(), Some(9 * MS));
        assert!(shared.ask() && !shared.ask(), "nobody answers the second one");
        assert_eq!(shared.tick(), None, "an hour of idleness later there is no old tick to go by");
        assert!(busy(&shared, 3_600_000 * MS), "and the keeper can be woken again");
    }

    /// Regression: the answer was the reader's own clock reading. A reader that was delayed between reading and
    /// answering (for a second, under load) showed everybody an old tick until the next beat. Permits were booked
    /// under it, so limits admitted a second's worth of units too many.
    #[test]
    fn a_reader_that_was_held_up_does_not_put_an_old_tick_up() {
        let shared = SharedTick::new();
        shared.begin(5 * MS);
        let read = 6 * MS;
        assert!(shared.ask());
        shared.beat(1006 * MS);
        assert!(!shared.missed(read));
        assert!(shared.tick().is_none_or(|tick| tick >= 1006 * MS), "{:?}", shared.tick());
        shared.beat(1007 * MS);
        assert_eq!(shared.tick(), Some(1007 * MS));
    }

    #[test]
    fn a_tick_never_steps_back() {
        let shared = SharedTick::new();
        shared.begin(9 * MS);
        shared.beat(7 * MS);
        assert_eq!(shared.tick(), Some(9 * MS), "a reading that lags behind is not said");
        assert_eq!(shared.floor(), 9 * MS);
        shared.give_up(9 * MS);
        assert_eq!(shared.tick(), None);
        shared.beat(10 * MS);
        assert_eq!(shared.tick(), None, "what was given up stays so until the keeper starts anew");
        assert!(!shared.ask());
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool as Flag, AtomicU64 as Number};

    use super::*;
    use crate::sync::explore;

    /// Readers answer, late or not at all, while the keeper asks, beats and goes to sleep. Once it sleeps no reader
    /// sees a tick, and before that none sees a tick older than the beat before the last.
    #[test]
    fn no_reader_sees_a_tick_when_the_keeper_has_gone_to_sleep() {
        explore(Some(3), || {
            let shared = Arc::new(SharedTick::new());
            let (time, asleep) = (Arc::new(Number::new(10)), Arc::new(Flag::new(false)));
            // Every cell is accessed once before the threads start.
            assert!(!shared.is_wanted() && !shared.missed(10) && shared.tick().is_none());
            shared.begin(10);
            assert!(shared.ask());
            let reader = {
                let (shared, time, asleep) = (Arc::clone(&shared), Arc::clone(&time), Arc::clone(&asleep));
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        let (now, said) = (time.load(Ordering::Acquire), shared.floor());
                        let slept = asleep.load(Ordering::Acquire);
                        match shared.tick() {
                            Some(tick) => {
                                assert!(!slept, "a tick that nobody keeps: {tick}");
                                assert!(tick + 10 >= said, "{tick} when {said} was said");
                            }
                            None => {
                                let _ = shared.missed(now);
                            }
                        }
                    }
                })
            };
            for beats in [[20, 30], [40, 50]] {
                for now in beats {
                    time.store(now, Ordering::Release);
                    shared.beat(now);
                }
                if !shared.ask() {
                    asleep.store(true, Ordering::Release);
                    break;
                }
            }
            reader.join().unwrap();
            if asleep.load(Ordering::Acquire) {
                assert_eq!(shared.tick(), None);
                assert!(!shared.missed(40), "and no late answer brings one back");
                assert_eq!(shared.tick(), None);
            }
        });
    }

    /// A reader that takes the keeper for dead races with its next beat: the tick is either renewed or gone, never
    /// old.
    #[test]
    fn a_tick_given_up_does_not_come_back_old() {
        explore(None, || {
            let shared = Arc::new(SharedTick::new());
            assert!(!shared.is_wanted() && !shared.missed(10) && shared.tick().is_none());
            shared.begin(10);
            let reader = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    if let Some(tick) = shared.tick() {
                        shared.give_up(tick);
                    }
                })
            };
            shared.beat(20);
            reader.join().unwrap();
            assert!(shared.tick().is_none_or(|tick| tick == 20));
            shared.beat(30);
            assert!(shared.tick().is_none_or(|tick| tick == 30));
        });
    }
}

//! Time that does not step back, made of ticks that may.
//!
//! Limits in words do not remember when they were last changed, so the time they are decided by must not step back: a tick before the latest
//! one counts as that one. For a thread that comes with a tick it read a moment ago nothing else is needed. For a clock that jumped forward,
//! by an hour, and back again, it would mean that no limit refills for an hour.
//!
//! So a clock that stays more than [`BEHIND`] behind is followed at half its speed, until it has caught up. Time still
//! never steps back, and no stretch of it counts twice: limits refill at half their rate for two hours, and then are as if
//! nothing had happened. Following it at its full speed would keep the two apart for ever, and calendar windows wrong for ever; stepping back to it
//! would give what was granted in the hour again. A clock that jumps to and fro gains at most half of what it claims to have
//! gone forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Tick;

/// Ticks that are no older than this, in nanoseconds, are those of threads that were held up. Ten seconds: longer than a busy machine holds up
/// a thread that goes on to ask, and short beside any jump that somebody would notice.
const BEHIND: u64 = Duration::from_secs(10).as_nanos() as u64;

/// The latest tick, and how far a clock that lies behind it has come since it was noticed.
#[derive(Debug, Default)]
pub(crate) struct HeldTime {
    latest: AtomicU64,
    behind: Mutex<Behind>,
}

/// A clock that lies far behind.
#[derive(Debug, Default)]
struct Behind {
    /// The latest of its ticks.
    tick: u64,
    /// What the latest tick was after that; where it is another by now, a clock that is not behind has moved it.
    left: u64,
}

impl HeldTime {
    /// Returns the later of a tick and the latest one, and remembers it; of a tick far behind see the module.
    #[inline]
    pub(crate) fn hold(&self, tick: Tick) -> Tick {
        let tick = tick.as_nanos();
        // Relaxed: the word itself is the message. Written only when time goes on, which a shared tick seldom does.
        let seen = self.latest.load(Ordering::Relaxed);
        if seen >= tick {
            return if seen - tick <= BEHIND { Tick::from_nanos(seen) } else { self.follow(tick) };
        }
        Tick::from_nanos(self.latest.fetch_max(tick, Ordering::Relaxed).max(tick))
    }

    /// Returns the latest tick.
    pub(crate) fn latest(&self) -> Tick {
        // Relaxed, as above.
        Tick::from_nanos(self.latest.load(Ordering::Relaxed))
    }

    /// Goes on by half of what a clock far behind has gone forward.
    #[cold]
    fn follow(&self, tick: u64) -> Tick {
        let mut behind = self.behind.lock();
        let seen = self.latest.load(Ordering::Relaxed);
        if behind.left != seen {
            *behind = Behind { tick, left: seen };
        } else if let Some(gone) = tick.checked_sub(behind.tick) {
            // Whole steps of two, so that nothing is lost in halves.
            let half = gone / 2;
            let moved = seen.saturating_add(half);
            behind.tick += 2 * half;
            behind.left = self.latest.fetch_max(moved, Ordering::Relaxed).max(moved);
        }
        Tick::from_nanos(behind.left.max(seen))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn hold(time: &HeldTime, nanos: u64) -> u64 {
        time.hold(Tick::from_nanos(nanos)).as_nanos()
    }

    #[test]
    fn a_thread_that_was_held_up_counts_as_the_latest() {
        let time = HeldTime::default();
        assert_eq!(hold(&time, 100 * SECOND), 100 * SECOND);
        for behind in [99 * SECOND, 95 * SECOND, 90 * SECOND, 92 * SECOND] {
            assert_eq!(hold(&time, behind), 100 * SECOND);
        }
        assert_eq!(hold(&time, 101 * SECOND), 101 * SECOND);
    }

    /// A wall clock that was an hour ahead for a moment: no limit would have refilled for that hour.
    #[test]
    fn a_jump_of_an_hour_is_caught_up_in_two_at_half_speed() {
        let (time, start) = (HeldTime::default(), 1000 * HOUR);
        let ahead = hold(&time, start + HOUR);
        let mut last = ahead;
        for second in 0..=7200 {
            let now = start + second * SECOND;
            let held = hold(&time, now);
            assert!(held == last || second == 0 || held - last <= SECOND, "never faster than the clock");
            if held - now > BEHIND {
                assert_eq!(held, ahead + second * SECOND / 2, "second {second}");
            }
            last = held;
        }
        let now = start + 7220 * SECOND;
        assert_eq!(hold(&time, now), now, "as if nothing had happened");
    }

    #[test]
    fn two_callers_an_hour_apart_do_not_drive_time() {
        let (time, start) = (HeldTime::default(), 1000 * HOUR);
        for second in 0..1000 {
            let ahead = start + HOUR + second * SECOND;
            assert_eq!(hold(&time, ahead), ahead);
            assert_eq!(hold(&time, start + second * SECOND), ahead);
        }
    }

    proptest! {
        /// Whatever ticks come: time stands or goes on, and where no tick comes from beyond it, by half of what ticks went forward at most.
        #[test]
        fn time_never_steps_back_nor_runs_ahead(ticks in prop::collection::vec(0u64..4 * HOUR, 1..100)) {
            let time = HeldTime::default();
            let (mut last, mut forward, mut before) = (0, 0, None::<u64>);
            for tick in ticks {
                let held = hold(&time, tick);
                prop_assert!(held >= last && held >= tick);
                forward += before.map_or(0, |before| tick.saturating_sub(before));
                before = Some(tick);
                if held > last && tick < last {
                    prop_assert!(held - last <= forward.div_ceil(2), "{held} after {last}");
                    forward = 0;
                }
                last = held;
            }
        }
    }
}

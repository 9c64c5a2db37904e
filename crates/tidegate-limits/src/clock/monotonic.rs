//! Time that never steps back, made from ticks that may.
//!
//! Limits in words do not remember when they were last changed, so the time that decides them must not step back: a
//! tick before the latest one counts as the latest. But if a clock jumped forward by an hour and back again, no limit
//! would refill for an hour.
//!
//! So a clock that is more than [`FAR`] behind is followed at half its speed, until it has nearly caught up. Time still
//! never steps back, and no stretch of it counts twice: after the jump, limits refill at half their rate for two hours,
//! and then as usual. Following the clock at full speed would keep the gap, and calendar windows, wrong for ever.
//! Stepping back to it would grant again what was granted in the hour. A clock that jumps to and fro gains at most half
//! of the time that it claims to have moved forward.

use std::time::Duration;

use tidegate_core::Tick;

use crate::sync::Ordering;
use crate::sync::unexplored::{AtomicU64, Mutex};

/// A clock that is further behind than this is followed. Five minutes, in nanoseconds: longer than a busy machine
/// delays a thread between reading a tick and using it, and more than a wall clock is usually set back without
/// intervention.
const FAR: u64 = Duration::from_secs(300).as_nanos() as u64;

/// A followed clock has caught up when it is no further behind than this: ten seconds, in nanoseconds, for which time
/// then stands still. Not zero, since then every thread with a slightly older tick would move time.
const NEAR: u64 = Duration::from_secs(10).as_nanos() as u64;

/// Time that never steps back: the latest tick, and the progress of a clock that is far behind it.
///
/// For stores that callers use with several clocks. See [`HeldTime::hold`].
///
/// # Examples
/// ```
/// use tidegate::Tick;
/// use tidegate::clock::HeldTime;
///
/// let time = HeldTime::default();
/// assert_eq!(time.hold(Tick::from_secs(1000)), Tick::from_secs(1000));
/// assert_eq!(time.hold(Tick::from_secs(999)), Tick::from_secs(1000));
/// ```
#[derive(Debug)]
pub struct HeldTime {
    latest: AtomicU64,
    /// A tick that is less than this behind counts as the latest without a look at `behind`: more than [`FAR`], or 0
    /// while a clock is followed. So whoever sees that the clock has caught up ends the following.
    bound: AtomicU64,
    behind: Mutex<Option<Behind>>,
}

#[derive(Debug)]
struct Behind {
    tick: u64,
    /// The held time when that tick was taken. If the held time has moved since, a clock that is not behind has moved
    /// it.
    left: u64,
}

impl Default for HeldTime {
    fn default() -> Self {
        Self { latest: AtomicU64::new(0), bound: AtomicU64::new(FAR + 1), behind: Mutex::default() }
    }
}

impl HeldTime {
    /// Returns the later of `tick` and the latest tick, and remembers it. A tick more than five minutes behind moves
    /// the time by half of the progress of its clock.
    #[inline]
    pub fn hold(&self, tick: Tick) -> Tick {
        let tick = tick.as_nanos();
        // Relaxed: the word publishes only itself. It is written only when time moves, which is seldom for a shared
        // tick.
        let seen = self.latest.load(Ordering::Relaxed);
        // One comparison detects both later ticks and those far behind: the difference of a later one wraps around
        // and is larger than any bound.
        if seen.wrapping_sub(tick) < self.bound.load(Ordering::Relaxed) {
            return Tick::from_nanos(seen);
        }
        if seen >= tick {
            return self.follow(tick);
        }
        Tick::from_nanos(self.latest.fetch_max(tick, Ordering::Relaxed).max(tick))
    }

    /// As [`HeldTime::hold`], but a later tick is not remembered, unless a clock is followed: for a tick by which nothing is
    /// changed, or not before [`HeldTime::reach`] has remembered it.
    #[inline]
    pub(crate) fn glimpse(&self, tick: Tick) -> Tick {
        let nanos = tick.as_nanos();
        // As in `hold`.
        let (seen, bound) = (self.latest.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed));
        if seen.wrapping_sub(nanos) < bound {
            return Tick::from_nanos(seen);
        }
        // While a clock is followed, a later tick is remembered all the same. It shows that the clock was set right, or is
        // another one: else the clock's next step back would count as progress since the one before.
        if seen >= nanos || bound == 0 { self.hold(tick) } else { tick }
    }

    /// Remembers a tick that [`HeldTime::glimpse`] returned, before what it has changed is seen. Writes only if it is later
    /// than the latest one.
    #[inline]
    pub(crate) fn reach(&self, tick: Tick) {
        if self.latest() < tick {
            self.latest.fetch_max(tick.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Returns the latest tick.
    #[must_use]
    pub fn latest(&self) -> Tick {
        // Relaxed, as above.
        Tick::from_nanos(self.latest.load(Ordering::Relaxed))
    }

    #[cold]
    fn follow(&self, tick: u64) -> Tick {
        let mut behind = self.behind.lock();
        let seen = self.latest.load(Ordering::Relaxed);
        let lag = seen.saturating_sub(tick);
        let mut held = seen;
        match &mut *behind {
            // Only this clock has moved the time since.
            Some(followed) if followed.left == seen && lag > NEAR => {
                if let Some(gone) = tick.checked_sub(followed.tick) {
                    // An even number of nanoseconds, so that no half is lost.
                    let half = gone / 2;
                    let moved = seen.saturating_add(half);
                    held = self.latest.fetch_max(moved, Ordering::Relaxed).max(moved);
                    *followed = Behind { tick: followed.tick + 2 * half, left: held };
                }
            }
            // A later step back counts from its own beginning: what the clock has made up since is not progress.
            _ => *behind = (lag > FAR).then_some(Behind { tick, left: seen }),
        }
        if held.saturating_sub(tick) <= NEAR {
            *behind = None;
        }
        // Relaxed: a thread that sees a bound late only follows later.
        self.bound.store(if behind.is_some() { 0 } else { FAR + 1 }, Ordering::Relaxed);
        Tick::from_nanos(held)
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
        assert_eq!(hold(&time, 1000 * SECOND), 1000 * SECOND);
        for behind in [999 * SECOND, 950 * SECOND, 700 * SECOND, 920 * SECOND] {
            assert_eq!(hold(&time, behind), 1000 * SECOND);
        }
        assert_eq!(hold(&time, 1001 * SECOND), 1001 * SECOND);
    }

    #[test]
    fn a_glimpse_is_what_would_be_held_and_is_forgotten_until_it_is_reached() {
        let time = HeldTime::default();
        let at = |seconds| Tick::from_nanos(seconds * SECOND);
        assert_eq!(time.hold(at(1000)), at(1000));
        assert_eq!((time.glimpse(at(999)), time.glimpse(at(1001))), (at(1000), at(1001)));
        assert_eq!(time.latest(), at(1000));
        time.reach(at(1001));
        time.reach(at(999));
        assert_eq!((time.latest(), time.glimpse(at(1000))), (at(1001), at(1001)));
    }

    /// A wall clock that was an hour ahead for a moment. Without following, no limit would refill for that hour.
    #[test]
    fn a_jump_of_an_hour_is_caught_up_in_two_at_half_speed() {
        let (time, start) = (HeldTime::default(), 1000 * HOUR);
        let ahead = hold(&time, start + HOUR);
        let mut last = ahead;
        for second in 0..=7200 {
            let now = start + second * SECOND;
            let held = hold(&time, now);
            assert!(held == last || second == 0 || held - last <= SECOND, "never faster than the clock");
            if held - now > NEAR {
                assert_eq!(held, ahead + second * SECOND / 2, "second {second}");
            }
            last = held;
        }
        let now = start + 7220 * SECOND;
        assert_eq!(hold(&time, now), now, "as if nothing had happened");
    }

    /// A clock is set back far, set right, and set back a little. Regression: that it was set right was not seen, so the
    /// second step back counted as progress since the first, and the time leapt.
    #[test]
    fn a_clock_that_is_set_back_in_two_stages_moves_nothing() {
        // The clock may permit or refuse while it is right.
        for see in [HeldTime::hold, HeldTime::glimpse] {
            for right in [995, 1000, 1001] {
                let time = HeldTime::default();
                assert_eq!(hold(&time, 1000 * SECOND), 1000 * SECOND);
                assert_eq!(hold(&time, 600 * SECOND), 1000 * SECOND);
                let held = see(&time, Tick::from_nanos(right * SECOND)).as_nanos();
                assert_eq!(held, 1000.max(right) * SECOND);
                for behind in 900..995 {
                    assert_eq!(hold(&time, behind * SECOND), held, "{behind} after {right}");
                }
            }
        }
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
        /// For any ticks: time stands or moves forward. If no tick lies beyond it, it moves by at most half of the
        /// progress of the ticks.
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

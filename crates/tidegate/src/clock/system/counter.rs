//! Nanoseconds out of the processor's counter, by the operating system's clock.
//!
//! The counter is read in a third of the time that the system's clock takes, but it counts cycles from an arbitrary start. With each
//! beat the keeper compares the two and publishes bearings: a counter value, the nanoseconds it stands for, and the speed to go on
//! by. The line through them is bent, never broken: new bearings start where the old ones lead to, and a difference from the
//! system's clock is worked off by a slightly other speed. So readings neither jump nor step back, and they do not drift.
//!
//! Counters of different cores agree only where the kernel has made sure of it. It has where it goes by the counter itself; anywhere
//! else, and on systems that do not tell, there is no counter and the system's clock is read.

use std::sync::OnceLock;

use super::shared_tick::LATE;
use crate::seqlock::SeqLock;

/// Bits of the fraction in a speed, which is in nanoseconds per count.
const FRACTION: u32 = 32;

/// Bearings off by more nanoseconds than this are dropped and not worked back: the machine was suspended, or the counter is no clock.
const LOST: u64 = 1_000_000;

/// A difference is worked off in about so many beats.
const PATIENCE: u64 = 64;

/// The readers' side: bearings, and the instruction to read the counter, which a library knows for each processor.
#[derive(Debug)]
pub(super) struct Counter {
    bearings: SeqLock<4>,
    raw: OnceLock<quanta::Clock>,
}

/// Numbers that turn counts into nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bearings {
    at: u64,
    nanos: u64,
    speed: u64,
}

impl Bearings {
    fn nanos(&self, count: u64) -> u64 {
        // A count before the bearings was read on another core, or a moment ago: time stands still for it.
        let counts = u128::from(count.saturating_sub(self.at));
        self.nanos + ((counts * u128::from(self.speed)) >> FRACTION) as u64
    }

    /// Returns the number of counts after which the keeper is late.
    fn reach(&self) -> u64 {
        (LATE << FRACTION) / self.speed.max(1)
    }
}

impl Counter {
    pub(super) const fn new() -> Self {
        Self { bearings: SeqLock::empty(), raw: OnceLock::new() }
    }

    /// Returns the nanoseconds while the keeper is in time; `None` where [`Counter::now`] is to be asked.
    ///
    /// The same reading as that, with the fewest steps between the counter and the result, which are what a check waits for: one
    /// comparison finds counts before the bearings, a keeper that is late, and products beyond 64 bits.
    #[inline]
    pub(super) fn fast_tick(&self) -> Option<u64> {
        // The count is read first, so that few values have to be kept across the call by which the library reads it on some processors.
        // Bearings published after it still tell its time, or that it lies before them.
        let count = self.raw.get()?.raw();
        let [at, nanos, speed, reach] = self.bearings.read(|numbers| numbers)?;
        let counts = count.wrapping_sub(at);
        if counts > reach {
            return None;
        }
        Some(nanos.wrapping_add(counts.wrapping_mul(speed) >> FRACTION))
    }

    /// Returns the nanoseconds, or `None` while there are no bearings.
    pub(super) fn now(&self) -> Option<u64> {
        let raw = self.raw.get()?;
        // Read while the bearings hold: a thread that was stopped in between must not go by old ones.
        self.bearings.read(|[at, nanos, speed, _]| Bearings { at, nanos, speed }.nanos(raw.raw()))
    }

    /// Only the keeper publishes.
    fn publish(&self, bearings: Option<Bearings>) {
        self.bearings.write(bearings.map(|all| [all.at, all.nanos, all.speed, all.reach()]));
    }
}

/// The keeper's side: what it has seen of both clocks.
#[derive(Debug)]
pub(super) struct Source {
    raw: quanta::Clock,
    /// The first count since the keeper woke and its nanoseconds: the longer ago, the better known is the speed.
    first: Option<(u64, u64)>,
    bearings: Option<Bearings>,
}

impl Source {
    /// Finds a counter that all cores share, or none.
    pub(super) fn detect() -> Option<Self> {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let trusted = std::fs::read_to_string(path).ok()?;
        matches!(trusted.trim(), "tsc" | "arch_sys_counter").then(|| Self {
            // Half a millisecond of calibration, which only this thread waits for.
            raw: quanta::Clock::new(),
            first: None,
            bearings: None,
        })
    }

    /// Compares the clocks, publishes bearings, and returns the present in nanoseconds.
    pub(super) fn beat(&mut self, counter: &Counter, read: impl Fn() -> u64) -> u64 {
        counter.raw.get_or_init(|| self.raw.clone());
        let (count, nanos) = self.pair(read);
        let (now, bearings) = steer(self.first, self.bearings, count, nanos);
        if bearings.is_none() {
            self.first = None;
        }
        self.first.get_or_insert((count, nanos));
        self.bearings = bearings;
        counter.publish(bearings);
        now
    }

    /// Drops the bearings: nobody corrects them while the keeper sleeps.
    pub(super) fn rest(&mut self, counter: &Counter) {
        (self.first, self.bearings) = (None, None);
        counter.publish(None);
    }

    /// Reads both clocks at one moment: of a few tries, the one in which the counter went on least.
    fn pair(&self, read: impl Fn() -> u64) -> (u64, u64) {
        let tries = (0..4).map(|_| {
            let (before, nanos, after) = (self.raw.raw(), read(), self.raw.raw());
            let took = after.saturating_sub(before);
            (took, before + took / 2, nanos)
        });
        let (_, count, nanos) = tries.min().expect("four tries were made");
        (count, nanos)
    }
}

/// Returns the present in nanoseconds, to which the old bearings lead, and new bearings that start there: a reader who has seen this
/// present as the shared tick does not read less by them.
fn steer(
    first: Option<(u64, u64)>,
    old: Option<Bearings>,
    count: u64,
    nanos: u64,
) -> (u64, Option<Bearings>) {
    let Some((counts, passed)) =
        first.map(|(at, then)| (count.saturating_sub(at), nanos.saturating_sub(then)))
    else {
        return (nanos, None);
    };
    if counts == 0 || passed == 0 {
        let led = old.map_or(nanos, |old| old.nanos(count));
        return (led, old.map(|old| Bearings { at: count.max(old.at), nanos: led, ..old }));
    }
    // Fits 64 bits: a count lasts at least a tenth of a nanosecond and at most a microsecond.
    let speed = ((u128::from(passed) << FRACTION) / u128::from(counts)) as u64;
    let Some(old) = old else {
        return (nanos, Some(Bearings { at: count, nanos, speed }));
    };
    let led = old.nanos(count);
    let (ahead, behind) = (led.saturating_sub(nanos), nanos.saturating_sub(led));
    if ahead.max(behind) > LOST {
        // Without bearings the system's clock is read, and never less than what was said last.
        return (led.max(nanos), None);
    }
    // The nanoseconds in which the difference is worked off: `PATIENCE` beats of a millisecond each, fewer just after the start.
    let span = (passed.min(1_000_000) * PATIENCE).max(1);
    let bent = u128::from(speed) * u128::from(span + behind) / u128::from(span + ahead);
    (led, Some(Bearings { at: count, nanos: led, speed: bent as u64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter of 2.6 counts a nanosecond against a system clock that is disciplined to another speed and jitters by
    /// 30 ns: readings never step back, and never stray by more than a microsecond.
    #[test]
    fn bent_bearings_neither_step_back_nor_stray() {
        let system = |count: u64, jitter: u64| 1_000_000_000 + count * 10 / 26 + count / 100_000 + jitter;
        let (mut first, mut bearings, mut last) = (None, None::<Bearings>, 0);
        for beat in 0..100_000u64 {
            let count = 7_000_000 + beat * 2_600_000 + beat * 7919 % 50_000;
            let nanos = system(count, beat * 31 % 30);
            let (now, next) = steer(first, bearings, count, nanos);
            first.get_or_insert((count, nanos));
            assert!(now + 1 >= last, "beat {beat}: {now} after {last}");
            if beat > 1 {
                assert!(now.abs_diff(nanos) < 1000, "beat {beat}: {now} against {nanos}");
                let next = next.expect("nothing was lost");
                assert_eq!(next.nanos(count), now, "the line is bent, not broken");
                assert_eq!(next.nanos, now, "nothing less is read than what is said");
                last = next.nanos(count + 2_500_000);
            }
            bearings = next;
        }
    }

    #[test]
    fn a_counter_that_is_lost_is_left_alone() {
        let bearings = Bearings { at: 1000, nanos: 1_000_000, speed: 1 << FRACTION };
        let (now, next) = steer(Some((0, 1)), Some(bearings), 2000, 500_000_000);
        assert_eq!((now, next), (500_000_000, None), "the machine slept: ahead to the system's clock");
        let (now, next) = steer(Some((0, 1)), Some(bearings), 500_000_000, 1_500_000);
        assert_eq!(next, None);
        assert!(now >= 1_500_000, "never back");
    }

    #[test]
    fn a_count_of_another_core_that_lags_stands_still() {
        let bearings = Bearings { at: 1000, nanos: 50, speed: 1 << FRACTION };
        assert_eq!(bearings.nanos(10), 50);
    }
}

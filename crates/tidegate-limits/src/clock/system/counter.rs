//! Converts the processor's counter to nanoseconds, guided by the operating system's clock.
//!
//! With each beat the keeper compares the two and publishes a *calibration*: a counter value, the nanoseconds that it
//! stands for, and the speed to continue at. A new calibration starts where the old one leads to, and a difference from
//! the system's clock is worked off by a slightly different speed. So readings neither jump nor step back, and do not
//! drift.
//!
//! Counters of different cores agree only if the kernel has made sure of it, which it has if it uses the counter as its
//! own clock. Otherwise, or if the system does not say, there is no counter and the system's clock is read.

use std::sync::OnceLock;

use super::shared_tick::LATE;
use crate::seqlock::SeqLock;

/// The number of fraction bits in a speed, which is in nanoseconds per count.
const FRACTION: u32 = 32;

/// A calibration off by more nanoseconds than this is dropped rather than corrected: the machine was suspended, or the
/// counter is no clock.
const LOST: u64 = 1_000_000;

/// A difference is worked off in about this many beats.
const PATIENCE: u64 = 64;

/// The readers' side: the calibration, and the library that knows the instruction to read the counter on each
/// processor.
#[derive(Debug)]
pub(super) struct Counter {
    calibration: SeqLock<4>,
    raw: OnceLock<quanta::Clock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calibration {
    at: u64,
    nanos: u64,
    speed: u64,
}

impl Calibration {
    fn nanos(&self, count: u64) -> u64 {
        // A count before the calibration was read on another core, or a moment ago; it counts as the calibration's.
        let counts = u128::from(count.saturating_sub(self.at));
        self.nanos + ((counts * u128::from(self.speed)) >> FRACTION) as u64
    }

    fn reach(&self) -> u64 {
        (LATE << FRACTION) / self.speed.max(1)
    }
}

impl Counter {
    pub(super) const fn new() -> Self {
        Self { calibration: SeqLock::empty(), raw: OnceLock::new() }
    }

    /// Returns the nanoseconds while the keeper is on time; `None` if [`Counter::now`] has to be called.
    ///
    /// It returns the same reading as that, with the fewest steps between the counter and the result, for which a check
    /// waits. One comparison detects counts before the calibration, a late keeper, and products beyond 64 bits.
    #[inline]
    pub(super) fn fast_tick(&self) -> Option<u64> {
        // The count is read first, so that few values are kept across the call by which the library reads it on some
        // processors. A calibration published after it either converts it correctly, or shows that it lies before it.
        let count = self.raw.get()?.raw();
        let [at, nanos, speed, reach] = self.calibration.read(|numbers| numbers)?;
        let counts = count.wrapping_sub(at);
        if counts > reach {
            return None;
        }
        Some(nanos.wrapping_add(counts.wrapping_mul(speed) >> FRACTION))
    }

    pub(super) fn now(&self) -> Option<u64> {
        let raw = self.raw.get()?;
        // The counter is read inside the closure, while the calibration is valid: a thread stopped in between must not
        // use old ones.
        self.calibration.read(|[at, nanos, speed, _]| Calibration { at, nanos, speed }.nanos(raw.raw()))
    }

    /// Publishes a calibration. Called only by the keeper.
    fn publish(&self, calibration: Option<Calibration>) {
        self.calibration.write(calibration.map(|all| [all.at, all.nanos, all.speed, all.reach()]));
    }
}

/// The keeper's side: its readings of both clocks.
#[derive(Debug)]
pub(super) struct Source {
    raw: quanta::Clock,
    /// The first count since the keeper woke and its nanoseconds: the longer ago it was, the more exact is the speed.
    first: Option<(u64, u64)>,
    calibration: Option<Calibration>,
}

impl Source {
    pub(super) fn detect() -> Option<Self> {
        let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let trusted = std::fs::read_to_string(path).ok()?;
        matches!(trusted.trim(), "tsc" | "arch_sys_counter").then(|| Self {
            // Calibration takes half a millisecond, for which only this thread waits.
            raw: quanta::Clock::new(),
            first: None,
            calibration: None,
        })
    }

    pub(super) fn beat(&mut self, counter: &Counter, read: impl Fn() -> u64) -> u64 {
        counter.raw.get_or_init(|| self.raw.clone());
        let (count, nanos) = self.pair(read);
        let (now, calibration) = steer(self.first, self.calibration, count, nanos);
        if calibration.is_none() {
            self.first = None;
        }
        self.first.get_or_insert((count, nanos));
        self.calibration = calibration;
        counter.publish(calibration);
        now
    }

    /// Drops the calibration, because nothing corrects it while the keeper sleeps.
    pub(super) fn rest(&mut self, counter: &Counter) {
        (self.first, self.calibration) = (None, None);
        counter.publish(None);
    }

    /// Reads both clocks at about one moment: of four tries, the one in which the counter advanced least.
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

/// Returns the present in nanoseconds according to the old calibration, and a new calibration that starts there. So a
/// reader that has seen this present as the shared tick does not read less by the new one.
fn steer(
    first: Option<(u64, u64)>,
    old: Option<Calibration>,
    count: u64,
    nanos: u64,
) -> (u64, Option<Calibration>) {
    let Some((counts, passed)) =
        first.map(|(at, then)| (count.saturating_sub(at), nanos.saturating_sub(then)))
    else {
        return (nanos, None);
    };
    if counts == 0 || passed == 0 {
        let led = old.map_or(nanos, |old| old.nanos(count));
        return (led, old.map(|old| Calibration { at: count.max(old.at), nanos: led, ..old }));
    }
    // Fits 64 bits: a count lasts at least a tenth of a nanosecond and at most a microsecond.
    let speed = ((u128::from(passed) << FRACTION) / u128::from(counts)) as u64;
    let Some(old) = old else {
        return (nanos, Some(Calibration { at: count, nanos, speed }));
    };
    let led = old.nanos(count);
    let (ahead, behind) = (led.saturating_sub(nanos), nanos.saturating_sub(led));
    if ahead.max(behind) > LOST {
        // Without a calibration readers read the system's clock, but never less than the last shared tick.
        return (led.max(nanos), None);
    }
    // The difference is worked off within this many nanoseconds: `PATIENCE` beats of a millisecond each, fewer just after
    // the start.
    let span = (passed.min(1_000_000) * PATIENCE).max(1);
    let bent = u128::from(speed) * u128::from(span + behind) / u128::from(span + ahead);
    (led, Some(Calibration { at: count, nanos: led, speed: bent as u64 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter of 2.6 counts a nanosecond against a system clock that is disciplined to another speed and jitters by
    /// 30 ns: readings never step back, and never stray by more than a microsecond.
    #[test]
    fn a_bent_calibration_neither_step_back_nor_stray() {
        let system = |count: u64, jitter: u64| 1_000_000_000 + count * 10 / 26 + count / 100_000 + jitter;
        let (mut first, mut calibration, mut last) = (None, None::<Calibration>, 0);
        for beat in 0..100_000u64 {
            let count = 7_000_000 + beat * 2_600_000 + beat * 7919 % 50_000;
            let nanos = system(count, beat * 31 % 30);
            let (now, next) = steer(first, calibration, count, nanos);
            first.get_or_insert((count, nanos));
            assert!(now + 1 >= last, "beat {beat}: {now} after {last}");
            if beat > 1 {
                assert!(now.abs_diff(nanos) < 1000, "beat {beat}: {now} against {nanos}");
                let next = next.expect("nothing was lost");
                assert_eq!(next.nanos(count), now, "the line is bent, not broken");
                assert_eq!(next.nanos, now, "nothing less is read than what is said");
                last = next.nanos(count + 2_500_000);
            }
            calibration = next;
        }
    }

    #[test]
    fn a_counter_that_is_lost_is_left_alone() {
        let calibration = Calibration { at: 1000, nanos: 1_000_000, speed: 1 << FRACTION };
        let (now, next) = steer(Some((0, 1)), Some(calibration), 2000, 500_000_000);
        assert_eq!((now, next), (500_000_000, None), "the machine slept: ahead to the system's clock");
        let (now, next) = steer(Some((0, 1)), Some(calibration), 500_000_000, 1_500_000);
        assert_eq!(next, None);
        assert!(now >= 1_500_000, "never back");
    }

    #[test]
    fn a_count_of_another_core_that_lags_stands_still() {
        let calibration = Calibration { at: 1000, nanos: 50, speed: 1 << FRACTION };
        assert_eq!(calibration.nanos(10), 50);
    }
}

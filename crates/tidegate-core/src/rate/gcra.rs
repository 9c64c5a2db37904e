//! The generic cell rate algorithm: a token bucket kept as a schedule of one number, the tick at which the limit
//! would be full again if nothing more were asked. It is the smallest state of all, and the retry time takes one
//! subtraction. The arithmetic, settling included, is in [`schedule`](super::schedule); a state that fits one word has
//! a form of its own, [`GcraWord`](super::GcraWord).

pub(super) mod word;

use core::time::Duration;

use super::schedule::{Pace, Schedule, kept_as_schedule};
use crate::algorithm::Algorithm;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick};

/// A rate and a burst, decided by the generic cell rate algorithm.
///
/// # Source
/// ITU-T Recommendation I.371, GCRA in its virtual scheduling form. Burst here counts the first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    rate: Rate,
    pub(crate) pace: Pace,
}

/// The state of [`Gcra`] for one key, 32 bytes in memory: when the limit is full again, and the tick of the last
/// change. Charges that are settled out of order need up to 5 KiB more on the heap, until the limit has been full
/// again; up to 130 KiB while charges wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcraState(pub(super) Schedule);

impl Gcra {
    /// Makes a limit of `rate` that grants at most `burst` units at once, from 1 to [`Rate::MAX_COUNT`].
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the burst is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::Gcra, Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
    ///
    /// let limit = Gcra::new(Rate::new(10, Duration::from_secs(1))?, 1)?;
    /// let now = Tick::from_secs(1);
    /// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), Ask::allow(now, Cost::ONE)) else { panic!() };
    /// let again = limit.decide(&next, Ask::allow(now, Cost::ONE));
    /// assert_eq!(again, Transition::Denied { retry: Retry::After(Duration::from_millis(100)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, burst: u64) -> Result<Self, QuotaError> {
        Ok(Self { rate, pace: Pace::new(rate, burst_in_range(burst)?) })
    }

    /// Returns the rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the burst: the most units that a full limit grants at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.pace.at_once
    }

    /// Returns the report of the limit when `spent` is the time until it is full, scaled as in [`Gcra::state`].
    #[must_use]
    #[inline]
    pub const fn report(&self, spent: u64) -> GcraReport {
        let Pace { scale, unit, at_once: burst } = self.pace;
        GcraReport { unit, scale, burst, spent }
    }

    /// Returns the state last changed at `last`, with the scaled time `spent` from then until the limit is full.
    /// Scaled time counts in units of `1/count` nanoseconds, where `count` is that of [`Rate::reduced`]; one unit of
    /// the limit then takes the reduced period.
    ///
    /// For stores that keep these two numbers instead of a state; [`Gcra::spent`] returns them.
    #[must_use]
    pub fn state(&self, last: Tick, spent: u64) -> GcraState {
        GcraState(Schedule::new(self.pace.scaled(last) + u128::from(spent), last))
    }

    /// Returns the state last changed at `last`, from which on `spent` scaled time passes until the limit is full.
    pub(crate) fn owing(&self, last: Tick, spent: u128) -> GcraState {
        GcraState(Schedule::new(self.pace.scaled(last).saturating_add(spent), last))
    }

    /// Returns the two numbers from which [`Gcra::state`] makes this state. `None`: the state holds more than these,
    /// because charges were settled out of order, or the limit was full before its last change.
    #[must_use]
    pub fn spent(&self, state: &GcraState) -> Option<(Tick, u64)> {
        let GcraState(line) = state;
        let spent = line.tat().checked_sub(self.pace.scaled(line.last)).filter(|_| line.book.is_none())?;
        u64::try_from(spent).ok().map(|spent| (line.last, spent))
    }

    /// Returns the mark of a receipt for units spent at once at `now`. `spent` is the scaled time from `now` until
    /// the limit is full, after that charge.
    #[must_use]
    #[inline]
    pub fn mark(&self, now: Tick, spent: u64) -> [u64; 4] {
        self.pace.mark(self.pace.scaled(now) + u128::from(spent))
    }
}

kept_as_schedule!(Gcra, GcraState, |limit, line, ask| limit.pace.decide(line, ask));

impl Bytes for Gcra {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.burst());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, burst) = (from.rate()?, from.u64()?);
        Self::new(rate, burst).map_err(|_| DecodeError::Value { field: "burst" })
    }
}

/// The standing and the retry time of a limit at one tick, computed when they are read. Four numbers, `Copy`: making it
/// costs a subtraction, reading it divisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraReport {
    unit: u64,
    scale: u64,
    burst: u64,
    /// Scaled time until the limit is full.
    spent: u64,
}

impl GcraReport {
    /// Returns the standing of the limit.
    #[must_use]
    #[inline]
    pub fn standing(&self) -> Standing {
        let (remaining, debt) = match self.full().checked_sub(self.spent) {
            Some(left) => (whole(left, self.unit), 0),
            None => (0, self.debt()),
        };
        Standing { limit: self.burst, remaining, debt, reset_after: self.span(self.spent) }
    }

    /// Returns when `units` can be spent: after zero time if they can be now, never if they are above the burst.
    #[must_use]
    pub fn retry(&self, units: u64) -> Retry {
        if units > self.burst {
            return Retry::Never;
        }
        // At most a burst, which fits 64 bits when added to any word.
        let wanted = self.spent + units * self.unit;
        Retry::After(self.span(wanted.saturating_sub(self.full())))
    }

    #[cold]
    fn debt(&self) -> u64 {
        self.spent.saturating_sub(self.full()).div_ceil(self.unit.max(1))
    }

    /// Returns the burst in scaled time. In every word form it fits 64 bits.
    const fn full(&self) -> u64 {
        self.burst.wrapping_mul(self.unit)
    }

    fn span(&self, scaled: u64) -> Duration {
        let nanos = whole(scaled, self.scale);
        Duration::from_nanos(nanos + u64::from(nanos.wrapping_mul(self.scale) != scaled))
    }
}

/// Returns `scaled / part`, rounded down. `part` is never zero. The result for zero only avoids a panic path, so that
/// a division whose result is not used costs nothing.
#[inline]
const fn whole(scaled: u64, part: u64) -> u64 {
    match scaled.checked_div(part) {
        Some(whole) => whole,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use crate::decision::Cost;

    use super::*;

    fn per_second(count: u64, burst: u64) -> Gcra {
        Gcra::new(Rate::new(count, Duration::from_secs(1)).unwrap(), burst).unwrap()
    }

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = per_second(10, 3);
        let mut state = limit.fresh(ms(0));
        // (ms, cost, allowed, retry after ms, remaining afterwards)
        for (at, cost, expected, retry, remaining) in [
            (0, 1, true, 0, 2),
            (0, 2, true, 0, 0),
            (0, 1, false, 100, 0),
            (99, 1, false, 1, 0),
            (100, 1, true, 0, 0),
            (400, 3, true, 0, 0),
            (400, 2, false, 200, 0),
            (100, 1, false, 100, 0), // a step back stands still at 400
        ] {
            let transition = limit.decide(&state, Ask::allow(ms(at), Cost::new(cost).unwrap()));
            match transition {
                Transition::Allowed { next, .. } => {
                    assert!(expected, "at {at}");
                    state = next;
                }
                Transition::Denied { retry: told } => {
                    assert!(!expected, "at {at}");
                    assert_eq!(told.after(), Some(Duration::from_millis(retry)), "at {at}");
                }
            }
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }

    #[test]
    fn undoing_restores_what_nobody_relies_on() {
        let limit = per_second(1, 1);
        let reserve = |state: &GcraState| {
            let ask = Ask::within(ms(0), Cost::ONE, Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("within a minute")
            };
            (next, receipt)
        };
        let (a, _) = reserve(&limit.fresh(ms(0)));
        let (b, second) = reserve(&a);
        let (c, third) = reserve(&b);
        assert_eq!(limit.settle(&c, ms(0), &third, 0), b, "the last one is undone entirely");
        let behind = limit.settle(&c, ms(0), &second, 0);
        let waits = |state| match limit.decide(state, Ask::within(ms(0), Cost::ONE, Duration::MAX)) {
            Transition::Allowed { wait, .. } => wait,
            Transition::Denied { .. } => panic!("any wait is accepted"),
        };
        assert_eq!(waits(&behind), Duration::from_secs(3), "the third still counts on the second's place");
        assert_eq!(limit.settle(&behind, ms(0), &third, 0), a, "and gives back both");
        assert_eq!(limit.settle(&b, ms(0), &second, 0), a);
    }

    /// Four charges wait behind one spent unit, at 4 per second with a burst of 3: for 3, 3, 1 and 1 units. Three are
    /// undone: the last; the second, on one unit of which the third relies; and the first. Undoing the second lowers
    /// the arrival time below the tick promised to the third. The promise used to be read off the arrival time all
    /// the same. So the first gave back units on which the third still relied, and four units acted at one tick.
    #[test]
    fn a_promise_outlives_what_came_before_it() {
        let limit = per_second(4, 3);
        let mut state = limit.fresh(ms(0));
        let reserve = |state: &mut GcraState, units| {
            let ask = Ask::within(ms(0), Cost::new(units).unwrap(), Duration::MAX);
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!() };
            *state = next;
            receipt
        };
        let [_, first, second, third, fourth] = [1, 3, 3, 1, 1].map(|units| reserve(&mut state, units));
        assert_eq!(third.act, ms(1250));
        for gone in [fourth, second, first] {
            state = limit.settle(&state, ms(0), &gone, 0);
        }
        assert_eq!(
            reserve(&mut state, 3).act,
            ms(1500),
            "one unit acts at 1250 ms, and two are back by then"
        );
    }

    #[test]
    fn a_changed_limit_keeps_what_was_spent() {
        let (old, new) = (per_second(10, 100), per_second(5, 50));
        let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
        let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
        let left = |how| new.standing(&new.carry(&old, &spent, ms(0), how), ms(0)).remaining;
        assert_eq!(left(Replace::AsIs), 10);
        assert_eq!(left(Replace::Proportional), 30);
        assert_eq!(left(Replace::Reset), 50);
    }
}

//! A rate that follows a signal of load: the fuller the machine, the lower the rate.
//!
//! At the low mark and below, the rate is the ceiling; at the high mark and above, it is the floor; between them it
//! falls in a straight line. The signal is any number that grows with load: processor or memory in use in
//! thousandths, milliseconds, the length of a queue, or a number that the user reports. For a number that grows as
//! load falls, report the negative.
//!
//! A straight line alone would oscillate: the rate falls, so the signal falls, so the rate rises. Three measures damp
//! this, and each keeps the order: of two series of readings, the one that is nowhere higher never has the lower
//! rate. Readings are *smoothed*. A falling signal has to fall by more than a *band* before the rate rises, while a
//! rising one lowers it at once. Towards the low mark the band narrows, to the distance from that mark, so that a signal
//! that rests there has the ceiling: many signals, such as the length of a queue, never fall below theirs. And the rate
//! takes a *climb* time to rise from the floor to the ceiling.
//!
//! # When
//! Use it for a resource that must not run out and reacts slowly to load, such as memory, where a concurrency law would
//! notice a shortage too late; and for following a number of your own. Do not use it where latency or refusals show the
//! load more directly: see [`concurrency`](crate::concurrency) and [`throttle`](crate::throttle). It knows only its
//! readings: when they stop, the rate stays.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | floor, ceiling | rates over one period | | the rate at a high signal, and at a low one |
//! | marks | finite, ascending | | the signals between which the rate falls |
//! | smoothing | 0 to 0.999 | 0.5 | the share of its weight that an old reading keeps with each new one |
//! | band | 0 to the distance between the marks | a tenth of that | by how much the signal has to fall before the rate rises |
//! | climb | up to a day | 10 s | how long the rate takes to rise from the floor to the ceiling |
//!
//! # Source
//! The straight line is the memory-adaptive calculator of sentinel-golang; [`Following::sentinel`] is that line
//! without damping. A band on one side is the play operator of hysteresis.

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::average::interpolate;
use crate::error::QuotaError;
use crate::range::in_range;
use crate::time::{Rate, Tick, onward};

/// A rate between a floor and a ceiling, chosen by a signal between two marks.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::following::Following;
/// use tidegate_core::{Rate, Tick};
///
/// let per_second = |count| Rate::new(count, Duration::from_secs(1));
/// // 1000 a second up to 700 thousandths of the memory, and 100 from 900 on.
/// let law = Following::new(per_second(100)?..=per_second(1000)?, 700.0..=900.0)?;
/// let mut state = law.start(Tick::EPOCH);
/// assert_eq!(law.rate(&state), per_second(1000)?);
///
/// law.sense(&mut state, Tick::EPOCH, 800.0);
/// assert_eq!(law.rate(&state), per_second(550)?);
/// law.sense(&mut state, Tick::EPOCH, 2000.0);
/// assert_eq!(law.rate(&state), per_second(325)?, "half of the way is made at once");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Following {
    floor: Rate,
    ceiling: Rate,
    low: f64,
    high: f64,
    smoothing: f64,
    band: f64,
    climb: Duration,
}

/// The state of [`Following`]: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FollowingState {
    last: Tick,
    /// The smoothed signal; `None` before the first reading.
    smoothed: Option<f64>,
    /// The signal that determines the rate, between the marks.
    held: f64,
}

impl Following {
    /// Makes a law from a floor and a ceiling over one period, and the two marks between which the rate falls.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the floor is above the ceiling or over another period, or the marks are not finite and ascending.
    pub fn new(rates: RangeInclusive<Rate>, marks: RangeInclusive<f64>) -> Result<Self, QuotaError> {
        let (floor, ceiling) = rates.into_inner();
        let refused = |name, value, want| Err(QuotaError::Parameter { name, value, want });
        if floor.period() != ceiling.period() {
            let want = "is not that of the ceiling; use one period for both";
            return refused("period of the floor", format!("{:?}", floor.period()), want);
        }
        in_range("floor", floor.count(), &(1..=ceiling.count()), "is not a floor; use 1 to the ceiling")?;
        let (low, high) = marks.into_inner();
        // The distance between the marks must be a finite float of normal precision; otherwise there is no line between them.
        if !(low < high && (high - low).is_finite() && (high - low).is_normal()) {
            return refused(
                "marks",
                format!("{low:?} and {high:?}"),
                "are not a band; use a low and a higher one",
            );
        }
        let band = (high - low) / 10.0;
        Ok(Self { floor, ceiling, low, high, smoothing: 0.5, band, climb: Duration::from_secs(10) })
    }

    /// Makes a law without damping: each reading gives its rate at once.
    ///
    /// # Errors
    /// As [`Following::new`].
    pub fn sentinel(rates: RangeInclusive<Rate>, marks: RangeInclusive<f64>) -> Result<Self, QuotaError> {
        let law = Self::new(rates, marks)?;
        Ok(Self { smoothing: 0.0, band: 0.0, climb: Duration::ZERO, ..law })
    }

    /// Sets the share of its weight that an old reading keeps with each new one, 0 to 0.999.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn smoothing(self, kept: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to keep; use 0 to 0.999";
        Ok(Self { smoothing: in_range("smoothing", kept, &(0.0..=0.999), want)?, ..self })
    }

    /// Sets by how much the signal has to fall before the rate rises: 0 to the distance between the marks.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn band(self, width: f64) -> Result<Self, QuotaError> {
        let want = "is not a band; use 0 to the distance between the marks";
        Ok(Self { band: in_range("band", width, &(0.0..=self.high - self.low), want)?, ..self })
    }

    /// Sets how long the rate takes to rise from the floor to the ceiling, in a straight line: up to a day. At zero it jumps.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is longer.
    pub fn climb(self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::ZERO..=Duration::from_secs(86_400);
        Ok(Self { climb: in_range("climb", span, &range, "is too long; use up to a day")?, ..self })
    }

    /// Returns the state before the first reading: the rate is the ceiling.
    #[must_use]
    pub const fn start(&self, now: Tick) -> FollowingState {
        FollowingState { last: now, smoothed: None, held: self.low }
    }

    /// Updates the state by a reading of the signal; NaN is ignored. A reading above the high mark counts as that mark.
    /// A reading more than the band below the low mark counts as the low mark minus the band. So the effect of one
    /// extreme reading does not last long.
    pub fn sense(&self, state: &mut FollowingState, at: Tick, signal: f64) {
        if signal.is_nan() {
            return;
        }
        let at = onward(state.last, at);
        let passed = at.since(state.last);
        state.last = at;

        let reading = signal.max(self.low - self.band).min(self.high);
        let smoothed = state.smoothed.map_or(reading, |old| interpolate(old, reading, 1.0 - self.smoothing));
        state.smoothed = Some(smoothed);
        let band = self.band.min((smoothed - self.low).max(0.0));
        let target = state.held.min(smoothed + band).max(smoothed).clamp(self.low, self.high);
        state.held = target.max(state.held - self.fall(passed));
    }

    /// Returns the rate: from the floor to the ceiling, its count rounded to the nearest whole number.
    #[must_use]
    pub fn rate(&self, state: &FollowingState) -> Rate {
        let range = self.ceiling.count() - self.floor.count();
        let share = (state.held - self.low) / (self.high - self.low);
        // Both ends are exact, even for a count with more digits than a float; between them the float only has to
        // keep the order.
        let lowered = if share >= 1.0 { range } else { (range as f64 * share).round() as u64 };
        let count = self.ceiling.count() - lowered.min(range);
        Rate::new(count, self.ceiling.period()).expect("between two counts that are good, over their period")
    }

    /// Returns by how much the signal that determines the rate may fall in a time.
    fn fall(&self, passed: Duration) -> f64 {
        if self.climb.is_zero() || passed >= self.climb {
            return self.high - self.low;
        }
        (self.high - self.low) * (passed.as_secs_f64() / self.climb.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;

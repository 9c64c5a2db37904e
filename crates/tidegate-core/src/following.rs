//! A rate that follows a signal: the fuller the machine, the less is let in.
//!
//! At the low mark and below, the rate is the ceiling; at the high mark and above, the floor; between them it falls in a straight line. The
//! signal is any number that grows with load: thousandths of the processor or of the memory, milliseconds, the length of a queue, what a user
//! reports. Of a number that grows as load falls, report the negative.
//!
//! A straight line alone would flap: less is let in, the signal falls, more is let in. Three things calm it, and each keeps the order: a
//! signal that is nowhere higher never gives a lower rate. Readings are *smoothed*. A signal that falls has to fall by more than a *band*
//! before the rate rises, while one that rises lowers it at once. And the rate takes a *climb* time to rise from the floor to the ceiling.
//!
//! # When
//! Right where a resource must not run out and answers slowly to load, as memory does, and a concurrency law would see too late that it is
//! short; and where the number to follow is one's own. Wrong where latency or refusals tell more directly: see
//! [`concurrency`](crate::concurrency) and [`throttle`](crate::throttle). It knows only what it is told: where readings stop, the rate stays.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | floor, ceiling | rates over one period | | where the signal is high, and where it is low |
//! | marks | finite, ascending | | between which the rate falls |
//! | smoothing | 0 to 0.999 | 0.5 | what an old reading keeps of its weight with each new one |
//! | band | 0 to the distance between the marks | a tenth of that | by how much the signal has to fall before the rate rises |
//! | climb | up to a day | 10 s | how long the rate takes from the floor to the ceiling |
//!
//! # Source
//! The straight line is the memory-adaptive calculator of sentinel-golang, which [`Following::sentinel`] has without anything that calms it.
//! A band on one side is the play operator of hysteresis.

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::average::toward;
use crate::error::QuotaError;
use crate::knob::in_range;
use crate::time::{Rate, Tick, onward};

/// A rate between a floor and a ceiling, by a signal between two marks.
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

/// What [`Following`] remembers: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FollowingState {
    last: Tick,
    /// The smoothed signal; `None` before the first reading.
    smoothed: Option<f64>,
    /// The signal that the rate goes by, between the marks.
    held: f64,
}

impl Following {
    /// Makes a law of a floor and a ceiling over one period, and the marks between which the rate falls from the one to the other.
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
        // Marks apart by less than any step, or by more than there are numbers, have no line between them.
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

    /// Makes a law with nothing that calms it: each reading gives its rate at once.
    ///
    /// # Errors
    /// As [`Following::new`].
    pub fn sentinel(rates: RangeInclusive<Rate>, marks: RangeInclusive<f64>) -> Result<Self, QuotaError> {
        let law = Self::new(rates, marks)?;
        Ok(Self { smoothing: 0.0, band: 0.0, climb: Duration::ZERO, ..law })
    }

    /// Sets what an old reading keeps of its weight with each new one, 0 to 0.999.
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

    /// Sets how long the rate takes from the floor to the ceiling, up to a day; it rises in a straight line. At zero it jumps.
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

    /// Takes in a reading of the signal. What is not a number is no reading. A reading beyond the marks counts as the mark, and, below the
    /// low one, as the band below it: no reading is so extreme that it takes long to make up for.
    pub fn sense(&self, state: &mut FollowingState, at: Tick, signal: f64) {
        if signal.is_nan() {
            return;
        }
        let at = onward(state.last, at);
        let passed = at.since(state.last);
        state.last = at;

        let reading = signal.max(self.low - self.band).min(self.high);
        let smoothed = state.smoothed.map_or(reading, |old| toward(old, reading, 1.0 - self.smoothing));
        state.smoothed = Some(smoothed);
        let target = state.held.min(smoothed + self.band).max(smoothed).clamp(self.low, self.high);
        state.held = target.max(state.held - self.fall(passed));
    }

    /// Returns the rate: always from the floor to the ceiling, its count the nearest whole one.
    #[must_use]
    pub fn rate(&self, state: &FollowingState) -> Rate {
        let range = self.ceiling.count() - self.floor.count();
        let share = (state.held - self.low) / (self.high - self.low);
        // Both ends are exact, even where a count has more digits than a float; between them the float only has to keep the order.
        let lowered = if share >= 1.0 { range } else { (range as f64 * share).round() as u64 };
        let count = self.ceiling.count() - lowered.min(range);
        Rate::new(count, self.ceiling.period()).expect("between two counts that are good, over their period")
    }

    /// Returns by how much the signal that the rate goes by may fall in a time.
    fn fall(&self, passed: Duration) -> f64 {
        if self.climb.is_zero() || passed >= self.climb {
            return self.high - self.low;
        }
        (self.high - self.low) * (passed.as_secs_f64() / self.climb.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;

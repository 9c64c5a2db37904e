//! A rate that follows a signal of load: the fuller the machine, the lower the rate.
//!
//! At the low mark and below, the rate is the ceiling; at the high mark and above, it is the floor; between them it
//! falls in a straight line. The signal is any number that grows with load; for one that grows as load falls, report
//! the negative. A line alone would oscillate: the rate falls, so the signal falls, so the rate rises. Three measures
//! damp that, and each keeps the order: of two series of readings, the one that is nowhere higher never has the lower
//! rate. Readings are *smoothed*. A falling signal has to fall by more than a *band* before the rate rises; towards
//! the low mark the band narrows, to the distance from that mark, so that a signal that rests there has the ceiling:
//! many, such as the length of a queue, never fall below theirs. And the rate takes a *climb* time to rise from the
//! floor to the ceiling.
//!
//! Use it for a resource that reacts slowly to load, such as memory, where a concurrency law would notice a shortage
//! too late. Where latency or refusals show the load, use [`concurrency`](crate::concurrency) or
//! [`throttle`](crate::throttle). When readings stop, the rate stays.
//!
//! # Source
//! The straight line is the memory-adaptive calculator of sentinel-golang. A band on one side is the play operator of
//! hysteresis.

use core::ops::RangeInclusive;
use core::time::Duration;

use crate::average::interpolate;
use crate::error::{QuotaError, in_range};
use crate::time::{Rate, Tick, onward};

/// A rate between a floor and a ceiling, chosen by a signal between two marks.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::signal_rate::SignalRate;
/// use tidegate_core::{Rate, Tick};
///
/// let per_second = |count| Rate::new(count, Duration::from_secs(1));
/// // 1000 a second up to 700 thousandths of the memory, and 100 from 900 on.
/// let law = SignalRate::new(per_second(100)?..=per_second(1000)?, 700.0..=900.0)?;
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
pub struct SignalRate {
    floor: Rate,
    ceiling: Rate,
    low: f64,
    high: f64,
    smoothing: f64,
    band: f64,
    climb: Duration,
}

/// The state of [`SignalRate`]: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SignalRateState {
    last: Tick,
    smoothed: Option<f64>,
    held: f64,
}

impl SignalRate {
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
    /// As [`SignalRate::new`].
    pub fn sentinel(rates: RangeInclusive<Rate>, marks: RangeInclusive<f64>) -> Result<Self, QuotaError> {
        let law = Self::new(rates, marks)?;
        Ok(Self { smoothing: 0.0, band: 0.0, climb: Duration::ZERO, ..law })
    }

    /// Sets the share of its weight that an old reading keeps with each new one, 0 to 0.999; 0.5 by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn smoothing(self, kept: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to keep; use 0 to 0.999";
        Ok(Self { smoothing: in_range("smoothing", kept, &(0.0..=0.999), want)?, ..self })
    }

    /// Sets by how much the signal has to fall before the rate rises: 0 to the distance between the marks; a tenth of
    /// that by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn band(self, width: f64) -> Result<Self, QuotaError> {
        let want = "is not a band; use 0 to the distance between the marks";
        Ok(Self { band: in_range("band", width, &(0.0..=self.high - self.low), want)?, ..self })
    }

    /// Sets how long the rate takes to rise from the floor to the ceiling, in a straight line: up to a day; 10 s by
    /// default. At zero it jumps.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is longer.
    pub fn climb(self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::ZERO..=Duration::from_secs(86_400);
        Ok(Self { climb: in_range("climb", span, &range, "is too long; use up to a day")?, ..self })
    }

    /// Returns the state before the first reading: the rate is the ceiling.
    #[must_use]
    pub const fn start(&self, now: Tick) -> SignalRateState {
        SignalRateState { last: now, smoothed: None, held: self.low }
    }

    /// Updates the state by a reading of the signal; NaN is ignored. A reading counts as at most the high mark, and as
    /// at least the low mark minus the band, so that one extreme reading does not last long.
    pub fn sense(&self, state: &mut SignalRateState, at: Tick, signal: f64) {
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
    pub fn rate(&self, state: &SignalRateState) -> Rate {
        let range = self.ceiling.count() - self.floor.count();
        let share = (state.held - self.low) / (self.high - self.low);
        // Both ends are exact, even for a count with more digits than a float; between them the float only has to
        // keep the order.
        let lowered = if share >= 1.0 { range } else { (range as f64 * share).round() as u64 };
        let count = self.ceiling.count() - lowered.min(range);
        Rate::new(count, self.ceiling.period()).expect("between two counts that are good, over their period")
    }

    fn fall(&self, passed: Duration) -> f64 {
        if self.climb.is_zero() || passed >= self.climb {
            return self.high - self.low;
        }
        (self.high - self.low) * (passed.as_secs_f64() / self.climb.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(count: u64) -> Rate {
        Rate::new(count, Duration::from_secs(1)).unwrap()
    }

    /// 1000 a second up to 1024 bytes, 100 a second from 2048 bytes on.
    fn sentinel() -> SignalRate {
        SignalRate::sentinel(rate(100)..=rate(1000), 1024.0..=2048.0).unwrap()
    }

    /// Returns the rates after readings, each a number of milliseconds after the one before.
    fn rates(law: &SignalRate, readings: &[(u64, f64)]) -> Vec<u64> {
        let (mut now, mut state) = (Tick::EPOCH, law.start(Tick::EPOCH));
        let sense = |&(millis, signal): &(u64, f64)| {
            now = now.after(Duration::from_millis(millis));
            law.sense(&mut state, now, signal);
            law.rate(&state).count()
        };
        readings.iter().map(sense).collect()
    }

    #[test]
    fn sentinels_line_is_straight_and_has_no_memory() {
        let readings = [0.0, 1024.0, 1280.0, 1536.0, 2048.0, 1e300, 1536.0, 0.0].map(|signal| (0, signal));
        assert_eq!(rates(&sentinel(), &readings), [1000, 1000, 775, 550, 100, 100, 550, 1000]);
    }

    /// The straight line of Envoy's scaled triggers, in its example of a timer from 600 s down to 2 s between 85 % and 95 %:
    /// at 92 %, 2 + 598·0.3 = 181.4 s. In tenths, since a rate counts in whole numbers.
    #[test]
    fn the_line_is_that_of_envoys_scaled_triggers() {
        let law = SignalRate::sentinel(rate(20)..=rate(6000), 85.0..=95.0).unwrap();
        let readings = [84.0, 85.0, 92.0, 95.0, 96.0].map(|percent| (0, percent));
        assert_eq!(rates(&law, &readings), [6000, 6000, 1814, 20, 20]);
    }

    #[test]
    fn a_signal_that_trembles_within_the_band_moves_the_rate_once() -> Result<(), QuotaError> {
        let law = sentinel().band(256.0)?;
        let readings =
            [(0, 1536.0), (150, 1300.0), (150, 1536.0), (150, 1280.0), (150, 1279.0), (150, 700.0)];
        assert_eq!(rates(&law, &readings), [550, 550, 550, 550, 552, 1000]);
        assert_eq!(rates(&law, &[(0, 1536.0), (1, 1537.0)]), [550, 549], "0.88 fewer, to the nearest");
        assert_eq!(rates(&law, &[(0, 1536.0), (1, 1600.0)]), [550, 494], "a rise counts at once");
        Ok(())
    }

    /// Regression: a queue that is empty never falls below its low mark by a band, so the rate stayed at 910 for good.
    #[test]
    fn a_signal_that_rests_at_the_low_mark_has_the_ceiling() {
        for law in
            [SignalRate::new(rate(100)..=rate(1000), 0.0..=1000.0).unwrap(), sentinel().band(1024.0).unwrap()]
        {
            let mut readings = vec![(0, 5000.0); 10];
            readings.extend([(200, law.low); 100]);
            let rates = rates(&law, &readings);
            assert_eq!((rates[9], rates[109]), (100, 1000), "{law:?}");
        }
    }

    #[test]
    fn the_rate_falls_at_once_and_climbs_in_its_time() -> Result<(), QuotaError> {
        let law = sentinel().climb(Duration::from_secs(10))?;
        let readings = [(0, 9000.0), (1000, 0.0), (4000, 0.0), (0, 0.0), (5000, 0.0), (1, 0.0)];
        assert_eq!(rates(&law, &readings), [100, 190, 550, 550, 1000, 1000]);
        Ok(())
    }

    #[test]
    fn what_is_not_a_number_is_no_reading_and_what_is_infinite_is_the_mark() {
        let law =
            SignalRate::new(rate(100)..=rate(1000), 0.0..=100.0).unwrap().climb(Duration::ZERO).unwrap();
        assert_eq!(rates(&law, &[(0, f64::NAN)]), [1000]);
        let readings = [(0, f64::INFINITY), (1, f64::NAN), (1, f64::NEG_INFINITY)];
        let after = rates(&law, &readings);
        assert_eq!(after[..2], [100, 100]);
        assert!(after[2] > 100);
    }

    #[test]
    fn the_ends_are_exact_for_counts_that_no_float_can_hold() {
        let most = Rate::MAX_COUNT;
        let law = SignalRate::sentinel(rate(3)..=rate(most - 1), 0.0..=1.0).unwrap();
        assert_eq!(rates(&law, &[(0, 0.0), (0, 1.0)]), [most - 1, 3]);
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let text = |floor, ceiling, marks| SignalRate::new(floor..=ceiling, marks).unwrap_err().to_string();
        assert_eq!(text(rate(5), rate(4), 0.0..=1.0), "floor 5 is not a floor; use 1 to the ceiling");
        let minute = Rate::new(1, Duration::from_secs(60)).unwrap();
        let want = "period of the floor 60s is not that of the ceiling; use one period for both";
        assert_eq!(text(minute, rate(4), 0.0..=1.0), want);
        let want = "marks 1.0 and 1.0 are not a band; use a low and a higher one";
        assert_eq!(text(rate(1), rate(4), 1.0..=1.0), want);
        for marks in [f64::NAN..=1.0, 0.0..=f64::INFINITY, -f64::MAX..=f64::MAX, 0.0..=1e-320] {
            assert!(SignalRate::new(rate(1)..=rate(4), marks).is_err());
        }
        assert!(sentinel().band(-1.0).is_err() && sentinel().band(1025.0).is_err());
        assert!(sentinel().smoothing(1.0).is_err() && sentinel().climb(Duration::MAX).is_err());
    }

    fn any_law() -> impl Strategy<Value = SignalRate> {
        let rates = (1u64..1000, 0u64..Rate::MAX_COUNT / 2);
        let marks = (-1e6f64..1e6, 1e-3f64..1e6);
        (rates, marks, 0.0f64..0.99, 0.0f64..=1.0, 0u64..20).prop_map(|(rates, marks, kept, band, climb)| {
            let (floor, ceiling) = (rate(rates.0), rate(rates.0 + rates.1));
            let law = SignalRate::new(floor..=ceiling, marks.0..=marks.0 + marks.1).unwrap();
            let band = band * (law.high - law.low);
            law.smoothing(kept).unwrap().band(band).unwrap().climb(Duration::from_secs(climb)).unwrap()
        })
    }

    fn signals() -> impl Strategy<Value = f64> {
        prop_oneof![4 => -2e6f64..2e6, 1 => any::<f64>()]
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_floor_and_ceiling(
            law in any_law(),
            readings in prop::collection::vec((any::<u64>(), signals()), 1..50),
        ) {
            let mut state = law.start(Tick::EPOCH);
            for (at, signal) in readings {
                law.sense(&mut state, Tick::from_nanos(at), signal);
                let count = law.rate(&state).count();
                prop_assert!((law.floor.count()..=law.ceiling.count()).contains(&count));
            }
        }

        #[test]
        fn a_signal_that_is_nowhere_lower_gives_no_higher_rate(
            law in any_law(),
            readings in prop::collection::vec((0u64..5_000_000_000, -2e6f64..2e6, 0f64..1e5), 1..50),
        ) {
            let (mut now, mut lower) = (Tick::EPOCH, law.start(Tick::EPOCH));
            let mut higher = lower;
            for (nanos, signal, more) in readings {
                now = now.after(Duration::from_nanos(nanos));
                law.sense(&mut lower, now, signal);
                law.sense(&mut higher, now, signal + more);
                prop_assert!(law.rate(&higher).count() <= law.rate(&lower).count());
            }
        }
    }

    /// The size that the documentation gives.
    #[test]
    fn the_state_is_as_small_as_documented() {
        assert_eq!(size_of::<SignalRateState>(), 32);
    }
}

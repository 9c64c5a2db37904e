//! Gradient2: moves the limit by comparing recent latencies with a long-term average.
//!
//! While the latest latency is at most one and a half times the long average, the limit grows by a small queue at a
//! time. Above that it shrinks in proportion, by half at most. A latency that has lasted for six hundred samples
//! counts as normal: where load stays too high for long, the limit follows it up. It suits latencies that differ from
//! request to request, because it compares averages.
//!
//! Netflix' law ignores overload, so where every call runs into the same time-out, the limit becomes the largest: such
//! a latency is perfectly steady. Here an overload leaves nine tenths of it. It counts only if it ends later than the
//! last back-off by more than its own latency and by more than the long average: other such work was inside at that
//! time. A failure that took longer than the tolerance allows counts as overload; a quicker one changes nothing.
//!
//! # Source
//! `Gradient2Limit` of Netflix' concurrency-limits. Backing off is AIMD's, see [`Aimd`](super::Aimd).

use core::time::Duration;

use super::bounds::{Bounds, LIMITS};
use super::{Evidence, Law, Sample, nanos};
use crate::average::{Average, interpolate};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward};

/// For this many samples at first, the long average is a plain mean.
const PLAIN: u32 = 10;

/// Moves the limit by comparing the latest latency with the long average.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-gradient2.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Gradient, Law, Sample};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = Gradient::default();
/// let mut state = law.start(Tick::EPOCH);
/// let mut sample = Sample { at: Tick::EPOCH, latency: Duration::from_millis(10), held: Duration::from_millis(10), in_flight: 20, places: 1, time_left: None, outcome: Outcome::Success };
/// for _ in 0..10 {
///     sample.in_flight = law.limit(&state);
///     law.learn(&mut state, &sample);
/// }
/// assert_eq!(law.limit(&state), 28, "steady: a fifth of a queue of four at a time");
///
/// sample.latency = Duration::from_millis(40);
/// law.learn(&mut state, &sample);
/// assert_eq!(law.limit(&state), 26, "slower than ever");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    pub(super) bounds: Bounds,
    tolerance: f64,
    queue: f64,
    smoothing: f64,
    /// The share of a new latency in the long average: 2/(n + 1) for a window of n samples.
    long_weight: f64,
    timeout: Duration,
    backoff: f64,
    /// Whether the latency of every outcome counts alike, except for ignored ones.
    ignores_overload: bool,
}

/// The state of [`Gradient`]: 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientState {
    limit: f64,
    long: Average,
    backed_off: Option<Tick>,
}

impl Default for Gradient {
    fn default() -> Self {
        Self {
            bounds: Bounds::known(20, 200),
            tolerance: 1.5,
            queue: 4.0,
            smoothing: 0.2,
            long_weight: 2.0 / 601.0,
            timeout: Duration::MAX,
            backoff: 0.9,
            ignores_overload: false,
        }
    }
}

impl Gradient {
    /// Netflix' arithmetic: overloads and failures are latencies like any other. One difference: a long average that
    /// is lowered within its first ten samples stays lowered; there the next sample undoes that.
    #[must_use]
    pub fn netflix() -> Self {
        Self { ignores_overload: true, ..Self::default() }
    }

    /// Sets the bounds of the limit.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets how many times the long average a latency may be before the limit shrinks, 1 to 10; 1.5 by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn tolerance(self, times: f64) -> Result<Self, QuotaError> {
        let want = "is not a tolerance; use 1 to 10";
        Ok(Self { tolerance: in_range("tolerance", times, &(1.0..=10.0), want)?, ..self })
    }

    /// Sets the latency above which work counts as overload, from 1 ns; [`Duration::MAX`] means never.
    /// [`Gradient::netflix`] ignores it.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is zero.
    pub fn timeout(self, timeout: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_nanos(1)..=Duration::MAX;
        Ok(Self {
            timeout: in_range("timeout", timeout, &range, "is not a time-out; use 1 ns or more")?,
            ..self
        })
    }

    /// Sets the share of the limit that remains after an overload, 0.1 to 0.999; 0.9 by default.
    /// [`Gradient::netflix`] ignores it.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn backoff(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to shrink to; use 0.1 to 0.999";
        Ok(Self { backoff: in_range("backoff", share, &(0.1..=0.999), want)?, ..self })
    }

    fn compare(&self, state: &mut GradientState, latency: f64, in_flight: f64) {
        let long = state.long.add(latency, PLAIN, self.long_weight);
        // After a slow spell, an average over hundreds of samples would take hundreds of samples to come down.
        if long / latency > 2.0 {
            state.long.scale(0.95);
        }
        if in_flight < state.limit / 2.0 {
            return;
        }
        let gradient = (self.tolerance * long / latency).clamp(0.5, 1.0);
        let next = interpolate(state.limit, state.limit * gradient + self.queue, self.smoothing);
        state.limit = self.bounds.clamp(next);
    }

    /// Backs off, unless the work entered before the last back-off: then it reports the same overload.
    fn back_off(&self, state: &mut GradientState, sample: &Sample) {
        // Nanoseconds as a whole number; the cast saturates.
        let usual = Duration::from_nanos(state.long.get().unwrap_or(0.0) as u64);
        let began = sample.at.before(sample.held.max(usual));
        if state.backed_off.is_none_or(|last| began > last || onward(last, sample.at) < last) {
            state.limit = self.bounds.clamp(state.limit * self.backoff);
            state.backed_off = Some(sample.at);
        }
    }
}

impl Law for Gradient {
    type State = GradientState;

    fn start(&self, _now: Tick) -> GradientState {
        GradientState { limit: self.bounds.start() as f64, long: Average::default(), backed_off: None }
    }

    fn limit(&self, state: &GradientState) -> u64 {
        self.bounds.clamp(state.limit) as u64
    }

    fn learn(&self, state: &mut GradientState, sample: &Sample) {
        let in_flight = sample.in_flight as f64;
        if self.ignores_overload {
            if sample.outcome != Outcome::Ignored {
                self.compare(state, nanos(sample), in_flight);
            }
            return;
        }
        match Evidence::of(sample, self.timeout) {
            Evidence::Latency(latency) => self.compare(state, latency, in_flight),
            Evidence::Overload => self.back_off(state, sample),
            Evidence::Failure(latency)
                if state.long.get().is_some_and(|long| latency > self.tolerance * long) =>
            {
                self.back_off(state, sample);
            }
            Evidence::Failure(_) | Evidence::Alive | Evidence::Nothing => {}
        }
    }
}

impl Bytes for Gradient {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        for number in [self.tolerance, self.queue, self.smoothing, self.long_weight, self.backoff] {
            out.f64(number);
        }
        out.duration(self.timeout);
        out.flag(self.ignores_overload);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            bounds: Bytes::read(from)?,
            tolerance: from.within("tolerance", 1.0..=10.0)?,
            queue: from.within("queue", 0.0..=1000.0)?,
            smoothing: from.within("smoothing", 0.001..=1.0)?,
            long_weight: from.within("long window", 2.0 / 100_001.0..=2.0 / 11.0)?,
            backoff: from.within("backoff", 0.1..=0.999)?,
            timeout: from.duration("timeout")?,
            ignores_overload: from.flag("ignores overload")?,
        })
    }
}

impl Bytes for GradientState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        self.long.write(out);
        out.flag(self.backed_off.is_some());
        out.tick(self.backed_off.unwrap_or(Tick::EPOCH));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, long) = (from.within("limit", LIMITS)?, Bytes::read(from)?);
        let (backed_off, at) = (from.flag("backed off")?, from.tick()?);
        Ok(Self { limit, long, backed_off: backed_off.then_some(at) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::tests::sample;

    /// Runs samples of one latency and outcome one after the other, with the limit fully used; returns the limit.
    fn full(law: &Gradient, state: &mut GradientState, count: usize, micros: u64, outcome: Outcome) -> u64 {
        for number in 1..=count as u64 {
            let at = Tick::from_nanos(number * micros * 1000);
            let in_flight = law.limit(state);
            law.learn(state, &Sample { at, ..sample(micros, in_flight, outcome) });
        }
        law.limit(state)
    }

    /// A limit of 100 and a long average of 1 ms that one sample hardly moves.
    fn settled(law: Gradient) -> GradientState {
        let mut state = law.start(Tick::EPOCH);
        full(&law, &mut state, 10, 1000, Outcome::Success);
        state.limit = 100.0;
        state
    }

    /// L = 0.8·L + 0.2·(L·g + 4) with g = clamp(1.5·long/short, 0.5, 1), worked out by hand.
    #[test]
    fn the_published_numbers() {
        for law in [Gradient::default(), Gradient::netflix()] {
            // A window so long that the long average stays where it is.
            let law = Gradient { long_weight: 2.0 / 100_001.0, ..law };
            for (micros, in_flight, next) in [
                (1000, 100, 100.8), // as ever: a fifth of a queue of four
                (1500, 100, 100.8), // within the tolerance
                (2000, 100, 95.8),  // g = 0.75
                (3000, 100, 90.8),  // g = 0.5
                (9000, 100, 90.8),  // and never less
                (3000, 49, 100.0),  // the limit was not needed
                (3000, 50, 90.8),   // half of it was
            ] {
                let mut state = settled(law);
                law.learn(&mut state, &sample(micros, in_flight, Outcome::Success));
                assert!(
                    (state.limit - next).abs() < 0.01,
                    "{micros} µs, {in_flight} inside: {}",
                    state.limit
                );
            }
        }
    }

    #[test]
    fn the_long_average_is_a_plain_mean_first_and_forgets_slowness_faster() {
        let law = Gradient::default();
        let mut state = law.start(Tick::EPOCH);
        for micros in 1..=10 {
            law.learn(&mut state, &sample(micros, 1, Outcome::Success));
        }
        assert_eq!(state.long.get(), Some(5500.0));
        law.learn(&mut state, &sample(6, 1, Outcome::Success));
        let moved = 5500.0 + 500.0 * 2.0 / 601.0;
        assert!(state.long.get().is_some_and(|long| (long - moved).abs() < 1e-9));

        // A tenth of the average: a twentieth is dropped at once, in addition to the new sample's own share.
        law.learn(&mut state, &sample(1, 1, Outcome::Success));
        let decayed = (moved + (1000.0 - moved) * 2.0 / 601.0) * 0.95;
        assert!(state.long.get().is_some_and(|long| (long - decayed).abs() < 1e-9));
    }

    #[test]
    fn the_bounds_are_twenty_and_two_hundred() {
        let law = Gradient::default();
        let mut state = law.start(Tick::EPOCH);
        assert_eq!(full(&law, &mut state, 1000, 1000, Outcome::Success), 200);
        assert_eq!(full(&law, &mut state, 5000, 60_000_000, Outcome::Overloaded), 20);
    }

    /// A dependency hangs, and every call ends with the same time-out after a second. Nothing is as steady as that, so
    /// the profile's limit grows to its largest, and all of it hangs.
    #[test]
    fn constant_time_outs_let_the_profile_grow_and_not_ours() {
        for outcome in [Outcome::Overloaded, Outcome::Failure] {
            for (law, ends) in [(Gradient::netflix(), 200), (Gradient::default(), 20)] {
                let mut state = law.start(Tick::EPOCH);
                full(&law, &mut state, 200, 1000, Outcome::Success);
                assert_eq!(full(&law, &mut state, 10_000, 1_000_000, outcome), ends, "{outcome:?}");
            }
        }
        // From the very first call, with no average to compare with; and reported as successes, if the time-out is known.
        let law = Gradient::default();
        let mut state = law.start(Tick::EPOCH);
        assert_eq!(full(&law, &mut state, 10_000, 1_000_000, Outcome::Failure), 20);
        let law = law.timeout(Duration::from_millis(999)).unwrap();
        assert_eq!(full(&law, &mut state, 10_000, 1_000_000, Outcome::Success), 20);
    }

    #[test]
    fn those_who_were_inside_together_lower_the_limit_once() {
        let law = Gradient::default();
        let mut state = settled(law);
        // A millisecond is what work usually takes.
        for (millis, took, limit) in
            [(100, 1, 90), (100, 1, 90), (101, 0, 90), (102, 50, 90), (102, 1, 81), (103, 0, 81)]
        {
            let (at, latency) = (Tick::from_nanos(millis * 1_000_000 + took), Duration::from_millis(took));
            law.learn(
                &mut state,
                &Sample {
                    at,
                    latency,
                    held: latency,
                    in_flight: 100,
                    places: 1,
                    time_left: None,
                    outcome: Outcome::Overloaded,
                },
            );
            assert_eq!(law.limit(&state), limit, "at {millis} ms, after {took} ms");
        }
    }

    #[test]
    fn quick_failures_teach_nothing() {
        let law = Gradient::default();
        let mut state = settled(law);
        let long = state.long;
        for outcome in [Outcome::Failure, Outcome::CallersFault, Outcome::Ignored] {
            assert_eq!(full(&law, &mut state, 500, 10, outcome), 100);
        }
        assert_eq!(state.long, long);
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let law = Gradient::default();
        assert!(law.tolerance(0.9).is_err() && law.tolerance(f64::NAN).is_err());
        assert!(law.timeout(Duration::ZERO).is_err() && law.backoff(0.0).is_err());
    }
}

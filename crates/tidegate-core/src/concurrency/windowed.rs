//! Windows of samples: a wrapper that passes one averaged sample to its law for each window of time.
//!
//! Single latencies show little where requests differ. This wrapper gathers samples for a window, and then passes
//! their average latency and the highest number inside to the law behind it.
//!
//! # When
//! Use it around [`Vegas`](super::Vegas) and [`Gradient`](super::Gradient) if latencies vary more from request to
//! request than by load, as they do for services that do more than one thing. Do not use it where the limit has to
//! follow in less than a window: with a window of a second, a law that moves by steps takes a minute for sixty steps.
//! [`Bbr`](super::Bbr) has windows of its own.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | window | 1 ms to 1 h, ascending | 1 s to 1 s | twice the least latency of the previous window, clamped to this range |
//! | samples | 1 to 100,000 | 10 | a window with fewer is dropped |
//! | shortest | up to 1 s | 100 µs | quicker work, such as an answer from a cache, does not count as a sample |
//!
//! A window with any overload is passed on as overloaded, however few samples it has: work that times out is rare, and
//! Netflix' wrapper drops a window of fewer than ten samples even if all of them timed out. There overloads also count as
//! samples, quick ones are left out, and their latencies are part of the average; here the average is that of work that
//! ended well. The first sample begins the first window; there it ends it. Failures, callers' mistakes and ignored work
//! do not count as samples.
//!
//! # Source
//! `WindowedLimit` of Netflix' concurrency-limits, with its average of samples.

use core::ops::RangeInclusive;
use core::time::Duration;

use super::law::{Law, Sample, Signal};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward, span};

/// A law that receives the average of each window.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Law, Sample, Vegas, Windowed};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = Windowed::new(Vegas::default());
/// let mut state = law.start(Tick::EPOCH);
/// for millis in (0..=3040).step_by(10) {
///     let (at, latency) = (Tick::EPOCH.after(Duration::from_millis(millis)), Duration::from_millis(millis % 20 + 1));
///     law.learn(&mut state, &Sample { at, latency, held: latency, in_flight: 20, places: 1, time_left: None, outcome: Outcome::Success });
/// }
/// // Three windows of a hundred samples of 1 and 11 ms: their averages differ by a hundredth, and nothing waits.
/// assert_eq!(law.limit(&state), 26);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windowed<L> {
    law: L,
    least: Duration,
    most: Duration,
    samples: u32,
    shortest: Duration,
}

/// The state of [`Windowed`]: 128 bytes, and the state of its law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowedState<S> {
    inner: S,
    last: Tick,
    /// The window ends with the first sample after this tick.
    ends: Tick,
    window: Gathered,
}

/// The samples of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Gathered {
    count: u64,
    /// The sum of the latencies, in nanoseconds.
    sum: u128,
    least: Option<Duration>,
    /// The sum of the times for which the places were held, in nanoseconds.
    held: u128,
    in_flight: u64,
    /// The sum of the places: the average stands for all of them.
    places: u64,
    /// The overloaded sample with the longest latency: its latency, and how long its place was held. `None` if there was
    /// no overload.
    overloaded: Option<(Duration, Duration)>,
}

impl<L: Law> Windowed<L> {
    /// Puts windows of one second, with ten samples or more, in front of a law.
    #[must_use]
    pub const fn new(law: L) -> Self {
        let second = Duration::from_secs(1);
        Self { law, least: second, most: second, samples: 10, shortest: Duration::from_micros(100) }
    }

    /// Sets the range of window lengths, within 1 ms to 1 h: a window is twice as long as the least latency of the
    /// previous one, clamped to this range.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range, or they are not in order.
    pub fn window(self, lengths: RangeInclusive<Duration>) -> Result<Self, QuotaError> {
        let (least, most) = lengths.into_inner();
        let range = Duration::from_millis(1)..=Duration::from_secs(3600);
        let most = in_range("longest window", most, &range, "is not a window; use 1 ms to 1 h")?;
        let want = "is not a window; use 1 ms to the longest window";
        let least = in_range("shortest window", least, &(*range.start()..=most), want)?;
        Ok(Self { least, most, ..self })
    }

    /// Sets how many samples a window needs, 1 to 100,000.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn samples(self, samples: u32) -> Result<Self, QuotaError> {
        let want = "is not a number of samples; use 1 to 100000";
        Ok(Self { samples: in_range("samples", samples, &(1..=100_000), want)?, ..self })
    }

    /// Sets the latency below which work does not count as a sample, up to 1 s. A service that is always quicker is
    /// never measured.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is longer.
    pub fn shortest(self, latency: Duration) -> Result<Self, QuotaError> {
        let range = Duration::ZERO..=Duration::from_secs(1);
        Ok(Self { shortest: in_range("shortest", latency, &range, "is too long; use up to 1 s")?, ..self })
    }

    /// Returns the law behind the windows.
    #[must_use]
    pub const fn law(&self) -> &L {
        &self.law
    }

    /// Ends the window, and passes its average to the law if the window has one.
    fn close(&self, state: &mut WindowedState<L::State>) {
        let window = core::mem::take(&mut state.window);
        let length = window.least.map_or(self.most, |least| least.saturating_mul(2));
        state.ends = state.last.after(length.clamp(self.least, self.most));
        let (at, in_flight, places) = (state.last, window.in_flight, window.places.max(1));
        let sample = match window.overloaded {
            Some((latency, held)) => {
                Sample { at, latency, held, in_flight, places, time_left: None, outcome: Outcome::Overloaded }
            }
            None if window.count < u64::from(self.samples) => return,
            None => {
                let mean = |sum| span(sum / u128::from(window.count.max(1)));
                let (latency, held) = (mean(window.sum), mean(window.held));
                Sample { at, latency, held, in_flight, places, time_left: None, outcome: Outcome::Success }
            }
        };
        self.law.learn(&mut state.inner, &sample);
    }
}

impl<L: Law> Law for Windowed<L> {
    type State = WindowedState<L::State>;

    fn start(&self, now: Tick) -> Self::State {
        let (inner, ends) = (self.law.start(now), now.after(self.most));
        WindowedState { inner, last: now, ends, window: Gathered::default() }
    }

    fn limit(&self, state: &Self::State) -> u64 {
        self.law.limit(&state.inner)
    }

    fn learn(&self, state: &mut Self::State, sample: &Sample) {
        let at = onward(state.last, sample.at);
        if at < state.last {
            // The clock was set far back: otherwise the window would not end for that long.
            state.ends = at.after(self.most);
        }
        state.last = at;
        let is_averaged = match sample.outcome {
            Outcome::Success => sample.latency >= self.shortest,
            Outcome::Overloaded => true,
            Outcome::CallersFault | Outcome::Failure | Outcome::Ignored => false,
        };
        if !is_averaged && self.law.counts_ignored(&state.inner) {
            // Nothing to average, but the law waits for those inside to leave.
            self.law.learn(&mut state.inner, &Sample { outcome: Outcome::Ignored, ..*sample });
        }
        if sample.outcome == Outcome::Ignored {
            return;
        }
        state.window.add(sample, self.shortest);
        if at > state.ends {
            self.close(state);
        }
    }

    fn counts_ignored(&self, state: &Self::State) -> bool {
        self.law.counts_ignored(&state.inner)
    }

    fn sense(&self, state: &mut Self::State, at: Tick, signal: Signal) {
        self.law.sense(&mut state.inner, at, signal);
    }
}

impl Gathered {
    fn add(&mut self, sample: &Sample, shortest: Duration) {
        match sample.outcome {
            Outcome::Overloaded => {
                self.overloaded = self.overloaded.max(Some((sample.latency, sample.held)));
            }
            Outcome::Success if sample.latency >= shortest => {
                self.count += 1;
                self.sum = self.sum.saturating_add(sample.latency.as_nanos());
                self.held = self.held.saturating_add(sample.held.as_nanos());
                self.least = Some(self.least.map_or(sample.latency, |least| least.min(sample.latency)));
            }
            _ => return,
        }
        self.in_flight = self.in_flight.max(sample.in_flight);
        self.places = self.places.saturating_add(sample.places);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::concurrency::tests::sample;

    /// A law that records its samples.
    #[derive(Clone, Debug, Default)]
    struct Hears;

    #[derive(Clone, Debug, Default)]
    struct Heard(RefCell<Vec<Sample>>);

    impl Law for Hears {
        type State = Heard;

        fn start(&self, _now: Tick) -> Heard {
            Heard::default()
        }

        fn limit(&self, _state: &Heard) -> u64 {
            1
        }

        fn learn(&self, state: &mut Heard, sample: &Sample) {
            state.0.borrow_mut().push(*sample);
        }
    }

    fn at(millis: u64) -> Tick {
        Tick::EPOCH.after(Duration::from_millis(millis))
    }

    /// Returns what the law behind the windows receives: when, how long, how many inside, which outcome.
    fn heard(
        law: &Windowed<Hears>,
        samples: impl IntoIterator<Item = (u64, u64, u64, Outcome)>,
    ) -> Vec<Sample> {
        let mut state = law.start(Tick::EPOCH);
        for (millis, micros, in_flight, outcome) in samples {
            law.learn(&mut state, &Sample { at: at(millis), ..sample(micros, in_flight, outcome) });
        }
        state.inner.0.take()
    }

    use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};

    #[test]
    fn the_published_numbers() {
        let law = Windowed::new(Hears);
        // Nine in the first second are too few, so they are dropped; work quicker than 100 µs does not count as a sample.
        let nine = (1..=9).map(|number| (number * 100, 5000, 50, Success));
        let quick = [(950, 99, 90, Success), (1001, 99, 90, Success)];
        // Ten in the second window; the last of them ends it.
        let ten = (1..=10)
            .map(|number| (1001 + number * 100 + u64::from(number == 10), number * 1000, number, Success));
        let heard = heard(&law, nine.chain(quick).chain(ten));
        let average = Sample {
            at: at(2002),
            latency: Duration::from_micros(5500),
            held: Duration::from_micros(5500),
            in_flight: 10,
            places: 10,
            time_left: None,
            outcome: Success,
        };
        assert_eq!(heard, [average]);
    }

    #[test]
    fn a_window_is_twice_the_least_latency_of_the_one_before() -> Result<(), QuotaError> {
        let law =
            Windowed::new(Hears).window(Duration::from_millis(100)..=Duration::from_secs(1))?.samples(1)?;
        let samples = [1001, 1201, 1202, 1302, 1303].map(|millis| {
            let micros = if millis == 1001 { 100_000 } else { 200 };
            (millis, micros, 1, Success)
        });
        let ends: Vec<Tick> = heard(&law, samples).iter().map(|sample| sample.at).collect();
        assert_eq!(ends, [at(1001), at(1202), at(1303)]);
        Ok(())
    }

    #[test]
    fn a_window_of_which_anything_was_overloaded_is_overloaded_even_if_nothing_else_was_in_it() {
        let law = Windowed::new(Hears);
        let samples = [(500, 700, 9, Overloaded), (1001, 300, 3, Overloaded)];
        let overload = Sample {
            at: at(1001),
            latency: Duration::from_micros(700),
            held: Duration::from_micros(700),
            in_flight: 9,
            places: 2,
            time_left: None,
            outcome: Overloaded,
        };
        assert_eq!(heard(&law, samples), [overload]);
    }

    #[test]
    fn failures_mistakes_and_what_was_ignored_are_no_samples() {
        let law = Windowed::new(Hears).samples(1).unwrap();
        assert_eq!(heard(&law, [Failure, CallersFault, Ignored].map(|outcome| (1001, 5000, 1, outcome))), []);
    }

    #[test]
    fn a_clock_that_steps_far_back_does_not_stop_the_windows() {
        let law = Windowed::new(Hears).samples(1).unwrap();
        let heard = heard(&law, [100_000, 500, 1500, 2600].map(|millis| (millis, 5000, 1, Success)));
        assert_eq!(heard.iter().map(|sample| sample.at).collect::<Vec<_>>(), [at(100_000), at(2600)]);
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let law = || Windowed::new(Hears);
        let (short, long) = (Duration::from_millis(5), Duration::from_secs(5));
        let text = law().window(long..=short).unwrap_err().to_string();
        assert_eq!(text, "shortest window 5s is not a window; use 1 ms to the longest window");
        assert!(law().window(Duration::ZERO..=long).is_err() && law().window(short..=Duration::MAX).is_err());
        assert!(law().samples(0).is_err() && law().shortest(long).is_err());
    }
}

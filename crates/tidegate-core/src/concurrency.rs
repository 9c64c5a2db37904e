//! Concurrency limits: guards that bound how many pieces of work are in flight, and the control laws that move such a
//! limit. A unit of a concurrency limit is a *place*: work takes it on entry and returns it when it ends; time alone
//! does not refill it.
//!
//! A [`Law`] takes one finished piece of work and computes the next limit. Its caller hands out and counts the places, and
//! passes the samples in the order in which the work ended. A law has no clock, no lock and no count of the work in flight.

mod adaptive;
mod aimd;
mod bbr;
mod bounds;
mod fixed;
mod gradient;
mod hill_climb;
mod min_latency;
mod moving;
mod partitions;
mod vegas;

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::time::Tick;

pub use adaptive::{Adaptive, AdaptiveState, ParseLawError};
pub use aimd::{Aimd, AimdState};
pub use bbr::{Bbr, BbrState};
pub use bounds::Bounds;
pub use fixed::{Concurrency, ConcurrencyState};
pub use gradient::{Gradient, GradientState};
pub use hill_climb::{HillClimb, HillClimbState};
pub use min_latency::{MinLatency, MinLatencyState};
pub use moving::{AdaptiveConcurrency, AdaptiveConcurrencyState};
pub use partitions::{Partition, Partitions};
pub use vegas::{Vegas, VegasState};

/// One finished piece of work, as passed to [`Law::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it ended. A step back of at most [`MAX_STEP_BACK`](crate::time::MAX_STEP_BACK) counts as none; a larger one is
    /// taken as a clock that was set back.
    pub at: Tick,
    /// How long its caller waited for the answer: from entry to exit, or, for an answer that is streamed, to the
    /// answer's beginning. The time in a queue in front of the limit is not part of it. How long a stream lasts says
    /// nothing of a queue.
    ///
    /// Laws that take a long latency for a queue (AIMD, Vegas, Gradient, MinLatency) go by this time.
    pub latency: Duration,
    /// How long its place was held: from entry to exit. The same as `latency` unless the answer is streamed.
    ///
    /// Laws that count finished work in a time (HillClimb, BBR) go by this time: places are rate times the time for
    /// which each is held (Little's law).
    pub held: Duration,
    /// How many places were in use when it entered, its own included: 1 or more.
    pub in_flight: u64,
    /// How many of those were its own: 1 or more.
    pub places: u64,
    /// How long its caller would still wait when it entered; `None` if the caller gave no deadline.
    ///
    /// An answer that begins at the deadline or later is *late*: nobody waits for it any more. HillClimb counts late
    /// work as lost, however it ended; the published laws ignore this.
    pub time_left: Option<Duration>,
    /// How it ended. [`Outcome::Ignored`] teaches nothing, and may be left out unless the law
    /// [counts it](Law::counts_ignored).
    pub outcome: Outcome,
}

impl Sample {
    /// Says whether the answer began at its caller's deadline or later.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.time_left.is_some_and(|time_left| self.latency >= time_left)
    }
}

/// How much of a machine resource is in use, for laws that use more than latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Processor time used, in thousandths of the time that this process may use (its control group's quota, else all
    /// processors): 0 to 1000. One reading, which a law averages.
    Cpu(u16),
    /// The same, averaged already, as a watch of the crate `tidegate` does. A law takes it as it is.
    CpuAveraged(u16),
    /// Memory used, in thousandths of the memory that this process may use: 0 to 1000.
    Memory(u16),
}

/// The parameters of a control law: they compute the next state from a state and one sample.
///
/// # Laws
/// * *Bounds hold*: [`limit`](Law::limit) is between the law's least and largest limit, and at least 1, after any
///   samples.
/// * *No input overflows or panics*: latencies of zero or of centuries, clocks that step back, any outcome.
/// * *Deterministic*: the same samples give the same limits. A law that needs random numbers takes a seed as a
///   parameter.
pub trait Law: Clone + Debug {
    /// The state that the law keeps between samples.
    type State: Clone + Debug;

    /// Returns the state before the first sample.
    fn start(&self, now: Tick) -> Self::State;

    /// Returns how many places there are now.
    fn limit(&self, state: &Self::State) -> u64;

    /// Updates the state by one finished piece of work. Called for each piece of work (hot path): does not allocate
    /// once the state has its full size.
    fn learn(&self, state: &mut Self::State, sample: &Sample);

    /// Says whether the law counts work that ends with [`Outcome::Ignored`] now, because it waits for those inside to
    /// leave. The default is never.
    fn counts_ignored(&self, state: &Self::State) -> bool {
        let _ = state;
        false
    }

    /// Updates the state by a reading of the machine. The default does nothing, for laws that use latencies alone.
    fn sense(&self, state: &mut Self::State, at: Tick, signal: Signal) {
        let _ = (state, at, signal);
    }
}

/// The evidence in a sample. Only the latency of work that was done counts: an error that comes back at once does not show
/// that the service is fast, and a caller who sends nonsense could teach a law that ten microseconds are normal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Evidence {
    /// The service did the work, in this many nanoseconds.
    Latency(f64),
    /// The service refused the caller's request as faulty: it is alive, but the latency is that of the refusal.
    Alive,
    /// The service failed after this many nanoseconds. How long the work would have taken is unknown.
    Failure(f64),
    /// The service is overloaded.
    Overload,
    /// Nothing.
    Nothing,
}

impl Evidence {
    /// Classifies a sample. A latency above `timeout` is overload, however the work ended, unless it was ignored.
    fn of(sample: &Sample, timeout: Duration) -> Self {
        match sample.outcome {
            Outcome::Ignored => Self::Nothing,
            Outcome::Overloaded => Self::Overload,
            _ if sample.latency > timeout => Self::Overload,
            Outcome::Failure => Self::Failure(nanos(sample)),
            Outcome::CallersFault => Self::Alive,
            Outcome::Success => Self::Latency(nanos(sample)),
        }
    }
}

fn nanos(sample: &Sample) -> f64 {
    (sample.latency.as_nanos() as f64).max(1.0)
}

/// Property tests of the laws stated at [`Law`], for every implementation and any samples.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a sample of work that took `micros` and ended at the epoch.
    pub(super) fn sample(micros: u64, in_flight: u64, outcome: Outcome) -> Sample {
        let latency = Duration::from_micros(micros);
        Sample { at: Tick::EPOCH, latency, held: latency, in_flight, places: 1, time_left: None, outcome }
    }

    /// Returns a state of the hill climb, with bounds of 1 and 40: after work of 10 ms for up to
    /// four at once, whose callers wait for half a second.
    pub(super) fn of_a_hill_climb() -> HillClimbState {
        let law = HillClimb::default().bounds(Bounds::known(1, 40));
        let mut state = law.start(Tick::EPOCH);
        let mut at = Tick::EPOCH;
        for _ in 0..5_000 {
            let in_flight = law.limit(&state);
            let latency = Duration::from_micros(2_500 * in_flight.max(4));
            at = at.after(latency / in_flight as u32);
            let (time_left, outcome) = (Some(Duration::from_millis(500)), Outcome::Success);
            law.learn(
                &mut state,
                &Sample { at, latency, held: latency, in_flight, places: 1, time_left, outcome },
            );
        }
        state
    }

    /// One input of a law.
    #[derive(Clone, Copy, Debug)]
    enum LawInput {
        Sample(Sample),
        Signal(Tick, Signal),
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
        prop_oneof![4 => Just(Success), 1 => prop::sample::select(vec![CallersFault, Failure, Overloaded, Ignored])]
    }

    /// Latencies: mostly those of real services, sometimes zero, sometimes centuries.
    fn latency() -> impl Strategy<Value = Duration> {
        let usual = (0u64..1_000_000_000).prop_map(Duration::from_nanos);
        prop_oneof![8 => usual, 1 => Just(Duration::ZERO), 1 => any::<Duration>()]
    }

    /// Ticks: mostly within a minute, back and forth, sometimes anywhere.
    fn tick() -> impl Strategy<Value = Tick> {
        let near = (0u64..60_000_000_000).prop_map(Tick::from_nanos);
        prop_oneof![9 => near, 1 => any::<u64>().prop_map(Tick::from_nanos)]
    }

    fn law_input() -> impl Strategy<Value = LawInput> {
        let in_flight = prop_oneof![9 => 1u64..2000, 1 => any::<u64>()];
        let streamed = prop_oneof![3 => Just(Duration::ZERO), 1 => latency()];
        let time_left = prop::option::of(latency());
        let sample = (tick(), (latency(), streamed, time_left), in_flight, outcome());
        let sample = sample.prop_map(|(at, (latency, streamed, time_left), in_flight, outcome)| Sample {
            at,
            latency,
            held: latency.saturating_add(streamed),
            in_flight,
            places: 1,
            time_left,
            outcome,
        });
        let signal = any::<u16>().prop_flat_map(|reading| {
            prop_oneof![
                Just(Signal::Cpu(reading)),
                Just(Signal::CpuAveraged(reading)),
                Just(Signal::Memory(reading)),
            ]
        });
        let signal = (tick(), signal).prop_map(|(at, signal)| LawInput::Signal(at, signal));
        prop_oneof![9 => sample.prop_map(LawInput::Sample), 1 => signal]
    }

    fn feed<L: Law>(law: &L, state: &mut L::State, input: LawInput) {
        match input {
            LawInput::Sample(sample) => law.learn(state, &sample),
            LawInput::Signal(at, signal) => law.sense(state, at, signal),
        }
    }

    fn keeps_the_laws<L: Law>(law: &L, bounds: Bounds, all: &[LawInput])
    where
        L::State: PartialEq,
    {
        keeps_the_laws_from(law, bounds, &law.start(Tick::EPOCH), all);
    }

    fn keeps_the_laws_from<L: Law>(law: &L, bounds: Bounds, start: &L::State, all: &[LawInput])
    where
        L::State: PartialEq,
    {
        let (mut state, mut again) = (start.clone(), start.clone());
        for &input in all {
            feed(law, &mut state, input);
            feed(law, &mut again, input);
            let limit = law.limit(&state);
            assert!((bounds.least()..=bounds.most()).contains(&limit), "{limit} is out of bounds: {law:?}");
            assert!(
                state == again,
                "the same samples leave the same state, and no number that is none: {state:?}"
            );
        }
    }

    fn bounds() -> impl Strategy<Value = Bounds> {
        let wide = (1u64..=1000, 0u64..=Bounds::MOST - 1000);
        wide.prop_map(|(least, more)| Bounds::new(least, least + more).unwrap())
    }

    proptest! {
        #[test]
        fn every_law_keeps_the_laws(bounds in bounds(), all in prop::collection::vec(law_input(), 1..200)) {
            for law in [Aimd::default(), Aimd::netflix()] {
                keeps_the_laws(&law.bounds(bounds), bounds, &all);
            }
            let mut often = Vegas::default();
            often.probe_every = 2.0;
            for law in [Vegas::default(), Vegas::netflix(), often] {
                keeps_the_laws(&law.bounds(bounds), bounds, &all);
            }
            for law in [Gradient::default(), Gradient::netflix()] {
                keeps_the_laws(&law.bounds(bounds), bounds, &all);
            }
            let held = of_a_hill_climb();
            let law = HillClimb::default();
            keeps_the_laws(&law.bounds(bounds), bounds, &all);
            for bounds in [bounds, Bounds::known(1, 40)] {
                keeps_the_laws_from(&law.bounds(bounds), bounds, &held, &all);
            }
            for law in [MinLatency::default(), MinLatency::envoy()] {
                keeps_the_laws(&law.bounds(bounds), bounds, &all);
                let often = law.measure(Duration::from_millis(10), 2).unwrap();
                keeps_the_laws(&Adaptive::MinLatency(often.bounds(bounds)), bounds, &all);
            }
            for law in [Bbr::default(), Bbr::aegis(), Bbr::go_zero(), Bbr::go_zero().threshold(1000).unwrap()] {
                keeps_the_laws(&law.bounds(bounds), bounds, &all);
                keeps_the_laws(&Adaptive::Bbr(law.bounds(bounds)), bounds, &all);
            }
        }
    }

    /// Returns the limit after a thousand answers, one each 10 ms, which begin after `latency` and hold their places for
    /// `held`, in milliseconds.
    fn limit_after<L: Law>(law: &L, latency: impl Fn(u64) -> u64, held: impl Fn(u64) -> u64) -> u64 {
        let mut state = law.start(Tick::EPOCH);
        for number in 1..=1000 {
            let at = Tick::EPOCH.after(Duration::from_secs(60)).after(Duration::from_millis(10 * number));
            let [latency, held] = [latency(number), held(number)].map(Duration::from_millis);
            let in_flight = law.limit(&state);
            law.learn(
                &mut state,
                &Sample {
                    at,
                    latency,
                    held,
                    in_flight,
                    places: 1,
                    time_left: None,
                    outcome: Outcome::Success,
                },
            );
        }
        law.limit(&state)
    }

    /// Streams of 1 to 20 s that all begin after 50 ms: their lengths are those of their contents, and no queue.
    #[test]
    fn laws_that_compare_latencies_do_not_take_a_long_stream_for_a_queue() {
        let (begins, ends) = (|_| 50, |number| 1000 * (number % 20 + 1));
        fn compare<L: Law>(law: &L, begins: impl Fn(u64) -> u64 + Copy, ends: impl Fn(u64) -> u64 + Copy) {
            let streamed = limit_after(law, begins, ends);
            assert_eq!(streamed, limit_after(law, begins, begins), "{law:?}");
            assert!(streamed > limit_after(law, ends, ends), "{law:?}: what it would make of the whole time");
        }
        compare(&Vegas::default(), begins, ends);
        compare(&Gradient::default(), begins, ends);
        compare(&Aimd::default().timeout(Duration::from_millis(500)).unwrap(), begins, ends);
    }

    /// A hundred answers a second that hold their places for two seconds need two hundred places, however soon they begin.
    #[test]
    fn laws_that_count_work_go_by_the_time_in_the_place() {
        fn compare<L: Law>(law: &L) {
            let (begins, ends) = (|_| 20, |_| 2000);
            assert_eq!(limit_after(law, begins, ends), limit_after(law, ends, ends), "{law:?}");
        }
        compare(&Bbr::default());
        compare(&HillClimb::default());
    }

    /// The sizes that the documentation of each state gives.
    #[test]
    fn states_are_as_small_as_documented() {
        let sizes = [
            size_of::<AimdState>(),
            size_of::<VegasState>(),
            size_of::<GradientState>(),
            size_of::<BbrState>(),
            size_of::<HillClimbState>(),
            size_of::<MinLatencyState>(),
            size_of::<AdaptiveState>(),
        ];
        assert_eq!(sizes, [8, 112, 40, 152, 312, 96, 312]);
    }

    #[test]
    fn only_work_that_was_done_tells_how_fast_the_service_is() {
        let read = |millis, outcome| {
            let latency = Duration::from_millis(millis);
            let sample = Sample {
                at: Tick::EPOCH,
                latency,
                held: latency,
                in_flight: 1,
                places: 1,
                time_left: None,
                outcome,
            };
            Evidence::of(&sample, Duration::from_millis(100))
        };
        assert_eq!(read(2, Outcome::Success), Evidence::Latency(2e6));
        assert_eq!(read(0, Outcome::Success), Evidence::Latency(1.0));
        assert_eq!(read(100, Outcome::Success), Evidence::Latency(1e8));
        assert_eq!(read(101, Outcome::Success), Evidence::Overload);
        assert_eq!(read(2, Outcome::CallersFault), Evidence::Alive);
        assert_eq!(read(2, Outcome::Failure), Evidence::Failure(2e6));
        assert_eq!(read(101, Outcome::Failure), Evidence::Overload);
        assert_eq!(read(2, Outcome::Overloaded), Evidence::Overload);
        assert_eq!(read(101, Outcome::Ignored), Evidence::Nothing);
    }
}

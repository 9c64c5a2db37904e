//! Property tests of the laws stated at [`Law`], for every implementation and any samples.

use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::guard::Outcome;
use crate::time::Tick;

/// Returns a sample of work that took `micros` and ended at the epoch.
pub(super) fn sample(micros: u64, in_flight: u64, outcome: Outcome) -> Sample {
    let latency = Duration::from_micros(micros);
    Sample { at: Tick::EPOCH, latency, held: latency, in_flight, places: 1, time_left: None, outcome }
}

/// Returns a state of the hill climb, with bounds of 1 and 40, that holds places in reserve: after work of 10 ms for up to
/// four at once, whose callers wait for half a second.
pub(super) fn with_a_reserve() -> HillClimbState {
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
        let held = with_a_reserve();
        for law in [HillClimb::default(), HillClimb::default().without_reserve()] {
            keeps_the_laws(&law.bounds(bounds), bounds, &all);
            for bounds in [bounds, Bounds::known(1, 40)] {
                keeps_the_laws_from(&law.bounds(bounds), bounds, &held, &all);
            }
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
            &Sample { at, latency, held, in_flight, places: 1, time_left: None, outcome: Outcome::Success },
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
    assert_eq!(sizes, [8, 112, 40, 152, 320, 96, 320]);
}

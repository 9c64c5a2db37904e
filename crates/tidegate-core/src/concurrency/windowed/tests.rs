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
fn heard(law: &Windowed<Hears>, samples: impl IntoIterator<Item = (u64, u64, u64, Outcome)>) -> Vec<Sample> {
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
    let law = Windowed::new(Hears).window(Duration::from_millis(100)..=Duration::from_secs(1))?.samples(1)?;
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

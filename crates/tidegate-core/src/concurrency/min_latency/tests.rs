use proptest::prelude::*;

use super::*;
use crate::concurrency::tests::sample;

fn at(millis: u64) -> Tick {
    Tick::EPOCH.after(Duration::from_millis(millis))
}

/// Adds one sample each millisecond from `from` to `to`.
fn work(
    law: &MinLatency,
    state: &mut MinLatencyState,
    (from, to): (u64, u64),
    latency: Duration,
    outcome: Outcome,
) {
    for millis in from..to {
        let in_flight = law.limit(state);
        let work = sample(latency.as_micros() as u64, in_flight, outcome);
        law.learn(state, &Sample { at: at(millis), ..work });
    }
}

const MS: Duration = Duration::from_millis(1);

/// Returns the state after a first measurement of exactly 1 ms, with a limit of 100.
fn measured(law: MinLatency) -> MinLatencyState {
    let mut state = law.start(at(0));
    work(&law, &mut state, (1, 51), MS, Outcome::Success);
    assert!(law.least_latency(&state).is_some_and(|least| least.abs_diff(MS) < MS / 15));
    (state.limit, state.least) = (100.0, Some(1e6));
    state
}

/// L·g + √(L·g), with g = 1.25 · least/median between 0.5 and 2, rounded down.
#[test]
fn the_published_numbers() {
    for law in [MinLatency::default(), MinLatency::envoy()] {
        for (median, next) in [
            (0.4, 214),  // g = 2: 200 + 14.1
            (1.25, 110), // g = 1: 100 + 10
            (2.5, 57),   // g = 0.5: 50 + 7.1
            (100.0, 57), // and never less
        ] {
            let mut state = measured(law);
            // Cells are a sixteenth wide at most, so the exact value is set in place of the measured one.
            let (least, median) = (1e6, median * 1e6);
            state.latencies.add(median);
            let found = state.latencies.clone().take().unwrap();
            state.least = Some(least * found / median);
            (state.last, state.limit) = (at(200), 100.0);
            law.end_interval(&mut state);
            assert_eq!(law.limit(&state), next, "a median of {median} ns");
        }
    }
}

#[test]
fn a_measurement_takes_fifty_requests_at_the_least_limit_and_gives_the_limit_back() {
    let law = MinLatency::default();
    let mut state = law.start(at(0));
    assert_eq!(law.limit(&state), 3);
    work(&law, &mut state, (1, 50), MS, Outcome::Success);
    assert_eq!(law.least_latency(&state), None, "49 are not enough");
    work(&law, &mut state, (50, 51), MS, Outcome::Success);
    assert!(law.least_latency(&state).is_some());
    state.limit = 100.0;
    assert_eq!(law.limit(&state), 100);

    // Due after 60 to 69 s; work that began before it does not count.
    let due = state.measure_at;
    assert!((at(60_050)..at(69_051)).contains(&due), "{due:?}");
    law.learn(
        &mut state,
        &Sample {
            at: due,
            latency: MS,
            held: MS,
            in_flight: 100,
            places: 1,
            time_left: None,
            outcome: Outcome::Success,
        },
    );
    let before = state.limit;
    assert_eq!(law.limit(&state), 3);
    let late = Sample {
        at: due.after(MS),
        latency: MS * 2,
        held: MS * 2,
        in_flight: 100,
        places: 1,
        time_left: None,
        outcome: Outcome::Success,
    };
    (0..100).for_each(|_| law.learn(&mut state, &late));
    assert_eq!(law.limit(&state), 3);
    (0..50).for_each(|_| law.learn(&mut state, &Sample { latency: MS, held: MS, ..late }));
    assert_eq!(law.limit(&state), before as u64);
}

#[test]
fn a_service_that_became_slower_for_good_is_measured_after_five_intervals_at_the_least() {
    let law = MinLatency::default();
    let mut state = measured(law);
    work(&law, &mut state, (200, 10_000), MS * 50, Outcome::Success);
    assert!(law.least_latency(&state).is_some_and(|least| least > MS * 40));
    assert!(law.limit(&state) > 100, "{}", law.limit(&state));
}

/// Every call runs into a time-out of a second from the first on: Envoy measures that, and admits more and more.
#[test]
fn constant_time_outs_let_the_profile_grow_and_not_ours() {
    for (law, ends) in [(MinLatency::envoy(), 1000), (MinLatency::default(), 3)] {
        let mut state = law.start(at(0));
        work(&law, &mut state, (1000, 10_000), MS * 1000, Outcome::Overloaded);
        assert_eq!(law.limit(&state), ends);
    }
}

#[test]
fn an_interval_of_which_half_is_overload_halves_the_limit() {
    let law = MinLatency::default();
    let mut state = measured(law);
    for millis in 60..=150 {
        let outcome = if millis % 3 == 0 { Outcome::Success } else { Outcome::Overloaded };
        law.learn(
            &mut state,
            &Sample {
                at: at(millis),
                latency: MS,
                held: MS,
                in_flight: 100,
                places: 1,
                time_left: None,
                outcome,
            },
        );
    }
    assert_eq!(law.limit(&state), 57);
}

#[test]
fn errors_that_come_back_at_once_are_the_profiles_baseline_and_not_ours() {
    for (law, measures) in [(MinLatency::envoy(), true), (MinLatency::default(), false)] {
        let mut state = law.start(at(0));
        work(&law, &mut state, (1, 100), MS / 100, Outcome::Failure);
        assert_eq!(law.least_latency(&state).is_some(), measures);
    }
}

#[test]
fn knobs_out_of_range_are_refused() {
    let law = MinLatency::default();
    assert!(law.interval(Duration::ZERO).is_err() && law.buffer(f64::NAN).is_err());
    assert!(law.measure(Duration::ZERO, 50).is_err() && law.measure(MS, 0).is_err());
}

#[test]
fn half_are_shorter_and_what_never_ended_is_longest() {
    let mut median = Median::new();
    assert_eq!(median.take(), None);
    for latency in [1e6, 1e6, 9e9, f64::INFINITY] {
        median.add(latency);
    }
    assert!(median.take().is_some_and(|found| (found / 1e6 - 1.0).abs() < 0.07));
    for latency in [1.0, f64::INFINITY, f64::INFINITY] {
        median.add(latency);
    }
    assert_eq!(median.take(), Some(f64::INFINITY));
    assert_eq!(median.take(), None, "all is forgotten");
}

proptest! {
    #[test]
    fn the_median_is_off_by_a_sixteenth_at_most(mut latencies in prop::collection::vec(8u64.., 1..100)) {
        let mut median = Median::new();
        latencies.iter().for_each(|&latency| median.add(latency as f64));
        latencies.sort_unstable();
        let exact = latencies[(latencies.len() - 1) / 2] as f64;
        prop_assert!(median.take().is_some_and(|found| (found / exact - 1.0).abs() <= 1.0 / 15.0));
    }
}

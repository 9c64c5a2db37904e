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
fn the_published_numbers() -> Result<(), QuotaError> {
    for law in [Gradient::default(), Gradient::netflix()] {
        // A window so long that the long average stays where it is.
        let law = law.long_window(100_000)?;
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
            assert!((state.limit - next).abs() < 0.01, "{micros} µs, {in_flight} inside: {}", state.limit);
        }
    }
    Ok(())
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
    assert!(law.queue(1001).is_err() && law.smoothing(0.0).is_err() && law.long_window(9).is_err());
    assert!(law.timeout(Duration::ZERO).is_err() && law.backoff(0.0).is_err());
}

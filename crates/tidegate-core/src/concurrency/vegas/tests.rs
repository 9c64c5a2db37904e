use super::*;
use crate::concurrency::tests::sample;

/// A service that works on ten at once, 10 ms each, and is kept at the limit; returns the limit and the baseline
/// after this many samples.
fn saturated(law: Vegas, samples: usize) -> (u64, Duration) {
    let mut state = law.start(Tick::EPOCH);
    // One quiet sample first: both learn the right baseline.
    law.learn(&mut state, &sample(10_000, 1, Outcome::Success));
    for _ in 0..samples {
        let inside = law.limit(&state);
        law.learn(&mut state, &sample(10_000 * inside.max(10) / 10, inside, Outcome::Success));
    }
    (law.limit(&state), law.baseline(&state).unwrap())
}

/// The queue arithmetic that profile and default share: a limit, a latency over a baseline of 100 µs, and the next
/// limit.
#[test]
fn the_published_numbers() {
    let table = [
        // limit, latency, in flight, outcome, next limit
        (20, 100, 20, Outcome::Success, 26), // nobody waits: six steps up
        (20, 105, 20, Outcome::Success, 26), // one waits, one step's worth
        (20, 106, 20, Outcome::Success, 21), // 2 wait, fewer than three: a step up
        (20, 112, 20, Outcome::Success, 20), // 3 wait: as it should be
        (20, 142, 20, Outcome::Success, 20), // 6 wait: the same
        (20, 143, 20, Outcome::Success, 19), // 7 wait: a step down
        (20, 100, 9, Outcome::Success, 20),  // the limit was not needed
        (20, 100, 10, Outcome::Success, 26), // half of it was
        (20, 900, 9, Outcome::Overloaded, 19),
        (250, 100, 250, Outcome::Success, 262), // steps of two from 100 on
        (250, 900, 250, Outcome::Success, 248),
        (1000, 100, 1000, Outcome::Success, 1000),
        (1000, 900, 1000, Outcome::Overloaded, 997),
        (1, 900, 1, Outcome::Overloaded, 1),
    ];
    for law in [Vegas::default(), Vegas::netflix()] {
        for (limit, micros, in_flight, outcome, next) in table {
            let mut state = law.start(Tick::EPOCH);
            (state.limit, state.baseline) = (f64::from(limit), Some(100_000.0));
            law.learn(&mut state, &sample(micros, in_flight, outcome));
            assert_eq!(law.limit(&state), next, "{limit} after {micros} µs, {in_flight} inside, {outcome:?}");
        }
    }
}

#[test]
fn a_new_least_latency_becomes_the_baseline_and_holds_the_limit() {
    for law in [Vegas::default(), Vegas::netflix()] {
        let mut state = law.start(Tick::EPOCH);
        for micros in [300, 200, 100] {
            law.learn(&mut state, &sample(micros, 20, Outcome::Success));
            assert_eq!(law.baseline(&state), Some(Duration::from_micros(micros)));
            assert_eq!(law.limit(&state), 20);
        }
    }
}

#[test]
fn half_of_a_change_is_made_at_a_smoothing_of_one_half() -> Result<(), QuotaError> {
    let law = Vegas::default().smoothing(0.5)?;
    let mut state = law.start(Tick::EPOCH);
    for _ in 0..2 {
        law.learn(&mut state, &sample(100, 20, Outcome::Success));
    }
    assert_eq!(law.limit(&state), 23);
    Ok(())
}

/// A service at its limit for hours. Each probe takes a sample that has waited as the time that work takes when
/// nothing waits. So the queue counts as service, and the limit grows by a queue with each probe, up to its largest.
/// The service then holds many times as much work as it can do, and answers that many times later.
#[test]
fn a_probe_under_load_raises_the_profiles_baseline_and_not_ours() {
    let (limit, baseline) = saturated(Vegas::netflix(), 200_000);
    assert!(limit > 400 && baseline > Duration::from_millis(400), "{limit}, {baseline:?}");

    for seed in 0..20 {
        for samples in (1000..20_000).step_by(977) {
            let (limit, baseline) = saturated(Vegas::default().seed(seed), samples);
            assert_eq!(baseline, Duration::from_millis(10), "seed {seed}, {samples} samples");
            assert!((3..=17).contains(&limit), "seed {seed}, {samples} samples: {limit}");
        }
    }
}

#[test]
fn draining_takes_a_small_part_of_the_samples() {
    let law = Vegas::default();
    let mut state = law.start(Tick::EPOCH);
    let mut held = 0;
    for _ in 0..50_000 {
        let inside = law.limit(&state);
        law.learn(&mut state, &sample(10_000 * inside.max(10) / 10, inside, Outcome::Success));
        held += u64::from(state.probe.draining());
    }
    assert!((500..2500).contains(&held), "{held} of 50,000 samples with the limit held down");
}

#[test]
fn a_service_that_has_become_slower_for_good_gets_its_limit_back() {
    let law = Vegas::default();
    let mut state = law.start(Tick::EPOCH);
    for _ in 0..2000 {
        let inside = law.limit(&state);
        law.learn(&mut state, &sample(1000 * inside.max(50) / 50, inside, Outcome::Success));
    }
    let before = law.limit(&state);
    for _ in 0..20_000 {
        let inside = law.limit(&state);
        law.learn(&mut state, &sample(4000 * inside.max(50) / 50, inside, Outcome::Success));
    }
    assert_eq!(law.baseline(&state), Some(Duration::from_millis(4)));
    assert!(before >= 50 && law.limit(&state) >= 25, "{before}, then {}", law.limit(&state));
}

#[test]
fn errors_that_come_back_at_once_are_the_profiles_baseline_and_not_ours() {
    for (law, baseline) in [(Vegas::netflix(), 1), (Vegas::default(), 100)] {
        let mut state = law.start(Tick::EPOCH);
        law.learn(&mut state, &sample(100, 20, Outcome::Success));
        for outcome in [Outcome::Failure, Outcome::CallersFault] {
            law.learn(&mut state, &sample(1, 20, outcome));
        }
        assert_eq!(law.baseline(&state), Some(Duration::from_micros(baseline)));
    }
}

#[test]
fn probes_are_spread_by_the_seed_between_half_and_all_of_their_distance() {
    let first = |seed| {
        let mut probe = Probe::new(seed);
        (1..).find(|_| probe.due(30.0, 20.0)).unwrap()
    };
    let firsts: Vec<u32> = (0..100).map(first).collect();
    assert!(firsts.iter().all(|first| (300..=600).contains(first)), "{firsts:?}");
    assert!(firsts.iter().any(|&first| first < 350) && firsts.iter().any(|&first| first > 550), "{firsts:?}");
}

#[test]
fn knobs_out_of_range_are_refused() {
    assert!(Vegas::default().queue(3, 3).is_err() && Vegas::default().queue(0, 3).is_err());
    assert!(Vegas::default().queue(1, 2).is_ok() && Vegas::default().queue(99, 101).is_err());
    assert!(Vegas::default().smoothing(0.0).is_err() && Vegas::default().smoothing(f64::NAN).is_err());
    let text = Vegas::default().probe_every(1).unwrap_err().to_string();
    assert_eq!(text, "probe every 1 is not a distance between probes; use 2 to 10000");
}

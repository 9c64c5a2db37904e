use super::*;
use crate::concurrency::tests::sample;

/// A service of some workers behind a queue, which is kept at the limit.
struct Saturated {
    law: Vegas,
    state: VegasState,
    now: Tick,
    /// When each worker is free.
    free: Vec<Tick>,
    /// When each piece of work entered and ends, and how many were inside then.
    inside: Vec<(Tick, Tick, u64)>,
    /// How many samples came while the limit was held down.
    held: u64,
    /// How many of ten pieces of work are cancelled just before they end.
    cancelled: usize,
    ended: usize,
}

impl Saturated {
    /// The workers are free one after the other, so that work ends at even distances.
    fn new(law: Vegas, workers: u64) -> Self {
        let now = Tick::from_secs(100);
        let free = (0..workers).map(|worker| now.after(Duration::from_micros(worker * 10_000 / workers)));
        let (state, free) = (law.start(now), free.collect());
        Self { law, state, now, free, inside: Vec::new(), held: 0, cancelled: 0, ended: 0 }
    }

    /// Work that takes this many microseconds.
    fn run(&mut self, samples: usize, micros: u64) {
        for _ in 0..samples {
            while (self.inside.len() as u64) < self.law.limit(&self.state) {
                let worker = self.free.iter_mut().min().unwrap();
                *worker = self.now.max(*worker).after(Duration::from_micros(micros));
                self.inside.push((self.now, *worker, self.inside.len() as u64 + 1));
            }
            let first = (0..self.inside.len()).min_by_key(|at| self.inside[*at].1).unwrap();
            let (entered, ends, in_flight) = self.inside.swap_remove(first);
            self.now = ends;
            self.ended += 1;
            let is_cancelled = self.ended % 10 < self.cancelled;
            let outcome = if is_cancelled { Outcome::Ignored } else { Outcome::Success };
            let (at, latency) = (ends, ends.since(entered));
            let sample = Sample { at, latency, held: latency, ..sample(0, in_flight, outcome) };
            if !is_cancelled || self.law.counts_ignored(&self.state) {
                self.law.learn(&mut self.state, &sample);
            }
            self.held += u64::from(self.state.probe.draining());
        }
    }
}

/// A service that works on ten at once, 10 ms each, and is kept at the limit; returns the limit and the baseline
/// after this many samples.
fn saturated(law: Vegas, samples: usize) -> (u64, Duration) {
    let mut service = Saturated::new(law, 10);
    // One quiet sample first: both learn the right baseline.
    law.learn(&mut service.state, &sample(10_000, 1, Outcome::Success));
    service.run(samples, 10_000);
    (service.state.limit as u64, law.baseline(&service.state).unwrap())
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
fn half_of_a_change_is_made_at_a_smoothing_of_one_half() {
    let law = Vegas { smoothing: 0.5, ..Vegas::default() };
    let mut state = law.start(Tick::EPOCH);
    for _ in 0..2 {
        law.learn(&mut state, &sample(100, 20, Outcome::Success));
    }
    assert_eq!(law.limit(&state), 23);
}

/// A service at its limit for hours. Each probe takes a sample that has waited as the time that work takes when
/// nothing waits. So the queue counts as service, and the limit grows by a queue with each probe, up to its largest.
/// The service then holds many times as much work as it can do, and answers that many times later.
#[test]
fn a_probe_under_load_raises_the_profiles_baseline_and_not_ours() {
    let profile = Vegas::netflix();
    let mut state = profile.start(Tick::EPOCH);
    profile.learn(&mut state, &sample(10_000, 1, Outcome::Success));
    for _ in 0..200_000 {
        let inside = profile.limit(&state);
        profile.learn(&mut state, &sample(10_000 * inside.max(10) / 10, inside, Outcome::Success));
    }
    let (limit, baseline) = (profile.limit(&state), profile.baseline(&state).unwrap());
    assert!(limit > 400 && baseline > Duration::from_millis(400), "{limit}, {baseline:?}");

    for seed in 0..20 {
        for samples in (1000..20_000).step_by(977) {
            let (limit, baseline) = saturated(Vegas::default().seed(seed), samples);
            assert_eq!(baseline, Duration::from_millis(10), "seed {seed}, {samples} samples");
            assert!((3..=45).contains(&limit), "seed {seed}, {samples} samples: {limit}");
        }
    }
}

#[test]
fn draining_takes_a_small_part_of_the_samples() {
    let mut service = Saturated::new(Vegas::default(), 10);
    service.run(50_000, 10_000);
    let held = service.held;
    assert!((500..5000).contains(&held), "{held} of 50,000 samples with the limit held down");
}

#[test]
fn a_service_that_has_become_slower_for_good_gets_its_limit_back() {
    let law = Vegas::default();
    let mut service = Saturated::new(law, 50);
    service.run(2000, 1000);
    let before = service.state.limit;
    service.run(10_000, 4000);
    let after = (0..20).map(|_| {
        service.run(500, 4000);
        service.state.limit
    });
    let after = after.fold(0.0, f64::max);
    assert_eq!(law.baseline(&service.state), Some(Duration::from_millis(4)));
    assert!(before >= 50.0 && after >= 25.0, "{before}, then {after}");
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

/// `callers` that call without a pause and take `cost` places each, beside places that are held for good. Each call has
/// to find room: it would wait for those that never end. Returns the state, and how many calls ended while the limit was
/// held down.
fn beside(
    held: u64,
    (callers, cost): (u64, u64),
    calls: u64,
    millis: impl Fn(u64) -> u64,
) -> (VegasState, u64) {
    let law = Vegas::default();
    let (mut state, mut now, mut down) = (law.start(Tick::EPOCH), Tick::EPOCH, 0);
    // By caller: when its call entered and ends, and how many places were in use then.
    let mut inside: Vec<(Tick, Tick, u64)> = Vec::new();
    for number in 0..calls {
        while inside.len() < callers as usize {
            let in_flight = held + (inside.len() as u64 + 1) * cost;
            if in_flight > law.limit(&state) && (held > 0 || !inside.is_empty()) {
                break;
            }
            let latency = Duration::from_millis(millis(number)) + Duration::from_micros(inside.len() as u64);
            inside.push((now, now.after(latency), in_flight));
        }
        let next = (0..inside.len()).min_by_key(|at| inside[*at].1);
        let (entered, ends, in_flight) = inside
            .swap_remove(next.unwrap_or_else(|| panic!("call {number} waits for those that never end")));
        now = ends;
        let (held, outcome) = (ends.since(entered), Outcome::Success);
        law.learn(
            &mut state,
            &Sample { at: now, latency: held, held, in_flight, places: cost, time_left: None, outcome },
        );
        down += u64::from(state.probe.draining());
    }
    (state, down)
}

/// Regression: while the limit was held down for a measurement, places that are held for long filled it, so that nobody
/// entered before their holders left.
#[test]
fn places_that_are_held_for_good_leave_room_while_the_limit_is_held_down() {
    for held in [1, 4, 12] {
        for callers in [(1, 1), (2, 1), (5, 1), (1, 2), (2, 3)] {
            let (state, down) = beside(held, callers, 20_000, |_| 10);
            let baseline = Vegas::default().baseline(&state).unwrap();
            assert!((10..11).contains(&baseline.as_millis()), "{held} held, {callers:?}: {baseline:?}");
            assert!(down < 4000, "{held} held, {callers:?}: the limit held down for {down} of 20,000 calls");
        }
    }
}

/// Regression: earlier work that was cancelled counted as inside for good. So each try to measure anew was in vain, and the
/// limit was held down for most of the time.
#[test]
fn cancelled_work_does_not_prevent_a_measurement() {
    for cancelled in [0, 3, 5, 8] {
        let mut service = Saturated { cancelled, ..Saturated::new(Vegas::default(), 50) };
        service.run(20_000, 10_000);
        service.held = 0;
        service.run(20_000, 40_000);
        let baseline = service.law.baseline(&service.state).unwrap();
        assert!((40..80).contains(&baseline.as_millis()), "{cancelled} of 10 cancelled: {baseline:?}");
        assert!(service.held < 4000, "{cancelled} of 10 cancelled: held down for {} samples", service.held);
        assert!(service.state.limit >= 50.0, "{cancelled} of 10 cancelled: {}", service.state.limit);
    }
}

/// A service that hangs while the latency is measured: every caller gives up.
#[test]
fn a_drain_ends_where_all_work_is_cancelled() {
    let law = Vegas::default();
    let mut state = law.start(Tick::EPOCH);
    law.learn(&mut state, &sample(10_000, 1, Outcome::Success));
    while !law.counts_ignored(&state) {
        law.learn(&mut state, &sample(10_000, 20, Outcome::Success));
    }
    let mut cancelled = 0;
    while law.counts_ignored(&state) {
        law.learn(&mut state, &sample(10_000, 20, Outcome::Ignored));
        cancelled += 1;
    }
    assert_eq!(cancelled, 500, "ten times as many as would have ended well");
}

/// Regression: the limit was held down for good, since each sample had more places in use than few.
#[test]
fn work_wider_than_the_lowered_limit_ends_the_measurement() {
    let slower = |number: u64| if number < 5_000 { 10 } else { 40 };
    for cost in [2, 5] {
        let (state, down) = beside(0, (1, cost), 20_000, slower);
        let law = Vegas::default();
        assert!((1..2000).contains(&down), "{down} of 20,000 calls with the limit held down");
        assert_eq!(law.baseline(&state), Some(Duration::from_millis(40)), "measured anew");
        assert!(law.limit(&state) >= 20);
    }
}

#[test]
fn a_drain_that_brings_no_measurement_ends() {
    let law = Vegas::default();
    let mut state = law.start(Tick::EPOCH);
    law.learn(&mut state, &sample(10_000, 1, Outcome::Success));
    let (mut longest, mut down) = (0, 0);
    for _ in 0..10_000 {
        law.learn(&mut state, &sample(10_000, 20, Outcome::Success));
        down = if state.probe.draining() { down + 1 } else { 0 };
        longest = longest.max(down);
    }
    assert_eq!(longest, 50, "one for each of 20 places, and 30 more");
}

#[test]
fn a_state_that_an_earlier_build_wrote_while_draining_is_read() {
    let mut out = Writer::new(0);
    Probe::new(7).write(&mut out);
    let mut bytes = out.finish();
    *bytes.last_mut().unwrap() = 1;
    let (_, mut from) = Reader::open(&bytes).unwrap();
    let read = Probe::read(&mut from).unwrap();
    assert!(read.draining() && from.close().is_ok());
    assert_eq!(read.held(), Some(1.0));
}

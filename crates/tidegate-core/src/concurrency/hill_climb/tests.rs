//! Tests of the hill climb against services of one line each: how long work takes with a given number inside.

mod bytes;

use core::time::Duration;

use super::*;

/// A closed-loop service: always filled up to the limit, each piece of work takes `latency(inside)`, and some fail.
struct Service {
    law: HillClimb,
    state: HillClimbState,
    now: Tick,
    served: u64,
    /// How long every second caller waits, and every other.
    patience: [Option<Duration>; 2],
}

impl Service {
    fn new() -> Self {
        let law = HillClimb::default();
        Self { law, state: law.start(Tick::EPOCH), now: Tick::EPOCH, served: 0, patience: [None; 2] }
    }

    /// The same service, with callers who say that they wait this long.
    fn with_patience(millis: [u64; 2]) -> Self {
        Self { patience: millis.map(|millis| Some(Duration::from_millis(millis))), ..Self::new() }
    }

    fn limit(&self) -> u64 {
        self.law.limit(&self.state)
    }

    /// Lets `count` pieces of work end, and returns how many ended well and in time per second.
    fn run(&mut self, count: u64, millis: impl Fn(f64) -> f64, fails: impl Fn(f64, u64) -> bool) -> f64 {
        let (from, mut good) = (self.now, 0.0);
        for _ in 0..count {
            let inside = self.limit();
            let latency = Duration::from_secs_f64(millis(inside as f64) / 1e3);
            self.now = self.now.after(latency / inside as u32);
            self.served += 1;
            let failed = fails(inside as f64, self.served);
            let outcome = if failed { Outcome::Failure } else { Outcome::Success };
            let time_left = self.patience[self.served as usize % 2];
            let (at, in_flight) = (self.now, inside);
            let sample = Sample { at, latency, held: latency, in_flight, places: 1, time_left, outcome };
            good += f64::from(u8::from(!failed && !sample.is_late()));
            self.law.learn(&mut self.state, &sample);
        }
        good / self.now.since(from).as_secs_f64()
    }
}

fn never(_: f64, _: u64) -> bool {
    false
}

#[test]
fn it_finds_the_places_of_services_of_any_size() {
    for places in [1.0, 4.0, 30.0, 700.0] {
        let mut service = Service::new();
        let latency = |inside: f64| 10.0 * (inside / places).max(1.0);
        service.run(60_000, latency, never);
        let goodput = service.run(20_000, latency, never);
        assert!(goodput >= places * 100.0 * 0.95, "{places} places: {goodput} a second");
        assert!(service.limit() as f64 <= places * 3.0 + 1.0, "{places} places: {}", service.limit());
    }
}

#[test]
fn it_keeps_no_places_that_change_nothing() {
    for places in [8.0, 30.0, 50.0, 80.0, 200.0] {
        let mut service = Service::new();
        let latency = |inside: f64| 10.0 * (inside / places).max(1.0);
        service.run(20_000, latency, never);
        assert!(service.state.limit >= places * 0.85, "{places} places: {}", service.state.limit);
        assert!(service.state.limit <= places * 1.5, "{places} places: {}", service.state.limit);
    }
}

/// 16 places of 20 ms, and a limit of 160: nobody gets an answer within 50 ms.
#[test]
fn answers_after_the_deadline_count_as_lost() {
    let latency = |inside: f64| 20.0 * (inside / 16.0).max(1.0);
    let mut service = Service::with_patience([50, 50]);
    service.run(1_000, latency, never);
    (service.state.limit, service.state.target) = (160.0, 160.0);
    service.run(5_000, latency, never);
    let goodput = service.run(20_000, latency, never);
    assert!(goodput >= 800.0 * 0.93, "{goodput} a second of 800, {} inside", service.limit());
}

/// The service becomes twenty times slower, so nothing ends in time until the limit is far lower. That takes a few dozen
/// samples beside the work that was inside, and no trial.
#[test]
fn where_all_work_comes_too_late_the_limit_falls_at_once() {
    let mut service = Service::with_patience([100, 100]);
    service.run(20_000, |inside| 10.0 * (inside / 100.0).max(1.0), never);
    let before = service.limit();
    let slower = |inside: f64| 10.0 * (inside / 5.0).max(1.0);
    let mut samples = 0;
    while service.limit() > before / 4 && samples < 10_000 {
        service.run(1, slower, never);
        samples += 1;
    }
    assert!(samples <= 3 * before, "{samples} samples from {before} places to {}", service.limit());
    let goodput = service.run(5_000, slower, never);
    assert!(goodput >= 500.0 * 0.9, "{goodput} a second of 500, {} inside", service.limit());
}

/// Every second caller leaves 1 ms for work of 10 ms. The others lose no place by it.
#[test]
fn callers_who_leave_no_time_for_the_work_do_not_lower_the_limit() {
    let latency = |inside: f64| 10.0 * (inside / 40.0).max(1.0);
    let (mut usual, mut mixed) = (Service::new(), Service::with_patience([1, 10_000]));
    usual.run(20_000, latency, never);
    mixed.run(20_000, latency, never);
    let (alone, beside) = (usual.run(20_000, latency, never), mixed.run(20_000, latency, never));
    assert!(beside >= alone / 2.0 * 0.97, "{beside} a second, and {alone} where all are good");
}

#[test]
fn it_stays_below_where_throughput_falls_again() {
    let mut service = Service::new();
    let latency = |inside: f64| 10.0 * (inside / 16.0).max(1.0) * (1.0 + 0.1 * (inside - 16.0).max(0.0));
    service.run(20_000, latency, never);
    let goodput = service.run(20_000, latency, never);
    assert!(goodput >= 1600.0 * 0.85, "{goodput} a second of 1600 at the peak, {} inside", service.limit());
}

#[test]
fn a_dependency_that_became_ten_times_slower_gets_ten_times_the_places() {
    let mut service = Service::new();
    service.run(20_000, |inside| 10.0 * (inside / 20.0).max(1.0), never);
    let before = service.limit();
    let slower = |inside: f64| 100.0 * (inside / 200.0).max(1.0);
    service.run(20_000, slower, never);
    assert!(before <= 60, "{before}");
    let goodput = service.run(10_000, slower, never);
    assert!(goodput >= 1700.0, "{goodput} a second of 2000");
}

/// The trial with fewer places raises the base twofold at most; the one with more tells it at once.
#[test]
fn work_that_takes_ten_times_as_long_is_learnt_by_a_second_trial() {
    let mut service = Service::new();
    service.run(20_000, |inside| 10.0 * (inside / 20.0).max(1.0), never);
    let slower = |inside: f64| 100.0 * (inside / 200.0).max(1.0);
    let mut samples = 0;
    while service.state.base < 80e6 && samples < 20_000 {
        service.run(1, slower, never);
        samples += 1;
    }
    assert!(samples <= 600, "{samples} samples, {:?}", service.state);
}

/// Half of the requests are wrong, which is found within a millisecond. They tell nothing about the other half.
#[test]
fn mistakes_of_callers_do_not_make_work_look_slow() {
    let mut service = Service::new();
    service.run(20_000, knee, never);
    let (base, limit) = (service.state.base, service.limit());
    for _ in 0..20_000 {
        service.run(1, knee, never);
        let entered = service.now.before(Duration::from_millis(1));
        end(&mut service, entered, Outcome::CallersFault);
    }
    assert!((service.state.base / base - 1.0).abs() < 0.05, "{} after {base}", service.state.base);
    assert!(service.limit() >= limit * 3 / 4, "{} after {limit}", service.limit());
}

/// Two hundred places are needed. Twice as many would have to be taken away again, with the service idle meanwhile.
#[test]
fn lost_goodput_is_regained_without_far_too_many_places() {
    let mut service = Service::new();
    service.run(20_000, |inside| 10.0 * (inside / 20.0).max(1.0), never);
    let mut most = 0;
    for _ in 0..1_000 {
        service.run(20, |inside| 100.0 * (inside / 200.0).max(1.0), never);
        most = most.max(service.limit());
    }
    assert!((200..=300).contains(&most), "{most} places at most");
}

#[test]
fn time_outs_that_always_take_as_long_bring_it_down() {
    // Up to 8 inside everything ends well in 50 ms; each more makes a further eighth time out, after 50 ms as well.
    let mut service = Service::new();
    let fails = |inside: f64, served: u64| (served as f64 * 0.618).fract() < (inside - 8.0) / 8.0;
    service.run(20_000, |_| 50.0, fails);
    let goodput = service.run(10_000, |_| 50.0, fails);
    assert!(goodput >= 160.0 * 0.7, "{goodput} a second of 160 at the peak, {} inside", service.limit());
}

#[test]
fn a_service_that_fails_a_third_whatever_happens_is_not_starved() {
    let mut service = Service::new();
    let latency = |inside: f64| 10.0 * (inside / 32.0).max(1.0);
    let fails = |_: f64, served: u64| served.is_multiple_of(3);
    service.run(40_000, latency, fails);
    let goodput = service.run(20_000, latency, fails);
    assert!(goodput >= 3200.0 * 2.0 / 3.0 * 0.8, "{goodput} a second of 2133");
}

#[test]
fn after_an_outage_it_is_back_within_a_second() {
    let mut service = Service::new();
    let latency = |inside: f64| 10.0 * (inside / 40.0).max(1.0);
    service.run(20_000, latency, never);
    service.run(2_000, |_| 1.0, |_, _| true);
    assert!(service.limit() <= 4, "{}", service.limit());
    let from = service.now;
    while service.limit() < 36 && service.now.since(from) < Duration::from_secs(5) {
        service.run(1, latency, never);
    }
    assert!(service.now.since(from) <= Duration::from_secs(1), "{:?}", service.now.since(from));
}

/// Regression: with one place nothing was quick any more, and no trial could show why.
#[test]
fn work_that_is_slower_after_an_outage_is_learnt_with_one_place() {
    let mut service = Service::new();
    service.run(20_000, |inside: f64| 10.0 * (inside / 40.0).max(1.0), never);
    service.run(4_000, |_| 1.0, |_, _| true);
    assert!(service.limit() <= 4, "{}", service.limit());
    service.run(10_000, |inside: f64| 50.0 * (inside / 40.0).max(1.0), never);
    assert!(service.limit() >= 36, "{}", service.limit());
}

#[test]
fn while_it_does_not_bind_it_leaves_room_for_more_than_twice_the_load() {
    let law = HillClimb::default();
    let mut state = law.start(Tick::EPOCH);
    for count in 0..2_000 {
        let at = Tick::from_nanos(count * 1_000_000);
        // 1000 a second of 15 ms: 15 inside, where the limit is 20.
        let latency = Duration::from_millis(15);
        law.learn(
            &mut state,
            &Sample {
                at,
                latency,
                held: latency,
                in_flight: 15,
                places: 1,
                time_left: None,
                outcome: Outcome::Success,
            },
        );
    }
    assert_eq!(law.limit(&state), 34);
}

/// A law at its start, and the tick of its last sample.
struct Light {
    law: HillClimb,
    state: HillClimbState,
    at: Tick,
}

impl Light {
    /// Ends `count` pieces of work of 20 ms, ten per second, with 1 to `most` inside.
    fn run(&mut self, count: u64, most: u64, outcome: Outcome) {
        for number in 0..count {
            self.at = self.at.after(Duration::from_millis(100));
            let in_flight = number % most + 1;
            let sample = Sample {
                at: self.at,
                latency: Duration::from_millis(20),
                held: Duration::from_millis(20),
                in_flight,
                places: 1,
                time_left: None,
                outcome,
            };
            self.law.learn(&mut self.state, &sample);
        }
    }
}

/// Regression: an outage at a light load took the limit from 20 to 1, and the service refused requests for seconds after it was well again.
#[test]
fn an_outage_at_a_light_load_leaves_the_limit() {
    for most in 1..=6 {
        let law = HillClimb::default();
        let mut light = Light { law, state: law.start(Tick::EPOCH), at: Tick::EPOCH };
        for _ in 0..3 {
            light.run(400, most, Outcome::Success);
            light.run(200, most, Outcome::Failure);
        }
        assert_eq!(light.law.limit(&light.state), 20, "at most {most} inside");
    }
}

/// With more than eight inside work fails at once, for a while also after there are fewer. It is called five times as often as it can take, and
/// the limit of 20 is never reached.
#[test]
fn failures_of_more_work_than_ever_ended_well_bring_the_limit_down_below_it() {
    let law = HillClimb::default();
    let mut light = Light { law, state: law.start(Tick::EPOCH), at: Tick::EPOCH };
    light.run(400, 4, Outcome::Success);
    for number in 0..200_u64 {
        light.at = light.at.after(Duration::from_millis(20));
        let in_flight = (number % 14 + 1).min(light.law.limit(&light.state));
        let sample = Sample {
            at: light.at,
            latency: Duration::from_micros(100),
            held: Duration::from_micros(100),
            in_flight,
            places: 1,
            time_left: None,
            outcome: Outcome::Failure,
        };
        light.law.learn(&mut light.state, &sample);
    }
    assert!(light.law.limit(&light.state) <= 8, "{}", light.law.limit(&light.state));
}

/// Regression: at a load of exactly the capacity all work ran into its time-out, with fewer inside than the limit, and the
/// limit stayed, so that the service did nothing for seconds.
#[test]
fn time_outs_with_more_inside_than_ever_bring_the_limit_down() {
    let law = HillClimb::default();
    let mut state = law.start(Tick::EPOCH);
    let mut now = Tick::EPOCH;
    let mut run = |count: u64, (inside, millis): (u64, u64), outcome: Outcome| {
        for _ in 0..count {
            // 300 a second, before and after.
            now = now.after(Duration::from_micros(3_333));
            let latency = Duration::from_millis(millis);
            let in_flight = inside.min(law.limit(&state));
            let (at, time_left) = (now, None);
            law.learn(
                &mut state,
                &Sample { at, latency, held: latency, in_flight, places: 1, time_left, outcome },
            );
        }
        law.limit(&state)
    };
    let before = run(2_000, (24, 80), Outcome::Success);
    assert_eq!(before, 54, "2.25 times what Little's law asks for");
    let after = run(300, (36, 120), Outcome::Failure);
    assert!(after <= before / 4, "{after} places of {before}");
}

#[test]
fn a_clock_that_is_set_back_begins_anew() {
    let mut service = Service::new();
    let latency = |inside: f64| 10.0 * (inside / 40.0).max(1.0);
    service.run(200, latency, never);
    service.now = Tick::from_secs(3_600);
    service.run(200, latency, never);
    service.now = Tick::from_secs(1);
    service.run(10_000, latency, never);
    assert!((30..=120).contains(&service.limit()), "{}", service.limit());
}

/// Work of 10 ms for up to 20 at once.
fn knee(inside: f64) -> f64 {
    10.0 * (inside / 20.0).max(1.0)
}

#[test]
fn callers_who_have_time_do_not_make_work_wait() {
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    assert!(service.limit() <= 30, "{} places", service.limit());
}

/// Lets one piece of work end, which entered some time ago.
fn end(service: &mut Service, entered: Tick, outcome: Outcome) {
    let (at, in_flight) = (service.now, service.limit());
    let held = at.since(entered);
    let sample = Sample { at, latency: held, held, in_flight, places: 1, time_left: None, outcome };
    service.law.learn(&mut service.state, &sample);
}

/// A thousand pieces of work that were inside when the limit fell end slowly, one each millisecond.
#[test]
fn a_cut_is_judged_by_what_entered_after_it() {
    let mut service = Service::new();
    service.run(20_000, knee, never);
    let entered = service.now;
    while service.state.set_back_at <= entered {
        service.now = service.now.after(Duration::from_millis(1));
        end(&mut service, entered, Outcome::Success);
    }
    let after = service.limit();
    for _ in 0..1_000 {
        service.now = service.now.after(Duration::from_millis(1));
        end(&mut service, entered, Outcome::Success);
    }
    assert!(service.limit() >= after, "{} after {after}", service.limit());
}

/// Callers who hang up after half a second of work that took 10 ms.
#[test]
fn work_that_is_given_up_after_long_was_slow() {
    let mut service = Service::new();
    service.run(20_000, knee, never);
    service.state.set_back_at = Tick::EPOCH;
    let score = service.state.score;
    for _ in 0..100 {
        service.now = service.now.after(Duration::from_millis(1));
        let entered = service.now.before(Duration::from_millis(500));
        end(&mut service, entered, Outcome::Ignored);
    }
    assert!(service.state.score <= score && service.state.score < 0, "{} after {score}", service.state.score);
    let score = service.state.score;
    let entered = service.now.before(Duration::from_millis(1));
    end(&mut service, entered, Outcome::Ignored);
    assert_eq!(service.state.score, score, "what was given up soon tells nothing");
}

//! Tests of raises that are taken back, and of work that fails while a reserve is held.

use core::cell::Cell;

use super::super::reserve::Reserve;
use super::reserve::knee;
use super::*;

/// Work of 10 ms for up to 20 at once, and half as much again per piece with more than `most` inside.
fn contended(most: f64) -> impl Fn(f64) -> f64 {
    move |inside| 10.0 * (inside / 20.0).max(1.0) * if inside > most { 1.5 } else { 1.0 }
}

/// Two of three pieces of work fail if the number inside is larger than `most`.
fn failing(most: f64) -> impl Fn(f64, u64) -> bool {
    move |inside, served| inside > most && !served.is_multiple_of(3)
}

impl Service {
    /// Lets work end until `done`, and checks the state after each piece.
    fn run_until(
        &mut self,
        millis: impl Fn(f64) -> f64,
        fails: impl Fn(f64, u64) -> bool,
        done: impl Fn(&HillClimbState) -> bool,
        check: impl Fn(&HillClimbState),
    ) {
        for _ in 0..100_000 {
            if done(&self.state) {
                return;
            }
            self.run(1, &millis, &fails);
            check(&self.state);
        }
        panic!("not within a hundred thousand pieces of work: {:?}", self.state);
    }

    /// Lets work end until a raise from a limit above the settled one is being tried, and returns the state.
    fn until_a_later_raise(
        &mut self,
        millis: impl Fn(f64) -> f64,
        fails: impl Fn(f64, u64) -> bool,
    ) -> (HillClimbState, Reserve) {
        let raises = |state: &HillClimbState, reserve: Reserve| {
            state.limit >= reserve.settled * 2.0 && state.trial.is_some_and(|trial| trial > state.limit)
        };
        let raised = |state: &HillClimbState| state.reserve.is_some_and(|reserve| raises(state, reserve));
        self.run_until(millis, fails, raised, |_| ());
        (self.state, self.state.reserve.unwrap())
    }
}

/// With more than 100 inside a third of the goodput is lost.
#[test]
fn after_a_later_raise_that_is_taken_back_the_limit_before_it_stays_for_128_measurements() {
    let mut service = Service::with_patience([500, 500]);
    // A raise from 50 to 100 is kept, so this is the one to 200.
    service.run_until(contended(100.0), never, |state| state.limit == 100.0, |_| ());
    let (before, reserve) = service.until_a_later_raise(contended(100.0), never);
    assert_eq!((before.limit, before.trial), (100.0, Some(200.0)));
    service.run_until(contended(100.0), never, |state| state.trial.is_none(), |_| ());
    let stays = |state: &HillClimbState| {
        assert_eq!(state.limit, before.limit);
        assert_eq!(state.reserve.map(|reserve| reserve.settled), Some(reserve.settled));
    };
    stays(&service.state);
    let held = service.state.reserve.unwrap().held;
    service.run_until(contended(100.0), never, |state| state.trial.is_some(), stays);
    let measurements = service.state.reserve.unwrap().held - held;
    // The one after the last of them is followed by the next raise.
    assert_eq!(measurements, 129);
}

/// With more than 22 inside a third of the goodput is lost.
#[test]
fn after_a_first_raise_that_is_taken_back_fewer_places_are_tried_and_no_reserve_for_128_measurements() {
    let mut service = Service::with_patience([500, 500]);
    service.run_until(contended(22.0), never, |state| state.reserve.is_some(), |_| ());
    let settled = service.state.reserve.unwrap().settled;
    service.run_until(contended(22.0), never, |state| state.trial.is_none(), |_| ());
    let taken = service.state;
    assert_eq!((taken.limit, taken.reserve, taken.no_reserve_for), (settled, None, 128));
    let none = |state: &HillClimbState| assert_eq!(state.reserve, None);
    service.run_until(contended(22.0), never, |state| state.trial.is_some(), none);
    assert!(service.state.trial.is_some_and(|trial| trial < settled), "{:?}", service.state.trial);
    service.run_until(contended(22.0), never, |state| state.no_reserve_for == 1, none);
    service.run_until(contended(22.0), never, |state| state.reserve.is_some(), |_| ());
    assert_eq!(service.state.no_reserve_for, 0);
}

/// The raise that shows where work fails is taken back, and later ones stay a sixth below.
#[test]
fn a_raise_to_where_work_fails_is_taken_back_and_not_tried_again() {
    let mut service = Service::with_patience([500, 500]);
    service.run_until(knee, failing(100.0), |state| state.cliff.at().is_finite(), |_| ());
    let (state, cliff) = (service.state, service.state.cliff.at());
    let settled = state.reserve.unwrap().settled;
    assert!(settled < state.limit && state.limit < cliff, "{settled}, {} and {cliff}", state.limit);
    assert_eq!((state.trial, state.limit_in_force), (None, state.limit));
    service.run_until(knee, failing(100.0), |state| state.trial.is_some(), |_| ());
    let next = service.state.trial.unwrap();
    assert!(next > state.limit && next <= (cliff / STEP).round(), "{next} after {cliff}");
}

/// The raise breaks the service, which is well again only once no more than 20 are inside.
#[test]
fn a_reserve_is_given_up_where_work_goes_on_failing_after_a_raise() {
    let broken = Cell::new(false);
    let fails = |inside: f64, served: u64| {
        broken.set(inside > 100.0 || broken.get() && inside > 20.0);
        broken.get() && !served.is_multiple_of(3)
    };
    let mut service = Service::with_patience([500, 500]);
    service.run_until(knee, fails, |state| state.cliff.at().is_finite(), |_| ());
    let (cliff, settled) = (service.state.cliff.at(), service.state.reserve.unwrap().settled);
    let stays_below = |state: &HillClimbState| assert!(state.target_limit() < cliff, "{state:?}");
    service.run_until(knee, fails, |state| state.reserve.is_none(), stays_below);
    assert!(service.state.limit <= settled && service.limit() as f64 <= settled, "{}", service.limit());
    let none = |state: &HillClimbState| assert!(state.cliff.at().is_infinite() || state.reserve.is_none());
    service.run_until(knee, fails, |state| state.cliff.at().is_infinite(), none);
}

/// A new measurement begins, and work fails with more than 60 inside from now on.
#[test]
fn a_reserve_is_given_up_after_one_measurement_in_which_work_fails_because_of_the_load() {
    let held = |state: &HillClimbState| state.reserve.map_or(0, |reserve| reserve.held);
    let mut service = Service::with_patience([500, 500]);
    service.run(40_000, knee, never);
    let (settled, before) = (service.state.reserve.unwrap().settled, held(&service.state));
    service.run_until(knee, never, |state| held(state) > before, |_| ());
    let at_once =
        |state: &HillClimbState| assert!(state.reserve.is_none() || held(state) == before + 1, "{state:?}");
    service.run_until(knee, failing(60.0), |state| state.reserve.is_none(), at_once);
    assert!(service.limit() as f64 <= settled, "{} places, and {settled} settled", service.limit());
}

// Tests with a service that is no slower with load: it does forty pieces of work at once, and refuses what is more after
// the time that work takes. Its latency shows nothing, and refusals cost it nothing.

const PLACES: f64 = 40.0;

fn latency(_: f64) -> f64 {
    50.0
}

/// Of those inside, as many are refused as there are more than forty, evenly spread.
fn refuses(inside: f64, served: u64) -> bool {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    (served as f64 * GOLDEN).fract() * inside >= PLACES
}

/// A law that was seen without a queue, at this limit.
fn at(limit: f64) -> Service {
    let mut service = Service::new();
    let state = &mut service.state;
    (state.limit, state.limit_in_force) = (limit, limit);
    (state.base, state.base_proved) = (50e6, true);
    service
}

/// Experiments with fewer places cost a sixth of the goodput each. More places only add refusals, so they are not tried
/// again soon, and fewer places not either.
#[test]
fn the_limit_rests_where_more_places_only_add_failures() {
    let mut service = at(PLACES);
    service.run(10_000, latency, refuses);
    let (mut fewer, mut all) = (0, 0);
    for _ in 0..60_000 {
        service.run(1, latency, refuses);
        fewer += u32::from((service.limit() as f64) < PLACES);
        all += 1;
    }
    assert!(fewer * 25 < all, "{fewer} of {all} pieces of work ended below {PLACES} places");
}

/// With three eighths of the work refused, the share that ends well says how many places are right, and a few more are
/// tried, so that chance does not make them fewer. From there on a step of a fifth is the most.
#[test]
fn after_too_many_refusals_the_limit_falls_to_what_the_service_takes() {
    let mut service = at(64.0);
    while service.limit() >= 64 {
        service.run(1, latency, refuses);
    }
    let fell_to = service.limit() as f64;
    assert!((PLACES + 4.0..=PLACES + 8.0).contains(&fell_to), "{fell_to}");
    let least = least(&mut service, 4_000);
    assert!(least >= (PLACES / STEP).floor(), "{least}");
}

/// Half of the places end the failures, but cost goodput: the next step goes up, not further down.
#[test]
fn after_fewer_places_that_cost_goodput_more_are_tried() {
    let mut service = at(64.0);
    let known = Reading {
        rate: 1.0,
        latency: 50e6,
        full: true,
        failed: 0.375,
        failing: true,
        good: 160.0,
        ..Reading::NONE
    };
    (service.state.known, service.state.trial) = (Some(known), Some(32.0));
    let reading = Reading { rate: 0.8, latency: 50e6, full: true, good: 160.0, ..Reading::NONE };
    service.state.judge(&service.law.bounds, 32.0, reading);
    assert_eq!(service.state.limit, 32.0);
    assert!(service.state.trial.is_some_and(|trial| trial > 32.0), "{:?}", service.state.trial);
}

/// Lets work end, and returns the least limit meanwhile.
fn least(service: &mut Service, count: u64) -> f64 {
    (0..count).fold(f64::INFINITY, |least, _| {
        service.run(1, latency, refuses);
        least.min(service.limit() as f64)
    })
}

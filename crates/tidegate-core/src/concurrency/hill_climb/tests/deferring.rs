//! Tests with a service that is no slower with load: it does forty pieces of work at once, and refuses what is more after
//! the time that work takes. Its latency shows nothing, and refusals cost it nothing.

use super::*;

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

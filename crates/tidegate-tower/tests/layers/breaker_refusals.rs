//! What the refusal of a breaker says: which state refuses, and a person's reason.

use std::time::Duration;

use http::{Request, Response};
use tidegate::breaker::{CircuitBreaker, Force, KeyedBreaker};
use tidegate::clock::ManualClock;
use tidegate::{Breaker, Outcome};
use tidegate_tower::{BreakerLayer, Errors, Refused};
use tower_layer::Layer;

use crate::layers::breaker::breaker;
use crate::layers::service::{ScriptedService, answer, get};

/// Every refusal of a breaker said that the circuit is open: while it tried the service, while a person held it open, and
/// while it refused a share of the calls.
#[test]
fn a_refusal_says_which_state_of_the_breaker_refuses() {
    let inner = tower::service_fn(async |_: Request<String>| Ok::<_, Refused>(Response::new(String::new())));
    let says = |breaker: &Breaker| {
        let layer = BreakerLayer::new("payments", breaker.clone()).answering(Errors);
        answer(&mut layer.layer(inner), get()).unwrap_err().to_string()
    };
    let (breaker, _clock) = breaker(1);
    breaker.force(Force::Open, Some(Duration::from_secs(60)), "an upgrade");
    assert_eq!(
        says(&breaker),
        "payments: a person has forced the breaker open: an upgrade; try again in 60 s"
    );
    breaker.auto();
    let probe = breaker.try_enter().unwrap();
    assert_eq!(
        says(&breaker),
        "payments: the breaker is half-open, and all its probes are under way: a place is free again when one ends or has \
         lasted for its `ttl`"
    );
    probe.leave(Outcome::Failure);
    // One bad probe proves too little.
    while let Ok(probe) = breaker.try_enter() {
        probe.leave(Outcome::Failure);
    }
    assert!(says(&breaker).starts_with("payments: the breaker is open; try again in "), "{}", says(&breaker));

    let clock = ManualClock::default();
    let sheds = CircuitBreaker::builder().failure_ratio(0.1).min_calls(1).shed_at_most(0.99);
    let sheds = Breaker::new(sheds).unwrap().with_clock(clock.clone());
    while let Ok(call) = sheds.try_enter() {
        call.leave(Outcome::Failure);
        clock.advance(Duration::from_millis(1));
    }
    // At the same nanosecond the answer is the same.
    assert_eq!(says(&sheds), "payments: the breaker refuses a share of the calls, since the service fails");

    let hosts = KeyedBreaker::new(CircuitBreaker::builder(), 10).unwrap();
    hosts.force("there", Force::Open, None, "an upgrade");
    let layer = BreakerLayer::each("hosts", hosts, |_: &Request<String>| "there").answering(Errors);
    let refused = answer(&mut layer.layer(inner), get()).unwrap_err();
    assert_eq!(refused.to_string(), "hosts: a person has forced the breaker open: an upgrade");
}

/// The reason is for the program and its logs. A response, which strangers may read, does not have it.
#[test]
fn the_reason_of_a_forced_breaker_is_in_the_refusal_and_not_in_the_response() {
    let (breaker, _clock) = breaker(1);
    breaker.force(Force::Open, None, "an upgrade\nof db-7");
    let mut service = BreakerLayer::new("payments", breaker.clone()).layer(ScriptedService::default());
    let refused = answer(&mut service, get()).unwrap();
    assert!(
        refused.body().contains("a person has forced the breaker open") && !refused.body().contains("db-7")
    );
    let why = Refused::of_response(&refused).unwrap();
    assert_eq!(why.reason.as_deref(), Some("an upgrade\nof db-7"));
    assert!(why.to_string().ends_with(r"forced the breaker open: an upgrade\nof db-7"), "{why}");
    breaker.force(Force::Open, None, "");
    let refused = answer(&mut service, get()).unwrap();
    let why = Refused::of_response(&refused).unwrap();
    assert_eq!(
        (&why.reason, why.to_string()),
        (&None, "payments: a person has forced the breaker open".to_owned())
    );
}

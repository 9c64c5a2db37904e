//! Gates whose limits lie in an engine, which answers later or not at all.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::policy::{Descriptor, Limit, Policy, SettleBy, SettleRule};
use tidegate::{Gate, Quota};
use tidegate_tower::parameter::WhenUndecided;
use tidegate_tower::{DeadlineLayer, GateLayer, RefusalCause, Refused, Spent};
use tower_layer::Layer;
use tower_service::Service as _;

use crate::layers::breaker::Heard;
use crate::layers::engine::Engine;
use crate::layers::service::{ScriptedService, call, get, poll, status, with};

const SECOND: Duration = Duration::from_secs(1);

fn per_minute(name: &str, count: u64) -> Policy {
    Policy::new(name, Limit::new(Quota::per_minute(count).gcra().unwrap(), name))
}

fn anybody(_: &Request<String>) -> Descriptor<'static> {
    Descriptor::new()
}

/// Two seconds by default, and 30 at most.
fn deadline(clock: &ManualClock) -> DeadlineLayer {
    DeadlineLayer::within(2 * SECOND, 30 * SECOND).unwrap().with_clock(clock.clone())
}

fn passing(gate: &Arc<Gate>) -> GateLayer<fn(&Request<String>) -> Descriptor<'static>> {
    GateLayer::new(Arc::clone(gate), anybody as fn(&Request<String>) -> _).when_undecided(WhenUndecided::Pass)
}

/// A header with a time of one nanosecond used to switch the gate off: the check failed at its deadline, that counted as
/// undecided, and undecided requests pass uncharged here.
#[test]
fn a_caller_who_gives_too_little_time_is_refused_and_does_not_pass_uncharged() {
    for (name, value) in
        [("grpc-timeout", "1n"), ("grpc-timeout", "1m"), ("x-envoy-expected-rq-timeout-ms", "1")]
    {
        let (clock, engine) = (ManualClock::default(), Engine::default());
        let (gate, background) = engine.gate(vec![per_minute("all", 1)], &clock);
        let (heard, inner) = (Heard::default(), ScriptedService::default());
        let layer = passing(&gate).with_observer(heard.clone());
        let mut service = deadline(&clock).layer(layer.layer(inner.clone()));
        engine.fall_silent();
        let mut called = Box::pin(call(&mut service, with(name, value)));
        assert!(poll(called.as_mut()).is_pending());
        clock.advance(Duration::from_millis(1));
        let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("its time is up") };
        assert_eq!((refused.status().as_u16(), inner.calls()), (504, 0), "{name}: {value}");
        assert_eq!(Refused::of_response(&refused).unwrap().cause, RefusalCause::NoTimeLeft);
        assert_eq!(heard.take(), ["gate: refused, no time is left for the request"], "no outage is told");
        drop(called);
        // The engine may have charged it all the same: that is given back.
        engine.speak();
        while background.run() > 0 {}
        assert_eq!(engine.left(&gate), [1]);
    }
}

/// The task's deadline is over before the engine is asked at all.
#[test]
fn a_request_that_comes_after_its_deadline_is_refused_before_the_engine_is_asked() {
    let (clock, engine) = (ManualClock::default(), Engine::default());
    let (gate, _) = engine.gate(vec![per_minute("all", 1)], &clock);
    let inner = ScriptedService::default();
    let mut service = passing(&gate).layer(inner.clone());
    let late = || call(&mut service, get());
    let mut called = Box::pin(tidegate::deadline::carry(tidegate::clock::Clock::now(&clock), late));
    let Poll::Ready(Ok(refused)) = poll(called.as_mut()) else { panic!("no engine is awaited") };
    assert_eq!((refused.status().as_u16(), inner.calls(), engine.asked()), (504, 0, 0));
}

/// What a program lets pass while its store is away still passes.
#[test]
fn a_store_that_fails_in_time_leaves_the_request_undecided() {
    let (clock, engine) = (ManualClock::default(), Engine::default());
    let (gate, _) = engine.gate(vec![per_minute("all", 1)], &clock);
    let inner = ScriptedService::default();
    let mut service = deadline(&clock).layer(passing(&gate).layer(inner.clone()));
    engine.fail();
    let mut called = Box::pin(call(&mut service, with("grpc-timeout", "1m")));
    let Poll::Ready(Ok(passed)) = poll(called.as_mut()) else { panic!("the engine has failed") };
    assert_eq!((passed.status().as_u16(), inner.calls()), (200, 1));
}

/// A policy whose charge changes when the work ends.
fn settling(name: &str) -> Policy {
    let mut policy = Policy::new(name, Limit::new(Quota::per_day(1000).gcra().unwrap(), name));
    policy.settle = Some(SettleRule::new(SettleBy::Cost));
    policy
}

/// A handler that reports what it spent: three units.
fn spends_three() -> impl tower_service::Service<
    Request<String>,
    Response = http::Response<String>,
    Error = Infallible,
    Future: Send,
> + Clone
+ Send {
    tower::service_fn(|request: Request<String>| {
        assert!(request.extensions().get::<Spent>().unwrap().settle(3));
        std::future::ready(Ok(status(200)))
    })
}

/// The answer was there, but an engine that did not settle held it up until the deadline, and the caller got 504.
#[test]
fn an_answer_does_not_wait_for_an_engine_that_does_not_settle() {
    for (timeout, waits) in [("500m", SECOND / 2), ("20S", SECOND)] {
        let (clock, engine) = (ManualClock::default(), Engine::default());
        let (gate, background) = engine.gate(vec![settling("tokens")], &clock);
        let heard = Heard::default();
        let layer = GateLayer::new(Arc::clone(&gate), anybody).settling().with_observer(heard.clone());
        let silent = engine.clone();
        let handler = tower::service_fn(move |request: Request<String>| {
            silent.fall_silent();
            spends_three().call(request)
        });
        let mut service = deadline(&clock).layer(layer.layer(handler));
        let mut called = Box::pin(call(&mut service, with("grpc-timeout", timeout)));
        assert!(poll(called.as_mut()).is_pending(), "the engine is asked to settle");
        clock.advance(waits - Duration::from_nanos(1));
        assert!(poll(called.as_mut()).is_pending(), "{timeout}");
        clock.advance(Duration::from_nanos(1));
        let Poll::Ready(Ok(answered)) = poll(called.as_mut()) else { panic!("the answer is there") };
        assert_eq!(answered.status(), 200, "{timeout}");
        let told = heard.take();
        assert!(told.iter().any(|line| line.starts_with("gate: NotSettled, ")), "{told:?}");
        // It settles when it can.
        engine.speak();
        while background.run() > 0 {}
        assert_eq!(engine.left(&gate), [997]);
    }
}

/// A breaker in an engine used to learn nothing of a service that hangs: the deadline dropped the work, the drop could not
/// await the engine, and the outcome was forgotten.
#[test]
fn a_hang_behind_an_engine_opens_the_breaker_of_a_policy() {
    for (timeout, opens) in [("2S", true), ("999m", false)] {
        let (clock, engine) = (ManualClock::default(), Engine::default());
        let law = CircuitBreaker::builder().consecutive(1).jitter(0.0);
        let breaker = Policy::new("stock", Limit::new(Quota::Breaker(law.try_into().unwrap()), "stock"));
        let (gate, background) = engine.gate(vec![breaker], &clock);
        let layer = GateLayer::new(Arc::clone(&gate), anybody);
        let mut hanging = deadline(&clock).layer(layer.layer(ScriptedService::hanging()));
        let mut called = Box::pin(call(&mut hanging, with("grpc-timeout", timeout)));
        assert!(poll(called.as_mut()).is_pending());
        clock.advance(2 * SECOND);
        assert!(poll(called.as_mut()).is_ready());
        drop(called);
        while background.run() > 0 {}
        let inner = ScriptedService::default();
        let mut next = Box::pin(call(&mut layer.layer(inner.clone()), get()));
        assert!(poll(next.as_mut()).is_ready());
        assert_eq!(inner.calls() == 0, opens, "{timeout}");
    }
}

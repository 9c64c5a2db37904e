//! Gates whose limits lie in an engine, which answers later or not at all.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::Request;
use tidegate::policy::Limit;
use tidegate::{Descriptor, Gate, ManualClock, Policy, Quota};
use tidegate_tower::{DeadlineLayer, GateLayer, RefusalCause, Refused, WhenUndecided};
use tower_layer::Layer;

use crate::breaker::Heard;
use crate::engine::Engine;
use crate::service::{ScriptedService, call, get, poll, with};

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
    let mut called = Box::pin(tidegate::deadline::carry(tidegate::Clock::now(&clock), late));
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

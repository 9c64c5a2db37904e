//! Charges of requests that a layer inside refuses before any work for them has begun.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tidegate::policy::Limit;
use tidegate::retries::{Retrier, Retries, RetryBudget, SharedBudget};
use tidegate::{
    Bulkhead, Cost, Descriptor, Gate, KeyedLimiter, Limiter, ManualClock, Permit, Policy, PolicySet, Quota,
};
use tidegate_tower::{
    Answers, ByStatus, Classify, ConcurrencyLayer, DeadlineLayer, GateLayer, Problems, RateLimitLayer,
    RefusalCause, Refused, RetryLayer, ServerStack, Spent,
};
use tower_layer::Layer;

use crate::service::{ScriptedService, answer, call, get, poll, status, with};

const SECOND: Duration = Duration::from_secs(1);

/// A layer whose only place is taken, and that place.
fn busy() -> (ConcurrencyLayer, Permit) {
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let held = places.try_enter().unwrap();
    (ConcurrencyLayer::new("places", places), held)
}

fn limiter() -> Limiter {
    Limiter::new(Quota::per_minute(10)).unwrap().with_clock(ManualClock::default())
}

/// A request that a full queue refused had spent its unit, so callers of a busy server were over their limit as well.
#[test]
fn a_request_that_an_inner_layer_refuses_has_spent_nothing() {
    let (places, _held) = busy();
    let limiter = limiter();
    let ask = |layer: RateLimitLayer<_>| {
        let stack = ServerStack::new().rate_limit(layer).concurrency(places.clone());
        let refused = answer(&mut stack.layer(ScriptedService::default()), get()).unwrap();
        assert_eq!(refused.status(), 503);
        limiter.standing().remaining
    };
    let layer = || RateLimitLayer::all("all", limiter.clone());
    assert_eq!(ask(layer()), 10);
    assert_eq!(ask(layer().waiting(SECOND)), 10);
    assert_eq!(ask(layer().settling()), 10);
    assert_eq!(ask(layer().keeping_charges()), 9);
    assert_eq!(ask(layer().keeping_charges().waiting(SECOND)), 8);
    assert_eq!(ask(layer().keeping_charges().settling()), 7);

    let each = KeyedLimiter::new(Quota::per_minute(10), 10).unwrap().with_clock(ManualClock::default());
    let keyed = RateLimitLayer::each("each", each.clone(), |_: &Request<String>| "key")
        .costing(|_: &Request<String>| Cost::new(4).unwrap());
    answer(&mut keyed.layer(places.layer(ScriptedService::default())), get()).unwrap();
    assert_eq!(each.standing("key").remaining, 10);
    answer(&mut keyed.layer(ScriptedService::default()), get()).unwrap();
    assert_eq!(each.standing("key").remaining, 6, "what was served is charged");
}

#[test]
fn a_gate_takes_back_what_it_charged_a_request_that_an_inner_layer_refuses() {
    let (places, held) = busy();
    let quota = || Quota::per_minute(10).gcra().unwrap();
    let mut logins = Policy::new("logins", Limit::new(quota(), "10/min"));
    logins.charge = tidegate::policy::ChargeOn::Failure;
    let at_once = Policy::new("at once", Limit::new(Quota::concurrency(5, 60 * SECOND).unwrap(), "5"));
    let all = vec![Policy::new("all", Limit::new(quota(), "10/min")), logins, at_once];
    let gate =
        Gate::in_memory(PolicySet::new(all).unwrap(), 1000).unwrap().with_clock(ManualClock::default());
    let gate = Arc::new(gate);
    let left = || {
        let limits = gate.peek(&Descriptor::new()).unwrap().limits;
        limits.iter().map(|limit| limit.decision.standing.remaining).collect::<Vec<_>>()
    };
    let layer = GateLayer::new(Arc::clone(&gate), |_: &Request<String>| Descriptor::new());
    let stack = ServerStack::new().rate_limit(layer).concurrency(places);
    assert_eq!(answer(&mut stack.layer(ScriptedService::default()), get()).unwrap().status(), 503);
    assert_eq!(left(), [10, 10, 5]);
    drop(held);
    assert_eq!(answer(&mut stack.layer(ScriptedService::default()), get()).unwrap().status(), 200);
    assert_eq!(left(), [9, 10, 5]);
}

/// The work had begun, and may have taken effect.
#[test]
fn a_deadline_that_ends_running_work_gives_nothing_back() {
    let (clock, limiter) = (ManualClock::default(), limiter());
    let deadline = DeadlineLayer::within(SECOND, SECOND).unwrap().with_clock(clock.clone());
    let limit = RateLimitLayer::all("all", limiter.clone());
    let mut service = limit.layer(deadline.layer(ScriptedService::hanging()));
    let mut called = Box::pin(call(&mut service, get()));
    assert!(poll(called.as_mut()).is_pending());
    clock.advance(SECOND);
    assert!(poll(called.as_mut()).is_ready());
    assert_eq!(limiter.standing().remaining, 9);
    // One for which no time was left was not begun.
    answer(&mut service, with("grpc-timeout", "0n")).unwrap();
    assert_eq!(limiter.standing().remaining, 9);
}

/// The first try was made; only the second one was refused.
#[test]
fn a_call_that_was_tried_before_keeps_its_charge() {
    let (clock, limiter) = (ManualClock::default(), limiter());
    let rules = Retries::new(3, Duration::ZERO, Duration::ZERO).unwrap();
    let budget = SharedBudget::with_clock(RetryBudget::default(), clock);
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let (taking, taken) = (places.clone(), Arc::new(Mutex::new(None)));
    // Another caller takes the only place when the first try has failed.
    let judge = move |result: &Result<Response<String>, Infallible>| {
        taken.lock().unwrap().get_or_insert_with(|| taking.try_enter().unwrap());
        ByStatus.classify(result)
    };
    let retry = RetryLayer::new(Retrier::new(rules, budget)).judging(judge);
    let limit = RateLimitLayer::all("all", limiter.clone());
    let inner = ScriptedService::answering([status(503)]);
    let mut service = limit.layer(retry.layer(ConcurrencyLayer::new("places", places).layer(inner.clone())));
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!((refused.status().as_u16(), inner.calls()), (503, 1));
    assert!(Refused::of_response(&refused).is_some(), "the second try was refused");
    assert_eq!(limiter.standing().remaining, 9);
}

/// What the handler has settled stays settled.
#[test]
fn a_charge_that_was_settled_is_not_given_back_again() {
    let limiter = limiter();
    let handler = tower::service_fn(|request: Request<String>| {
        assert!(request.extensions().get::<Spent>().unwrap().settle(4));
        let response: Result<Response<String>, Infallible> =
            Problems.refuse(Refused::new(RefusalCause::Busy, "within"), None);
        std::future::ready(response)
    });
    let limit = RateLimitLayer::all("all", limiter.clone()).settling();
    assert_eq!(answer(&mut limit.layer(handler), get()).unwrap().status(), 503);
    assert_eq!(limiter.standing().remaining, 6);
}

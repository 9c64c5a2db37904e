use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use tidegate::clock::ManualClock;
use tidegate::concurrency::Vegas;
use tidegate::retries::Retrier;
use tidegate::{Bulkhead, Limiter, Quota, deadline};
use tidegate_tower::{
    ClientStack, ConcurrencyLayer, DeadlineLayer, FallbackLayer, RateLimitLayer, RetryLayer, ServerStack,
};
use tower_layer::Layer;

use crate::layers::service::{Finds, ScriptedService, answer, call, get, poll, status, with};

#[test]
fn layers_come_in_the_right_order_whatever_order_they_are_named_in() {
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let limiter = Limiter::new(Quota::per_minute(2)).unwrap().with_clock(ManualClock::default());
    let second = Duration::from_secs(1);
    let stack = ServerStack::new()
        .concurrency(ConcurrencyLayer::new("places", places.clone()))
        .rate_limit(RateLimitLayer::all("all", limiter.clone()))
        .deadline(DeadlineLayer::within(second, second).unwrap());
    let mut service = stack.layer(ScriptedService::default());

    let _permit = places.try_enter().unwrap();
    assert_eq!(answer(&mut service, with("grpc-timeout", "0n")).unwrap().status(), 504);
    assert_eq!(limiter.standing().remaining, 2, "a request whose time is up costs nothing");
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503);
    assert_eq!(limiter.standing().remaining, 2, "nor does one that finds no place");
    assert!(limiter.allow_n(2).unwrap().is_allowed());
    assert_eq!(answer(&mut service, get()).unwrap().status(), 429, "the rate limit stands before the places");
}

#[test]
fn a_self_tuning_stack_gives_each_request_its_time() {
    let finds = Finds(|| deadline::carried().is_some().to_string());
    let mut service = ServerStack::self_tuning("pages").layer(finds);
    assert_eq!(answer(&mut service, get()).unwrap().body(), "true");
    assert_eq!(answer(&mut service, with("grpc-timeout", "0n")).unwrap().status(), 504);
}

/// Calls that hang held every place that was idle for a moment, and in the end all.
#[test]
fn a_dependency_that_hangs_leaves_places_for_requests_that_do_not_need_it() {
    let dependency = |request: &Request<String>| request.body().clone();
    let stack = ServerStack::self_tuning("pages").by_dependency(dependency);
    let asks = |dependency: &str| Request::new(dependency.to_owned());
    let (mut hangs, mut answers) =
        (stack.layer(ScriptedService::hanging()), stack.layer(ScriptedService::default()));
    let mut hung: Vec<_> = (0..100).map(|_| Box::pin(call(&mut hangs, asks("index")))).collect();
    let pending = hung.iter_mut().map(|call| usize::from(poll(call.as_mut()).is_pending())).sum::<usize>();
    assert!(pending >= 10, "{pending}");
    for _ in 0..100 {
        assert_eq!(answer(&mut answers, asks("database")).unwrap().status(), 200);
    }
}

#[test]
fn a_client_falls_back_after_its_last_try() {
    let in_place = |_: Result<Response<String>, Infallible>| Ok(Response::new("in its place".to_owned()));
    let inner = ScriptedService::answering([status(503), status(503), status(503), status(503)]);
    let stack = ClientStack::new()
        .retry(RetryLayer::new(Retrier::default()))
        .concurrency(ConcurrencyLayer::new("calls", Bulkhead::new(1).unwrap()))
        .fallback(FallbackLayer::new(in_place));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut client = stack.layer(inner.clone());
    let answered = runtime.block_on(async { call(&mut client, get()).await.unwrap() });
    assert_eq!((answered.body().as_str(), inner.calls()), ("in its place", 3));
}

/// A call that waits for its turn at the rate limit is not in flight: it holds no place, and its wait is not the latency
/// of the service.
#[test]
fn a_client_takes_its_place_after_its_wait_for_the_rate_limit() {
    let clock = ManualClock::default();
    let places = Bulkhead::new(1).unwrap().with_room(0).with_clock(clock.clone());
    let limiter = Limiter::new(Quota::per_second(1).burst(1)).unwrap().with_clock(clock.clone());
    let inner = ScriptedService::default();
    let mut client = ClientStack::new()
        .concurrency(ConcurrencyLayer::new("places", places.clone()))
        .rate_limit(RateLimitLayer::all("rate", limiter).waiting(Duration::from_secs(2)))
        .layer(inner.clone());
    assert_eq!(answer(&mut client, get()).unwrap().status(), 200);
    let mut first = Box::pin(call(&mut client, get()));
    let mut second = Box::pin(call(&mut client, get()));
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    assert_eq!(places.standing().remaining, 1, "neither is in flight");
    clock.advance(Duration::from_secs(2));
    assert!(poll(first.as_mut()).is_ready() && poll(second.as_mut()).is_ready());
    assert_eq!((inner.calls(), places.standing().remaining), (3, 1));
}

/// The service answers at once, so only the wait for the rate limit takes time. It used to count as the latency of the
/// service, and a law lowered its limit for it.
#[test]
fn waits_for_the_rate_limit_do_not_lower_an_adaptive_limit() {
    let clock = ManualClock::default();
    let places = Bulkhead::adaptive(Vegas::default()).with_clock(clock.clone());
    let limiter = Limiter::new(Quota::per_second(200).burst(1)).unwrap().with_clock(clock.clone());
    let mut client = ClientStack::new()
        .concurrency(ConcurrencyLayer::new("places", places.clone()))
        .rate_limit(RateLimitLayer::all("rate", limiter).waiting(Duration::from_secs(2)))
        .layer(ScriptedService::default());
    let before = places.standing().limit;
    let mut calls: Vec<_> = (0..400).map(|_| Box::pin(call(&mut client, get()))).collect();
    for _ in 0..400 {
        calls.retain_mut(|call| poll(call.as_mut()).is_pending());
        clock.advance(Duration::from_millis(5));
    }
    assert!(calls.is_empty() && places.standing().limit >= before, "{before}: {:?}", places.standing());
}

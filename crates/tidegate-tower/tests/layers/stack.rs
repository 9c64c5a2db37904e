use std::convert::Infallible;
use std::time::Duration;

use http::Response;
use tidegate::retries::Retrier;
use tidegate::{Bulkhead, Limiter, ManualClock, Quota};
use tidegate_tower::{
    ClientStack, ConcurrencyLayer, DeadlineLayer, FallbackLayer, RateLimitLayer, RetryLayer, ServerStack,
};
use tower_layer::Layer;

use crate::service::{ScriptedService, answer, get, status, with};

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
    assert_eq!(answer(&mut service, get()).unwrap().status(), 503);
    assert_eq!(answer(&mut service, get()).unwrap().status(), 429, "the rate limit stands before the places");
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
    let answered = runtime.block_on(async { crate::service::call(&mut client, get()).await.unwrap() });
    assert_eq!((answered.body().as_str(), inner.calls()), ("in its place", 3));
}

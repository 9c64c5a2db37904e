//! Calls through the layers may be made in spawned tasks: their futures are `Send`, and the compiler can prove it.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use http::{Request, Response};
use tidegate::breaker::{CircuitBreaker, KeyedBreaker};
use tidegate::deadline::Timeouts;
use tidegate::policy::{Descriptor, PolicySet};
use tidegate::retries::{ArrivingRetries, Retrier, Verdict};
use tidegate::{Breaker, Bulkhead, Gate, Limiter, Outcome, Quota};
use tidegate_tower::body::ReplayLayer;
use tidegate_tower::{
    ArrivingRetriesLayer, BreakerLayer, ClientLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, Errors,
    FallbackLayer, ForwardDeadlineLayer, ForwardPriorityLayer, GateLayer, LoadShedLayer, PriorityLayer,
    RateLimitLayer, RetryLayer, ServerStack,
};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service, ServiceExt};

type Req = Request<String>;
type Res = Response<String>;

fn service() -> BoxCloneService<Req, Res, BoxError> {
    BoxCloneService::new(tower::service_fn(async |_: Req| Ok(Response::new(String::new()))))
}

/// Calls a service in a task of its own. Boxed errors are those with which a future is hardest to prove `Send`.
async fn spawned<S>(service: S)
where
    S: Service<Req, Response = Res, Error = BoxError, Future: Send> + Send + 'static,
{
    let call = async move { service.oneshot(Request::new(String::new())).await };
    assert!(tokio::spawn(call).await.unwrap().is_ok());
}

/// As [`spawned`], but the compiler sees the concrete type of the service where it proves that the call is `Send`.
macro_rules! spawn {
    ($service:expr) => {{
        let mut service = $service;
        let call = async move { service.ready().await?.call(Request::new(String::new())).await };
        assert!(tokio::spawn(call).await.unwrap().is_ok());
    }};
}

/// As programs write it. The compiler refused it: the service in the future of tower's `oneshot` has a closure in it, and in
/// the closure's type is a boxed error whose lifetime it had forgotten.
macro_rules! once {
    ($client:expr) => {{
        let client = $client;
        let call = async move { client.oneshot(Request::new(String::new())).await };
        assert!(tokio::spawn(call).await.unwrap().is_ok());
    }};
}

#[tokio::test]
async fn each_layer_around_a_closure_may_be_awaited_by_oneshot_in_a_task() {
    let http = || tower::service_fn(|_: Req| async { Ok::<_, BoxError>(Response::new(String::new())) });
    let second = std::time::Duration::from_secs(1);
    let timeouts = Timeouts::new(second, second).unwrap();
    let law = CircuitBreaker::builder;
    let judge = |result: &Result<Res, BoxError>| {
        Verdict::from(if result.is_ok() { Outcome::Success } else { Outcome::Failure })
    };
    let key = |request: &Req| request.uri().path().to_owned();
    let gate = Arc::new(Gate::in_memory(PolicySet::default(), 10).unwrap());
    let limiter = Limiter::new(Quota::per_second(10)).unwrap();
    once!(BreakerLayer::new("there", Breaker::new(law()).unwrap()).answering(Errors).layer(http()));
    once!(BreakerLayer::new("there", Breaker::new(law()).unwrap()).judging(judge).layer(http()));
    once!(BreakerLayer::each("hosts", KeyedBreaker::new(law(), 9).unwrap(), key).layer(http()));
    once!(ConcurrencyLayer::new("calls", Bulkhead::new(8).unwrap()).answering(Errors).layer(http()));
    once!(ConcurrencyLayer::self_tuning("calls").by_dependency(key).layer(http()));
    once!(RateLimitLayer::all("all", limiter.clone()).answering(Errors).layer(http()));
    once!(RateLimitLayer::all("all", limiter.clone()).waiting(second).layer(http()));
    once!(GateLayer::new(gate, |_: &Req| Descriptor::new()).layer(http()));
    once!(DeadlineLayer::new(timeouts).layer(http()));
    once!(ForwardDeadlineLayer::new(timeouts).layer(http()));
    once!(RetryLayer::new(Retrier::default()).layer(http()));
    once!(RetryLayer::new(Retrier::default()).judging(judge).layer(http()));
    once!(LoadShedLayer::new().answering(Errors).layer(http()));
    once!(FallbackLayer::new(|result: Result<Res, BoxError>| result).layer(http()));
    once!(FallbackLayer::each(key, |_, result: Result<Res, BoxError>| result).layer(http()));
    once!(PriorityLayer::default().layer(http()));
    once!(ForwardPriorityLayer::new().layer(http()));
    once!(ArrivingRetriesLayer::new(ArrivingRetries::default()).layer(http()));
    once!(ClientLayer.layer(http()));
    let replayed = tower::service_fn(|_: Request<tidegate_tower::body::ReplayBody<String>>| async {
        Ok::<_, BoxError>(Response::new(String::new()))
    });
    once!(ReplayLayer::up_to(100).layer(replayed));
}

#[tokio::test]
async fn each_stack_around_a_closure_may_be_awaited_by_oneshot_in_a_task_and_in_a_handler() {
    let http = || tower::service_fn(|_: Req| async { Ok::<_, BoxError>(Response::new("there".to_owned())) });
    let second = std::time::Duration::from_secs(1);
    let client = ClientStack::new()
        .fallback(FallbackLayer::new(|result: Result<Res, BoxError>| result))
        .priority(ForwardPriorityLayer::new())
        .retry(RetryLayer::new(Retrier::default()))
        .breaker(
            BreakerLayer::new("there", Breaker::new(CircuitBreaker::builder()).unwrap()).answering(Errors),
        )
        .concurrency(ConcurrencyLayer::new("calls", Bulkhead::new(8).unwrap()).answering(Errors))
        .rate_limit(
            RateLimitLayer::all("all", Limiter::new(Quota::per_second(10)).unwrap()).answering(Errors),
        )
        .deadline(ForwardDeadlineLayer::new(Timeouts::new(second, second).unwrap()))
        .layer(http());
    once!(client.clone());
    once!(ClientStack::new().layer(http()));
    once!(ServerStack::self_tuning("pages").layer(http()));
    once!(ServerStack::self_tuning("pages").priority(PriorityLayer::default()).layer(http()));
    once!(ServerStack::self_tuning("pages").by_dependency(|_: &Req| "there").layer(http()));

    let handler = get(move || {
        let client = client.clone();
        async move { client.oneshot(Request::new(String::new())).await.unwrap().into_body() }
    });
    let app: Router = Router::new().route("/", handler);
    let answer = app.oneshot(Request::new(axum::body::Body::empty())).await.unwrap();
    assert_eq!(axum::body::to_bytes(answer.into_body(), 100).await.unwrap(), "there");
}

#[tokio::test]
async fn every_layer_around_a_breaker_with_boxed_errors_may_be_called_in_a_task() {
    let breaker =
        || BreakerLayer::new("there", Breaker::new(CircuitBreaker::builder()).unwrap()).answering(Errors);
    let retry = || RetryLayer::new(Retrier::default());
    let places = || ConcurrencyLayer::new("calls", Bulkhead::new(8).unwrap()).answering(Errors);
    let limit = || RateLimitLayer::all("all", Limiter::new(Quota::per_second(10)).unwrap()).answering(Errors);
    let second = std::time::Duration::from_secs(1);
    let deadline = || ForwardDeadlineLayer::new(Timeouts::new(second, second).unwrap()).answering(Errors);
    spawn!(retry().layer(breaker().layer(service())));
    spawn!(places().layer(breaker().layer(service())));
    spawn!(limit().layer(breaker().layer(service())));
    spawn!(deadline().layer(breaker().layer(service())));
    spawn!(LoadShedLayer::new().answering(Errors).layer(breaker().layer(service())));
    spawn!(FallbackLayer::new(|result: Result<Res, BoxError>| result).layer(breaker().layer(service())));
    spawn!(breaker().layer(retry().layer(places().layer(limit().layer(deadline().layer(service()))))));
    let stack = ClientStack::new()
        .retry(retry())
        .breaker(breaker())
        .concurrency(places())
        .rate_limit(limit())
        .deadline(deadline());
    spawn!(stack.layer(service()));
    spawned(stack.layer(service())).await;
}

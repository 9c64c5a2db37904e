//! Calls through the layers may be made in spawned tasks: their futures are `Send`, and the compiler can prove it.

use http::{Request, Response};
use tidegate::breaker::CircuitBreaker;
use tidegate::deadline::Timeouts;
use tidegate::retries::Retrier;
use tidegate::{Breaker, Bulkhead, Limiter, Quota};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, Errors, FallbackLayer, ForwardDeadlineLayer, LoadShedLayer,
    RateLimitLayer, RetryLayer,
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

//! Load shedding, and the forms of refusals.

use std::convert::Infallible;
use std::task::{Context, Poll};

use http::{Request, Response};
use tidegate::breaker::CircuitBreaker;
use tidegate::{Breaker, Bulkhead};
use tidegate_tower::parameter::{Answers, OwnErrors};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, FallbackLayer, LoadShedLayer, Problems, RefusalCause,
    Refused,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{ScriptedService, answer, call, get, poll, status};

type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// A service that is ready every second time it is polled.
#[derive(Clone, Default)]
struct Flickers {
    asked: bool,
}

impl Service<Request<String>> for Flickers {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.asked = !self.asked;
        if self.asked { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        std::future::ready(Ok(Response::default()))
    }
}

#[test]
fn a_service_that_is_not_ready_is_not_waited_for() {
    let mut service = LoadShedLayer::new().layer(Flickers::default());
    let statuses = [(); 4].map(|()| answer(&mut service, get()).unwrap().status().as_u16());
    assert_eq!(statuses, [200, 503, 200, 503]);
    // tower's own layer panics here, or in the inner service, if a clone is called that was not polled.
    let mut clone = service.clone();
    let Poll::Ready(Ok(refused)) = poll(std::pin::pin!(clone.call(get()))) else { panic!("refused at once") };
    assert_eq!(refused.status(), 503);
}

#[test]
fn a_failure_is_answered_with_something_else_and_the_rest_is_not() {
    let in_place = |_: Result<Response<String>, Infallible>| Ok(Response::new("in its place".to_owned()));
    let inner = ScriptedService::answering([status(500), status(404), status(503), status(200)]);
    let mut service = FallbackLayer::new(in_place).layer(inner);
    let bodies = [(); 4].map(|()| answer(&mut service, get()).unwrap().into_body());
    assert_eq!(bodies, ["in its place", "", "in its place", ""]);
}

/// A name may contain anything; the problem stays JSON.
#[test]
fn a_name_is_escaped_in_a_problem() {
    let refused = Refused::new(RefusalCause::Open, "a\"b\\c\n");
    let problem: Result<Response<String>, Infallible> = Problems.refuse(refused, None);
    let body = problem.unwrap().into_body();
    assert!(body.contains(r#""detail":"layer \"a\\\"b\\\\c\\n\": the breaker is open","retry""#), "{body}");
}

/// An error type of a program, which holds refusals as one of its cases.
#[derive(Debug, thiserror::Error)]
enum Own {
    #[error("not asked")]
    NotAsked(#[from] Refused),
    #[error("asked in vain")]
    Failed(#[source] Boxed),
}

/// A refusal by a full queue is returned in the program's own error type. The breaker outside used to take it for a
/// failure of the service.
#[test]
fn a_refusal_in_an_error_of_the_program_says_nothing_of_the_service() {
    let inner =
        tower::service_fn(async |_: Request<String>| Err::<Response<String>, _>(Own::Failed("gone".into())));
    let places = Bulkhead::new(1).unwrap().with_room(0);
    let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
    let mut client = ClientStack::new()
        .breaker(BreakerLayer::new("there", breaker.clone()).answering(OwnErrors))
        .concurrency(ConcurrencyLayer::new("places", places.clone()).answering(OwnErrors))
        .layer(inner);
    let permit = places.try_enter().unwrap();
    let Err(Own::NotAsked(refused)) = answer(&mut client, get()) else { panic!("the places are taken") };
    assert_eq!(
        (refused.cause, breaker.state().as_str()),
        (RefusalCause::Concurrency(tidegate::bulkhead::NoPlace::Full), "closed")
    );
    drop(permit);
    assert!(matches!(answer(&mut client, get()), Err(Own::Failed(_))));
    assert_eq!(breaker.state().as_str(), "open", "a failure of the service counts");

    let deeper: Boxed =
        Box::new(Own::Failed(Box::new(Own::NotAsked(Refused::new(RefusalCause::Busy, "there")))));
    assert_eq!(Refused::of_error(&deeper).map(|refused| refused.cause), Some(RefusalCause::Busy));
    assert_eq!(Refused::of_error(&Own::Failed("gone".into())), None);
}

#[cfg(feature = "grpc")]
#[test]
fn grpc_callers_get_a_status_with_details() {
    use std::time::Duration;

    use tidegate::clock::ManualClock;
    use tidegate::{Limiter, Quota};
    use tidegate_tower::{GrpcStatuses, RateLimitLayer};
    use tonic_types::StatusExt;

    let limiter = Limiter::new(Quota::per_minute(1)).unwrap().with_clock(ManualClock::default());
    let layer = RateLimitLayer::all("per-client", limiter).answering(GrpcStatuses);
    let mut service = layer.layer(ScriptedService::default());
    answer(&mut service, get()).unwrap();
    let refused = answer(&mut service, get()).unwrap();
    assert_eq!(refused.status(), 200);
    let status = tonic::Status::from_header_map(refused.headers()).expect("a gRPC status");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let details = status.get_error_details();
    assert_eq!(details.retry_info().and_then(|info| info.retry_delay), Some(Duration::from_secs(60)));
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "per-client");
}

#[test]
fn a_call_that_is_dropped_drops_the_one_within() {
    let mut service = LoadShedLayer::new().layer(ScriptedService::hanging());
    let mut called = Box::pin(call(&mut service, get()));
    assert!(poll(called.as_mut()).is_pending());
}

/// A cost that the limit can never grant: gRPC clients used to try such a call again, since no wait was told.
#[cfg(feature = "grpc")]
#[test]
fn a_refusal_that_no_retry_can_change_tells_grpc_clients_not_to_retry() {
    use tidegate::clock::ManualClock;
    use tidegate::retries::Retrier;
    use tidegate::{Cost, Limiter, Quota};
    use tidegate_tower::{GrpcStatuses, RateLimitLayer, RetryLayer};

    let limiter = Limiter::new(Quota::per_minute(5)).unwrap().with_clock(ManualClock::default());
    let layer = RateLimitLayer::all("all", limiter)
        .costing(|_: &Request<String>| Cost::new(6).unwrap())
        .answering(GrpcStatuses);
    let refused = answer(&mut layer.layer(ScriptedService::default()), get()).unwrap();
    assert_eq!(refused.headers()["grpc-status"], "8");
    assert_eq!(refused.headers()["grpc-retry-pushback-ms"], "-1");

    // As it comes over the wire: without the extension by which a layer in this process would know it.
    let (mut head, body) = refused.into_parts();
    head.extensions.clear();
    let service = ScriptedService::answering([Response::from_parts(head, body)]);
    let retry = RetryLayer::new(Retrier::default());
    answer(&mut retry.layer(service.clone()), get()).unwrap();
    assert_eq!(service.calls(), 1);
}

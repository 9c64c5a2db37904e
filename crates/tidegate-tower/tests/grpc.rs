//! A real tonic server and client, connected by a socket.

#![cfg(feature = "grpc")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate::breaker::CircuitBreaker;
use tidegate::bulkhead::Enter;
use tidegate::clock::{Clock, SystemClock};
use tidegate::deadline::{self, Timeouts};
use tidegate::priority::{Criticality, Priority};
use tidegate::retries::Retrier;
use tidegate::{Breaker, Bulkhead, KeyedLimiter, Quota, priority};
use tidegate_tower::body::{ReplayBody, ReplayLayer};
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, ForwardDeadlineLayer, ForwardPriorityLayer,
    GrpcStatuses, PriorityLayer, RateLimitLayer, RetryLayer, ServerStack,
};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower_layer::Layer;
use tower_service::Service;

const PATIENCE: Duration = Duration::from_secs(10);

/// The priorities that calls of a server carried, in order.
type Carried = Arc<Mutex<Vec<Option<Priority>>>>;

/// Starts a server that allows each caller two calls a day.
async fn serve() -> Channel {
    serve_and_note(Carried::default()).await
}

/// Same as [`serve`], and records the priority that each call carries.
async fn serve_and_note(carried: Carried) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A quota that gives no units back while the test runs.
    let limiter = KeyedLimiter::new(Quota::per_day(2), 1000).unwrap();
    let key = |request: &Request<Body>| request.headers().get("x-user").map(|key| key.as_bytes().to_vec());
    let places = Bulkhead::new(8).unwrap();
    let entering = move |entry: Enter, _: &Request<Body>| {
        carried.lock().unwrap().push(priority::carried());
        entry
    };
    let stack = ServerStack::new()
        .priority(PriorityLayer::default())
        .deadline(DeadlineLayer::within(PATIENCE, PATIENCE).unwrap().answering(GrpcStatuses))
        .rate_limit(RateLimitLayer::each_key_read("per-user", limiter, key).answering(GrpcStatuses))
        .concurrency(ConcurrencyLayer::new("places", places).entering(entering).answering(GrpcStatuses));
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(stack).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn ask(user: &'static str) -> tonic::Request<HealthCheckRequest> {
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("x-user", user.parse().unwrap());
    request
}

#[tokio::test]
async fn a_caller_over_its_limit_gets_a_status_with_details() {
    let mut client = HealthClient::new(serve().await);
    for _ in 0..2 {
        client.check(ask("ann")).await.unwrap();
    }
    let status = client.check(ask("ann")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let details = status.get_error_details();
    assert!(details.retry_info().and_then(|info| info.retry_delay).is_some_and(|wait| !wait.is_zero()));
    let pushback: u64 =
        status.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    let wait = details.retry_info().unwrap().retry_delay.unwrap();
    assert_eq!(u128::from(pushback), wait.as_nanos().div_ceil(1_000_000), "for clients that retry");
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, "per-user");
    client.check(ask("bob")).await.unwrap();

    let mut hurried = ask("eve");
    hurried.set_timeout(Duration::from_nanos(0));
    let status = client.check(hurried).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
}

#[tokio::test]
async fn a_call_without_the_key_of_a_limit_gets_invalid_argument() {
    let mut client = HealthClient::new(serve().await);
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "per-user: the request lacks what the limit counts it by");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
    client.check(ask("ann")).await.unwrap();
}

#[tokio::test]
async fn a_client_leaves_a_service_alone_that_refuses_and_says_so_in_grpcs_words() {
    let breaker = Breaker::new(CircuitBreaker::builder().consecutive(2)).unwrap();
    let stack = ClientStack::new()
        .breaker(BreakerLayer::new("health", breaker.clone()).answering(GrpcStatuses))
        .concurrency(ConcurrencyLayer::new("calls", Bulkhead::new(8).unwrap()).answering(GrpcStatuses))
        .deadline(
            ForwardDeadlineLayer::new(Timeouts::new(PATIENCE, PATIENCE).unwrap()).answering(GrpcStatuses),
        );
    let mut client = HealthClient::new(stack.layer(serve().await));
    for _ in 0..2 {
        client.check(ask("ann")).await.unwrap();
    }
    for _ in 0..2 {
        assert_eq!(client.check(ask("ann")).await.unwrap_err().code(), Code::ResourceExhausted);
    }
    assert_eq!(breaker.state().as_str(), "open");
    let status = client.check(ask("ann")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let message = status.message();
    assert!(message.starts_with("health: the breaker is open; try again in "), "{message}");
    assert!(status.get_error_details().retry_info().is_some());
}

/// A channel of tonic ends a call by the time that it tells the service, earlier than the layer by the margin.
#[tokio::test]
async fn a_hurried_caller_opens_no_breaker_by_the_timers_of_the_channel() {
    // Accepts connections and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let silent = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    let channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect_lazy();
    let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
    let timeouts = Timeouts::new(PATIENCE, PATIENCE).unwrap().with_margin(Duration::from_millis(60)).unwrap();
    let stack = ClientStack::new()
        .breaker(BreakerLayer::new("silent", breaker.clone()).answering(GrpcStatuses))
        .deadline(ForwardDeadlineLayer::new(timeouts).answering(GrpcStatuses));
    let mut client = HealthClient::new(stack.layer(channel));
    let soon = SystemClock::default().now().after(Duration::from_millis(120));
    let status = deadline::carry_through(soon, client.check(ask("ann"))).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert_eq!(breaker.state().as_str(), "closed", "little time was left, so the call is no evidence");
    silent.abort();
}

/// The service itself notices that the short time is up, and says so, before the layer or the channel gives up.
#[tokio::test]
async fn a_hurried_caller_opens_no_breaker_by_what_the_service_says() {
    let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1)).unwrap();
    let second = Duration::from_secs(1);
    let stack = ClientStack::new()
        .breaker(BreakerLayer::new("health", breaker.clone()).answering(GrpcStatuses))
        .deadline(
            ForwardDeadlineLayer::new(Timeouts::new(PATIENCE, PATIENCE).unwrap()).answering(GrpcStatuses),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let deadline = DeadlineLayer::within(PATIENCE, PATIENCE).unwrap().answering(GrpcStatuses);
    let stack_of_server = ServerStack::new().deadline(deadline.needing(3 * second).unwrap());
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(stack_of_server).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(stack.layer(channel));
    // More than the service needs, and less than half of the default; then less than it needs.
    for (time, code) in [(4, Code::Ok), (2, Code::DeadlineExceeded)] {
        let until = SystemClock::default().now().after(time * second);
        let called = deadline::carry_through(until, client.check(ask("ann"))).await;
        assert_eq!(called.map_or_else(|status| status.code(), |_| Code::Ok), code);
    }
    assert_eq!(breaker.state().as_str(), "closed", "little time was left, so the call is no evidence");
}

/// Answers first tries with `UNAVAILABLE`.
#[derive(Clone)]
struct RefusesFirstTries<S>(S);

impl<S> Service<Request<Body>> for RefusesFirstTries<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Future: Send + 'static>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.headers().contains_key("grpc-previous-rpc-attempts") {
            return Box::pin(self.0.call(request));
        }
        Box::pin(async { Ok(Status::unavailable("warming up").into_http()) })
    }
}

/// The body of a generated client cannot be cloned, and a retry needs it again.
#[tokio::test]
async fn a_generated_client_retries_through_a_replay_layer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(tower::layer::layer_fn(RefusesFirstTries)).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect_lazy();
    let client = |kept| {
        let channel = tower::ServiceBuilder::new()
            .layer(ReplayLayer::up_to(kept))
            .layer(ClientStack::new().retry(RetryLayer::new(Retrier::default()).all_methods()))
            .map_request(|request: Request<ReplayBody<Body>>| request.map(Body::new))
            .service(channel.clone());
        HealthClient::new(channel)
    };
    client(1000).check(ask("ann")).await.unwrap();
    let mut named = ask("ann");
    named.get_mut().service = "x".repeat(2000);
    let status = client(1000).check(named).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "warming up"), "too long to keep");
}

/// A priority is metadata of a call, written by the client's layer and read by the server's.
#[tokio::test]
async fn a_priority_travels_as_metadata() {
    let carried = Carried::default();
    let stack = ClientStack::new().priority(ForwardPriorityLayer::new());
    let mut client = HealthClient::new(stack.layer(serve_and_note(Arc::clone(&carried)).await));
    let report = Priority::of(Criticality::Sheddable).in_cohort(17).unwrap();
    priority::carry_through(report, client.check(ask("ann"))).await.unwrap();
    priority::carry_through(Criticality::CriticalPlus, client.check(ask("ann"))).await.unwrap();
    let mut named = ask("bob");
    named.metadata_mut().insert("x-tidegate-priority", "sheddable-plus".parse().unwrap());
    client.check(named).await.unwrap();
    let critical = Priority::default();
    let of = [report, critical, Priority::of(Criticality::SheddablePlus)].map(Some);
    assert_eq!(*carried.lock().unwrap(), of, "no more than the server's ceiling");
}

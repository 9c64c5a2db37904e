//! The service, and its dependency.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::TokioClock;
use tidegate::deadline::Timeouts;
use tidegate::retries::{Retrier, SharedBudget};
use tidegate::{Breaker, Bulkhead};
use tidegate_core::retry::Retries;
use tidegate_core::retry_budget::RetryBudget;
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, FallbackLayer, ForwardDeadlineLayer,
    Problems, RetryLayer, ServerStack,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use tower_layer::Layer;

/// How long a user waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// When the dependency slows, fails and recovers, in seconds from the start; and when the run ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    pub(crate) slows: u64,
    pub(crate) fails: u64,
    pub(crate) recovers: u64,
    pub(crate) ends: u64,
}

impl Phases {
    #[allow(dead_code, reason = "the test runs the short form")]
    pub(crate) const fn long() -> Self {
        Self { slows: 10, fails: 25, recovers: 40, ends: 70 }
    }

    #[allow(dead_code, reason = "the example runs the long form")]
    pub(crate) const fn short() -> Self {
        Self { slows: 5, fails: 12, recovers: 18, ends: 40 }
    }
}

/// A store with ten workers. It finishes work that it has begun, even if no caller waits for it any more.
#[derive(Clone, Debug)]
struct Dependency {
    workers: Arc<Semaphore>,
    start: Instant,
    phases: Phases,
}

impl Dependency {
    async fn answer(self) -> Response<String> {
        let Ok(_worker) = self.workers.acquire().await else { return said(StatusCode::SERVICE_UNAVAILABLE) };
        let Phases { slows, fails, recovers, .. } = self.phases;
        let second = self.start.elapsed().as_secs();
        let (takes, status) = match second {
            _ if second < slows || second >= recovers => (20, StatusCode::OK),
            _ if second < fails => (2000, StatusCode::OK),
            _ => (50, StatusCode::INTERNAL_SERVER_ERROR),
        };
        sleep(Duration::from_millis(takes)).await;
        said(status)
    }
}

fn said(status: StatusCode) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = status;
    response
}

type Client = BoxCloneSyncService<Request<String>, Response<String>, Infallible>;

/// Calls the client, and marks the answers of its stand-in.
async fn handler(State(client): State<Client>) -> Response<String> {
    match client.oneshot(Request::new(String::new())).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Makes the service, and returns its breaker if it is protected.
pub(crate) fn make(phases: Phases, protected: bool, start: Instant) -> (Router, Option<Breaker>) {
    let dependency = Dependency { workers: Arc::new(Semaphore::new(10)), start, phases };
    let calls = tower::service_fn(move |_: Request<String>| {
        // On a task of its own: the dependency does not notice that a caller has gone.
        let work = tokio::spawn(dependency.clone().answer());
        async { Ok::<_, Infallible>(work.await.unwrap_or_else(|_| said(StatusCode::INTERNAL_SERVER_ERROR))) }
    });
    let routes = |client: Client| Router::new().route("/", get(handler)).with_state(client);
    if !protected {
        return (routes(Client::new(calls)), None);
    }
    let (client, breaker) = protect(calls);
    let clock = TokioClock::new();
    let places = Bulkhead::new(100).unwrap().with_room(100).with_clock(clock);
    let stack = ServerStack::new()
        .deadline(DeadlineLayer::within(PATIENCE, PATIENCE).unwrap().with_clock(clock))
        .concurrency(ConcurrencyLayer::new("requests", places));
    (routes(client).layer(stack), Some(breaker))
}

/// Puts the layers around a client of the dependency.
fn protect<S>(calls: S) -> (Client, Breaker)
where
    S: Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>,
    S: Clone + Send + Sync + 'static,
{
    let clock = TokioClock::new();
    let law = CircuitBreaker::builder().jitter(0.0).forget_after(Duration::from_secs(600));
    let breaker = Breaker::new(law).unwrap().with_clock(clock);
    let budget = SharedBudget::with_clock(RetryBudget::new(0.1).unwrap(), clock);
    let rules = Retries::new(2, Duration::from_millis(20), Duration::from_millis(100)).unwrap();
    let timeouts = Timeouts::new(PATIENCE / 2, PATIENCE / 2).unwrap();
    let stand_in = |_: Result<Response<String>, Infallible>| {
        let mut answer = said(StatusCode::OK);
        answer.headers_mut().insert("x-stand-in", http::HeaderValue::from_static("1"));
        Ok(answer)
    };
    let stack = ClientStack::new()
        .fallback(FallbackLayer::new(stand_in))
        .retry(RetryLayer::new(Retrier::new(rules, budget)))
        .breaker(BreakerLayer::new("store", breaker.clone()))
        .concurrency(ConcurrencyLayer::new(
            "calls",
            Bulkhead::new(20).unwrap().with_room(0).with_clock(clock),
        ))
        .deadline(ForwardDeadlineLayer::new(timeouts).with_clock(clock).answering(Problems));
    (Client::new(stack.layer(calls)), breaker)
}

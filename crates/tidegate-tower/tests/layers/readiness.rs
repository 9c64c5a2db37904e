//! Readiness: resources that tower's own layers reserve when they are polled are never lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tidegate::breaker::{CircuitBreaker, Force};
use tidegate::clock::ManualClock;
use tidegate::{Breaker, Bulkhead, Limiter, Quota};
use tidegate_tower::{
    BreakerLayer, ConcurrencyLayer, DeadlineLayer, FallbackLayer, GateLayer, LoadShedLayer, RateLimitLayer,
    RetryLayer,
};
use tower::limit::ConcurrencyLimitLayer;
use tower_layer::Layer;
use tower_service::Service;

use crate::layers::service::{ScriptedService, answer, call, get, poll, with};

fn ready<S: Service<Request<String>>>(service: &mut S) -> bool {
    service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// tower's `ConcurrencyLimit` takes its place when it is polled. If it is polled, and then not called because a layer
/// outside refuses, it would keep the place as long as the connection lives.
#[test]
fn a_refusal_gives_back_the_place_that_a_service_within_had_set_aside() {
    let one = Arc::new(tokio::sync::Semaphore::new(1));
    let within = || {
        tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&one))
            .layer(ScriptedService::default())
    };
    let limiter = Limiter::new(Quota::per_minute(1)).unwrap().with_clock(ManualClock::default());
    assert!(limiter.allow().is_allowed());
    let full = Bulkhead::new(1).unwrap().with_room(0);
    let _permit = full.try_enter().unwrap();
    let open = Breaker::new(CircuitBreaker::builder()).unwrap();
    open.force(Force::Open, None, "a test");
    let second = std::time::Duration::from_secs(1);

    macro_rules! refuses {
        ($layer:expr) => {{
            let mut service = $layer.layer(within());
            assert!(ready(&mut service));
            assert_eq!(one.available_permits(), 0, "asked, it has taken the place");
            let Poll::Ready(Ok(refused)) = poll(std::pin::pin!(service.call(with("grpc-timeout", "0n"))))
            else {
                panic!("refused at once")
            };
            assert!(!refused.status().is_success());
            assert_eq!(one.available_permits(), 1, "{}", stringify!($layer));
            drop(service);
        }};
    }
    refuses!(RateLimitLayer::all("all", limiter.clone()));
    refuses!(ConcurrencyLayer::new("places", full.clone()));
    refuses!(BreakerLayer::new("open", open.clone()));
    refuses!(DeadlineLayer::within(second, second).unwrap());
}

#[test]
fn whoever_waits_in_line_holds_nothing_of_the_service_within() {
    let one = Arc::new(tokio::sync::Semaphore::new(1));
    let within = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&one));
    let places = Bulkhead::new(1).unwrap();
    let permit = places.try_enter().unwrap();
    let mut service =
        ConcurrencyLayer::new("places", places.clone()).layer(within.layer(ScriptedService::default()));
    let mut waits = Box::pin(call(&mut service, get()));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(one.available_permits(), 1);
    drop(permit);
    let other = one.try_acquire().unwrap();
    assert!(poll(waits.as_mut()).is_pending(), "its turn has come, and the service is not ready");
    assert_eq!(places.standing().remaining, 0);
    drop(other);
    assert!(poll(waits.as_mut()).is_ready());
    drop(waits);
    assert_eq!((places.standing().remaining, one.available_permits()), (1, 1));
}

#[test]
fn whoever_goes_when_its_time_has_come_and_the_service_is_not_ready_has_spent_nothing() {
    let one = Arc::new(tokio::sync::Semaphore::new(1));
    let within = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&one));
    let clock = ManualClock::default();
    let limiter = Limiter::new(Quota::per_second(1).burst(1)).unwrap().with_clock(clock.clone());
    assert!(limiter.allow().is_allowed());
    let second = std::time::Duration::from_secs(1);
    let mut service = RateLimitLayer::all("all", limiter.clone())
        .waiting(second)
        .layer(within.layer(ScriptedService::default()));
    let mut held = Box::pin(call(&mut service, get()));
    assert!(poll(held.as_mut()).is_pending());
    let _other = one.try_acquire().unwrap();
    clock.advance(second);
    assert!(poll(held.as_mut()).is_pending(), "the service is not ready");
    drop(held);
    assert_eq!(limiter.standing().remaining, 1);
}

/// A service that may be called only after it was polled, as tower's contract allows, and whose clones are not ready.
#[derive(Debug, Default)]
struct Strict {
    was_asked: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { was_asked: false, calls: Arc::clone(&self.calls) }
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.was_asked = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.was_asked), "called without being asked");
        self.calls.fetch_add(1, Ordering::Relaxed);
        let status = if self.calls.load(Ordering::Relaxed) % 3 == 1 { 503 } else { 200 };
        std::future::ready(Ok(crate::layers::service::status(status)))
    }
}

#[test]
fn no_layer_calls_a_service_that_was_not_asked() {
    let second = std::time::Duration::from_secs(1);
    macro_rules! calls {
        ($layer:expr) => {{
            let layer = $layer;
            let mut service = layer.layer(Strict::default());
            for _ in 0..4 {
                answer(&mut service, get()).unwrap();
            }
            // Polled twice, and a clone of a polled one.
            assert!(ready(&mut service) && ready(&mut service));
            let mut clone = service.clone();
            answer(&mut clone, get()).unwrap();
            answer(&mut service, get()).unwrap();
        }};
    }
    calls!(RateLimitLayer::all("all", Limiter::new(Quota::per_second(1000)).unwrap()));
    calls!(ConcurrencyLayer::new("places", Bulkhead::new(1).unwrap()));
    calls!(BreakerLayer::new("calls", Breaker::new(CircuitBreaker::builder()).unwrap()));
    calls!(DeadlineLayer::within(second, second).unwrap());
    calls!(LoadShedLayer::new());
    calls!(FallbackLayer::new(|result| result));
    let path = |request: &Request<String>| request.uri().path().to_owned();
    calls!(FallbackLayer::each(path, |_, result| result));
    let answers = tidegate::breaker::fallback::LastAnswers::new(10, second).unwrap();
    calls!(FallbackLayer::last(answers, path, Response::<String>::new));
    let gate = tidegate::Gate::in_memory(tidegate::policy::PolicySet::default(), 10).unwrap();
    calls!(GateLayer::new(Arc::new(gate), |_: &Request<String>| tidegate::policy::Descriptor::new()));
    let retries = tidegate_core::retry::Retries::new(3, Default::default(), Default::default()).unwrap();
    let retrier = tidegate::retries::Retrier::new(retries, tidegate::retries::SharedBudget::default());
    calls!(RetryLayer::new(retrier));
}

/// tower's rate limit is not ready when it is spent, and its load shedding calls it all the same if it was ready
/// before. Its concurrency layers lose their place if the future is dropped unpolled in some orders. Here a place
/// depends on the future alone.
#[test]
fn places_follow_futures_and_not_readiness() {
    let places = Bulkhead::new(2).unwrap().with_room(0);
    let layer = ConcurrencyLayer::new("places", places.clone());
    let mut service = layer.layer(ConcurrencyLimitLayer::new(10).layer(ScriptedService::hanging()));
    for _ in 0..100 {
        assert!(ready(&mut service));
    }
    assert_eq!(places.standing().remaining, 2);
    let one = call(&mut service, get());
    let mut two = Box::pin(call(&mut service, get()));
    assert_eq!(places.standing().remaining, 0);
    drop(one);
    assert_eq!(places.standing().remaining, 1, "never polled, and given back");
    assert!(poll(two.as_mut()).is_pending());
    drop(two);
    assert_eq!(places.standing().remaining, 2);
}

/// The queue of tower's `ConcurrencyLimit` hands a free place to the first in it. A connection whose request had been
/// shed used to stay in the queue: the place was lost to all others as long as no request came over that connection.
#[test]
fn a_request_that_is_shed_stands_in_no_line_of_the_service_within() {
    let one = Arc::new(tokio::sync::Semaphore::new(1));
    let within = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&one));
    let mut idle = LoadShedLayer::new().layer(within.layer(ScriptedService::default()));
    let busy = one.try_acquire().unwrap();
    assert_eq!(answer(&mut idle, get()).unwrap().status(), 503);
    drop(busy);
    let mut other = LoadShedLayer::new().layer(within.layer(ScriptedService::default()));
    assert_eq!(answer(&mut other, get()).unwrap().status(), 200);
    assert_eq!(answer(&mut idle, get()).unwrap().status(), 200);
}

/// The same in the queue before tower's `Buffer`, whose slots circulate as its worker takes requests out.
#[test]
fn a_request_that_is_shed_takes_no_slot_of_a_buffer() {
    let (buffer, worker) = tower::buffer::Buffer::pair(ScriptedService::default(), 1);
    let mut worker = std::pin::pin!(worker);
    let layer = LoadShedLayer::new();
    let mut first = layer.layer(buffer.clone());
    let mut idle = layer.layer(buffer.clone());
    let mut other = layer.layer(buffer.clone());
    let mut sent = Box::pin(call(&mut first, get()));
    assert!(poll(sent.as_mut()).is_pending(), "it lies in the only slot");
    let shed = poll(std::pin::pin!(call(&mut idle, get())));
    assert!(matches!(shed, Poll::Ready(Ok(refused)) if refused.status() == 503));
    assert!(poll(worker.as_mut()).is_pending());
    assert!(poll(sent.as_mut()).is_ready(), "the worker has taken it out");
    let mut called = Box::pin(call(&mut other, get()));
    assert!(poll(called.as_mut()).is_pending(), "it is in the slot, and not refused");
    assert!(poll(worker.as_mut()).is_pending());
    assert!(matches!(poll(called.as_mut()), Poll::Ready(Ok(response)) if response.status() == 200));
}

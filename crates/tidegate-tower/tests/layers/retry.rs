use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use tidegate::clock::ManualClock;
use tidegate::observer::{LayerDid, LayerEvent, Observer};
use tidegate::retries::{ArrivingRetries, Retrier, SharedBudget};
use tidegate_core::retry::Retries;
use tidegate_core::retry_budget::RetryBudget;
use tidegate_tower::{ArrivingRetriesLayer, RetryLayer};
use tower_layer::Layer;

use crate::layers::service::{ScriptedService, answer, get, status, with};

fn layer(share: f64) -> RetryLayer {
    let budget =
        SharedBudget::with_clock(RetryBudget::new(share).unwrap().without_floor(), ManualClock::default());
    RetryLayer::new(Retrier::new(Retries::new(3, Duration::ZERO, Duration::ZERO).unwrap(), budget))
}

#[test]
fn what_may_succeed_is_tried_again() {
    for (first, calls, last) in [(503, 2, 200), (500, 2, 200), (404, 1, 404), (429, 2, 200)] {
        let inner = ScriptedService::answering([status(first)]);
        let last_status = answer(&mut layer(1.0).layer(inner.clone()), get()).unwrap().status();
        assert_eq!((inner.calls(), last_status.as_u16()), (calls, last), "{first}");
    }
}

#[test]
fn what_may_not_be_done_twice_is_not() {
    let post = || Request::builder().method(Method::POST).body(String::new()).unwrap();
    let inner = ScriptedService::answering([status(503), status(503)]);
    assert_eq!(answer(&mut layer(1.0).layer(inner.clone()), post()).unwrap().status(), 503);
    assert_eq!(inner.calls(), 1);
    let again = answer(&mut layer(1.0).all_methods().layer(inner.clone()), post()).unwrap();
    assert_eq!((inner.calls(), again.status().as_u16()), (3, 200));
}

#[test]
fn a_service_that_says_not_to_is_not_asked_again() {
    let mut refused = status(503);
    refused.headers_mut().insert("grpc-retry-pushback-ms", "-1".parse().unwrap());
    let inner = ScriptedService::answering([refused]);
    assert_eq!(answer(&mut layer(1.0).layer(inner.clone()), get()).unwrap().status(), 503);
    assert_eq!(inner.calls(), 1);
}

#[test]
fn retries_say_how_often_a_request_was_tried_before() {
    let inner = ScriptedService::answering([status(200), status(503), status(503)]);
    let mut client = layer(1.0).layer(inner.clone());
    answer(&mut client, get()).unwrap();
    assert!(inner.last().headers().is_empty(), "a first try says nothing");
    // The budget now holds two retries.
    answer(&mut client, with("x-envoy-attempt-count", "9")).unwrap();
    assert_eq!((inner.calls(), &inner.last().headers()["x-envoy-attempt-count"]), (4, &"3".parse().unwrap()));
    let inner = ScriptedService::answering([status(503)]);
    answer(&mut layer(1.0).layer(inner.clone()), with("content-type", "application/grpc+proto")).unwrap();
    let last = inner.last();
    assert_eq!(last.headers()["grpc-previous-rpc-attempts"], "1");
    assert!(!last.headers().contains_key("x-envoy-attempt-count"));
}

/// With three tries per call and no budget, a service that is down would get three times the load at the worst moment.
#[test]
fn all_clones_share_the_budget() {
    let inner = ScriptedService::answering((0..1000).map(|_| status(503)));
    let layer = layer(0.1);
    for _ in 0..200 {
        answer(&mut layer.clone().layer(inner.clone()), with("x", "y")).unwrap();
    }
    assert_eq!(inner.calls(), 220);
}

#[derive(Debug, Default)]
struct Told(Mutex<Vec<(String, LayerDid)>>);

impl Observer for Told {
    fn on_layer(&self, event: &LayerEvent<'_>) {
        self.0.lock().unwrap().push((event.layer.to_owned(), event.did));
    }
}

/// Nobody could see that a server sent its callers away for good.
#[test]
fn an_observer_hears_that_callers_are_told_not_to_try_again() {
    let rules = RetryBudget::new(1.0).unwrap().without_floor();
    let arriving = ArrivingRetries::with_clock(rules, ManualClock::default());
    let told = Arc::new(Told::default());
    let inner = ScriptedService::answering([status(503), status(503), status(500)]);
    let layer = ArrivingRetriesLayer::new(arriving).with_observer(told.clone()).named("orders");
    let mut server = layer.layer(inner);
    let retry = || with("x-envoy-attempt-count", "2");
    let again =
        [get(), retry(), retry()].map(|request| answer(&mut server, request).unwrap().headers().len());
    assert_eq!(again, [0, 1, 0]);
    assert_eq!(*told.0.lock().unwrap(), [("orders".to_owned(), LayerDid::ToldNotToRetry)]);
}

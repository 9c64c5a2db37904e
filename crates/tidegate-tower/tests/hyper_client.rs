//! A real client of hyper behind the layers, and a server of axum that fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::breaker::CircuitBreaker;
use tidegate::deadline::Timeouts;
use tidegate::retries::{Retrier, SharedBudget};
use tidegate::{Breaker, Bulkhead};
use tidegate_core::retry::Retries;
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, Errors, ForwardDeadlineLayer, RefusalCause, Refused,
    RetryLayer,
};
use tokio::net::TcpListener;
use tower::{Service, ServiceExt};
use tower_layer::Layer;

type Boxed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::test]
async fn a_client_of_hyper_tries_again_and_then_leaves_the_service_alone() {
    let calls = Arc::new(AtomicU32::new(0));
    let (seen, patience) = (Arc::clone(&calls), Duration::from_secs(10));
    // Fails but for its second call.
    let handler = get(async move |headers: HeaderMap| {
        assert!(headers.contains_key("x-envoy-expected-rq-timeout-ms"), "it is told how much time is left");
        match seen.fetch_add(1, Ordering::Relaxed) {
            1 => StatusCode::OK,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", handler);
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let hyper = Client::builder(TokioExecutor::new()).build_http::<String>().map_err(Boxed::from);
    let rules = Retries::new(2, Duration::ZERO, Duration::ZERO).unwrap();
    let law = CircuitBreaker::builder().consecutive(4);
    let stack = ClientStack::new()
        .retry(RetryLayer::new(Retrier::new(rules, SharedBudget::default())))
        .breaker(BreakerLayer::new("there", Breaker::new(law).unwrap()).answering(Errors))
        .concurrency(ConcurrencyLayer::new("calls", Bulkhead::new(8).unwrap()).answering(Errors))
        .deadline(ForwardDeadlineLayer::new(Timeouts::new(patience, patience).unwrap()));
    let mut client = stack.layer(hyper);
    let mut ask = async || {
        let request = Request::get(&uri).body(String::new()).unwrap();
        let response = client.ready().await?.call(request).await?;
        Ok::<_, Boxed>(response.status().as_u16())
    };
    assert_eq!((ask().await.unwrap(), calls.load(Ordering::Relaxed)), (200, 2), "tried again");
    assert_eq!((ask().await.unwrap(), ask().await.unwrap()), (500, 500));
    let error = ask().await.unwrap_err();
    let refused = error.downcast_ref::<Refused>().unwrap();
    assert_eq!((refused.cause, calls.load(Ordering::Relaxed)), (RefusalCause::Open, 6), "{refused}");
    serving.abort();
}

//! A real axum server, called over its socket.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::clock::ManualClock;
use tidegate::retries::{ArrivingRetries, RetryBudget};
use tidegate::{Bulkhead, KeyedLimiter, Quota};
use tidegate_tower::{ArrivingRetriesLayer, ConcurrencyLayer, DeadlineLayer, RateLimitLayer, ServerStack};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Sends a request over a connection of its own, and returns the raw answer.
pub(crate) async fn ask(server: SocketAddr, path: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(server).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_server_of_axum_refuses_in_the_words_of_http() {
    let second = Duration::from_secs(1);
    // A quota that gives no units back while the test runs.
    let limiter = KeyedLimiter::new(Quota::per_day(2), 1000).unwrap();
    let key = |request: &axum::extract::Request| {
        request.headers().get("x-api-key").map_or(vec![], |key| key.as_bytes().to_vec())
    };
    let stack = ServerStack::new()
        .deadline(DeadlineLayer::within(10 * second, 10 * second).unwrap())
        .rate_limit(RateLimitLayer::each("per-key", limiter, key))
        .concurrency(ConcurrencyLayer::new("places", Bulkhead::new(8).unwrap()));
    let app = Router::new()
        .route("/", get(async || "the page"))
        .route("/slow", get(async || std::future::pending::<String>().await))
        .layer(stack);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    for _ in 0..2 {
        assert!(ask(server, "/", "x-api-key: ann\r\n").await.starts_with("HTTP/1.1 200"));
    }
    let refused = ask(server, "/", "x-api-key: ann\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("\r\nretry-after: "), "{refused}");
    let late = ask(server, "/slow", "x-api-key: bob\r\ngrpc-timeout: 50m\r\n").await;
    assert!(
        late.starts_with("HTTP/1.1 504") && late.ends_with(r#""retry":"unknown","retry_after_ms":null}"#),
        "{late}"
    );
    serving.abort();
}

/// A server that refuses for lack of places tells callers not to come back while retries are what keeps it busy, and no
/// longer.
#[tokio::test]
async fn a_server_of_axum_that_is_overloaded_by_retries_tells_callers_not_to_try_again() {
    let full = Bulkhead::new(1).unwrap().with_room(0);
    let permit = full.try_enter().unwrap();
    // One retry per first try, without a floor, on a stopped clock.
    let rules = RetryBudget::new(1.0).unwrap().without_floor();
    let arriving = ArrivingRetries::with_clock(rules, ManualClock::default());
    let stack = ServerStack::new()
        .concurrency(ConcurrencyLayer::new("places", full.clone()))
        .retries(ArrivingRetriesLayer::new(arriving));
    let unavailable = get(async || [("grpc-status", "14"), ("content-type", "application/grpc")]);
    let app = Router::new().route("/", get(async || "the page")).layer(stack.clone());
    let app = app.merge(Router::new().route("/grpc", unavailable).layer(stack));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let (again, pushback) = ("\r\nx-envoy-overloaded: true\r\n", "\r\ngrpc-retry-pushback-ms: -1\r\n");
    let first = ask(server, "/", "").await;
    assert!(first.starts_with("HTTP/1.1 503") && !first.contains(again), "{first}");
    let retry = ask(server, "/", "x-envoy-attempt-count: 2\r\n").await;
    assert!(
        retry.starts_with("HTTP/1.1 503") && retry.contains(again),
        "as many retries as first tries: {retry}"
    );
    let first = ask(server, "/", "x-envoy-attempt-count: 1\r\n").await;
    assert!(first.starts_with("HTTP/1.1 503") && !first.contains(again), "{first}");

    drop(permit);
    let retry = ask(server, "/", "grpc-previous-rpc-attempts: 1\r\n").await;
    assert!(
        retry.starts_with("HTTP/1.1 200") && !retry.contains(again),
        "what is served needs no word: {retry}"
    );
    let retry = ask(server, "/grpc", "grpc-previous-rpc-attempts: 1\r\n").await;
    assert!(
        retry.contains("grpc-status: 14") && retry.contains(pushback) && !retry.contains(again),
        "{retry}"
    );
    serving.abort();
}

//! A real hyper client and server behind the layers, without axum.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::deadline::Timeouts;
use tidegate::retries::{Retrier, SharedBudget};
use tidegate::{Breaker, Bulkhead, Limiter, Quota};
use tidegate_core::retry::Retries;
use tidegate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, DeadlineLayer, Errors, ForwardDeadlineLayer, RateLimitLayer,
    RefusalCause, Refused, RetryLayer, ServerStack,
};
use tokio::net::TcpListener;
use tower::{Service, ServiceExt};
use tower_layer::Layer;

type Boxed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::test]
async fn a_client_of_hyper_tries_again_and_then_leaves_the_service_alone() {
    let calls = Arc::new(AtomicU32::new(0));
    let (seen, patience) = (Arc::clone(&calls), Duration::from_secs(10));
    // Fails, except for its second call.
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

/// Refusals have hyper's own body type, and all connections share the stack's limit.
#[tokio::test]
async fn a_server_of_hyper_refuses_in_the_words_of_http() {
    let limiter = Limiter::new(Quota::per_minute(2)).unwrap().with_clock(ManualClock::default());
    let second = Duration::from_secs(1);
    let stack = ServerStack::self_tuning("pages")
        .rate_limit(RateLimitLayer::all("all", limiter))
        .deadline(DeadlineLayer::within(second, 30 * second).unwrap());
    let page = tower::service_fn(async |_: Request<Incoming>| {
        assert!(tidegate::deadline::carried().is_some());
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("the page")))
    });
    let service = stack.layer(page);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let ask = async |timeout: &str| {
        // A connection for each.
        let client = Client::builder(TokioExecutor::new()).build_http::<String>();
        let request = Request::get(&uri).header("x-envoy-expected-rq-timeout-ms", timeout);
        let response = client.request(request.body(String::new()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
    };
    let (status, _, body) = ask("0").await;
    assert_eq!(status, 504, "its caller waits no longer, and it costs no unit: {body}");
    let (status, headers, body) = ask("1000").await;
    assert_eq!((status, body.as_str()), (200, "the page"));
    assert_eq!(headers["ratelimit"], "\"all\";r=1;t=30");
    assert_eq!(ask("1000").await.0, 200);
    let (status, headers, body) = ask("1000").await;
    assert_eq!((status, &headers["retry-after"]), (429, &"30".parse().unwrap()));
    assert_eq!(headers["content-type"], "application/problem+json");
    assert!(body.contains("quota-exceeded"), "{body}");
    serving.abort();
}

/// Starts a server on a free port, and returns its address as a URI.
async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    uri
}

/// Three services with the same rules, each a real server: A calls B, B calls C, and C hangs. Each service is told a
/// little less than the default, which must not hide the failure from the breakers on the way.
#[tokio::test]
async fn a_service_that_hangs_at_the_end_of_a_chain_opens_the_breakers_of_the_chain() {
    let millis = Duration::from_millis;
    let timeouts = Timeouts::new(millis(200), millis(1000)).unwrap().with_margin(millis(40)).unwrap();
    let breaker = || Breaker::new(CircuitBreaker::builder().consecutive(2)).unwrap();
    let (of_b, of_c) = (breaker(), breaker());
    let calling = |uri: String, breaker: &Breaker| {
        let hyper = Client::builder(TokioExecutor::new()).build_http::<String>().map_err(Boxed::from);
        let client = ClientStack::new()
            .breaker(BreakerLayer::new("next", breaker.clone()).answering(Errors))
            .deadline(ForwardDeadlineLayer::new(timeouts))
            .layer(hyper);
        get(move || {
            let (mut client, uri) = (client.clone(), uri.clone());
            async move {
                let request = Request::get(&uri).body(String::new()).unwrap();
                match client.ready().await.unwrap().call(request).await {
                    Ok(answer) => (answer.status(), String::new()),
                    Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()),
                }
            }
        })
    };
    let server = |handler| Router::new().route("/", handler).layer(DeadlineLayer::new(timeouts));
    // C does not even give up by itself.
    let c = serve(Router::new().route("/", get(async || std::future::pending::<StatusCode>().await))).await;
    let b = serve(server(calling(c, &of_c))).await;
    let a = serve(server(calling(b, &of_b))).await;

    let outside = Client::builder(TokioExecutor::new()).build_http::<String>();
    let mut told = Vec::new();
    for _ in 0..3 {
        let answer = outside.get(a.parse().unwrap()).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        told.push(String::from_utf8(body.to_vec()).unwrap());
    }
    let states = [&of_b, &of_c].map(|breaker| breaker.state().as_str());
    assert_eq!(states, ["open"; 2], "{told:?}; {:?}, {:?}", of_b.totals(), of_c.totals());
}

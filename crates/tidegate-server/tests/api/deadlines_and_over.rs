//! Requests that come too late, and limits that mark or demote instead of refusing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::json;

const LATE: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
policies:
  - name: all
    limit: { rate: 100/h }
  - name: search
    match: { path: /search }
    deadline: 200ms
    limit: { rate: 50/h }
  - name: chosen
    match: { path: /chosen }
    deadline: 200ms
    deny: { status: 504 }
    limit:
      - { rate: 50/h }
      - { algorithm: concurrency, max: 1 }
  - name: queue
    match: { path: /queue }
    limit: { algorithm: leaky-bucket, rate: 1/s, queue: 10, max_wait: 5s }
";

/// The problem type for a server that is itself short of capacity.
const SHORT: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

async fn check(server: &Running, attributes: &str) -> Answer {
    server.post("/v1/check", &format!(r#"{{"attributes": {{{attributes}}}}}"#)).await
}

async fn proxied(server: &Running, path: &str, header: (&str, &str)) -> Answer {
    let headers = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", path),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
        header,
    ];
    send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await
}

#[tokio::test]
async fn a_request_that_cannot_be_answered_in_time_is_refused_uncharged_golden() {
    let server = start(LATE).await;
    let search =
        |timeout: &str| format!(r#""request.path": "/search", "request.header.grpc-timeout": "{timeout}""#);
    let late = check(&server, &search("199m")).await;
    assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE, "{late:?}");
    assert_eq!(
        late.detail(),
        "a request of policy \"search\" needs 200 ms, and request.header.grpc-timeout=199m leaves less; nothing was charged"
    );
    assert_eq!((&late.json()["policy"], &late.json()["policies"]), (&json!("search"), &json!([])));
    assert_eq!(late.json()["type"], SHORT);
    let in_time = check(&server, &search("200m")).await;
    assert_eq!(in_time.json()["policies"][0]["remaining"], 99, "the late one was charged nothing");
    assert_eq!(
        check(&server, &search("soon")).await.status,
        StatusCode::OK,
        "what cannot be read says nothing"
    );
    let other = r#""request.path": "/", "request.header.grpc-timeout": "1m""#;
    assert_eq!(check(&server, other).await.status, StatusCode::OK, "a policy without one");
    let metrics = send(server.addr, Method::GET, "/metrics", &[], "").await.text;
    assert!(metrics.contains("tidegate_too_late_total{policy=\"search\"} 1"), "{metrics}");
    let explained = server.post("/v1/explain", &format!(r#"{{"attributes": {{{}}}}}"#, search("1m"))).await;
    assert_eq!(explained.json()["lines"][0], "DENIED by the deadline of search: too little time is left");
}

#[tokio::test]
async fn a_policy_chooses_the_status_of_its_deadline() {
    let server = start(LATE).await;
    let chosen = r#""request.path": "/chosen", "request.header.grpc-timeout": "199m""#;
    let late = check(&server, chosen).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT, "{late:?}");
    assert_eq!((&late.json()["status"], &late.json()["type"]), (&json!(504), &json!(SHORT)));
    let late = proxied(&server, "/chosen", ("x-envoy-expected-rq-timeout-ms", "50")).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT, "{late:?}");
    let taken = r#""request.path": "/chosen""#;
    assert_eq!(check(&server, taken).await.status, StatusCode::OK);
    let full = check(&server, taken).await;
    assert_eq!(full.status, StatusCode::GATEWAY_TIMEOUT, "of its places too: {full:?}");
}

#[tokio::test]
async fn a_proxys_sub_request_is_held_to_the_time_that_its_caller_waits() {
    let server = start(LATE).await;
    let late = proxied(&server, "/search", ("x-envoy-expected-rq-timeout-ms", "50")).await;
    assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE, "{late:?}");
    assert_eq!(
        late.detail(),
        "a request of policy \"search\" needs 200 ms, and request.header.x-envoy-expected-rq-timeout-ms=50 leaves less; nothing was charged"
    );
    assert_eq!(proxied(&server, "/search", ("grpc-timeout", "1S")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn nobody_is_delayed_beyond_the_time_that_he_waits() {
    let server = start(LATE).await;
    let queue = r#""request.path": "/queue""#;
    let hurried = format!(r#"{queue}, "request.header.x-envoy-expected-rq-timeout-ms": "1500""#);
    assert_eq!(check(&server, queue).await.json()["delay_ms"], 0);
    assert_eq!(check(&server, &hurried).await.json()["delay_ms"], 1000);
    assert_eq!(check(&server, &hurried).await.status, StatusCode::TOO_MANY_REQUESTS, "it would wait for 2 s");
    assert_eq!(check(&server, queue).await.json()["delay_ms"], 2000, "others have the whole queue");
}

const OVER: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
policies:
  - name: per user/soft
    by: [user.id]
    over: mark
    limit: { rate: 1/h }
  - name: heavy
    by: [user.id]
    over: demote
    limit: { rate: 2/h }
  - name: all
    limit: { rate: 10/h, keep_for: { critical: 50% } }
";

#[tokio::test]
async fn over_the_limit_a_request_is_marked_then_demoted_and_charged_nothing_more_golden() {
    let server = start(OVER).await;
    let ann = r#""user.id": "ann""#;
    let usual = check(&server, ann).await;
    assert!(!usual.headers.contains_key("x-tidegate-marked") && usual.json().get("marked").is_none());
    let marked = check(&server, ann).await;
    assert_eq!(marked.status, StatusCode::OK);
    assert_eq!(marked.header("x-tidegate-marked"), "per%20user%2Fsoft");
    let body = marked.json();
    assert_eq!(
        (&body["marked"], &body["decision"], body.get("priority")),
        (&json!(["per user/soft"]), &json!("allowed"), None)
    );
    let soft = &body["policies"][0];
    assert_eq!(
        (&soft["decision"], &soft["charged"], &soft["shadow"]),
        (&json!("marked"), &json!(false), &json!(false))
    );

    let demoted = check(&server, ann).await;
    assert_eq!(
        (demoted.header("x-tidegate-demoted"), demoted.header("x-tidegate-priority")),
        ("heavy", "sheddable-plus")
    );
    let body = demoted.json();
    assert_eq!((&body["demoted"], &body["priority"]), (&json!(["heavy"]), &json!("sheddable-plus")));
    assert_eq!(body["policies"][2]["kept_back"], 5, "decided as what is less important");
    for _ in 0..2 {
        assert_eq!(check(&server, ann).await.status, StatusCode::OK);
    }
    let refused = check(&server, ann).await;
    assert_eq!((refused.status, &refused.json()["policy"]), (StatusCode::TOO_MANY_REQUESTS, &json!("all")));
    assert!(!refused.headers.contains_key("x-tidegate-demoted"), "a refused request goes nowhere");
    assert_eq!(check(&server, r#""user.id": "bob""#).await.status, StatusCode::OK, "he has his own priority");
    let metrics = send(server.addr, Method::GET, "/metrics", &[], "").await.text;
    assert!(
        metrics.contains("tidegate_over_limit_total{policy=\"heavy\",action=\"demoted\"} 3"),
        "{metrics}"
    );
    assert!(
        metrics.contains("tidegate_over_limit_total{policy=\"per user/soft\",action=\"marked\"} 4"),
        "{metrics}"
    );
    let explained = server
        .post("/v1/explain", r#"{"attributes": {"user.id": "ann"}, "policies": ["per user/soft"]}"#)
        .await;
    assert_eq!(explained.json()["reasons"][0]["limits"][0]["result"], "marked", "{explained:?}");
}

/// A batch is decided in one exchange, and each of its checks with its own lowered priority.
#[tokio::test]
async fn checks_of_a_batch_are_demoted_by_what_came_before() {
    let server = start(OVER).await;
    for _ in 0..2 {
        check(&server, r#""user.id": "ann""#).await;
    }
    let one = r#"{"attributes": {"user.id": "ann"}}"#;
    let batch = server.post("/v1/check/batch", &format!("[{one}, {one}]")).await.json();
    for answer in batch.as_array().unwrap() {
        assert_eq!((&answer["status"], &answer["demoted"]), (&json!(200), &json!(["heavy"])), "{answer}");
    }
}

/// The caller behind the proxy is told nothing; only the proxy tells the application.
#[tokio::test]
async fn a_proxy_is_told_by_headers_however_long_names_are() {
    let long = "x".repeat(120);
    let names = ["a", "b", "c"].map(|letter| format!("{letter}{long}"));
    let policies: String = names
        .iter()
        .map(|name| format!("  - {{ name: {name}, over: mark, limit: {{ rate: 1/day }} }}\n"))
        .collect();
    let head = OVER.split_once("policies:").unwrap().0;
    let server = start(&format!("{head}policies:\n{policies}")).await;
    assert_eq!(proxied(&server, "/", ("x-tidegate-marked", "forged")).await.header("x-tidegate-marked"), "");
    let marked = proxied(&server, "/", ("x-tidegate-marked", "forged")).await;
    assert_eq!(marked.header("x-tidegate-marked"), format!("{}, {}", names[0], names[1]), "what fits");
}

/// A company may use another name for the header; then answers use it too, also behind a proxy.
#[tokio::test]
async fn the_header_of_the_lowered_priority_is_chosen_in_the_file() {
    let file =
        OVER.replace("version: 1\n", "version: 1\ndefaults: { priority_header: X-Request-Priority }\n");
    let server = start(&file).await;
    let ann = r#""user.id": "ann""#;
    for _ in 0..2 {
        check(&server, ann).await;
    }
    let demoted = check(&server, ann).await;
    assert_eq!(demoted.header("x-request-priority"), "sheddable-plus");
    assert!(!demoted.headers.contains_key("x-tidegate-priority"), "{:?}", demoted.headers);
    let sub_request = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    let by_user = file.replace("by: [user.id]", "by: [client.ip]");
    let server = start(&by_user).await;
    let mut last = None;
    for _ in 0..3 {
        last = Some(send(server.addr, Method::GET, "/v1/forward-auth", &sub_request, "").await);
    }
    let last = last.unwrap();
    assert_eq!(
        (last.header("x-tidegate-demoted"), last.header("x-request-priority")),
        ("heavy", "sheddable-plus")
    );
}

/// Regression: the description said nothing of the match, the deadline and its answer, priorities and lists.
#[tokio::test]
async fn a_policy_is_shown_with_all_that_it_does() {
    let server = start(
        "
version: 1
policies:
  - name: search
    match: { method: get, path: [/search, /find], header: { x-beta: true }, not: { host: '*.test' } }
    deadline: 200ms
    limit: { rate: 50/h, max_wait: 2s, keep_for: { critical: 20% } }
    access: { allow: [10.0.0.0/8, user.id=1, user.id=2], status: 404 }
  - name: soft
    over: demote to sheddable
    limit: [{ algorithm: concurrency, max: 3 }]
",
    )
    .await;
    let search = server.get("/v1/policies/search").await.json();
    let matches = json!({
        "method": ["GET"],
        "path": ["/search", "/find"],
        "attributes": { "request.header.x-beta": true },
        "not": [{ "host": ["*.test"] }],
    });
    assert_eq!((&search["match"], &search["deadline_ms"]), (&matches, &json!(200)));
    assert_eq!((&search["deny"]["status"], &search["shed"]["status"]), (&json!(429), &json!(503)));
    assert_eq!(search["access"], json!({ "allow": 3, "deny": 0, "status": 404 }));
    let limit = &search["limits"][0];
    assert_eq!((&limit["max_wait_ms"], &limit["keep_for"]), (&json!(2000), &json!({ "critical": "20%" })));
    let soft = server.get("/v1/policies/soft").await.json();
    assert_eq!((&soft["over"], &soft["demote_to"]), (&json!("demote"), &json!("sheddable")));
    assert_eq!(
        (&soft["deny"], &soft["shed"]["status"], &soft["match"]),
        (&json!(null), &json!(503), &json!({}))
    );
}

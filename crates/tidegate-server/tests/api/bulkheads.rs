//! Places over HTTP: taken by a check, returned by its ticket or at the end of the time to live.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::json;

const WORK: &str = "
version: 1
policies:
  - name: work
    limit: { algorithm: concurrency, max: 2, ttl: 30s }
";

async fn check(server: &Running) -> Answer {
    server.post("/v1/check", r#"{"attributes": {}}"#).await
}

async fn settle(server: &Running, ticket: &str) -> Answer {
    server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": 200}}"#)).await
}

#[tokio::test]
async fn a_busy_bulkhead_answers_503_and_no_time_golden() {
    let server = start(WORK).await;
    let allowed = check(&server).await;
    assert_eq!(allowed.header("ratelimit-policy"), "\"work\";q=2;qu=\"concurrent-requests\"");
    assert_eq!(allowed.header("ratelimit"), "\"work\";r=1");
    let body = allowed.json();
    assert_eq!((&body["remaining"], &body["policies"][0]["awaits_report"]), (&json!(1), &json!(true)));
    check(&server).await.ticket();

    let busy = check(&server).await;
    assert_eq!(busy.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!busy.headers.contains_key("retry-after"), "nobody knows when");
    assert_eq!(busy.header("ratelimit"), "\"work\";r=0");
    let body = busy.json();
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(body["title"], "Temporary reduced capacity");
    assert_eq!((&body["retry"], &body["retry_after_ms"]), (&json!("unknown"), &json!(null)));
    assert_eq!(body["violated-policies"], json!(["work"]));
    assert_eq!(
        busy.detail(),
        "policy \"work\" has 0 of 2 places free and 1 asked for; a place is free again when work in flight ends, or 30 s after it was taken if nobody reports the end"
    );
}

#[tokio::test]
async fn a_ticket_returns_its_place_once() {
    let server = start(WORK).await;
    let (first, _second) = (check(&server).await.ticket(), check(&server).await.ticket());
    let settled = settle(&server, &first).await;
    assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
    let part = &settled.json()["policies"][0];
    assert_eq!(
        (&part["effect"], &part["returned"], &part["remaining"]),
        (&json!("returned"), &json!(1), &json!(1))
    );
    assert_eq!(settle(&server, &first).await.status, StatusCode::CONFLICT);
    // Regression: it said that the place waits for a report, although that had come.
    let refund = server.post("/v1/settle", &format!(r#"{{"ticket": "{first}", "refund": "all"}}"#)).await;
    assert_eq!(refund.status, StatusCode::CONFLICT);
    assert!(refund.detail().contains("is settled by how the work ended"), "{}", refund.detail());
    assert_eq!(check(&server).await.status, StatusCode::OK);
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE, "one came back, and not two");
}

#[tokio::test]
async fn a_settlement_of_a_cost_alone_says_that_the_place_is_still_taken() {
    let server = start(WORK).await;
    let ticket = check(&server).await.ticket();
    let told = server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "cost": 3}}"#)).await;
    assert_eq!(
        told.json()["note"],
        "no policy that this decision charged settles by `cost`, so the cost changes nothing; places and charges of failures wait for a \
         `status` or an `outcome`, unless one was sent before"
    );
    let settled = settle(&server, &ticket).await;
    assert_eq!((&settled.json()["policies"][0]["returned"], settled.json().get("note")), (&json!(1), None));
}

#[tokio::test]
async fn a_place_that_nobody_returned_lapses_and_is_then_nobodys_to_return() {
    let server = start(WORK).await;
    let (lost, _) = (check(&server).await.ticket(), check(&server).await);
    server.clock.advance(Duration::from_secs(30));
    check(&server).await.ticket();
    check(&server).await.ticket();
    let late = settle(&server, &lost).await;
    assert_eq!((late.status, &late.json()["policies"][0]["returned"]), (StatusCode::OK, &json!(0)));
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_report_returns_the_place_and_work_that_was_undone_its_units_too() {
    let server = start(
        "
version: 1
policies:
  - name: calls
    limit: { algorithm: sliding-log, rate: 5/h }
  - name: work
    limit: { algorithm: concurrency, max: 2 }
    deny: { status: 429 }
",
    )
    .await;
    let remaining = |answer: &Answer| {
        let body = answer.json();
        body["policies"].as_array().unwrap().iter().map(|part| part["remaining"].clone()).collect::<Vec<_>>()
    };
    let peek = || server.post("/v1/peek", r#"{"attributes": {}}"#);
    let (first, second) = (check(&server).await.ticket(), check(&server).await.ticket());
    assert_eq!(check(&server).await.status, StatusCode::TOO_MANY_REQUESTS, "the file says so");
    let report = server.post("/v1/settle", &format!(r#"{{"ticket": "{first}", "status": 500}}"#)).await;
    assert_eq!(report.status, StatusCode::OK, "{report:?}");
    assert_eq!(remaining(&peek().await), [json!(3), json!(1)]);
    let undone =
        server.post("/v1/settle", &format!(r#"{{"ticket": "{second}", "outcome": "undone"}}"#)).await;
    assert_eq!(undone.status, StatusCode::OK, "{undone:?}");
    assert_eq!(remaining(&peek().await), [json!(4), json!(2)]);
}

#[tokio::test]
async fn a_lowered_number_holds_at_once_and_whoever_is_inside_may_leave() {
    let server = start(WORK).await;
    let (first, second) = (check(&server).await.ticket(), check(&server).await.ticket());
    server.write(&WORK.replace("max: 2", "max: 1"));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    settle(&server, &first).await;
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE);
    settle(&server, &second).await;
    assert_eq!(check(&server).await.status, StatusCode::OK);
}

const PER_KEY: &str = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: PROXY }
policies:
  - name: all
    limit: { rate: 100/h }
  - name: places
    by: [request.header.x-key, b]
    absent: charge
    limit: { algorithm: concurrency, max: 2 }
  - name: per-key
    by: [client.ip]
    absent: charge
    cost: { estimate: 5, settle: llm.output }
    limit: { rate: 100/h }
";

/// Regression: one caller with a header of 800 bytes held all places until their time to live was over, because no
/// ticket fit the answer's head.
#[tokio::test]
async fn a_place_that_nobody_could_return_is_not_taken() {
    for (proxy, status) in
        [("caddy", StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE), ("nginx", StatusCode::FORBIDDEN)]
    {
        let server = start(&PER_KEY.replace("PROXY", proxy)).await;
        let prefix = if proxy == "caddy" { "x-forwarded" } else { "x-original" };
        let family = ["method", "uri", "host"].map(|name| format!("{prefix}-{name}"));
        let ask = async |key: &str| {
            let headers = [
                (family[0].as_str(), "GET"),
                (family[1].as_str(), "/"),
                (family[2].as_str(), "example.org"),
                ("x-forwarded-for", "203.0.113.9"),
                ("x-key", key),
            ];
            send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await
        };
        for _ in 0..3 {
            let refused = ask(&"k".repeat(800)).await;
            assert_eq!(refused.status, status, "{refused:?}");
            let detail = refused.detail();
            assert!(
                detail.starts_with("refused, since the place that it takes could not be returned: "),
                "{detail}"
            );
            assert!(detail.contains("at most 1024 are possible: 1 place was taken"), "{detail}");
            assert!(detail.contains("of policy \"places\""), "{detail}");
            assert!(
                detail.contains("send less in request.header.x-key, b; or ask POST /v1/check"),
                "{detail}"
            );
            assert_eq!(refused.json()["policy"], "places");
            assert!(!refused.headers.contains_key("x-tidegate-ticket-error"));
        }
        let left = server.post("/v1/peek", r#"{"attributes": {}}"#).await.json();
        let left: Vec<_> =
            left["policies"].as_array().unwrap().iter().map(|part| &part["remaining"]).collect();
        assert_eq!(left, [100, 2, 100], "nothing stays charged");
        let passed = ask("k").await;
        assert_eq!(passed.status, StatusCode::OK, "{passed:?}");
        settle(&server, passed.header("x-tidegate-ticket")).await;
    }
}

#[tokio::test]
async fn a_check_whose_place_nobody_could_return_is_refused() {
    let server = start(&PER_KEY.replace("PROXY", "caddy")).await;
    let long = "k".repeat(8000);
    let body = format!(r#"{{"attributes": {{"request.header.x-key": "{long}", "b": "{long}"}}}}"#);
    let refused = server.post("/v1/check", &body).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    let detail = refused.detail();
    assert!(detail.contains("bytes is too long, at most 16384 are possible"), "{detail}");
    assert!(detail.ends_with("send less in request.header.x-key, b"), "{detail}");
    let batch = server.post("/v1/check/batch", &format!("[{body}, {body}, {body}]")).await;
    // All checks are decided before any is undone, so the third finds both places taken.
    for (one, status) in batch.json().as_array().unwrap().iter().zip([400, 400, 503]) {
        assert_eq!((&one["status"], &one["policy"]), (&json!(status), &json!("places")), "{one}");
    }
    let left = server.post("/v1/peek", r#"{"attributes": {}, "policies": ["places"]}"#).await.json();
    assert_eq!(left["remaining"], 2, "and both have come back");
    // A caller that wants no ticket keeps its place until the time to live is over.
    let body = body.replacen('{', r#"{"ticket": false, "#, 1);
    for status in [StatusCode::OK, StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
        assert_eq!(server.post("/v1/check", &body).await.status, status);
    }
}

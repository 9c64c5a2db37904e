//! A place over HTTP: taken by a check, returned by its ticket, or by its time to live.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod running;

use std::time::Duration;

use http::StatusCode;
use running::{Answer, Running, start};
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

fn ticket_of(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.json()["ticket"].as_str().unwrap_or_else(|| panic!("no ticket: {answer:?}")).to_owned()
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
    ticket_of(&check(&server).await);

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
        "policy \"work\" has no room for 1 now, and nobody can say when; try again later"
    );
}

#[tokio::test]
async fn a_ticket_returns_its_place_once() {
    let server = start(WORK).await;
    let (first, _second) = (ticket_of(&check(&server).await), ticket_of(&check(&server).await));
    let settled = settle(&server, &first).await;
    assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
    let part = &settled.json()["policies"][0];
    assert_eq!(
        (&part["effect"], &part["returned"], &part["remaining"]),
        (&json!("returned"), &json!(1), &json!(1))
    );
    assert_eq!(settle(&server, &first).await.status, StatusCode::CONFLICT);
    assert_eq!(check(&server).await.status, StatusCode::OK);
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE, "one came back, and not two");
}

#[tokio::test]
async fn a_place_that_nobody_returned_lapses_and_is_then_nobodys_to_return() {
    let server = start(WORK).await;
    let (lost, _) = (ticket_of(&check(&server).await), check(&server).await);
    server.clock.advance(Duration::from_secs(30));
    ticket_of(&check(&server).await);
    ticket_of(&check(&server).await);
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
    let (first, second) = (ticket_of(&check(&server).await), ticket_of(&check(&server).await));
    assert_eq!(check(&server).await.status, StatusCode::TOO_MANY_REQUESTS, "the file says so");
    let report = server.post("/v1/report", &format!(r#"{{"ticket": "{first}", "status": 500}}"#)).await;
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
    let (first, second) = (ticket_of(&check(&server).await), ticket_of(&check(&server).await));
    server.write(&WORK.replace("max: 2", "max: 1"));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    settle(&server, &first).await;
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE);
    settle(&server, &second).await;
    assert_eq!(check(&server).await.status, StatusCode::OK);
}

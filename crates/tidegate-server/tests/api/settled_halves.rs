//! Settlements of one half: those that only say how work ended, and those that return charges.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{TWO, start};
use http::StatusCode;
use serde_json::json;

const LOGIN: &str = "
version: 1
policies:
  - name: login
    by: [form.username]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
    deny: { problem: abnormal-usage-detected }
  - name: per-ip
    by: [client.ip]
    limit: { rate: 100/min }
";

#[tokio::test]
async fn failures_are_charged_by_report_and_a_success_forgets_them() {
    let server = start(LOGIN).await;
    let login = r#"{"attributes": {"form.username": "bob", "client.ip": "192.0.2.1"}}"#;
    let attempt = async |status: u16| {
        let answer = server.post("/v1/check", login).await;
        if answer.status != StatusCode::OK {
            return answer;
        }
        let ticket = answer.ticket();
        server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": {status}}}"#)).await
    };
    for _ in 0..2 {
        assert_eq!(attempt(401).await.json()["outcome"], "callers-fault");
    }
    assert_eq!(attempt(500).await.json()["outcome"], "failure");
    assert_eq!(attempt(503).await.json()["outcome"], "overloaded");
    assert_eq!(attempt(200).await.json()["outcome"], "success");
    for _ in 0..3 {
        assert_eq!(attempt(401).await.status, StatusCode::OK);
    }
    let denied = attempt(401).await;
    assert_eq!(denied.json()["title"], "Abnormal usage detected");
    assert_eq!(denied.json()["policy"], "login");
}

/// Regression: headers with secrets were removed before a decision was remembered, and a report was computed from the
/// rest. So a policy that depends on such a header was never charged, and the report was answered with 200.
#[tokio::test]
async fn failures_are_charged_whatever_header_a_policy_speaks_of() {
    let headers = ["authorization", "cookie", "x-api-key", "proxy-authorization"];
    for (header, way) in headers.into_iter().flat_map(|header| [(header, "match"), (header, "by")]) {
        let (matching, by) = match way {
            "match" => (format!("{{ header: {{ {header}: true }} }}"), "[client.ip]".to_owned()),
            _ => ("{}".to_owned(), format!("[request.header.{header}]")),
        };
        let server = start(&format!(
            "
version: 1
policies:
  - name: login
    match: {matching}
    by: {by}
    limit: {{ algorithm: sliding-log, rate: 2/h }}
    charge: on-failure
"
        ))
        .await;
        let body = format!(
            r#"{{"attributes": {{"client.ip": "192.0.2.1", "request.header.{header}": "hunter2"}}}}"#
        );
        for _ in 0..2 {
            let ticket = server.post("/v1/check", &body).await.ticket();
            let report = format!(r#"{{"ticket": "{ticket}", "status": 401}}"#);
            let told = server.post("/v1/settle", &report).await;
            let body = told.json();
            assert_eq!(body["policies"].as_array().map(Vec::len), Some(1), "{body}");
            let part = &body["policies"][0];
            assert_eq!(
                (&part["name"], &part["charged"], &part["effect"]),
                (&json!("login"), &json!(1), &json!("kept"))
            );
            assert!(!told.text.contains("hunter2"));
        }
        let denied = server.post("/v1/check", &body).await;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "{header} in {way}");
        assert!(!denied.text.contains("hunter2"));
    }
}

/// Regression: what was charged to the stand-in store was returned to the real one, which had never been charged.
#[tokio::test]
async fn a_decision_is_reported_and_refunded_once() {
    let server = start(LOGIN).await;
    let body = r#"{"attributes": {"client.ip": "192.0.2.1"}, "cost": 40, "ticket": true}"#;
    let ticket = server.post("/v1/check", body).await.ticket();
    let refund = |units: &str| format!(r#"{{"ticket": "{ticket}", "refund": {units}}}"#);
    let too_much = server.post("/v1/settle", &refund("41")).await;
    assert!(too_much.detail().contains("charged 40; a refund is at most that"), "{}", too_much.detail());
    assert_eq!(server.post("/v1/settle", &refund("30")).await.status, StatusCode::OK);
    assert_eq!(server.check("192.0.2.1").await.json()["remaining"], 89, "100 - 40 + 30 - 1");
    assert_eq!(server.post("/v1/settle", &refund(r#""all""#)).await.status, StatusCode::CONFLICT);
    let report = format!(r#"{{"ticket": "{ticket}", "status": 200}}"#);
    assert_eq!(server.post("/v1/settle", &report).await.status, StatusCode::OK);
    assert_eq!(server.post("/v1/settle", &report).await.status, StatusCode::CONFLICT);

    let id =
        server.post("/v1/settle", r#"{"decision_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "refund": "all"}"#).await;
    assert_eq!(id.status, StatusCode::BAD_REQUEST);
    assert!(id.detail().contains("send the `ticket` in the answer to the check"), "{}", id.detail());
}

#[tokio::test]
async fn a_refund_gives_back_only_where_it_was_taken() {
    let server = start(TWO).await;
    let attributes = r#""attributes": {"user.id": 42}"#;
    server.post("/v1/check", &format!("{{{attributes}, \"cost\": 2}}")).await;
    let one = format!("{{{attributes}, \"policies\": [\"shield\"], \"ticket\": true}}");
    let ticket = server.post("/v1/check", &one).await.ticket();
    let refunded = server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "refund": "all"}}"#)).await;
    assert_eq!(refunded.status, StatusCode::OK);
    let parts = server.post("/v1/peek", &format!("{{{attributes}}}")).await.json()["policies"].clone();
    let left = |at: usize| parts[at]["remaining"].as_u64().unwrap();
    assert_eq!((left(0), left(1)), (10 - 2, 3 - 2), "per-user was not charged and got nothing back");
}

/// Regression: the answer advised a report of 503, which a breaker counts as an overload: two of them opened it.
#[tokio::test]
async fn a_refused_refund_names_a_settlement_that_gives_back_and_counts_nothing() {
    let server = start(
        "
version: 1
policies:
  - name: search
    limit: { algorithm: breaker, consecutive: 2 }
  - name: places
    limit: { algorithm: concurrency, max: 1 }
",
    )
    .await;
    for _ in 0..3 {
        let ticket = server.post("/v1/check", r#"{"attributes": {}}"#).await.ticket();
        let refused =
            server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "refund": "all"}}"#)).await;
        assert_eq!(refused.status, StatusCode::CONFLICT);
        let advised = r#"POST /v1/settle with `"outcome": "undone"` gives it back"#;
        assert!(refused.detail().ends_with(advised), "{}", refused.detail());
        let undone = format!(r#"{{"ticket": "{ticket}", "outcome": "undone"}}"#);
        assert_eq!(server.post("/v1/settle", &undone).await.status, StatusCode::OK);
    }
    assert_eq!(server.get("/v1/breakers").await.json()["breakers"][0]["state"], "closed");
}

#[tokio::test]
async fn a_text_that_is_too_long_for_a_ticket_says_by_how_much() {
    let server = start(TWO).await;
    let body = json!({ "ticket": "A".repeat(21_847), "status": 200 }).to_string();
    let refused = server.post("/v1/settle", &body).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    assert_eq!(refused.detail(), "this is not a ticket: it has 21847 bytes, and a ticket has at most 21846");
}

/// Callers of before are told the line that works.
#[tokio::test]
async fn the_paths_of_before_name_the_settlement() {
    let server = start(TWO).await;
    for (path, line) in [
        ("/v1/report", r#"as {"ticket": "TICKET", "status": 200}"#),
        ("/v1/refund", r#"as {"ticket": "TICKET", "refund": "all"}"#),
    ] {
        let gone = server.post(path, r#"{"ticket": "x"}"#).await;
        assert_eq!(gone.status, StatusCode::NOT_FOUND, "{gone:?}");
        assert!(gone.detail().contains("POST /v1/settle"), "{}", gone.detail());
        assert!(gone.detail().ends_with(line), "{}", gone.detail());
    }
}

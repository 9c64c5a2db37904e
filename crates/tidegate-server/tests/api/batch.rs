//! A batch over a store that answers later: one exchange, an answer for each check, and tickets that are settled one by
//! one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::Running;
use crate::running::engine::start;
use http::StatusCode;
use serde_json::{Value, json};

const FILE: &str = "
version: 1
policies:
  - { name: per-ip, by: [client.ip], limit: { rate: 2/min } }
  - { name: free, match: { path: /free }, limit: { rate: 9/min }, on_store_error: allow }
";

async fn batch(server: &Running, checks: &Value) -> Vec<Value> {
    let answer = server.post("/v1/check/batch", &checks.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.json().as_array().unwrap().clone()
}

fn statuses(answers: &[Value]) -> Vec<u64> {
    answers.iter().map(|one| one["status"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_batch_is_one_exchange_and_each_check_has_its_own_answer() {
    let (server, engine) = start(FILE).await;
    let of = |ip: &str| json!({ "attributes": { "client.ip": ip } });
    let with = |ip: &str, name: &str, value: Value| {
        let mut check = of(ip);
        check[name] = value;
        check
    };
    let checks = json!([
        with("192.0.2.1", "ticket", json!(true)),
        of("192.0.2.1"),
        with("192.0.2.1", "ticket", json!(true)),
        with("192.0.2.2", "policies", json!(["per-ip"])),
        with("192.0.2.3", "cost", json!(3)),
        { "attributes": {} },
        { "attributes": { "request.path": "/free" }, "cost": 8 },
    ]);
    let answers = batch(&server, &checks).await;
    assert_eq!(engine.exchanges(), 1);
    assert_eq!(statuses(&answers), [200, 200, 429, 200, 429, 200, 200]);
    assert_eq!(answers[2]["policies"][0]["remaining"], 0, "two of two are spent, in the order of the list");
    assert_eq!(answers[4]["retry"], "never", "three of two");
    assert_eq!(answers[5]["policies"], json!([]), "no policy limits it");
    assert!(
        answers[6]["store_error"].as_str().unwrap().contains("it could not decide this request"),
        "{}",
        answers[6]
    );
    let ids: std::collections::HashSet<_> =
        answers.iter().map(|one| one["decision_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), answers.len());

    let tickets: Vec<_> = answers.iter().map(|one| one["ticket"].as_str()).collect();
    assert!(tickets[0].is_some() && tickets[1..].iter().all(Option::is_none), "{tickets:?}");
    let refund = |ticket: &str| json!({ "ticket": ticket, "refund": "all" }).to_string();
    let refunded = server.post("/v1/settle", &refund(tickets[0].unwrap())).await;
    assert_eq!(refunded.json()["policies"][0]["returned"], 1, "{refunded:?}");
    assert_eq!(server.post("/v1/settle", &refund(tickets[0].unwrap())).await.status, StatusCode::CONFLICT);
    assert_eq!(statuses(&batch(&server, &json!([of("192.0.2.1"), of("192.0.2.1")])).await), [200, 429]);
    let metrics = server.get("/metrics").await.text;
    assert!(
        metrics.contains("tidegate_decision_duration_seconds_count{transport=\"http\"} 9\n"),
        "{metrics}"
    );
}

const REFUSING: &str = "
version: 1
policies:
  - { name: in-time, match: { path: /slow }, limit: { rate: 9/min }, deadline: 1s }
  - { name: per-user, by: [user.id], absent: skip, limit: { rate: 1/min } }
";

/// Regression: a check that a deadline or a block refused had no reason in a batch, since no limit decided it.
#[tokio::test]
async fn each_denied_check_has_the_body_that_it_has_alone() {
    let server = crate::running::start(REFUSING).await;
    let block = r#"{"block": {"for": "1h", "reason": "abuse"}}"#;
    let json = [("content-type", "application/json")];
    let blocked =
        crate::running::send(server.addr, http::Method::PUT, "/v1/keys/per-user?user.id=eve", &json, block)
            .await;
    assert_eq!(blocked.status, StatusCode::OK, "{blocked:?}");
    let hurried = json!({ "request.path": "/slow", "request.header.grpc-timeout": "200m" });
    let of = |attributes: Value| json!({ "attributes": attributes });
    let checks = json!([
        of(hurried),
        of(json!({ "user.id": "eve" })),
        { "attributes": { "user.id": "ann" }, "cost": 2 },
        of(json!({ "user.id": "ann" })),
    ]);
    let answers = batch(&server, &checks).await;
    assert_eq!(statuses(&answers), [503, 403, 429, 200]);
    for (check, answer) in checks.as_array().unwrap().iter().zip(&answers) {
        let mut alone = server.post("/v1/check", &check.to_string()).await.json();
        if answer["status"] == 200 {
            assert!(answer.get("detail").is_none() && answer.get("type").is_none(), "{answer}");
            continue;
        }
        let mut answer = answer.clone();
        for name in ["decision_id", "tidegate-decision-id"] {
            assert_eq!(answer[name].as_str().map(str::len), Some(26), "{answer}");
            answer[name] = Value::Null;
            alone[name] = Value::Null;
        }
        assert_eq!(answer["decision"], "denied");
        assert!(answer["detail"].is_string() && answer["violated-policies"].is_array(), "{answer}");
        if answer["policies"] == json!([]) {
            assert_eq!(answer, alone);
        } else {
            assert_eq!(answer["detail"], alone["detail"]);
        }
    }
}

#[tokio::test]
async fn a_check_that_cannot_be_read_is_named_by_its_index() {
    let server = crate::running::start(FILE).await;
    let good = r#"{"attributes": {}}"#;
    for (body, index) in [
        (format!(r#"[{good}, {good}, {{"attributes": {{}}, "cost": 0}}]"#), Some(2)),
        (format!(r#"[{good}, {{"atributes": {{}}}}, {good}]"#), Some(1)),
        (format!(r#"[{good}, 7]"#), Some(1)),
        (format!(r#"[{good}, {{"attributes": {{}}, "policies": ["no"]}}]"#), Some(1)),
        (format!("[{good} {good}]"), None),
        (good.to_owned(), None),
    ] {
        let refused = server.post("/v1/check/batch", &body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(refused.json().get("index").and_then(Value::as_u64), index, "{body}: {refused:?}");
    }
}

/// A place that nobody could return is undone, and only that check gets an error.
#[tokio::test]
async fn an_error_of_one_check_is_that_checks_alone() {
    let file = "
version: 1
policies:
  - { name: work, by: [user.id, one.id, two.id], limit: { algorithm: concurrency, max: 1 } }
";
    let (server, engine) = start(file).await;
    let long = "x".repeat(8000);
    let checks = json!([
        { "attributes": { "user.id": "a" } },
        { "attributes": { "user.id": long, "one.id": long, "two.id": long } },
        { "attributes": { "user.id": "a" } },
    ]);
    let answers = batch(&server, &checks).await;
    assert_eq!(engine.exchanges(), 2, "one for the batch, and one that undoes the place");
    assert_eq!(statuses(&answers), [200, 400, 503]);
    assert!(answers[0]["ticket"].is_string() && answers[1].get("ticket").is_none());
    assert!(
        answers[1]["detail"].as_str().unwrap().contains("the place that it takes could not be returned"),
        "{}",
        answers[1]
    );
}

/// An answer has at most about 5 MB, whatever the checks ask.
#[tokio::test]
async fn an_answer_is_bounded_by_the_limits_that_it_tells_of() {
    let limits: String =
        (0..100).map(|at| format!("  - {{ name: p{at}, limit: {{ rate: {}/s }} }}\n", 5000 + at)).collect();
    let (server, engine) = start(&format!("version: 1\npolicies:\n{limits}")).await;
    let check = json!({ "attributes": {} });
    let answers = batch(&server, &Value::from(vec![check.clone(); 300])).await;
    assert!(engine.exchanges() <= 21, "{}: some thousand limits each", engine.exchanges());
    assert_eq!(answers.len(), 300);
    assert!(statuses(&answers)[..200].iter().all(|status| *status == 200));
    assert!(statuses(&answers)[200..].iter().all(|status| *status == 413), "20,000 limits are told");
    assert_eq!(
        server.post("/v1/peek", &check.to_string()).await.json()["remaining"],
        4800,
        "and no more is charged"
    );
    let mut asks = vec![check; 150];
    asks[149]["ticket"] = json!(true);
    let answers = batch(&server, &Value::from(asks)).await;
    assert_eq!(
        statuses(&answers).iter().filter(|status| **status == 200).count(),
        100,
        "10,000 with tickets"
    );
    assert!(answers[120]["detail"].as_str().unwrap().contains("answered with 10000 limits"));
}

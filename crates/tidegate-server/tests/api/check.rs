//! The check API: what requests may contain, what is answered, what is refused.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, TWO, send, start};
use serde_json::json;
use std::time::Duration;

use http::{Method, StatusCode};

const PER_IP: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 1/s, burst: 2 }
";

#[tokio::test]
async fn an_allowed_check_and_a_denied_one_golden() {
    let server = start(PER_IP).await;
    let allowed = server.check("203.0.113.9").await;
    assert_eq!(allowed.status, StatusCode::OK);
    assert_eq!(allowed.header("content-type"), "application/json");
    assert_eq!(allowed.header("ratelimit-policy"), "\"per-ip\";q=2;w=2");
    assert_eq!(allowed.header("ratelimit"), "\"per-ip\";r=1;t=1");
    assert!(!allowed.headers.contains_key("retry-after"));
    let mut body = allowed.json();
    assert_eq!(body["decision_id"].take().as_str().unwrap().len(), 26);
    assert_eq!(
        body,
        json!({
            "decision": "allowed", "policy": "per-ip", "remaining": 1, "limit": 2, "retry": null,
            "retry_after_ms": null, "reset_at": "2027-01-15T12:00:01.000Z", "delay_ms": 0, "decision_id": null,
            "policies": [{
                "name": "per-ip", "mode": "enforce", "shadow": false, "decision": "allowed", "remaining": 1,
                "limit": 2, "debt": 0, "retry": null, "retry_after_ms": null, "reset_after_ms": 1000, "cost": 1, "charged": true,
            }],
        })
    );

    server.check("203.0.113.9").await;
    server.clock.advance(Duration::from_millis(590));
    let denied = server.check("203.0.113.9").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(denied.header("retry-after"), "1");
    assert_eq!(denied.header("ratelimit"), "\"per-ip\";r=0;t=1");
    assert_eq!(denied.header("access-control-expose-headers"), "Retry-After, RateLimit, RateLimit-Policy");
    let mut body = denied.json();
    let id = body["decision_id"].take();
    assert_eq!(body["tidegate-decision-id"].take(), id);
    assert_eq!(
        body,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded", "status": 429,
            "detail": "policy \"per-ip\" has 0 of 2 left for this client.ip and 1 asked for; try again in 410 ms",
            "violated-policies": ["per-ip"], "tidegate-decision-id": null,
            "decision": "denied", "policy": "per-ip", "remaining": 0, "limit": 2, "retry": "after",
            "retry_after_ms": 410, "reset_at": "2027-01-15T12:00:02.000Z", "delay_ms": 0, "decision_id": null,
            "policies": [{
                "name": "per-ip", "mode": "enforce", "shadow": false, "decision": "denied", "remaining": 0,
                "limit": 2, "debt": 0, "retry": "after", "retry_after_ms": 410, "reset_after_ms": 1410, "cost": 1, "charged": false,
            }],
        })
    );
    assert_eq!(server.check("198.51.100.1").await.status, StatusCode::OK, "another caller is not limited");
}

#[tokio::test]
async fn a_wait_told_works_and_a_millisecond_less_does_not() {
    let server = start(PER_IP).await;
    for _ in 0..2 {
        server.check("192.0.2.1").await;
    }
    let wait = server.check("192.0.2.1").await.json()["retry_after_ms"].as_u64().unwrap();
    server.clock.advance(Duration::from_millis(wait - 1));
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::TOO_MANY_REQUESTS);
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_peek_takes_nothing() {
    let server = start(PER_IP).await;
    for _ in 0..5 {
        let answer =
            server.post("/v1/peek", r#"{"attributes": {"client.ip": "192.0.2.1"}, "cost": 2}"#).await;
        assert_eq!((answer.status, &answer.json()["decision_id"]), (StatusCode::OK, &json!(null)));
        assert_eq!(answer.json()["policies"][0]["charged"], false);
    }
    let text = server.get("/metrics").await.text;
    assert!(
        text.contains("tidegate_decisions_total{policy=\"per-ip\",decision=\"allowed\",mode=\"enforce\"} 0")
    );
}

#[tokio::test]
async fn a_batch_is_answered_in_order_or_not_at_all() {
    let server = start(PER_IP).await;
    let one = |ip: &str| format!(r#"{{"attributes": {{"client.ip": "{ip}"}}}}"#);
    let body =
        format!("[{}, {}, {}, {}]", one("192.0.2.1"), one("192.0.2.2"), one("192.0.2.1"), one("192.0.2.1"));
    let answer = server.post("/v1/check/batch", &body).await;
    assert_eq!(answer.status, StatusCode::OK);
    let statuses: Vec<_> =
        answer.json().as_array().unwrap().iter().map(|one| one["status"].clone()).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);

    let bad = format!(r#"[{}, {{"attributes": {{}}, "policies": ["per-pi"]}}]"#, one("192.0.2.3"));
    let refused = server.post("/v1/check/batch", &bad).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.detail().contains("there is no policy `per-pi`; did you mean \"per-ip\"?"));
    assert_eq!(refused.json()["index"], 1);
    assert_eq!(
        server.check("192.0.2.3").await.json()["remaining"],
        1,
        "the first of the batch was not charged"
    );
    let limits: String =
        (0..100).map(|at| format!("  - {{ name: p{at}, limit: {{ rate: {}/s }} }}\n", 5000 + at)).collect();
    let wide = start(&format!("version: 1\npolicies:\n{limits}")).await;
    let answer = wide.post("/v1/check/batch", &format!("[{}]", vec![one("::1"); 201].join(","))).await.json();
    assert_eq!(
        (&answer[199]["status"], &answer[200]["status"]),
        (&200.into(), &413.into()),
        "20,000 limits are told"
    );
    let many = format!("[{}]", vec![one("::1"); 1001].join(","));
    assert!(server.post("/v1/check/batch", &many).await.detail().contains("at most 1000 checks"));
}

#[tokio::test]
async fn only_the_policies_named_are_asked_and_their_counters_are_the_same() {
    let server = start(TWO).await;
    let body = r#"{"attributes": {"user.id": 42}, "policies": ["per-user"]}"#;
    for remaining in [2, 1, 0] {
        let answer = server.post("/v1/check", body).await.json();
        assert_eq!(answer["remaining"], remaining);
        assert_eq!(answer["policies"].as_array().unwrap().len(), 1);
    }
    let denied = server.post("/v1/check", r#"{"attributes": {"user.id": "42"}}"#).await;
    assert_eq!(
        (denied.status, &denied.json()["policy"]),
        (StatusCode::TOO_MANY_REQUESTS, &json!("per-user"))
    );
    assert_eq!(denied.json()["policies"][0]["remaining"], 10, "a denial charges none");
}

#[tokio::test]
async fn our_own_shortage_is_503_and_a_shadow_refuses_nobody() {
    let server = start(TWO).await;
    for user in 0..10 {
        let body = format!(r#"{{"attributes": {{"user.id": {user}}}}}"#);
        assert_eq!(server.post("/v1/check", &body).await.status, StatusCode::OK);
    }
    let denied = server.post("/v1/check", r#"{"attributes": {"user.id": 99}}"#).await;
    assert_eq!(denied.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        denied.json()["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(denied.json()["violated-policies"], json!(["shield"]));
    assert_eq!(denied.header("retry-after"), "6");
    assert!(!denied.header("ratelimit").contains("trial"), "a shadow is not told to callers");

    let server = start(TWO).await;
    server.post("/v1/check", r#"{"attributes": {"user.id": 1}}"#).await;
    let second = server.post("/v1/check", r#"{"attributes": {"user.id": 1}}"#).await;
    assert_eq!(second.status, StatusCode::OK);
    assert_eq!(second.json()["policies"][2]["decision"], "denied");
    let text = server.get("/metrics").await.text;
    assert!(
        text.contains("tidegate_decisions_total{policy=\"trial\",decision=\"denied\",mode=\"shadow\"} 1")
    );
}

#[tokio::test]
async fn a_cost_no_wait_can_grant_has_no_retry_after() {
    let server = start(PER_IP).await;
    let never = server.post("/v1/check", r#"{"attributes": {"client.ip": "192.0.2.1"}, "cost": 3}"#).await;
    assert_eq!(never.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!never.headers.contains_key("retry-after"));
    assert_eq!(never.json()["retry_after_ms"], json!(null));
    assert!(never.detail().contains("never grants a cost of 3: its limit is 2"), "{}", never.detail());
}

#[tokio::test]
async fn the_other_header_forms_are_chosen_in_the_file() {
    for (form, expected) in
        [("draft-03", Some("2, 2;w=2;name=\"per-ip\"")), ("x-ratelimit", Some("2")), ("none", None)]
    {
        let server = start(&format!("{PER_IP}defaults: {{ headers: {form} }}\n")).await;
        let answer = server.check("192.0.2.1").await;
        assert_eq!(answer.headers.get("x-ratelimit-limit").map(|value| value.to_str().unwrap()), expected);
        assert!(!answer.headers.contains_key("ratelimit"));
    }
}

#[tokio::test]
async fn explain_says_why_and_what_would_pass() {
    let server = start(
        "
version: 1
policies:
  - { name: shield, limit: { rate: 5000/s } }
  - { name: login, match: { path: /login }, by: [client.ip], limit: { rate: 3/h } }
  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 1/s, burst: 4 } }
",
    )
    .await;
    let body = r#"{"attributes": {"client.ip": "203.0.113.9", "request.path": "/api"}, "cost": 3}"#;
    let id_of = |answer: Answer| answer.json()["decision_id"].as_str().unwrap().to_owned();
    let passed = id_of(server.post("/v1/check", body).await);
    let refused = id_of(server.post("/v1/check", body).await);
    let unknown = server.get(&format!("/v1/explain?id={passed}")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let says = "is not remembered here (kept: at most the latest 8192 refusals of this process, which runs since 2027-01-15T12:00:00.000Z; nothing of requests that passed)";
    assert!(unknown.detail().contains(says), "{}", unknown.detail());
    let id = refused;
    for answer in [
        server.post("/v1/explain?reveal=true", body).await,
        server.get(&format!("/v1/explain?id={id}&reveal=true")).await,
    ] {
        assert_eq!(answer.status, StatusCode::OK);
        let mut answer = answer.json();
        assert_eq!(answer["decision"], "denied");
        if answer["answers"] == "then" {
            answer = answer["now"].take();
        }
        assert_eq!(answer["answers"], "now");
        let lines: Vec<_> =
            answer["lines"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        assert_eq!(lines[0], "DENIED by per-ip, retry after 2 s");
        assert!(lines[1].starts_with("  1 shield   allowed"), "{lines:#?}");
        assert!(lines[1].ends_with("not charged, another limit denied"), "{lines:#?}");
        assert_eq!(lines[2], "  2 login    not charged path does not match");
        assert!(
            lines[3].contains("DENIED      gcra 1/s burst 4: needs 3, has 1 of 4; key client.ip=203.0.113.9")
        );
        assert_eq!(
            lines[4],
            "    would be allowed with   burst >= 6   or   cost <= 1   or   max_wait >= 2000ms"
        );
        assert_eq!(
            answer["reasons"][2]["limits"][0]["allowed_with"],
            json!({ "burst_at_least": 6, "cost_at_most": 1, "priority_at_least": null, "max_wait_at_least_ms": 2000 })
        );
    }
    let allowed =
        server.post("/v1/explain", r#"{"attributes": {"client.ip": "192.0.2.2"}, "cost": 3}"#).await.json();
    assert_eq!(allowed["lines"][0], "ALLOWED, tightest is per-ip");
    let line = allowed["lines"][3].as_str().unwrap();
    assert!(line.contains("allowed     gcra 1/s burst 4: needs 3, has 4 of 4"), "{line}");
    let redacted = server.post("/v1/explain", body).await;
    assert!(!redacted.text.contains("203.0.113.9"), "{}", redacted.text);
    server.post("/v1/check", body).await;
    let top = server.get("/v1/keys/top").await.json();
    assert_eq!(top["keys"][0]["key"], redacted.json()["reasons"][2]["key"], "one digest everywhere");
}

#[tokio::test]
async fn every_bad_input_is_a_problem_that_names_it() {
    let server = start(PER_IP).await;
    let table = [
        ("/v1/check", "{", 400, "the body is not JSON"),
        ("/v1/check", r#"{"attributes": {}, "cost": 0}"#, 400, "`cost` 0 asks for nothing"),
        ("/v1/check", r#"{"attributes": {}, "policies": ["nope"]}"#, 400, "there is no policy `nope`"),
        ("/v1/check?cost=5", "{}", 400, "unknown parameter `cost`; write it into the body"),
        ("/v1/peek?policies=user", "{}", 400, "unknown parameter `policies`; write it into the body"),
        ("/v1/check/batch?cost=5", "[]", 400, "unknown parameter `cost`; write it into the body"),
        ("/v1/settle?status=200", "{}", 400, "unknown parameter `status`; write it into the body"),
        ("/v1/settle?refund", "{}", 400, "unknown parameter `refund`; write it into the body"),
        ("/v1/extend?ticket=x", "{}", 400, "unknown parameter `ticket`; write it into the body"),
        ("/v1/signals/queue?value=3", "{}", 400, "unknown parameter `value`; write it into the body"),
        ("/v1/dry-run?cost=5", "{}", 400, "unknown parameter `cost`; there are `reveal`"),
        ("/v1/check?", "{", 400, "the body is not JSON"),
        ("/v1/chek", "{}", 404, "did you mean /v1/check?"),
        ("/v1/policies", "{}", 405, "`POST` does not work here; use GET, HEAD"),
        ("/v1/policies/per-ipp", "", 405, "use GET"),
        ("/v1/keys/per-ip", "", 405, "use GET, HEAD, PUT, DELETE"),
    ];
    for (path, body, status, detail) in table {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, status, "{path} {body}");
        assert!(answer.detail().contains(detail), "{}", answer.detail());
    }
    let long = format!(r#"{{"attributes": {{"a": "{}"}}}}"#, "x".repeat(70_000));
    assert_eq!(server.post("/v1/check", &long).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let wrong = server.put("/v1/check", "").await;
    assert_eq!((wrong.status, wrong.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, "POST"));
}

#[tokio::test]
async fn a_compressed_body_is_told_that_it_is_not_read() {
    let server = start(TWO).await;
    let send_as = async |encoding: &str, body: &str| {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        send(server.addr, Method::POST, "/v1/check", &headers, body).await
    };
    let refused = send_as("gzip", "\u{1f}\u{8b}").await;
    assert_eq!(refused.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{refused:?}");
    assert_eq!(refused.detail(), "content-encoding: `gzip` is not read here; send the body as it is");
    assert_eq!(refused.json()["field"], "content-encoding");
    let usual = send_as("Identity", r#"{"attributes": {}}"#).await;
    assert_eq!(usual.status, StatusCode::OK, "{usual:?}");
}

/// Regression: a decision by its id was made again with the counters of the moment, so that a refusal was called ALLOWED.
#[tokio::test]
async fn a_refusal_by_its_id_is_the_record_of_it_and_beside_it_how_it_would_go_now() {
    let server = start(
        "
version: 1
policies:
  - { name: login, match: { path: /login }, by: [client.ip], limit: { rate: 3/h } }
  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 2/min, burst: 3 } }
  - { name: trial, mode: shadow, limit: { rate: 2/h } }
",
    )
    .await;
    for _ in 0..3 {
        assert_eq!(server.check("203.0.113.77").await.status, StatusCode::OK);
    }
    server.clock.advance(Duration::from_secs(1));
    let id = server.check("203.0.113.77").await.json()["decision_id"].as_str().unwrap().to_owned();
    server.clock.advance(Duration::from_secs(89));
    let ask = async || server.get(&format!("/v1/explain?id={id}&reveal=true")).await;
    let told = ask().await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.text);
    let told = told.json();
    let lines: Vec<&str> =
        told["lines"].as_array().unwrap().iter().filter_map(|line| line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "DENIED by per-ip at 2027-01-15T12:00:01.000Z, 89 s ago; retry after 29 s",
            "  1 per-ip   DENIED      gcra 2/min burst 3: needed 1, had 0 of 3; key client.ip=203.0.113.77",
            "  2 trial    would deny  gcra 2/h: needed 1, had 0 of 2",
            "    under configuration 1, which is still in force",
            "now: would be ALLOWED, tightest is per-ip",
            "  1 login    not charged the request has no request.path",
            "  2 per-ip   allowed     gcra 2/min burst 3: needs 1, has 3 of 3; key client.ip=203.0.113.77",
            "  3 trial    would deny  gcra 2/h: needs 1, has 0 of 2; key (all)",
        ]
    );
    for (name, value) in [
        ("answers", json!("then")),
        ("decision", json!("denied")),
        ("policy", json!("per-ip")),
        ("refused_by", json!("limit")),
        ("decided_at", json!("2027-01-15T12:00:01.000Z")),
        ("configuration", json!({ "number": 1, "in_force": true })),
        ("key", json!("client.ip=203.0.113.77")),
        ("retry_after_ms", json!(29_000)),
    ] {
        assert_eq!(told[name], value, "{name}");
    }
    assert_eq!((&told["now"]["answers"], &told["now"]["decision"]), (&json!("now"), &json!("allowed")));
    // Another configuration, without the policy that refused, changes only what would be now.
    let policy = r#"{"by": ["client.ip"], "limit": {"rate": "9/min"}}"#;
    let put = server.put("/v1/policies/more", policy).await;
    assert!(put.status.is_success(), "{}", put.text);
    let later = ask().await.json();
    assert_eq!(later["configuration"], json!({ "number": 1, "in_force": false }));
    assert_eq!(later["lines"][3], "    under configuration 1; now 2 is in force");
    assert_eq!((&later["limits"], &later["decided_at"]), (&told["limits"], &told["decided_at"]));
    let hidden = server.get(&format!("/v1/explain?id={id}")).await;
    assert!(!hidden.text.contains("203.0.113.77") && hidden.text.contains("DENIED by per-ip"), "{hidden:?}");
}

/// The recorded refusal is decided again by what was spent then, whatever has happened since.
#[tokio::test]
async fn another_limit_decides_by_what_was_spent_then() {
    let server = start(
        "
version: 1
policies:
  - { name: per-ip, by: [client.ip], limit: { algorithm: gcra, rate: 2/min, burst: 3 } }
  - { name: log, mode: shadow, limit: { algorithm: sliding-log, rate: 2/h } }
",
    )
    .await;
    for _ in 0..3 {
        assert_eq!(server.check("203.0.113.77").await.status, StatusCode::OK);
    }
    let id = server.check("203.0.113.77").await.json()["decision_id"].as_str().unwrap().to_owned();
    server.clock.advance(Duration::from_secs(3600));
    let with = async |policy: &str, limit: &str| {
        let body = format!(r#"{{"with": {{"policy": "{policy}", "limit": {limit}}}}}"#);
        server.post(&format!("/v1/explain?id={id}"), &body).await
    };
    let same = with("per-ip", r#"{"algorithm": "gcra", "rate": "2/min", "burst": 3}"#).await;
    assert_eq!(same.status, StatusCode::OK, "{}", same.text);
    let same = same.json();
    for (name, value) in [
        ("decision", json!("denied")),
        ("has", json!(0)),
        ("of", json!(3)),
        ("retry_after_ms", json!(30_000)),
    ] {
        assert_eq!(same["with"][name], value, "{name}: {same}");
    }
    assert_eq!((&same["limits"][0]["state_known"], &same["from"]), (&json!(true), &json!("memory")));
    let larger = with("per-ip", r#"{"algorithm": "gcra", "rate": "2/min", "burst": 4}"#).await.json();
    assert_eq!((&larger["with"]["decision"], &larger["with"]["has"]), (&json!("allowed"), &json!(1)));
    let says = "with gcra 2/min burst 4 for per-ip: would have been ALLOWED, had 1 of 4";
    assert!(larger["lines"].as_array().unwrap().contains(&json!(says)), "{larger}");
    let waits = with("per-ip", r#"{"algorithm": "gcra", "rate": "2/min", "burst": 3, "max_wait": "1min"}"#);
    assert_eq!(waits.await.json()["with"]["decision"], "allowed", "after 30 s");
    let unknown = with("log", r#"{"rate": "9/h"}"#).await.json();
    assert_eq!(unknown["with"]["decision"], json!(null), "{unknown}");
    for (policy, limit) in
        [("other", r#"{"rate": "9/h"}"#), ("per-ip", r#"{"rate": "9/x"}"#), ("per-ip", "{}")]
    {
        assert_eq!(with(policy, limit).await.status, StatusCode::BAD_REQUEST, "{policy} {limit}");
    }
    let check = server.post(&format!("/v1/explain?id={id}"), r#"{"attributes": {}}"#).await;
    assert_eq!(check.status, StatusCode::BAD_REQUEST, "{}", check.text);
}

/// What is kept for higher priority may be a share, so of another limit it is another number of units.
#[tokio::test]
async fn another_limit_is_not_decided_by_what_the_first_one_kept() {
    let server = start(
        "
version: 1
policies:
  - { name: backend, limit: { algorithm: gcra, rate: 10/min, burst: 10, keep_for: { critical: 50% } } }
",
    )
    .await;
    let body = r#"{"attributes": {}, "priority": "sheddable", "cost": 5}"#;
    assert_eq!(server.post("/v1/check", body).await.status, StatusCode::OK);
    let refused = server.post("/v1/check", &body.replace("\"cost\": 5", "\"cost\": 1")).await.json();
    let id = refused["decision_id"].as_str().unwrap();
    for (burst, decision) in [(10, json!("denied")), (8, json!(null))] {
        let limit = format!(r#"{{"algorithm": "gcra", "rate": "10/min", "burst": {burst}}}"#);
        let body = format!(r#"{{"with": {{"policy": "backend", "limit": {limit}}}}}"#);
        let told = server.post(&format!("/v1/explain?id={id}"), &body).await.json();
        assert_eq!(told["with"]["decision"], decision, "{burst}: {told}");
    }
}

/// A request that is too long to be kept has its record all the same.
#[tokio::test]
async fn the_record_of_a_long_request_says_that_the_request_is_not_kept() {
    let server = start(PER_IP).await;
    let body = json!({ "attributes": { "client.ip": "192.0.2.1", "x.one": "q".repeat(5000), "x.two": "q".repeat(5000) } });
    let body = body.to_string();
    for _ in 0..2 {
        server.post("/v1/check", &body).await;
    }
    let id = server.post("/v1/check", &body).await.json()["decision_id"].as_str().unwrap().to_owned();
    let told = server.get(&format!("/v1/explain?id={id}")).await.json();
    assert_eq!((&told["policy"], &told["now"]), (&json!("per-ip"), &json!(null)), "{told}");
    let last = told["lines"].as_array().unwrap().last().unwrap();
    assert_eq!(last, "now: not known, since a request above 8 KiB is not kept; POST the body of the check");
}

//! An adaptive limit over HTTP: checks take places, settlements train the limit, metrics show its value.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::VecDeque;
use std::time::Duration;

use crate::running::{Answer, Running, start};
use http::StatusCode;
use serde_json::json;

/// Falls by a tenth with each call above 50 ms, and grows by one with each faster call.
const BACKEND: &str = "
version: 1
policies:
  - name: backend
    limit: { algorithm: adaptive, law: aimd, start: 8, min: 2, max: 40, slow_after: 50ms, ttl: 30s }
";

async fn check(server: &Running) -> Answer {
    server.post("/v1/check", r#"{"attributes": {}}"#).await
}

/// Settles a ticket, and returns how many places came back.
async fn settle(server: &Running, ticket: &str, outcome: &str) -> u64 {
    let body = format!(r#"{{"ticket": "{ticket}", "outcome": "{outcome}"}}"#);
    let settled = server.post("/v1/settle", &body).await;
    assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
    settled.json()["policies"][0]["returned"].as_u64().unwrap()
}

/// The value of a series; `None` if it does not exist.
async fn metric(server: &Running, series: &str) -> Option<u64> {
    let text = server.get("/metrics").await.text;
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
    line.map(|value| value.parse().unwrap())
}

async fn limit(server: &Running) -> u64 {
    metric(server, "tidegate_concurrency_limit{policy=\"backend\"}").await.unwrap()
}

/// Runs rounds of a load that takes every free place and returns each after `took`. Returns how many requests were
/// refused.
async fn load(server: &Running, rounds: usize, took: Duration) -> usize {
    let mut refused = 0;
    for _ in 0..rounds {
        let mut tickets = VecDeque::new();
        loop {
            let answer = check(server).await;
            if answer.status != StatusCode::OK {
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
                refused += 1;
                break;
            }
            tickets.push_back(answer.json()["ticket"].as_str().unwrap().to_owned());
        }
        assert_eq!(metric(server, "tidegate_inflight{policy=\"backend\"}").await, Some(tickets.len() as u64));
        server.clock.advance(took);
        for ticket in tickets {
            let returned = settle(server, &ticket, "success").await;
            assert_eq!(returned, 1, "even where the limit falls by it");
        }
    }
    refused
}

#[tokio::test]
async fn the_limit_follows_what_comes_back() {
    let server = start(BACKEND).await;
    assert_eq!(
        (limit(&server).await, metric(&server, "tidegate_inflight{policy=\"backend\"}").await),
        (8, Some(0))
    );

    assert_eq!(load(&server, 3, Duration::from_millis(20)).await, 3);
    let quick = limit(&server).await;
    assert!(quick > 20, "{quick}: it grows while it is needed and work is quick");

    load(&server, 2, Duration::from_millis(80)).await;
    let slow = limit(&server).await;
    assert!(slow < quick / 2, "{slow} after {quick}: it falls when latency grows");

    load(&server, 4, Duration::from_millis(10)).await;
    assert!(limit(&server).await > slow * 2, "and comes back");
}

#[tokio::test]
async fn a_refusal_is_our_shortage_and_the_policy_shows_its_places() {
    let server = start(&BACKEND.replace("start: 8", "start: 2")).await;
    let tickets = [check(&server).await, check(&server).await].map(|answer| answer.json()["ticket"].clone());
    let busy = check(&server).await;
    assert_eq!(
        (busy.status, busy.json()["retry"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("unknown"))
    );
    assert_eq!(busy.header("ratelimit-policy"), "\"backend\";q=2;qu=\"concurrent-requests\"");
    let shown = server.get("/v1/policies/backend").await.json();
    assert_eq!(shown["places"], json!({ "limit": 2, "in_use": 2 }));
    assert_eq!(shown["limits"][0]["limit"], "adaptive aimd 2..40 ttl 30s");

    let explained = server.post("/v1/explain", r#"{"attributes": {}}"#).await;
    let reason = &explained.json()["reasons"][0]["limits"][0];
    assert_eq!(
        (&reason["counts"], &reason["of"], &reason["result"]),
        (&json!("places"), &json!(2), &json!("DENIED"))
    );
    assert_eq!(reason["allowed_with"]["burst_at_least"], json!(null), "no word of the file makes it larger");

    // Ignored outcomes, and reports after the time to live, do not change the limit.
    settle(&server, tickets[0].as_str().unwrap(), "ignored").await;
    server.clock.advance(Duration::from_secs(31));
    settle(&server, tickets[1].as_str().unwrap(), "overloaded").await;
    assert_eq!(limit(&server).await, 2);
}

#[tokio::test]
async fn a_reload_keeps_who_is_inside_and_what_was_learnt() {
    let server = start(BACKEND).await;
    load(&server, 3, Duration::from_millis(20)).await;
    let learnt = limit(&server).await;
    let ticket = check(&server).await.json()["ticket"].as_str().unwrap().to_owned();
    server.write(&BACKEND.replace("max: 40", "max: 60"));
    let reloaded = server.post("/v1/reload", "").await;
    assert_eq!(reloaded.status, StatusCode::OK, "{reloaded:?}");
    assert_eq!(limit(&server).await, learnt);
    assert_eq!(metric(&server, "tidegate_inflight{policy=\"backend\"}").await, Some(1));
    settle(&server, &ticket, "success").await;
    assert_eq!(metric(&server, "tidegate_inflight{policy=\"backend\"}").await, Some(0));

    server.write("version: 1\npolicies:\n  - { name: backend, limit: { rate: 5/s } }\n");
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(metric(&server, "tidegate_concurrency_limit{policy=\"backend\"}").await, None);
}

/// The server measures by tickets how long work takes.
#[tokio::test]
async fn a_policy_goes_by_the_latency_that_tickets_tell() {
    let server = start(
        "
version: 1
policies:
  - { name: backend, limit: { algorithm: adaptive, start: 8 } }
  - { name: spare, when: \"latency above 100ms, until 50ms\", limit: { rate: 1/h } }
",
    )
    .await;
    let mut statuses = Vec::new();
    for took in [200, 200, 10, 10] {
        let answer = check(&server).await;
        statuses.push(answer.status.as_u16());
        server.clock.advance(Duration::from_millis(took));
        if let Some(ticket) = answer.json()["ticket"].as_str() {
            settle(&server, ticket, "success").await;
        }
        server.clock.advance(Duration::from_millis(600));
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

//! The ticket of forward-auth in a header, which has room for 1,024 characters.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::{Value, json};

async fn ask(server: &Running, uri: &str, more: &[(&str, &str)]) -> Answer {
    let mut headers = vec![
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", uri),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    headers.extend_from_slice(more);
    send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await
}

#[tokio::test]
async fn behind_a_proxy_the_ticket_is_in_a_header() {
    let server = start(
        "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
policies:
  - { name: all, by: [request.header.cookie], absent: charge, limit: { rate: 100/s } }
  - { name: login, match: { path: /login }, by: [client.ip], charge: on-failure, limit: { algorithm: sliding-log, rate: 3/h } }
  - { name: key, match: { path: /key }, by: [request.header.x-key], charge: on-failure, limit: { algorithm: sliding-log, rate: 3/h } }
",
    )
    .await;
    let ask = async |uri: &str, more: &[(&str, &str)]| ask(&server, uri, more).await;
    let long = "c".repeat(4000);
    let plain = ask("/", &[("cookie", &long)]).await;
    assert!(!plain.headers.contains_key("x-tidegate-ticket"));
    let login = ask("/login", &[("cookie", &long)]).await;
    let ticket = login.header("x-tidegate-ticket");
    assert!(ticket.len() > 100 && ticket.len() <= 1024, "{} bytes, and no cookie in it", ticket.len());
    let body = format!(r#"{{"ticket": "{ticket}", "status": 401}}"#);
    let told = server.post("/v1/settle", &body).await;
    let told = told.json();
    assert_eq!(told["policies"].as_array().map(Vec::len), Some(1), "{told}");
    let part = &told["policies"][0];
    assert_eq!(
        (&part["name"], &part["charged"], &part["effect"]),
        (&json!("login"), &json!(1), &json!("kept"))
    );
    let too_long = ask("/key", &[("x-key", &long)]).await;
    let why = too_long.header("x-tidegate-ticket-error");
    assert!(
        why.contains("characters is too long for a header, at most 1024 are possible: 1 limit was charged"),
        "{why}"
    );
    assert!(why.contains("of policy \"key\""), "{why}");
    assert!(
        why.ends_with(
            "; send less in request.header.x-key; or ask POST /v1/check, whose ticket may have 16384 bytes"
        ),
        "{why}"
    );
    assert_eq!(too_long.status, StatusCode::OK, "an estimate stands");
}

/// Makes a file with places, and with this many limits that expect to be settled.
fn places_beside(limits: usize) -> String {
    let mut file = "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
policies:
  - { name: places, by: [client.ip], limit: { algorithm: concurrency, max: 2 } }
"
    .to_owned();
    for at in 0..limits {
        let policy = format!(
            "  - {{ name: tokens-{at}, by: [client.ip], cost: {{ estimate: 10, settle: llm.output }}, limit: {{ rate: 1000/h }} }}\n"
        );
        file.push_str(&policy);
    }
    file
}

async fn remaining(server: &Running) -> Vec<Value> {
    let peek = server.post("/v1/peek", r#"{"attributes": {"client.ip": "203.0.113.9"}}"#).await.json();
    peek["policies"].as_array().unwrap().iter().map(|part| part["remaining"].clone()).collect()
}

/// Regression: a place beside six limits that expect to be settled made a ticket too long for a header, and every such
/// request was refused.
#[tokio::test]
async fn a_ticket_that_is_too_long_returns_at_least_the_place() {
    let mut largest_whole = 0;
    for limits in 1..=20 {
        let server = start(&places_beside(limits)).await;
        let admitted = ask(&server, "/", &[]).await;
        assert_eq!(admitted.status, StatusCode::OK, "{limits} limits: {admitted:?}");
        let ticket = admitted.header("x-tidegate-ticket");
        assert!(ticket.len() <= 1024, "{limits} limits: {} characters", ticket.len());
        let cut = admitted.headers.get("x-tidegate-ticket-error").map(|why| why.to_str().unwrap().to_owned());
        let head: usize =
            admitted.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        assert!(head < 4096 - 256, "{limits} limits: a head of {head} bytes");
        let body = format!(r#"{{"ticket": "{ticket}", "attributes": {{"llm.output": 4}}, "status": 200}}"#);
        let settled = server.post("/v1/settle", &body).await;
        assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
        let left = remaining(&server).await;
        assert_eq!(left[0], 2, "{limits} limits: the place is back");
        let tokens = if cut.is_none() { 996 } else { 990 };
        assert!(left[1..].iter().all(|left| *left == tokens), "{limits} limits: {left:?}");
        match cut {
            None => largest_whole = limits,
            Some(why) => assert!(
                why.contains("at most 1024 fit a header: this one returns only the places"),
                "{limits} limits: {why}"
            ),
        }
    }
    assert!((3..6).contains(&largest_whole), "{largest_whole} limits beside a place fit");
}

/// Places under keys that are too long for a ticket in a header could not be returned.
#[tokio::test]
async fn places_whose_own_keys_are_too_long_are_refused() {
    let file = places_beside(2).replacen("by: [client.ip]", "by: [request.header.x-key]", 1);
    let server = start(&file).await;
    let refused = ask(&server, "/", &[("x-key", &"k".repeat(800))]).await;
    assert_eq!(refused.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "{refused:?}");
    assert!(
        refused.detail().contains("a ticket of the places alone is too long for a header with 1"),
        "{}",
        refused.detail()
    );
    assert_eq!(refused.json()["policy"], "places");
    assert_eq!(remaining(&server).await, [1000, 1000], "nothing stays charged");
}

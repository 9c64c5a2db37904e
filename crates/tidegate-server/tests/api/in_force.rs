//! What is in force now: policies with conditions, rates that follow a number, and switches, as people on call see it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::wire::{read_until, sent};
use crate::running::{Running, send, start};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;

const FILE: &str = "
version: 1
policies:
  - name: careful
    when: signal queue-length above 1000, until 800
    limit: { rate: 1/day }
  - name: both
    when: [signal queue-length above 1000, signal errors above 5]
    limit: { rate: 1/day }
  - name: few previews
    when: switch previews off
    limit: { rate: 1/day }
  - name: everything
    limit: { rate: 1000/s, follows: signal pressure 10..20 to 100/s }
  - name: plain
    limit: { rate: 7/s }
";

async fn report(server: &Running, name: &str, value: u32) {
    let body = format!(r#"{{"value": {value}}}"#);
    let told = send(server.addr, Method::POST, &format!("/v1/signals/{name}"), &[], &body).await;
    assert_eq!(told.status, StatusCode::OK);
}

async fn turn(server: &Running, body: &str) {
    let told = server.put("/v1/switches/previews", body).await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.text);
}

/// Returns `in_force` of each policy that has it.
async fn in_force(server: &Running) -> Value {
    let listed = server.get("/v1/policies").await.json();
    let each = listed["policies"].as_array().unwrap().iter();
    each.filter_map(|one| Some((one["name"].as_str()?.to_owned(), one.get("in_force")?.clone()))).collect()
}

async fn listen(server: &Running) -> TcpStream {
    let mut stream = sent(server.addr, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut stream, "Last-Event-ID means nothing here").await;
    stream
}

#[tokio::test]
async fn policies_say_whether_their_conditions_hold() {
    let server = start(FILE).await;
    assert_eq!(in_force(&server).await, json!({ "careful": null, "both": null, "few previews": false }));
    report(&server, "queue-length", 1200).await;
    assert_eq!(in_force(&server).await, json!({ "careful": true, "both": null, "few previews": false }));
    report(&server, "errors", 1).await;
    turn(&server, r#"{"state": "off", "below": "critical"}"#).await;
    assert_eq!(in_force(&server).await, json!({ "careful": true, "both": false, "few previews": true }));
    let one = server.get("/v1/policies/few%20previews").await;
    assert_eq!(one.json()["in_force_below"], "critical");
    // The tag is that of the policy, and not of what it is at the moment.
    let tag = one.header("etag").to_owned();
    turn(&server, r#"{"state": "on"}"#).await;
    let other = server.get("/v1/policies/few%20previews").await;
    assert_eq!((other.header("etag"), &other.json()["in_force"]), (&*tag, &json!(false)));
    let page = server.get("/metrics").await.text;
    for line in [
        "tidegate_policy_in_force{policy=\"careful\"} 1",
        "tidegate_policy_in_force{policy=\"both\"} 0",
        "tidegate_policy_conditions_known{policy=\"both\"} 1",
        "tidegate_policy_in_force{policy=\"few previews\"} 0",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
    assert!(!page.contains("tidegate_policy_in_force{policy=\"plain\"}"), "{page}");
}

/// A policy that limits nothing because nobody reports its number was told by a gauge alone, and then twice.
#[tokio::test]
async fn a_policy_whose_number_is_not_known_is_told_once() {
    let server = start(FILE).await;
    let told = server.get("/readyz?verbose").await.text;
    let line = "[!] signal queue-length was never reported; policy careful is not in force, policy both is not in force;";
    assert!(told.contains(line), "{told}");
    assert!(!told.contains("is not known"), "{told}");
    report(&server, "queue-length", 1).await;
    report(&server, "errors", 1).await;
    let told = server.get("/readyz?verbose").await.text;
    assert!(!told.contains("policy careful") && !told.contains("is not known"), "{told}");
    server.clock.advance(Duration::from_secs(3600));
    let told = server.get("/readyz?verbose").await.text;
    let line =
        "[!] a number that the conditions of careful, both need is not known any more: they limit nothing\n";
    assert!(told.contains(line), "{told}");
}

/// A gauge that showed the rate of the file while a tenth of it was in force misled whoever looked at it.
#[tokio::test]
async fn a_rate_that_follows_a_number_is_shown_as_it_is() {
    let server = start(FILE).await;
    let shown = async || {
        let page = server.get("/metrics").await.text;
        let value = |name: &str| {
            let start = format!("tidegate_policy_{name}{{policy=\"everything\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&start)?.parse::<f64>().ok()).unwrap()
        };
        let api = server.get("/v1/policies/everything").await.json();
        (value("limit"), value("followed_rate"), api["limits"][0]["per_second_in_force"].as_f64().unwrap())
    };
    assert_eq!(shown().await, (1000.0, 1000.0, 1000.0));
    report(&server, "pressure", 1000).await;
    assert_eq!(shown().await, (100.0, 100.0, 100.0));
    let page = server.get("/metrics").await.text;
    assert!(page.contains("tidegate_policy_limit{policy=\"plain\"} 7"), "{page}");
    assert!(!page.contains("tidegate_policy_followed_rate{policy=\"plain\"}"), "{page}");
}

#[tokio::test]
async fn conditions_and_switches_that_change_are_told_to_listeners() {
    let server = start(FILE).await;
    let mut stream = listen(&server).await;
    report(&server, "queue-length", 1200).await;
    server.get("/v1/policies").await;
    let began = read_until(&mut stream, "\"policy\":\"careful\"").await;
    assert!(began.contains("event: condition\n") && began.contains("\"in_force\":true"), "{began}");
    report(&server, "queue-length", 1).await;
    server.get("/v1/policies").await;
    let ended = read_until(&mut stream, "last read as 1").await;
    assert!(
        ended.contains("\"in_force\":false") && ended.contains("signal queue-length above 1000"),
        "{ended}"
    );

    turn(&server, r#"{"state": "off", "below": "critical", "reason": "moved"}"#).await;
    let off = read_until(&mut stream, "\"switch\":\"previews\"").await;
    assert!(off.contains("\"policy\":\"few previews\"") && off.contains("event: switch\n"), "{off}");
    let words = "\"below\":\"critical\",\"by\":\"hand\",\"reason\":\"moved\",\"state\":\"off\"";
    assert!(off.contains(words), "{off}");
    turn(&server, r#"{"state": "on"}"#).await;
    read_until(&mut stream, "\"state\":\"on\"").await;
}

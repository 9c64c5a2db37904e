//! Switches that a number turns off, by the section `switches` of the policy file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::wire::{read_until, sent};
use crate::running::{Running, send, start};
use http::{Method, StatusCode};
use serde_json::{Value, json};

const FILE: &str = "
version: 1
switches:
  previews: { off_when: 'signal p99 above 500, until 300, stale after 1h', below: critical, hold: 0s }
  recommendations: [{ off_when: signal p99 above 900, hold: 1h }, { off_when: signal errors above 5, hold: 0s }]
policies:
  - name: few previews
    when: switch previews off
    limit: { algorithm: fixed-window, rate: 1/day }
";

async fn report(server: &Running, name: &str, value: &str) -> StatusCode {
    let body = format!(r#"{{"value": {value}}}"#);
    send(server.addr, Method::POST, &format!("/v1/signals/{name}"), &[], &body).await.status
}

async fn put(server: &Running, name: &str, body: &str) -> Value {
    let told = server.put(&format!("/v1/switches/{name}"), body).await;
    assert_eq!(told.status, StatusCode::OK, "{}", told.text);
    told.json()["switches"][0].clone()
}

async fn switch(server: &Running, name: &str) -> Value {
    let listed = server.get("/v1/switches").await.json();
    let mut all = listed["switches"].as_array().unwrap().iter();
    all.find(|one| one["name"] == name).unwrap().clone()
}

/// The statuses of two checks of a priority: the second is refused if the policy is in force for it.
async fn limited(server: &Running, priority: &str) -> bool {
    let body = format!(r#"{{"attributes": {{}}, "priority": "{priority}"}}"#);
    let mut status = StatusCode::OK;
    for _ in 0..2 {
        status = send(server.addr, Method::POST, "/v1/check", &[], &body).await.status;
    }
    status == StatusCode::TOO_MANY_REQUESTS
}

#[tokio::test]
async fn a_number_turns_a_switch_off_and_on_and_policies_follow_at_once() {
    let server = start(FILE).await;
    let mut stream = sent(server.addr, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut stream, "Last-Event-ID means nothing here").await;
    let on = switch(&server, "previews").await;
    let trigger = json!({
        "off_when": "signal p99 above 500, until 300", "below": "critical", "hold_ms": 0, "for_ms": 3_600_000,
    });
    assert_eq!(
        (&on["state"], &on["by_signal"], &on["triggers"]),
        (&json!("on"), &json!(null), &json!([trigger]))
    );
    assert!(!limited(&server, "sheddable").await);

    assert_eq!(report(&server, "p99", "501").await, StatusCode::OK);
    assert!(limited(&server, "sheddable").await, "in force with the report");
    assert!(!limited(&server, "critical").await);
    let off = switch(&server, "previews").await;
    assert_eq!((&off["state"], &off["by_signal"]["below"]), (&json!("off"), &json!("critical")));
    let reason = "signal p99 above 500, until 300: read as 501";
    assert_eq!(off["by_signal"]["reason"], reason);
    let told = read_until(&mut stream, "\"switch\":\"previews\"").await;
    assert!(told.contains("\"by\":\"signal\"") && told.contains(reason), "{told}");

    // Between the marks it stays; at the lower one it is on.
    report(&server, "p99", "301").await;
    assert_eq!(switch(&server, "previews").await["state"], "off");
    report(&server, "p99", "300").await;
    assert_eq!(switch(&server, "previews").await["state"], "on");
    assert!(!limited(&server, "sheddable").await);
    read_until(&mut stream, "\"state\":\"on\"").await;

    // A number without a policy of its own is known, and one that nobody uses is not.
    assert_eq!(report(&server, "errors", "1").await, StatusCode::OK);
    assert_eq!(report(&server, "error", "1").await, StatusCode::NOT_FOUND);
    assert_eq!(report(&server, "errors", "1e999").await, StatusCode::BAD_REQUEST);
    let numbers = server.get("/v1/signals").await.json();
    assert_eq!(numbers["signals"][1]["value"], 300.0, "{numbers}");
}

#[tokio::test]
async fn a_hand_wins_until_it_ends() {
    let server = start(FILE).await;
    report(&server, "p99", "901").await;
    let kept = put(&server, "previews", r#"{"state": "on", "for": "1h", "reason": "a demonstration"}"#).await;
    assert_eq!((&kept["state"], &kept["by_hand"]["state"]), (&json!("on"), &json!("on")));
    assert_eq!(
        (&kept["by_hand"]["reason"], &kept["by_signal"]["below"]),
        (&json!("a demonstration"), &json!("critical"))
    );
    assert!(!limited(&server, "sheddable").await);
    report(&server, "p99", "950").await;
    assert!(!limited(&server, "sheddable").await, "a further report changes nothing");
    let signals = put(&server, "previews", r#"{"state": "on"}"#).await;
    assert_eq!((&signals["state"], &signals["by_hand"]), (&json!("off"), &json!(null)));
    put(&server, "previews", r#"{"state": "off"}"#).await;
    report(&server, "p99", "1").await;
    assert_eq!(switch(&server, "previews").await["state"], "off", "the hand keeps it off");
    let on = put(&server, "previews", r#"{"state": "on"}"#).await;
    assert_eq!(on["state"], "on");
    for (body, says) in [
        (r#"{"state": "on", "by": "signal", "for": "1h"}"#, "a signal keeps no switch on"),
        (r#"{"state": "on", "reason": "x"}"#, "a `reason` to be on needs `for`"),
        (r#"{"state": "on", "for": "0s"}"#, "`0s` is not a time for a switch to be on"),
        (r#"{"state": "on", "for": "1h", "below": "critical"}"#, "has no `below`"),
    ] {
        let refused = server.put("/v1/switches/previews", body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(refused.detail().contains(says), "{body}: {}", refused.detail());
    }
}

/// A hold outlasts a calm number; a reload keeps what the same trigger turned off, and drops what a removed one did.
#[tokio::test]
async fn a_switch_is_held_off_and_a_reload_keeps_it() {
    let server = start(FILE).await;
    report(&server, "p99", "901").await;
    report(&server, "p99", "1").await;
    let states = async || {
        let names = ["previews", "recommendations"];
        let mut states = Vec::new();
        for name in names {
            states.push(switch(&server, name).await["state"].as_str().unwrap().to_owned());
        }
        states
    };
    assert_eq!(states().await, ["on", "off"]);
    server.write(&FILE.replace("until 300", "until 200"));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(states().await, ["on", "off"]);
    server.write(&FILE.replace("{ off_when: signal p99 above 900, hold: 1h }, ", ""));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(states().await, ["on", "on"]);
    report(&server, "errors", "6").await;
    assert_eq!(states().await, ["on", "off"]);
}

/// The series of a switch: whether it is off, and the changes by hand, by signals and by time.
async fn series(server: &Running, name: &str) -> Option<[u32; 4]> {
    let page = server.get("/metrics").await.text;
    let value =
        |series: String| page.lines().find_map(|line| line.strip_prefix(&*series)?.trim().parse().ok());
    let changes = |by| value(format!("tidegate_switch_changes_total{{switch=\"{name}\",by=\"{by}\"}}"));
    let off = value(format!("tidegate_switch_off{{switch=\"{name}\"}}"))?;
    Some([off, changes("hand")?, changes("signal")?, changes("time")?])
}

#[tokio::test]
async fn metrics_say_which_switches_are_off_and_who_changed_them() {
    let server = start(FILE).await;
    assert_eq!(series(&server, "previews").await, Some([0, 0, 0, 0]), "visible before the first change");
    report(&server, "p99", "501").await;
    assert_eq!(series(&server, "previews").await, Some([1, 0, 1, 0]), "off below a level is off");
    report(&server, "p99", "502").await;
    assert_eq!(series(&server, "previews").await, Some([1, 0, 1, 0]), "a repeated reading is no change");
    put(&server, "previews", r#"{"state": "on", "for": "1h", "reason": "a demonstration"}"#).await;
    assert_eq!(series(&server, "previews").await, Some([0, 1, 1, 0]));
    put(&server, "previews", r#"{"state": "on"}"#).await;
    assert_eq!(series(&server, "previews").await, Some([1, 2, 1, 0]));
    report(&server, "p99", "300").await;
    assert_eq!(series(&server, "previews").await, Some([0, 2, 2, 0]));
    assert_eq!(series(&server, "recommendations").await, Some([0, 0, 0, 0]));

    // The end of a setting is noticed when metrics are read.
    put(&server, "previews", r#"{"state": "off", "for": "1min"}"#).await;
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(series(&server, "previews").await, Some([0, 3, 2, 1]));

    // A reload drops the series of a switch that is gone, makes those of a new one and keeps the others.
    let renamed = FILE.replace("  recommendations: [", "  search: [");
    server.write(&renamed);
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(series(&server, "recommendations").await, None);
    assert!(!server.get("/metrics").await.text.contains("recommendations"));
    assert_eq!(series(&server, "search").await, Some([0, 0, 0, 0]));
    assert_eq!(series(&server, "previews").await, Some([0, 3, 2, 1]));

    // A reload without the trigger that keeps a switch off turns it on.
    report(&server, "p99", "901").await;
    assert_eq!(series(&server, "search").await, Some([1, 0, 1, 0]));
    server.write(&renamed.replace("{ off_when: signal p99 above 900, hold: 1h }, ", ""));
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(series(&server, "search").await, Some([0, 0, 2, 0]));
}

//! What a restart keeps where the counters are on disk.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::running::{NOON, Running, on_disk, start_with};
use http::StatusCode;
use serde_json::Value;
use tidegate::clock::ManualClock;

const ANYBODY: &str = r#"{"attributes": {}}"#;

/// Starts a server with a name that does not depend on its port, which is another one after each start.
async fn start_on_disk(folder: &Path, file: &str) -> Running {
    start_later(folder, file, Duration::ZERO).await
}

/// Starts a server whose clock is so far ahead of that of the others.
async fn start_later(folder: &Path, file: &str, ahead: Duration) -> Running {
    let store = on_disk(folder).await;
    start_with(file, |mut options| {
        options.store = Some(store);
        options.clock = Arc::new(ManualClock::at(NOON.after(ahead)));
        options.tickets.issuer = Some("gate-1".to_owned());
        options
    })
    .await
}

/// Regression: without a key file, places were kept and the key of their tickets was not, so nobody could return them.
#[tokio::test]
async fn places_are_returned_by_tickets_from_before_a_restart() {
    const FILE: &str = "
version: 1
policies:
  - name: at once
    limit: { algorithm: concurrency, max: 2 }
";
    let folder = tempfile::tempdir().unwrap();
    let server = start_on_disk(folder.path(), FILE).await;
    let mut tickets = Vec::new();
    for _ in 0..2 {
        let taken = server.post("/v1/check", ANYBODY).await.json();
        tickets.push(taken["ticket"].as_str().unwrap().to_owned());
    }
    server.handle.stop();
    server.stopped().await;
    let server = start_on_disk(folder.path(), FILE).await;
    assert_eq!(server.post("/v1/check", ANYBODY).await.status, StatusCode::SERVICE_UNAVAILABLE);
    for ticket in &tickets {
        let report = format!(r#"{{"ticket": "{ticket}", "status": 200}}"#);
        let told = server.post("/v1/settle", &report).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.text);
    }
    assert_eq!(server.post("/v1/check", ANYBODY).await.status, StatusCode::OK);
    server.handle.stop();
    server.stopped().await;

    // Where the key is gone, the answer names a restart as a cause.
    std::fs::remove_file(folder.path().join("ticket-key")).unwrap();
    let server = start_on_disk(folder.path(), FILE).await;
    let report = format!(r#"{{"ticket": "{}", "status": 200}}"#, tickets[0]);
    let told = server.post("/v1/settle", &report).await;
    assert_eq!(told.status, StatusCode::BAD_REQUEST);
    assert!(
        told.detail().contains("before a restart that did not keep its key (tickets.key_file"),
        "{}",
        told.text
    );
}

/// Regression: a restart told that breakers had opened that were open all along, and counted the trips of those that
/// only measure once more.
#[tokio::test]
async fn breakers_that_did_not_change_are_not_told_as_changed() {
    const FILE: &str = "
version: 1
policies:
  - name: open
    match: { attributes: { to: open } }
    limit: { algorithm: breaker, consecutive: 1, open_for: 1h }
  - name: forced
    match: { attributes: { to: forced } }
    limit: { algorithm: breaker, consecutive: 1, open_for: 1h }
";
    let fail = async |server: &Running, to: &str| {
        let taken = server.post("/v1/check", &format!(r#"{{"attributes": {{"to": "{to}"}}}}"#)).await.json();
        let ticket = taken["ticket"].as_str().unwrap();
        let told = server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": 500}}"#)).await;
        assert_eq!(told.status, StatusCode::OK, "{}", told.text);
    };
    let listed = async |server: &Running| -> Vec<Value> {
        let listed = server.get("/v1/breakers").await.json();
        listed["breakers"].as_array().unwrap().clone()
    };
    let counted = async |server: &Running, line: &str| {
        let metrics = server.get("/metrics").await.text;
        let line = metrics.lines().find_map(|one| one.strip_prefix(line));
        line.map_or(0, |value| value.trim().parse::<u64>().unwrap())
    };
    let opened = r#"tidegate_breaker_changes_total{policy="open",state="open"}"#;
    let forced = r#"tidegate_breaker_changes_total{policy="forced",state="metrics_only"}"#;
    let would = r#"tidegate_breaker_would_open_total{policy="forced"}"#;

    let folder = tempfile::tempdir().unwrap();
    let server = start_on_disk(folder.path(), FILE).await;
    let put = server.put("/v1/breakers/forced", r#"{"state": "metrics-only"}"#).await;
    assert_eq!(put.status, StatusCode::OK, "{}", put.text);
    fail(&server, "open").await;
    fail(&server, "forced").await;
    let before = listed(&server).await;
    assert_eq!(before.iter().find(|one| one["policy"] == "open").unwrap()["tripped_by"], "1 call failed");
    let figures =
        [counted(&server, opened).await, counted(&server, forced).await, counted(&server, would).await];
    assert_eq!(figures, [1, 1, 1]);
    server.handle.stop();
    server.stopped().await;

    let server = start_later(folder.path(), FILE, Duration::from_secs(60)).await;
    let after = listed(&server).await;
    let states = |all: &[Value]| all.iter().map(|one| one["state"].clone()).collect::<Vec<_>>();
    assert_eq!(states(&after), states(&before));
    let of_open = |all: &[Value]| all.iter().find(|one| one["policy"] == "open").unwrap()["since"].clone();
    assert_eq!(of_open(&after), of_open(&before), "and it is told since when");
    let figures =
        [counted(&server, opened).await, counted(&server, forced).await, counted(&server, would).await];
    assert_eq!(figures, [0, 0, 0], "nothing has happened since");
    fail(&server, "forced").await;
    assert_eq!(counted(&server, would).await, 1);
}

/// A breaker that was forced before a restart was shown as forced since somebody first looked.
#[tokio::test]
async fn since_when_a_breaker_was_forced_is_not_known_after_a_restart() {
    const FILE: &str = "
version: 1
policies:
  - { name: calls, limit: { algorithm: breaker } }
";
    let folder = tempfile::tempdir().unwrap();
    let listed = async |server: &Running| server.get("/v1/breakers").await.json()["breakers"][0].clone();
    let server = start_on_disk(folder.path(), FILE).await;
    server.put("/v1/breakers/calls", r#"{"state": "metrics-only"}"#).await;
    assert_eq!(listed(&server).await["since"], "2027-01-15T12:00:00.000Z");
    server.handle.stop();
    server.stopped().await;
    let server = start_later(folder.path(), FILE, Duration::from_secs(60)).await;
    let after = listed(&server).await;
    assert_eq!((&after["state"], &after["since"]), (&"metrics-only".into(), &Value::Null), "{after}");
    server.put("/v1/breakers/calls", r#"{"state": "auto"}"#).await;
    assert_eq!(listed(&server).await["since"], "2027-01-15T12:01:00.000Z", "this change it has seen");
}

/// After a restart the list showed no breaker of a policy with `by`, not even one that a person had forced open and that
/// went on to refuse every call: nobody saw why the calls were refused, or that the forced state had to be ended.
#[tokio::test]
async fn a_forced_breaker_of_a_key_is_listed_again_once_it_refuses() {
    const FILE: &str = "
version: 1
policies:
  - name: calls
    by: [upstream]
    limit: { algorithm: breaker }
";
    let folder = tempfile::tempdir().unwrap();
    let server = start_on_disk(folder.path(), FILE).await;
    let forced = r#"{"state": "open", "reason": "the vendor is down"}"#;
    server.put("/v1/breakers/calls?upstream=a", forced).await;
    server.handle.stop();
    server.stopped().await;
    let server = start_later(folder.path(), FILE, Duration::from_secs(60)).await;
    let refused = server.post("/v1/check", r#"{"attributes": {"upstream": "a"}}"#).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text);
    let passed = server.post("/v1/check", r#"{"attributes": {"upstream": "b"}}"#).await;
    assert_eq!(passed.status, StatusCode::OK, "{}", passed.text);
    let listed = server.get("/v1/breakers?reveal=true").await.json();
    let listed = listed["breakers"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (&listed[0]["key"], &listed[0]["state"], &listed[0]["reason"]),
        (&"upstream=a".into(), &"forced-open".into(), &"the vendor is down".into())
    );
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains(r#"tidegate_breaker_state{policy="calls",state="forced_open"} 1"#), "{metrics}");
    assert!(
        !metrics.contains(r#"tidegate_breaker_changes_total{policy="calls",state="forced_open"} 1"#),
        "it did not change now"
    );
}

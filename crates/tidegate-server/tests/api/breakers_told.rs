//! What people are told of a breaker: who refused their request and why, whether a forced state has an effect, which
//! breaker of several is meant, and what the reset of its key leaves.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::wire::{read_until, sent};
use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;

const TWO: &str = "
version: 1
policies:
  - name: payments
    limit:
      - { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 2, open_for: 5s }
      - { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 2, open_for: 5s, probes: 2 }
";

async fn check(server: &Running) -> Answer {
    server.post("/v1/check", r#"{"attributes": {}}"#).await
}

async fn report(server: &Running, answer: &Answer, status: u16) {
    let body = json!({ "ticket": answer.json()["ticket"], "status": status });
    assert_eq!(server.post("/v1/settle", &body.to_string()).await.status, StatusCode::OK);
}

async fn put(server: &Running, path: &str, body: &str) -> Answer {
    server.put(path, body).await
}

async fn listed(server: &Running) -> Vec<Value> {
    server.get("/v1/breakers").await.json()["breakers"].as_array().unwrap().clone()
}

fn one(policy: &str) -> String {
    format!("version: 1\npolicies:\n  - {{ name: payments, {policy} }}\n")
}

const BREAKER: &str =
    "limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 2, open_for: 5s }";

/// A caller was told that the service fails while a person kept the breaker open for an upgrade.
#[tokio::test]
async fn a_refusal_says_who_opened_the_breaker_or_that_it_tries_the_service() {
    let server = start(&one(BREAKER)).await;
    let forced = [
        (
            r#"{"state": "open", "for": "5min", "reason": "upgrade"}"#,
            "is forced open by a person: upgrade; try again in 5 min",
        ),
        (
            r#"{"state": "open", "reason": "upgrade"}"#,
            "is forced open by a person, without an end: upgrade; try again later",
        ),
        (r#"{"state": "open"}"#, "is forced open by a person, without an end; try again later"),
    ];
    for (body, says) in forced {
        assert_eq!(put(&server, "/v1/breakers/payments", body).await.status, StatusCode::OK);
        assert_eq!(check(&server).await.detail(), format!("the breaker of policy \"payments\" {says}"));
    }
    let batch = server.post("/v1/check/batch", r#"[{"attributes": {}}]"#).await.json();
    assert!(batch[0]["detail"].as_str().unwrap().contains("forced open by a person"), "{batch}");
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    let probe = check(&server).await;
    assert_eq!(
        check(&server).await.detail(),
        "the breaker of policy \"payments\" tries the service with 1 call at a time, and that one is under way; a place is free \
         again when it ends, or 60 s after it began if nobody reports the end; try again later"
    );
    let explained = server.post("/v1/explain", r#"{"attributes": {}}"#).await.json();
    let says = "is half-open: tries the service with 1 call at a time, 1 under way; lets no more through until one ends, \
         or 60 s after it began if nobody reports the end";
    assert!(explained["lines"].to_string().contains(says), "{explained}");
    report(&server, &probe, 200).await;
    for _ in 0..2 {
        let call = check(&server).await;
        report(&server, &call, 500).await;
    }
    assert_eq!(
        check(&server).await.detail(),
        "the breaker of policy \"payments\" is open, since the service behind it fails (2 calls in a row failed); try again in 5 s"
    );
    let explained = server.post("/v1/explain", r#"{"attributes": {}}"#).await.json();
    let says =
        "is open until 2027-01-15T12:00:05.000Z, then lets the first probe through: 2 calls in a row failed";
    assert!(explained["lines"].to_string().contains(says), "{explained}");
}

#[tokio::test]
async fn the_refusal_of_several_probes_says_how_many_there_are() {
    let server =
        start(&one(&BREAKER.replace("open_for: 5s", "open_for: 5s, probes: 3, close_after: 3"))).await;
    put(&server, "/v1/breakers/payments", r#"{"state": "open"}"#).await;
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    let mut passed = 0;
    let refused = loop {
        let answer = check(&server).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        passed += 1;
    };
    assert_eq!(passed, 3);
    let says = "with 3 calls at a time, and all of them are under way; a place is free again when one ends, or 60 s after \
         it began";
    assert!(refused.detail().contains(says), "{}", refused.detail());
}

/// Whoever forced a breaker open in an emergency was told of a success while every call went on to the service.
#[tokio::test]
async fn a_forced_state_without_effect_is_refused_or_noted() {
    let open = r#"{"state": "open"}"#;
    let server = start(&one(&format!("mode: off, {BREAKER}"))).await;
    let refused = put(&server, "/v1/breakers/payments", open).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(
        refused.detail().starts_with("policy \"payments\" is off and refuses nobody"),
        "{}",
        refused.detail()
    );
    assert_eq!(put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await.status, StatusCode::OK);
    for (policy, mode, says) in [
        ("mode: shadow", "shadow", "is in mode shadow: its breaker refuses nobody"),
        ("over: mark", "enforce", "has `over: mark`: its breaker refuses nobody"),
        (
            "when: signal errors above 5",
            "enforce",
            "is not in force, so its breaker refuses nobody until it is: signal errors above 5",
        ),
    ] {
        let server = start(&one(&format!("{policy}, {BREAKER}"))).await;
        let forced = put(&server, "/v1/breakers/payments", open).await.json();
        assert!(forced["note"].as_str().is_some_and(|note| note.contains(says)), "{forced}");
        assert_eq!(forced["breakers"][0]["mode"], mode, "{forced}");
        assert_eq!(check(&server).await.status, StatusCode::OK, "{policy}");
        assert_eq!(
            put(&server, "/v1/breakers/payments", r#"{"state": "closed"}"#).await.json().get("note"),
            None
        );
        assert_eq!(listed(&server).await[0]["mode"], mode);
    }
    let server = start(&one(BREAKER)).await;
    let forced = put(&server, "/v1/breakers/payments", open).await.json();
    assert_eq!((&forced["breakers"][0]["mode"], forced.get("note")), (&json!("enforce"), None));
}

/// Two breakers of one policy looked the same, and changed places from one list to the next.
#[tokio::test]
async fn breakers_of_one_policy_are_told_apart_and_keep_their_order() {
    let server = start(TWO).await;
    put(&server, "/v1/breakers/payments", r#"{"state": "open"}"#).await;
    for _ in 0..20 {
        let numbers: Vec<_> = listed(&server).await.iter().map(|one| one["limit_number"].clone()).collect();
        assert_eq!(numbers, [1, 2]);
    }
}

/// An open breaker is tried by the next call after its time. Until then it was shown as open until some time ago.
#[tokio::test]
async fn an_open_breaker_whose_time_is_over_waits_for_a_probe() {
    let server = start(&one(BREAKER)).await;
    for _ in 0..2 {
        let call = check(&server).await;
        report(&server, &call, 500).await;
    }
    assert_eq!(listed(&server).await[0]["probe_due"], false);
    server.clock.advance(Duration::from_secs(5));
    let due = listed(&server).await[0].clone();
    assert_eq!((&due["state"], &due["probe_due"]), (&json!("open"), &json!(true)));
    check(&server).await;
    assert_eq!(listed(&server).await[0].get("probe_due"), None, "the probe is under way");
}

/// The reset of a key forgets counters. What a person has decided for a reason is not one.
#[tokio::test]
async fn a_reset_leaves_what_a_person_has_forced_and_counts_the_places_that_it_forgets() {
    let server = start(&format!(
        "{}  - {{ name: places, limit: {{ algorithm: concurrency, max: 5 }} }}\n",
        one(BREAKER)
    ))
    .await;
    for _ in 0..3 {
        assert_eq!(check(&server).await.status, StatusCode::OK);
    }
    let reset = async |policy: &str| {
        send(server.addr, Method::DELETE, &format!("/v1/keys/{policy}"), &[], "").await.json()
    };
    assert_eq!(reset("places").await["places_forgotten"], 3);
    assert_eq!(reset("places").await["places_forgotten"], 0);
    put(&server, "/v1/breakers/payments", r#"{"state": "open", "for": "5min", "reason": "upgrade"}"#).await;
    let kept = reset("payments").await;
    assert_eq!((&kept["breakers_still_forced"], &kept["places_forgotten"]), (&json!(1), &json!(0)));
    assert!(check(&server).await.detail().contains("forced open by a person: upgrade"));
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    assert_eq!(reset("payments").await["breakers_still_forced"], 0);
    assert_eq!(listed(&server).await[0]["state"], "closed", "a state that nobody has forced is forgotten");
}

/// The answer said `those with one: none has one`.
#[tokio::test]
async fn a_policy_without_a_breaker_names_those_that_have_one() {
    let server = start("version: 1\npolicies: [{ name: calls, limit: { rate: 1/s } }]").await;
    let refused = put(&server, "/v1/breakers/calls", r#"{"state": "open"}"#).await;
    assert_eq!(refused.status, StatusCode::NOT_FOUND);
    assert_eq!(refused.detail(), "policy \"calls\" has no breaker; nor has any other policy");
}

/// Opens the breaker, waits until its open time is over, and returns the stream of events from the opening on.
async fn open_time_over(server: &Running) -> TcpStream {
    for _ in 0..2 {
        let call = check(server).await;
        report(server, &call, 500).await;
    }
    let mut stream = sent(server.addr, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut stream, "Last-Event-ID means nothing here").await;
    server.clock.advance(Duration::from_secs(5));
    stream
}

/// Regression: the line in the log and the event of this change had no reason.
#[tokio::test]
async fn a_breaker_that_tries_the_service_says_why() {
    let server = start(&one(BREAKER)).await;
    let mut stream = open_time_over(&server).await;
    check(&server).await;
    let changed = read_until(&mut stream, "its open time is over, and probes try the service").await;
    assert!(changed.contains("\"to\":\"half-open\""), "{changed}");
}

/// Regression: the line in the log and the event had an empty reason.
#[tokio::test]
async fn a_breaker_that_closes_says_why() {
    let server = start(&one(BREAKER)).await;
    let mut stream = open_time_over(&server).await;
    let probe = check(&server).await;
    report(&server, &probe, 200).await;
    let told = read_until(&mut stream, "\"to\":\"closed\"").await;
    assert!(told.contains("its probes have shown that the service works again"), "{told}");

    put(&server, "/v1/breakers/payments", r#"{"state": "disabled", "reason": "a test"}"#).await;
    read_until(&mut stream, "\"to\":\"disabled\"").await;
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    let told = read_until(&mut stream, "\"to\":\"closed\"").await;
    assert!(told.contains("its forced state has ended"), "{told}");

    // A reset leaves no trace: what closed it is not known.
    put(&server, "/v1/breakers/payments", r#"{"state": "open"}"#).await;
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    assert_eq!(check(&server).await.status, StatusCode::OK);
    send(server.addr, Method::DELETE, "/v1/keys/payments", &[], "").await;
    listed(&server).await;
    let told = read_until(&mut stream, "\"to\":\"closed\"").await;
    assert!(told.contains("or it was reset"), "{told}");
}

/// The explanation said only that it is unknown for how long calls are refused.
#[tokio::test]
async fn a_breaker_that_sheds_explains_the_share_and_its_figures() {
    let server = start(&one(
        "limit: { algorithm: breaker, failures: 50%, window: 2min, min_calls: 20, shed_at_most: 90% }",
    ))
    .await;
    let mut calls = Vec::new();
    for _ in 0..100 {
        calls.push(check(&server).await);
    }
    for (at, call) in calls.iter().enumerate() {
        report(&server, call, if at < 30 { 200 } else { 500 }).await;
    }
    let explained = server.post("/v1/explain", r#"{"attributes": {}}"#).await.json();
    // (100 - 2 * 30) / 101 are refused.
    let says = "admits 60% of the calls: 30 of 100 calls of the last 2 min ended well, K = 2; key (all)";
    assert!(explained["lines"].to_string().contains(says), "{explained}");
    assert_eq!(explained["reasons"][0]["limits"][0]["admitted_share"], 0.603_961, "{explained}");
}

/// When good calls leave the window, the share that failed rises with no call that the breaker could learn of: it
/// refused calls, and the list did not have it.
#[tokio::test]
async fn a_breaker_that_sheds_because_time_has_passed_is_listed_once_it_refuses() {
    const FILE: &str = "
version: 1
policies:
  - name: search
    by: [shard]
    limit: { algorithm: breaker, failures: 20%, min_calls: 5, window: 10s, shed_at_most: 90% }
";
    const ONE: &str = r#"{"attributes": {"shard": "a"}}"#;
    let server = start(FILE).await;
    for (calls, status, later) in [(10, 200, 5), (3, 200, 0), (2, 500, 6)] {
        for _ in 0..calls {
            let answer = server.post("/v1/check", ONE).await;
            report(&server, &answer, status).await;
        }
        server.clock.advance(Duration::from_secs(later));
    }
    assert_eq!(listed(&server).await, Vec::<Value>::new(), "2 of 15 calls failed when the last one ended");
    // A fifth of the calls is refused by chance.
    let mut refused = false;
    for _ in 0..200 {
        server.clock.advance(Duration::from_millis(1));
        refused |= server.post("/v1/check", ONE).await.status == StatusCode::SERVICE_UNAVAILABLE;
    }
    assert!(refused);
    let listed = listed(&server).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(
        (&listed[0]["state"], &listed[0]["tripped_by"]),
        (&json!("shedding"), &json!("2 of 5 calls failed"))
    );
}

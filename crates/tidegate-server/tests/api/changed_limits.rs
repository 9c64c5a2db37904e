//! Warnings of a reload about counters that are not carried over, and about changes that need a restart.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::running::{TWO, send, start};
use http::Method;
use serde_json::Value;
use tidegate::config::{Config, Format};
use tidegate_server::{Server, ServerOptions, Settings, Source};

/// A server whose configuration the test changes. It reloads only on request.
struct Changing {
    text: Arc<Mutex<String>>,
    addr: SocketAddr,
}

impl Changing {
    async fn start(policies: &str) -> Self {
        let text = Arc::new(Mutex::new(policies.to_owned()));
        let read = Arc::clone(&text);
        let source = Source::new(move || {
            let file = format!("version: 1\npolicies:\n{}", read.lock().unwrap());
            Ok(Settings::from(Config::parse(&file, "f.yaml", Format::Yaml).unwrap().0))
        });
        let mut options = ServerOptions::default();
        options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        options.signals = false;
        let server = Server::bind(options, source).await.unwrap();
        let addr = server.local_addr();
        tokio::spawn(server.run());
        Self { text, addr }
    }

    /// Reloads with other policies; returns the warnings.
    async fn to(&self, policies: &str) -> Vec<String> {
        policies.clone_into(&mut self.text.lock().unwrap());
        let answer = send(self.addr, Method::POST, "/v1/reload", &[], "").await.json();
        let warnings = answer["warnings"].as_array().unwrap_or_else(|| panic!("{answer}"));
        warnings.iter().map(|warning| Value::as_str(warning).unwrap().to_owned()).collect()
    }
}

const GCRA: &str = "  - { name: login, by: [client.ip], limit: { rate: 5/h } }\n";

/// Regression: a change to another algorithm reset every counter, with `"warnings": []`.
#[tokio::test]
async fn another_algorithm_says_what_becomes_of_the_counters() {
    let server = Changing::start(GCRA).await;
    let bucket = GCRA.replace("rate: 5/h", "algorithm: token-bucket, rate: 5/h");
    assert_eq!(
        server.to(&bucket).await,
        [
            "policy \"login\": another algorithm, gcra 5/h before and token-bucket 5/h now: units spent and owed are \
             charged to the new limit, parts of a unit as whole units, and return at its rate"
        ]
    );
    assert!(server.to(&bucket.replace("5/h", "7/h")).await.is_empty(), "other numbers: `replace` says it");
    let reset = GCRA.replace("rate: 5/h", "rate: 5/h, replace: reset");
    let warnings = server.to(&reset).await;
    assert!(warnings.len() == 1 && warnings[0].ends_with("is forgotten (`replace: reset`)"), "{warnings:?}");
    assert!(
        server.to("  - { name: another, limit: { rate: 5/h, algorithm: fixed-window } }\n").await.is_empty()
    );
}

/// Regression: with five an hour spent, and a change to another algorithm of five an hour, five more passed.
#[tokio::test]
async fn a_caller_gets_no_second_burst_out_of_another_algorithm() {
    let server = Changing::start(GCRA).await;
    let check = async |want: u16| {
        let body = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
        let answer = send(server.addr, Method::POST, "/v1/check", &[], body).await;
        assert_eq!(answer.status, want, "{answer:?}");
    };
    for _ in 0..5 {
        check(200).await;
    }
    for algorithm in ["token-bucket", "sliding-log", "leaky-bucket", "fixed-window", "gcra"] {
        let edited = GCRA.replace("rate: 5/h", &format!("algorithm: {algorithm}, rate: 5/h"));
        assert_eq!(server.to(&edited).await.len(), 1, "{algorithm}");
        check(429).await;
    }
}

/// Regression: places are not units, but the warning promised that they would be carried over.
#[tokio::test]
async fn a_change_from_or_to_places_says_that_nothing_goes_on() {
    let server = Changing::start(GCRA).await;
    let places = GCRA.replace("rate: 5/h", "algorithm: concurrency, max: 2");
    let check = async || {
        let body = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
        send(server.addr, Method::POST, "/v1/check", &[], body).await.status.as_u16()
    };
    for _ in 0..5 {
        assert_eq!(check().await, 200);
    }
    assert_eq!(
        server.to(&places).await,
        [
            "policy \"login\": another algorithm, gcra 5/h before and concurrency 2 ttl 60s now: units spent and owed are forgotten, and requests in \
             flight have no place: up to `max` more may enter in addition"
        ]
    );
    assert_eq!([check().await, check().await, check().await], [200, 200, 503]);
    assert_eq!(
        server.to(GCRA).await,
        [
            "policy \"login\": another algorithm, concurrency 2 ttl 60s before and gcra 5/h now: the places in use are forgotten: requests in \
             flight end without returning one, and nothing counts as spent"
        ]
    );
    assert_eq!(check().await, 200);
}

#[tokio::test]
async fn other_keys_say_that_counters_start_anew() {
    let server = Changing::start(GCRA).await;
    assert_eq!(
        server.to(&GCRA.replace("by: [client.ip], ", "")).await,
        [
            "policy \"login\": keyed by client.ip before and by all requests now: the keys differ, so every counter starts again"
        ]
    );
}

/// Regression: a policy under another name forgave everybody, with `"warnings": []`.
#[tokio::test]
async fn another_name_says_that_counters_start_anew() {
    let server = Changing::start(GCRA).await;
    let renamed = GCRA.replace("login", "per-ip");
    assert_eq!(
        server.to(&renamed).await,
        [
            "policy \"per-ip\": it has the limits, match and `by` of policy \"login\", which is gone: counters belong to a policy's name, so what was \
             counted under \"login\" is forgotten; keep the name \"login\" to go on with them"
        ]
    );
    assert!(server.to(&format!("{renamed}{GCRA}")).await.is_empty(), "one more counts the same");
    assert!(server.to(&renamed).await.is_empty(), "and is taken out");
    for other in [("rate: 5/h", "rate: 6/h"), ("by: [client.ip]", "by: [user.id]")] {
        let other = GCRA.replace(other.0, other.1).replace("login", "other");
        assert!(server.to(&other).await.is_empty(), "{other}");
        server.to(&renamed).await;
    }
}

#[tokio::test]
async fn a_reload_that_changes_all_policies_names_a_hundred() {
    let all = |limit: &str| -> String {
        (0..150).map(|at| format!("  - {{ name: p{at}, limit: {{ {limit} }} }}\n")).collect()
    };
    let server = Changing::start(&all("rate: 5/h")).await;
    let warnings = server.to(&all("rate: 5/h, algorithm: fixed-window")).await;
    assert_eq!(warnings.len(), 101);
    assert!(warnings[100].starts_with("50 more warnings"), "{}", warnings[100]);
}

/// Regression: a larger `store.keys` was put in force with `"warnings": []`, and the store stayed as small as before.
#[tokio::test]
async fn what_is_read_at_the_start_only_is_warned_of_until_it_is_as_it_was() {
    let server = Changing::start(GCRA).await;
    let rest = "is read only at the start: its changes take effect after a restart";
    let changed =
        format!("{GCRA}store: {{ keys: 5000 }}\ntickets: {{ ttl: 1h }}\nserver: {{ http: 127.0.0.1:1 }}\n");
    let warnings = server.to(&changed).await;
    assert_eq!(warnings, ["server", "store", "tickets"].map(|name| format!("`{name}` {rest}")));
    let full = format!("{GCRA}store: {{ keys: 1000000 in full }}\n");
    assert_eq!(server.to(&full).await, [format!("`store` {rest}")]);
    assert!(server.to(GCRA).await.is_empty(), "as it was at the start");
}

/// Regression: the file was put in force, and each request was refused, or counters were not on disk although the file
/// said so.
#[tokio::test]
async fn a_file_for_another_store_is_refused_where_this_one_cannot_keep_its_words() {
    let running = start(TWO).await;
    let policy = "policies:\n  - { name: one, by: [user.id], limit: { rate: 1/s }";
    for (store, word, told) in [
        (
            "{ kind: redis, url: 'redis://127.0.0.1:1', nodes: 2 }",
            "share: central",
            "no store here decides `share: central`",
        ),
        ("{ kind: disk, path: /nowhere }", "durable: strict", "its store is not on disk"),
    ] {
        running.write(&format!("version: 1\nstore: {store}\n{policy}, {word} }}\n"));
        let refused = running.post("/v1/reload", "").await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text.contains(told) && refused.text.contains("takes a restart"), "{refused:?}");
    }
    running.write(&format!("version: 1\nstore: {{ kind: disk, path: /nowhere }}\n{policy} }}\n"));
    assert_eq!(
        running.post("/v1/reload", "").await.status,
        200,
        "without such a word it is made ready for a restart"
    );
}

const BREAKER: &str =
    "  - { name: hosts, by: [host], limit: { algorithm: breaker, consecutive: 5, replace: reset } }\n";

/// Regression: the list showed a forced state that the new limit had ended, and no warning said so.
#[tokio::test]
async fn a_breaker_that_starts_anew_says_that_it_is_no_longer_forced() {
    let server = Changing::start(BREAKER).await;
    let headers = [("content-type", "application/json")];
    let force = async || {
        let path = "/v1/breakers/hosts?host=a";
        let forced = send(server.addr, Method::PUT, path, &headers, r#"{"state": "open"}"#).await;
        assert_eq!(forced.status.as_u16(), 200, "{forced:?}");
    };
    let check = async || {
        let body = r#"{"attributes": {"host": "a"}}"#;
        send(server.addr, Method::POST, "/v1/check", &[], body).await.status.as_u16()
    };
    let listed = async |path: &str| {
        let answer = send(server.addr, Method::GET, path, &[], "").await.json();
        let states = answer["breakers"].as_array().unwrap().iter().map(|one| one["state"].to_string());
        states.collect::<Vec<_>>().join(" ")
    };
    force().await;
    assert_eq!(check().await, 503);
    assert!(server.to(&format!("{BREAKER}  - {{ name: more, limit: {{ rate: 5/h }} }}\n")).await.is_empty());
    assert_eq!((check().await, listed("/v1/breakers").await.as_str()), (503, "\"forced-open\""));
    assert_eq!(
        server.to(&BREAKER.replace("consecutive: 5", "consecutive: 6")).await,
        [
            "policy \"hosts\": another breaker, breaker consecutive 5 in 10s open 5s before and breaker consecutive 6 in 10s open 5s now: every \
             breaker starts closed (`replace: reset`); the state into which one was forced by hand ends"
        ]
    );
    assert_eq!(listed("/v1/breakers").await, "\"closed\"", "as one that has closed by itself");
    assert_eq!(listed("/v1/breakers/hosts?host=a").await, "\"closed\"");
    assert_eq!(check().await, 200);
    force().await;
    let warnings = server.to(&BREAKER.replace("by: [host]", "by: [zone]")).await;
    let ends = "so every counter starts again and every breaker closed; the state into which one was forced by hand ends";
    assert!(warnings.len() == 1 && warnings[0].ends_with(ends), "{warnings:?}");
    assert_eq!(listed("/v1/breakers").await, "");
    server.to(BREAKER).await;
    force().await;
    let rate = "  - { name: hosts, by: [host], limit: { rate: 5/h } }\n";
    let warnings = server.to(rate).await;
    let ends = "the states of its breakers are forgotten; the state into which one was forced by hand ends, and nothing counts as spent";
    assert!(warnings.len() == 1 && warnings[0].ends_with(ends), "{warnings:?}");
    let warnings = server.to(BREAKER).await;
    let ends = "units spent and owed are forgotten, and every breaker starts closed";
    assert!(warnings.len() == 1 && warnings[0].ends_with(ends), "{warnings:?}");
    assert_eq!(listed("/v1/breakers/hosts?host=a").await, "\"closed\"", "though nobody has used the rate");
}

/// A store carries a key over to a changed limit when the key is next used. A breaker that nobody used before its limit
/// was changed back was still open, or forced, although the reload had said that it starts closed, and the list then told
/// of a change that had not happened.
#[tokio::test]
async fn a_breaker_starts_anew_though_nobody_uses_it_before_the_limit_is_changed_back() {
    let server = Changing::start(BREAKER).await;
    let path = |host: &str| format!("/v1/breakers/hosts?host={host}");
    let headers = [("content-type", "application/json")];
    send(server.addr, Method::PUT, &path("a"), &headers, r#"{"state": "open"}"#).await;
    for _ in 0..5 {
        let check =
            send(server.addr, Method::POST, "/v1/check", &[], r#"{"attributes": {"host": "b"}}"#).await;
        let body = format!(r#"{{"ticket": {}, "status": 500}}"#, check.json()["ticket"]);
        assert_eq!(send(server.addr, Method::POST, "/v1/settle", &[], &body).await.status.as_u16(), 200);
    }
    let states = async || {
        let mut states = Vec::new();
        for host in ["a", "b"] {
            let one = send(server.addr, Method::GET, &path(host), &[], "").await.json();
            states.push(one["breakers"][0]["state"].as_str().unwrap().to_owned());
        }
        states
    };
    assert_eq!(states().await, ["forced-open", "open"]);
    let warnings = server.to(&BREAKER.replace("consecutive: 5", "consecutive: 5, probes: 9, ttl: 7s")).await;
    assert_eq!(
        warnings,
        [
            "policy \"hosts\": another breaker, breaker consecutive 5 in 10s open 5s before and now, with other probes, ttl: every breaker starts \
          closed (`replace: reset`); the state into which one was forced by hand ends"
        ]
    );
    server.to(BREAKER).await;
    assert_eq!(states().await, ["closed", "closed"]);
    let metrics = send(server.addr, Method::GET, "/metrics", &[], "").await.text.clone();
    let opened = "tidegate_breaker_changes_total{policy=\"hosts\",state=\"open\"} 1";
    assert!(metrics.lines().any(|line| line == opened), "the breaker has opened once: {metrics}");
}

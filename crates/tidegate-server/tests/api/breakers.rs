//! A breaker over HTTP: entered by a check, left by its ticket, listed and forced by an operator.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::{Answer, Running, send, start};
use http::{Method, StatusCode};
use serde_json::{Value, json};

const ONE: &str = "
version: 1
policies:
  - name: calls
    limit: { rate: 100/h }
  - name: payments
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 2, open_for: 5s, ttl: 30s }
";

const KEYED: &str = "
version: 1
policies:
  - name: upstreams
    by: [upstream]
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
";

async fn check(server: &Running) -> Answer {
    server.post("/v1/check", r#"{"attributes": {}}"#).await
}

async fn to(server: &Running, upstream: &str) -> Answer {
    server.post("/v1/check", &format!(r#"{{"attributes": {{"upstream": "{upstream}"}}}}"#)).await
}

async fn leave(server: &Running, answer: &Answer, status: u16) -> Answer {
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let ticket =
        answer.json()["ticket"].as_str().unwrap_or_else(|| panic!("no ticket: {answer:?}")).to_owned();
    server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": {status}}}"#)).await
}

async fn get(server: &Running, path: &str) -> Answer {
    send(server.addr, Method::GET, path, &[], "").await
}

async fn put(server: &Running, path: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json")];
    send(server.addr, Method::PUT, path, &headers, body).await
}

async fn only(server: &Running, path: &str) -> Value {
    let answer = get(server, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let body = answer.json();
    let listed = body["breakers"].as_array().unwrap().clone();
    assert_eq!(listed.len(), 1, "{body}");
    listed[0].clone()
}

#[tokio::test]
async fn failures_open_it_probes_close_it_and_all_of_it_is_told_golden() {
    let server = start(ONE).await;
    let closed = only(&server, "/v1/breakers").await;
    assert_eq!(
        closed,
        json!({
            "policy": "payments", "key": "(all)", "limit": "breaker consecutive 2 in 10s open 5s", "limit_number": 1,
            "mode": "enforce", "state": "closed", "since": null, "opened": 0, "calls": { "ended": 0, "failed": 0, "slow": 0 },
        })
    );
    for _ in 0..2 {
        let answer = check(&server).await;
        assert_eq!(answer.json()["policy"], "calls", "a closed breaker has nothing to say of what is left");
        assert_eq!(answer.header("ratelimit-policy"), "\"calls\";q=100;w=3600");
        assert_eq!(leave(&server, &answer, 500).await.status, StatusCode::OK);
    }
    let refused = check(&server).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.header("retry-after"), "5");
    assert_eq!(
        refused.detail(),
        "the breaker of policy \"payments\" is open, since the service behind it fails (2 calls in a row failed); try again in 5 s"
    );
    assert_eq!(refused.json()["policies"][0]["charged"], false, "all or nothing");
    let open = only(&server, "/v1/breakers/payments").await;
    assert_eq!(
        open,
        json!({
            "policy": "payments", "key": "(all)", "limit": "breaker consecutive 2 in 10s open 5s", "limit_number": 1,
            "mode": "enforce", "state": "open", "opened": 1, "probe_due": false, "since": "2027-01-15T12:00:00.000Z", "until": "2027-01-15T12:00:05.000Z", "tripped_by": "2 calls in a row failed",
            "calls": { "ended": 0, "failed": 0, "slow": 0 },
        })
    );
    let metrics = get(&server, "/metrics").await.text.clone();
    assert!(metrics.contains("tidegate_breaker_state{policy=\"payments\",state=\"open\"} 1"), "{metrics}");
    assert!(
        metrics.contains("tidegate_breaker_changes_total{policy=\"payments\",state=\"open\"} 1"),
        "{metrics}"
    );

    server.clock.advance(Duration::from_secs(5));
    let probe = check(&server).await;
    let half_open = only(&server, "/v1/breakers").await;
    assert_eq!(
        (&half_open["state"], &half_open["probes"]),
        (&json!("half-open"), &json!({ "step": 0, "in_flight": 1, "at_most": 1 }))
    );
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE, "one probe at a time");
    leave(&server, &probe, 200).await;
    assert_eq!(only(&server, "/v1/breakers").await["state"], "closed");
    assert_eq!(check(&server).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_breaker_that_sheds_lets_a_share_through_and_says_how_much() {
    let policy = "
version: 1
policies:
  - name: search
    limit: { algorithm: breaker, failures: 20%, window: 1000 calls, min_calls: 20, shed_at_most: 75% }
";
    let server = start(policy).await;
    for _ in 0..50 {
        let answer = check(&server).await;
        if answer.status == StatusCode::OK {
            leave(&server, &answer, 500).await;
        }
        server.clock.advance(Duration::from_millis(7));
    }
    let shedding = only(&server, "/v1/breakers/search").await;
    let failed = shedding["calls"]["failed"].as_u64().unwrap();
    assert_eq!(shedding["state"], "shedding", "{shedding}");
    assert_eq!(shedding["refused_share"], 0.75, "{shedding}");
    assert_eq!(shedding["tripped_by"], format!("{failed} of {failed} calls failed"));
    assert!((20..45).contains(&failed), "some of the last thirty were refused, and some were not: {failed}");
    let mut refused = 0;
    for _ in 0..200 {
        let answer = check(&server).await;
        if answer.status != StatusCode::OK {
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
            // The number of calls in the window changes while time goes on; those that passed are still under way.
            let detail = answer.detail();
            assert!(
                detail.starts_with(
                    "the breaker of policy \"search\" refuses a share of the calls, since the service behind it fails ("
                ) && detail.ends_with(" calls failed); try again later"),
                "{detail}"
            );
            refused += 1;
        }
        server.clock.advance(Duration::from_millis(7));
    }
    assert!((130..=170).contains(&refused), "three quarters of 200: {refused}");
    let metrics = get(&server, "/metrics").await.text.clone();
    assert!(metrics.contains("tidegate_breaker_state{policy=\"search\",state=\"shedding\"} 1"), "{metrics}");
    // By hand it is as any other.
    put(&server, "/v1/breakers/search", r#"{"state": "open", "reason": "moves"}"#).await;
    let refused = check(&server).await;
    assert!(
        refused.detail().contains("forced open by a person, without an end: moves"),
        "{}",
        refused.detail()
    );
}

/// Regression: a probe whose caller never came back kept the breaker half-open for ever.
#[tokio::test]
async fn a_probe_that_is_lost_gives_its_place_up_and_one_undone_says_nothing() {
    let server = start(ONE).await;
    for _ in 0..2 {
        let answer = check(&server).await;
        leave(&server, &answer, 503).await;
    }
    server.clock.advance(Duration::from_secs(5));
    let lost = check(&server).await;
    server.clock.advance(Duration::from_secs(30));
    let probe = check(&server).await;
    let late = leave(&server, &lost, 500).await;
    assert_eq!(
        (late.status, only(&server, "/v1/breakers").await["state"].clone()),
        (StatusCode::OK, json!("half-open"))
    );
    let ticket = probe.json()["ticket"].as_str().unwrap().to_owned();
    let undone =
        server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "outcome": "undone"}}"#)).await;
    assert_eq!(undone.status, StatusCode::OK, "{undone:?}");
    assert_eq!(only(&server, "/v1/breakers").await["state"], "half-open");
    let next = check(&server).await;
    leave(&server, &next, 404).await;
    assert_eq!(
        only(&server, "/v1/breakers").await["state"],
        "closed",
        "the caller's fault is no failure of the service"
    );
}

/// Regression: of three places, two were shown that no probe could take.
#[tokio::test]
async fn as_many_probes_are_shown_as_may_enter() {
    let server = start(&ONE.replace("open_for: 5s", "open_for: 5s, probes: 3, close_after: 2")).await;
    for _ in 0..2 {
        let answer = check(&server).await;
        leave(&server, &answer, 500).await;
    }
    server.clock.advance(Duration::from_secs(5));
    let first = check(&server).await;
    let probes = async || only(&server, "/v1/breakers").await["probes"].clone();
    assert_eq!(probes().await, json!({ "step": 0, "in_flight": 1, "at_most": 2 }));
    leave(&server, &first, 200).await;
    assert_eq!(probes().await, json!({ "step": 0, "in_flight": 0, "at_most": 1 }));
    assert_eq!(check(&server).await.status, StatusCode::OK);
    assert_eq!(check(&server).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

/// Regression: a report that the breaker counted was answered like one that came too late.
#[tokio::test]
async fn a_report_says_whether_the_breaker_counts_the_call() {
    let server = start(ONE).await;
    let returned = |answer: Answer| {
        let body = answer.json();
        let own = body["policies"].as_array().unwrap().iter().find(|one| one["name"] == "payments").unwrap();
        assert_eq!(own["effect"], "returned", "{body}");
        own["returned"].as_u64().unwrap()
    };
    let (usual, ill, before) = (check(&server).await, check(&server).await, check(&server).await);
    let (late, last) = (check(&server).await, check(&server).await);
    assert_eq!(returned(leave(&server, &ill, 500).await), 1);
    assert_eq!(returned(leave(&server, &usual, 200).await), 1);
    server.clock.advance(Duration::from_secs(30));
    assert_eq!(returned(leave(&server, &late, 200).await), 0, "its time to live was over");
    let again = check(&server).await;
    server.clock.advance(Duration::from_secs(10));
    for answer in [check(&server).await, check(&server).await] {
        assert_eq!(returned(leave(&server, &answer, 500).await), 1, "the last one opens it");
    }
    for answer in [&again, &before, &last] {
        assert_eq!(returned(leave(&server, answer, 200).await), 0, "it is open by now");
    }
    server.clock.advance(Duration::from_secs(5));
    let probe = check(&server).await;
    assert_eq!(returned(leave(&server, &probe, 200).await), 1);
}

#[tokio::test]
async fn a_person_forces_it_for_a_time_and_a_reason() {
    let server = start(ONE).await;
    let forced =
        put(&server, "/v1/breakers/payments", r#"{"state": "open", "for": "5min", "reason": "upgrade"}"#)
            .await;
    assert_eq!(forced.status, StatusCode::OK, "{forced:?}");
    let shown = &forced.json()["breakers"][0];
    assert_eq!(
        (&shown["state"], &shown["until"], &shown["reason"]),
        (&json!("forced-open"), &json!("2027-01-15T12:05:00.000Z"), &json!("upgrade"))
    );
    // Regression: the explanation took it for one that had opened by itself.
    let explained = server.post("/v1/explain", r#"{"attributes": {}}"#).await.json();
    let line = explained["lines"][2].as_str().unwrap();
    assert!(
        line.contains(": is forced open by a person until 2027-01-15T12:05:00.000Z: upgrade; key (all)"),
        "{explained}"
    );
    assert_eq!(check(&server).await.header("retry-after"), "300");
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(
        check(&server).await.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "a reload changes nothing of it"
    );
    server.clock.advance(Duration::from_secs(300));
    let probe = check(&server).await;
    leave(&server, &probe, 200).await;
    assert_eq!(only(&server, "/v1/breakers").await["state"], "closed");

    put(&server, "/v1/breakers/payments", r#"{"state": "metrics-only"}"#).await;
    for _ in 0..5 {
        let answer = check(&server).await;
        leave(&server, &answer, 500).await;
    }
    let shown = only(&server, "/v1/breakers").await;
    assert_eq!((&shown["state"], &shown["until"]), (&json!("metrics-only"), &json!(null)));
    // Two failures in a row open it, and its window begins anew each time.
    assert_eq!(
        shown["would_have_opened"],
        json!({ "times": 2, "last": "2027-01-15T12:05:00.000Z", "by": "2 calls in a row failed" })
    );
    let metrics = get(&server, "/metrics").await.text.clone();
    assert!(metrics.contains("tidegate_breaker_would_open_total{policy=\"payments\"} 2"), "{metrics}");
    let again = put(&server, "/v1/breakers/payments", r#"{"state": "metrics-only"}"#).await;
    assert_eq!(again.json()["breakers"][0].get("would_have_opened"), None, "counted from when it was forced");
    for _ in 0..2 {
        let answer = check(&server).await;
        leave(&server, &answer, 500).await;
    }
    let metrics = get(&server, "/metrics").await.text.clone();
    assert!(metrics.contains("tidegate_breaker_would_open_total{policy=\"payments\"} 3"), "{metrics}");
    put(&server, "/v1/breakers/payments", r#"{"state": "auto"}"#).await;
    assert_eq!(only(&server, "/v1/breakers").await["state"], "closed");
}

#[tokio::test]
async fn each_key_has_a_breaker_and_keys_are_hidden() {
    let server = start(KEYED).await;
    assert_eq!(get(&server, "/v1/breakers").await.json()["breakers"], json!([]));
    let ill = to(&server, "a").await;
    leave(&server, &ill, 500).await;
    assert_eq!(to(&server, "a").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(to(&server, "b").await.status, StatusCode::OK);
    let hidden = only(&server, "/v1/breakers").await;
    assert!(hidden["key"].as_str().unwrap().starts_with('#'), "{hidden}");
    assert_eq!(only(&server, "/v1/breakers?reveal=true").await["key"], "upstream=a");
    assert_eq!(only(&server, "/v1/breakers/upstreams?reveal=1").await["key"], "upstream=a");
    for path in ["/v1/breakers?reveal=yes", "/v1/breakers/upstreams?reveal=yes"] {
        let refused = get(&server, path).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(refused.detail(), "reveal `yes` is not possible; use `true` or `false`", "{path}");
    }
    assert_eq!(only(&server, "/v1/breakers/upstreams?upstream=b").await["state"], "closed");
    let forced = put(&server, "/v1/breakers/upstreams?upstream=b", r#"{"state": "open"}"#).await;
    assert_eq!(forced.json()["breakers"][0]["state"], "forced-open");
    assert_eq!(to(&server, "b").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&server, "/v1/breakers").await.json()["breakers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn mistakes_are_named_and_change_nothing() {
    let server = start(&format!("{ONE}{}", KEYED.split_once("policies:\n").unwrap().1)).await;
    for (path, body, status, told) in [
        ("/v1/breakers/payments", r#"{"state": "opne"}"#, 400, "did you mean \"open\"?"),
        ("/v1/breakers/payments", r#"{"state": "open", "for": "5"}"#, 400, ""),
        ("/v1/breakers/payments", r#"{"state": "open", "for": "31d"}"#, 400, "use up to 30d"),
        ("/v1/breakers/payments", r#"{"state": "open", "for": "0s"}"#, 400, ""),
        ("/v1/breakers/payments", r#"{"state": "auto", "for": "5s"}"#, 400, "leave out `for`"),
        ("/v1/breakers/payments", r#"{"state": "open", "why": "x"}"#, 400, "unknown field `why`"),
        ("/v1/breakers/payments", "", 400, "the body is empty; send JSON such as {\"state\": \"open\""),
        ("/v1/breakers/payments", "[]", 400, "invalid type: sequence, expected an object such as {\"state\""),
        ("/v1/breakers/payments", r#"["closed", "5min", "x"]"#, 400, "expected an object"),
        ("/v1/breakers/payments", "{}", 400, "`state` is missing; it is a string, as in {\"state\""),
        ("/v1/breakers/payments", r#"{"state": 1}"#, 400, "expected `state` as a string (line 1, column 11)"),
        ("/v1/breakers/payments", r#"{"state": "open", "for": 5}"#, 400, "expected `for` as a string"),
        ("/v1/breakers/payments", r#"{"state": "auto", "reason": "x"}"#, 400, "leave out `reason`"),
        ("/v1/breakers/payments", r#"{"state": "open", "reason": "a\nb"}"#, 400, "control character"),
        (
            "/v1/breakers/calls",
            r#"{"state": "open"}"#,
            404,
            "has no breaker; those with one: payments, upstreams",
        ),
        ("/v1/breakers/paymnets", r#"{"state": "open"}"#, 404, "did you mean \"payments\"?"),
        ("/v1/breakers/upstreams", r#"{"state": "open"}"#, 400, "`upstream` is missing"),
        ("/v1/breakers/upstreams?upsteam=a", r#"{"state": "open"}"#, 400, "is not part of the key"),
    ] {
        let refused = put(&server, path, body).await;
        assert_eq!(refused.status.as_u16(), status, "{path} {body}: {refused:?}");
        assert!(refused.detail().contains(told), "{path} {body}: {}", refused.detail());
    }
    let long = format!(r#"{{"state": "open", "reason": "{}"}}"#, "r".repeat(256));
    assert_eq!(put(&server, "/v1/breakers/payments", &long).await.status, StatusCode::BAD_REQUEST);
    let long = format!(r#"{{"state": "open", "reason": "{}"}}"#, "r".repeat(5000));
    assert_eq!(put(&server, "/v1/breakers/payments", &long).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(only(&server, "/v1/breakers").await["state"], "closed");
    let post = server.post("/v1/breakers/payments", "{}").await;
    assert_eq!((post.status, post.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, PUT"));
}

/// The notes for people are bounded, and the breakers themselves do not depend on them.
#[tokio::test]
async fn more_breakers_than_are_listed_open_all_the_same() {
    let server = start(KEYED).await;
    // Regression: the breakers of other callers pushed the one that a person had forced out of the list.
    put(&server, "/v1/breakers/upstreams?upstream=mine", r#"{"state": "metrics-only"}"#).await;
    for at in 0..1100 {
        let answer = to(&server, &format!("u{at}")).await;
        leave(&server, &answer, 500).await;
        // So that it is known which of them opened first, and is forgotten.
        server.clock.advance(Duration::from_millis(1));
    }
    let body = get(&server, "/v1/breakers").await.json();
    let listed = body["breakers"].as_array().unwrap();
    assert_eq!(listed.len(), 1024);
    assert!(listed.iter().any(|one| one["state"] == "metrics-only"), "the forced one is still listed");
    for at in [0, 500, 1099] {
        assert_eq!(to(&server, &format!("u{at}")).await.status, StatusCode::SERVICE_UNAVAILABLE, "u{at}");
    }
    let body = get(&server, "/v1/breakers?reveal=true").await.json();
    let listed = body["breakers"].as_array().unwrap();
    assert_eq!(listed.len(), 1024);
    assert!(listed.iter().any(|one| one["key"] == "upstream=u0"), "listed again, since it refused a call");
    let metrics = get(&server, "/metrics").await.text;
    let opened = "tidegate_breaker_changes_total{policy=\"upstreams\",state=\"open\"} 1100";
    assert!(metrics.contains(opened), "that it was forgotten is no change: {metrics}");
}

//! A server whose store answers late, hangs, or is gone: every door answers, and reports the outage.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::json;
use tidegate::clock::Clock;
use tidegate::store::fallback::{DEADLINE, OUTAGE_AFTER, PROBE_EVERY};
use tidegate_server::{Server, ServerOptions, Source};

use crate::running::engine::{ANSWERS, ERRS, Engine, HANGS, start};
use crate::running::{Answer, Running, send, until};

const PER_IP: &str = "
version: 1
policies:
  - name: per-ip
    by: client.ip
    limit: { rate: 2/min }
";

const LOGIN: &str = "
version: 1
policies:
  - name: login
    by: client.ip
    limit: { rate: 2/hour }
    charge: on-failure
";

/// Sends a request that waits for a hanging engine, and advances the clock to its deadline.
async fn after_the_deadline(server: &Running, path: &str, body: &str) -> Answer {
    let turn = async {
        until("somebody waits for the engine", async || server.clock.sleepers() > 0).await;
        server.clock.advance(DEADLINE);
    };
    tokio::join!(server.post(path, body), turn).0
}

const OF_A: &str = r#"{"attributes": {"client.ip": "192.0.2.1"}}"#;

#[tokio::test]
async fn a_store_that_answers_later_works_behind_every_door() {
    let (server, _) = start(PER_IP).await;
    let peek = server.post("/v1/peek", OF_A).await.json();
    assert_eq!((&peek["decision"], &peek["remaining"]), (&json!("allowed"), &json!(2)));
    let first =
        server.post("/v1/check", r#"{"attributes": {"client.ip": "192.0.2.1"}, "ticket": true}"#).await;
    assert_eq!(first.json()["remaining"], 1);
    let ticket = first.json()["ticket"].as_str().unwrap().to_owned();
    let batch = server.post("/v1/check/batch", &format!("[{OF_A}, {OF_A}]")).await;
    assert_eq!(batch.json()[0]["status"], 200, "{batch:?}");
    assert_eq!(batch.json()[1]["status"], 429);
    assert_eq!(
        server.post("/v1/explain", OF_A).await.json()["lines"][0],
        "DENIED by per-ip, retry after 30 s"
    );
    let refund =
        server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "refund": "all"}}"#)).await.json();
    assert_eq!(refund["policies"][0]["returned"], 1);
    let again = server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "refund": "all"}}"#)).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    let reset = send(server.addr, Method::DELETE, "/v1/keys/per-ip?client.ip=192.0.2.1", &[], "").await;
    assert_eq!(reset.status, StatusCode::OK, "{reset:?}");
    assert_eq!(server.check("192.0.2.1").await.json()["remaining"], 1);
    let ready = server.get("/readyz?verbose").await.text;
    assert!(ready.contains("[+] store engine\n"), "{ready}");
}

#[tokio::test]
async fn forward_auth_waits_for_a_store_that_answers_later() {
    let door = "version: 1\nforward_auth: { proxy: caddy }\nclient_ip: { trusted_proxies: [127.0.0.0/8] }\n";
    let (server, _) = start(&PER_IP.replacen("version: 1\n", door, 1)).await;
    let headers = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    for expected in [200, 200, 429] {
        let answer = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
        assert_eq!(answer.status, expected, "{answer:?}");
    }
}

#[tokio::test]
async fn a_store_that_hangs_costs_a_few_deadlines_and_is_told_once() {
    for (word, statuses) in
        [("allow", [200, 200, 200, 200]), ("deny", [503, 503, 503, 503]), ("local", [200, 200, 429, 429])]
    {
        let (server, engine) = start(&format!("{PER_IP}    on_store_error: {word}\n")).await;
        engine.be(HANGS);
        let (waited, others) = statuses.split_at(OUTAGE_AFTER as usize);
        for expected in waited {
            let answer = after_the_deadline(&server, "/v1/check", OF_A).await;
            assert_eq!(answer.status, *expected, "{word}");
        }
        for expected in others {
            let answer = server.check("192.0.2.1").await;
            assert_eq!(answer.status, *expected, "{word}: {answer:?}");
            if word == "deny" {
                assert_eq!(answer.header("retry-after"), "1");
                assert_eq!(answer.json()["violated-policies"], json!(["per-ip"]));
                assert_eq!(answer.json()["store_error"], "the store is unavailable: no answer within 250 ms");
            }
        }
        server.clock.advance(std::time::Duration::from_millis(500));
        let ready = server.get("/readyz?verbose").await;
        assert_eq!(
            ready.status,
            StatusCode::OK,
            "each policy says what happens: a node that decides stays in service"
        );
        let line =
            "[!] store engine has been gone for 0 s, on_store_error decides: no answer within 250 ms\n";
        assert!(ready.text.contains(line), "{ready:?}");
        let metrics = server.get("/metrics").await.text;
        for line in [
            "tidegate_store_up{store=\"engine\"} 0\n",
            "tidegate_store_state_changes_total{store=\"engine\",state=\"down\"} 1\n",
            "tidegate_store_errors_total{store=\"engine\"} 4\n",
            "tidegate_decisions_total{policy=\"per-ip\",decision=\"error\",mode=\"enforce\"} 4\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        engine.be(ANSWERS);
        server.clock.advance(PROBE_EVERY);
        let back = server.check("192.0.2.1").await.json();
        assert_eq!(back["remaining"], 1, "{word}: the engine decides, and has counted nothing meanwhile");
        let metrics = server.get("/metrics").await.text;
        assert!(metrics.contains("tidegate_store_up{store=\"engine\"} 1\n"), "{metrics}");
        assert!(
            metrics.contains("tidegate_store_state_changes_total{store=\"engine\",state=\"up\"} 1\n"),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn policies_of_several_words_are_answered_together() {
    let yaml = "
version: 1
policies:
  - { name: free, limit: { rate: 1/hour }, on_store_error: allow }
  - { name: here, limit: { rate: 2/hour }, on_store_error: local }
  - { name: seen, limit: { rate: 1/hour }, on_store_error: deny, mode: shadow }
";
    let (server, engine) = start(yaml).await;
    engine.be(ERRS);
    for expected in [200, 200, 429] {
        let answer = server.check("192.0.2.1").await;
        assert_eq!(answer.status, expected, "{answer:?}");
        let answer = answer.json();
        assert_eq!(answer["policy"], "here");
        assert_eq!(
            answer["policies"].as_array().unwrap().len(),
            1,
            "what counts nothing has no part: {answer}"
        );
    }
}

#[tokio::test]
async fn what_was_charged_in_an_outage_is_settled_here_and_the_rest_when_the_store_is_back() {
    let (server, engine) = start(LOGIN).await;
    let attempt = async || {
        let answer = server.post("/v1/check", OF_A).await;
        answer.json()["ticket"].as_str().map(ToOwned::to_owned)
    };
    let report = async |ticket: &str, status: u16| {
        server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": {status}}}"#)).await
    };
    let before = attempt().await.unwrap();
    engine.be(ERRS);
    let during = attempt().await.unwrap();
    let refused = report(&before, 200).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{refused:?}");
    assert_eq!(refused.header("retry-after"), "1", "{refused:?}");
    let kept = report(&during, 401).await;
    assert_eq!(kept.json()["policies"][0]["effect"], "kept", "{kept:?}");
    assert_eq!(report(&during, 401).await.status, StatusCode::CONFLICT, "once");
    let second = attempt().await.unwrap();
    assert!(attempt().await.is_none(), "two of two are held here");
    engine.be(ANSWERS);
    server.clock.advance(PROBE_EVERY);
    // Decided during the outage, reported after it.
    let forgotten = report(&second, 200).await;
    assert_eq!(forgotten.json()["policies"][0]["effect"], "forgotten", "{forgotten:?}");
    assert_eq!(server.post("/v1/peek", OF_A).await.json()["remaining"], 1, "the engine has what it had");
    assert_eq!(report(&before, 500).await.json()["policies"][0]["effect"], "returned");
    assert_eq!(server.post("/v1/peek", OF_A).await.json()["remaining"], 2);
    assert!(server.clock.now() > crate::running::NOON);
}

/// A sliding log remembers each charge, so its state soon exceeds what an engine accepts for one key.
#[tokio::test]
async fn a_limit_whose_states_are_too_large_for_the_store_is_refused_when_the_file_is_read() {
    let log = |most| PER_IP.replace("rate: 2/min", &format!("algorithm: sliding-log, rate: {most}/min"));
    let (server, _) = start(&log(20)).await;
    server.write(&log(2000));
    let refused = server.post("/v1/reload", "").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{refused:?}");
    for words in ["policy `per-ip`", "its store takes 4096 at most", "share: local"] {
        assert!(refused.text.contains(words), "{words}: {refused:?}");
    }
    assert_eq!(server.check("192.0.2.1").await.json()["limit"], 20, "the old one stays in force");
    let mut options = ServerOptions::default();
    options.store = Some(tidegate_server::OpenStore::new(Arc::new(Engine::default()), "engine"));
    let failed = Server::bind(options, Source::file(&server.file)).await.unwrap_err();
    assert!(failed.to_string().contains("its store takes 4096 at most"), "{failed}");
}

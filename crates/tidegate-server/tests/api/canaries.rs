//! A canary decides for a share of a policy's keys, is told apart, and can be stopped at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tidegate_server::Canary;

use crate::running::sight::RecordedSight;
use crate::running::{Running, start, start_with};

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { rate: 10/h, burst: 5 }
    canary: { limit: { rate: 4/h, burst: 2 }, share: 50%, for: 2h }
  - name: all
    limit: { rate: 1000/s }
";

async fn seen() -> (Running, Arc<RecordedSight>) {
    let sight = Arc::new(RecordedSight::default());
    let own = Arc::clone(&sight);
    let server = start_with(FILE, |mut options| {
        options.sight = Some(own);
        options
    })
    .await;
    (server, sight)
}

/// Returns addresses that the canary decides about, and others. Each was checked once.
async fn split(server: &Running) -> (Vec<String>, Vec<String>) {
    let (mut tried, mut others) = (Vec::new(), Vec::new());
    for at in 1..=40 {
        let ip = format!("203.0.113.{at}");
        let answer = server.check(&ip).await;
        let line = answer.json()["policies"][0].clone();
        let by_canary = line["canary"] == true;
        assert_eq!(line["limit"], if by_canary { 2 } else { 5 }, "{line}");
        let policy = if by_canary { "\"per-ip\";q=2;w=1800" } else { "\"per-ip\";q=5;w=1800" };
        assert!(answer.header("ratelimit-policy").contains(policy), "{answer:?}");
        if by_canary { tried.push(ip) } else { others.push(ip) }
    }
    assert!(tried.len() > 5 && others.len() > 5, "{tried:?} {others:?}");
    (tried, others)
}

#[tokio::test]
async fn its_answers_are_real_and_every_figure_tells_them_apart() {
    let (server, sight) = seen().await;
    let (tried, others) = split(&server).await;
    assert_eq!(server.check(&tried[0]).await.status, StatusCode::OK);
    let refused = server.check(&tried[0]).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.detail().contains("has 0 of 2 left"), "{refused:?}");
    for _ in 0..4 {
        assert_eq!(server.check(&others[0]).await.status, StatusCode::OK);
    }
    assert_eq!(server.check(&others[0]).await.status, StatusCode::TOO_MANY_REQUESTS);
    {
        let told = sight.told.lock();
        let of =
            |canary: bool| told.seen.iter().filter(move |seen| seen.policy == 0 && seen.canary == canary);
        assert_eq!((of(true).count(), of(false).count()), (tried.len() + 2, others.len() + 5));
        assert!(of(true).all(|one| of(false).all(|other| one.key != other.key)), "each key is on one side");
    }
    let metrics = server.get("/metrics").await.text;
    for (mode, allowed) in [("canary", tried.len() + 1), ("enforce", others.len() + 4)] {
        for (decision, count) in [("allowed", allowed), ("denied", 1)] {
            let labels = format!("policy=\"per-ip\",decision=\"{decision}\",mode=\"{mode}\"");
            let line = format!("tidegate_decisions_total{{{labels}}} {count}\n");
            assert!(metrics.contains(&line), "{line} is missing in\n{metrics}");
        }
    }
    let id = refused.json()["decision_id"].as_str().unwrap().to_owned();
    let record = server.get(&format!("/v1/explain?id={id}")).await.json();
    assert_eq!(record["limits"][0]["canary"], true);
    assert_eq!(record["limits"][1]["canary"], false);
    let lines = record["lines"].to_string();
    assert!(lines.contains("DENIED      canary, gcra 4/h burst 2: needed 1, had 0 of 2"), "{lines}");
    assert!(lines.contains("DENIED      canary, gcra 4/h burst 2: needs 1, has 0 of 2"), "now too: {lines}");
    let key = server.get(&format!("/v1/keys/per-ip?client.ip={}", tried[0])).await.text;
    assert!(key.contains("gcra 4/h burst 2") && !key.contains("gcra 10/h burst 5"), "{key}");
    let policy = server.get("/v1/policies/per-ip").await.json();
    assert_eq!(policy["canary"]["limit"]["limit"], "gcra 4/h burst 2");
    assert_eq!(policy["canary"]["share"], 0.5);
    assert_eq!(policy["canary_share"], 0.5);
}

#[tokio::test]
async fn how_its_calls_end_is_told() {
    let (server, sight) = seen().await;
    let (tried, others) = split(&server).await;
    let ended = async |ip: &str, status: u16| {
        let body = format!(r#"{{"attributes": {{"client.ip": "{ip}"}}, "ticket": true}}"#);
        let ticket = server.post("/v1/check", &body).await.ticket();
        let key = sight.told.lock().seen.iter().rfind(|seen| seen.policy == 0).unwrap().key;
        let settled =
            server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": {status}}}"#)).await;
        assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
        let told = std::mem::take(&mut sight.told.lock().ended);
        (told, key)
    };
    for (ip, canary) in [(&tried[0], true), (&others[0], false)] {
        let (told, key) = ended(ip.as_str(), 500).await;
        assert_eq!(told, [(0, key, canary, true)]);
    }
    let (told, key) = ended(tried[1].as_str(), 404).await;
    assert_eq!(told, [(0, key, true, false)], "the caller's own fault is no failure");
}

#[tokio::test]
async fn the_sight_sets_its_share_at_once_and_a_reload_keeps_it() {
    let (server, sight) = seen().await;
    let (tried, _) = split(&server).await;
    let watched = sight.server();
    let text = "{ limit: { rate: 4/h, burst: 2 }, share: 50%, for: 2h }";
    let canary = Canary {
        policy: "per-ip".to_owned(),
        text: text.to_owned(),
        limit: "gcra 4/h burst 2".to_owned(),
        share: 0.5,
        in_force: 0.5,
        lasts: Duration::from_secs(7200),
        denied: 0.01,
        keys_refused: 20,
        failures: 0.02,
        enforce: false,
    };
    assert_eq!(watched.canaries(), std::slice::from_ref(&canary));
    assert!(!watched.set_canary_share("per-ip", "another text", 0.0));
    assert!(!watched.set_canary_share("all", text, 0.0));
    assert!(watched.set_canary_share("per-ip", text, 0.0));
    let line = server.check(&tried[0]).await.json()["policies"][0].clone();
    assert!(line.get("canary").is_none(), "{line}");
    assert_eq!(line["limit"], 5);
    assert_eq!(line["remaining"], 3, "what was spent stays spent");
    server.handle.reload().await.unwrap();
    assert_eq!(watched.canaries(), [Canary { in_force: 0.0, ..canary.clone() }]);
    server.write(&FILE.replace("burst: 5", "burst: 6"));
    server.handle.reload().await.unwrap();
    assert_eq!(watched.canaries()[0].in_force, 0.0, "the canary is the same");
    server.write(&FILE.replace("50%", "40%"));
    server.handle.reload().await.unwrap();
    assert_eq!((watched.canaries()[0].share, watched.canaries()[0].in_force), (0.4, 0.4), "another canary");
    let changes = sight.changes();
    let told = "canary gcra 4/h burst 2 for 50% of the keys -> gcra 4/h burst 2 for 40% of the keys";
    assert!(changes.iter().any(|(.., text)| text.contains(told)), "{changes:?}");
}

#[tokio::test]
async fn a_person_stops_it_and_starts_it_again() {
    let server = start(FILE).await;
    let share = async |body: &str| server.post("/v1/canaries/per-ip", body).await;
    let stopped = share(r#"{"share": 0, "reason": "customers complain"}"#).await;
    assert_eq!(stopped.json()["done"], "the canary of per-ip decides for 0% of its keys", "{stopped:?}");
    assert_eq!(server.get("/v1/policies/per-ip").await.json()["canary_share"], 0.0);
    assert_eq!(share(r#"{"share": 0.05}"#).await.status, StatusCode::OK);
    assert_eq!(server.get("/v1/policies/per-ip").await.json()["canary_share"], 0.05);
    for (body, told) in [
        (r#"{"share": 0.6}"#, "share 0.6 is not possible; use 0 to stop it, or up to 0.5, as its text says"),
        (r#"{"share": -1}"#, "share -1 is not possible"),
        (r#"{"share": "none"}"#, "`share` as a number such as 0.05"),
        (r#"{"reason": "none"}"#, "`share` is missing"),
        (r#"{"shar": 0}"#, "did you mean `share`?"),
        (r#"{"share": 0, "reason": "a\u0000b"}"#, "the reason has a control character"),
    ] {
        let answer = share(body).await;
        assert!(answer.status == 400 && answer.detail().contains(told), "{body}: {answer:?}");
    }
    let none = server.post("/v1/canaries/all", r#"{"share": 0}"#).await;
    assert!(none.status == 404 && none.detail().contains("has no canary"), "{none:?}");
    let unknown = server.post("/v1/canaries/per-pi", r#"{"share": 0}"#).await;
    assert!(unknown.status == 404 && unknown.detail().contains("per-ip"), "{unknown:?}");
}

#[tokio::test]
async fn with_a_sight_it_is_the_sight_that_is_told() {
    let (server, _sight) = seen().await;
    let told = server.post("/v1/canaries/per-ip", r#"{"share": 0}"#).await.json();
    assert_eq!(told, serde_json::json!({ "path": "/v1/canaries/per-ip", "bytes": 12, "who": "" }));
}

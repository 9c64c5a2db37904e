//! What sees decisions is told each of them, and answers its paths.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Bytes;
use serde_json::json;
use tidegate_server::{OpenStore, Verdict, WatchedServer};
use tokio::net::TcpStream;

use crate::running::engine::{ERRS, Engine};
use crate::running::sight::{RecordedSight, Told};
use crate::running::wire::{read_until, rest, sent};
use crate::running::{Answer, NOON, Running, send, start, start_with, until};

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 2 }
    shadow_limit: { algorithm: gcra, rate: 1/min, burst: 1 }
  - name: trial
    mode: shadow
    by: [client.ip]
    limit: { algorithm: gcra, rate: 1/min, burst: 1 }
  - name: soft
    over: mark
    limit: { algorithm: gcra, rate: 3/min, burst: 3 }
";

const ANN: &str = "ann-0123456789abcdef";

async fn seen(file: &str) -> (Running, Arc<RecordedSight>) {
    let sight = Arc::new(RecordedSight::default());
    let own = Arc::clone(&sight);
    let server = start_with(file, |mut options| {
        options.sight = Some(own);
        options
    })
    .await;
    (server, sight)
}

/// The same with a file of tokens.
async fn with_tokens(file: &str, dir: &tempfile::TempDir, tokens: &str) -> (Running, Arc<RecordedSight>) {
    let sight = Arc::new(RecordedSight::default());
    let own = Arc::clone(&sight);
    let path = dir.path().join("tokens");
    std::fs::write(&path, tokens).unwrap();
    let server = start_with(file, |mut options| {
        options.sight = Some(own);
        options.tokens_file = Some(path);
        options
    })
    .await;
    (server, sight)
}

#[tokio::test]
async fn each_policy_tells_its_verdict_once_and_once_more_for_a_shadow_limit() {
    let (server, sight) = seen(FILE).await;
    for status in [200, 200, 429] {
        assert_eq!(server.check("203.0.113.9").await.status, status);
    }
    use Verdict::{Allowed, Delayed, Denied, Over, WouldAllow, WouldDeny};
    let own = |verdicts: Vec<Verdict>| {
        let binds = |verdict: &Verdict| matches!(verdict, Allowed | Delayed | Denied | Over);
        verdicts.into_iter().partition::<Vec<_>, _>(binds)
    };
    let (per_ip, shadow) = own(sight.verdicts("per-ip"));
    assert_eq!((per_ip, &shadow[..2]), (vec![Allowed, Allowed, Denied], &[WouldAllow, WouldDeny][..]));
    assert_eq!(sight.verdicts("trial"), [WouldAllow, WouldDeny, WouldDeny]);
    // What was refused was not charged, so one more passes within the limit, and the next is over it.
    assert_eq!(sight.verdicts("soft"), [Allowed, Allowed, Allowed]);
    server.check("203.0.113.8").await;
    assert_eq!(server.check("203.0.113.7").await.status, 200);
    assert_eq!(sight.verdicts("soft")[3..], [Allowed, Over]);

    let digest = {
        let told = sight.told.lock();
        let rates: Vec<_> =
            told.policies.iter().map(|(name, rate)| (name.as_str(), rate.unwrap() * 60.0)).collect();
        assert_eq!(rates, [("per-ip", 10.0), ("trial", 1.0), ("soft", 3.0)]);
        let of = |policy: u16| told.seen.iter().filter(move |seen| seen.policy == policy);
        assert!(told.seen.iter().all(|seen| seen.at == NOON));
        let costs: Vec<u32> = of(2).map(|seen| seen.cost).collect();
        assert_eq!(costs, [1, 1, 0, 1, 1], "what another policy refuses takes nothing of this one");
        assert!(of(0).chain(of(1)).all(|seen| seen.cost == 1));
        let first = told.seen[0].key;
        assert!(of(0).take(3).all(|seen| seen.key == first), "the same key");
        assert!(of(0).next_back().unwrap().key != first, "another key");
        assert!(of(2).all(|seen| seen.key == of(2).next().unwrap().key), "one key for all");
        let near: Vec<bool> = of(0).filter(|seen| seen.verdict == Allowed).map(|seen| seen.near).collect();
        assert_eq!(near[..2], [false, true]);
        let (policy, key, name, digest) = &told.named[0];
        assert_eq!((*policy, *key, name.as_str()), (0, first, "client.ip=203.0.113.9"));
        digest.clone()
    };
    let top = server.get("/v1/keys/top?policy=per-ip").await.json();
    assert_eq!(top["keys"][0]["key"], json!(digest), "the digest is the same everywhere");
}

#[tokio::test]
async fn a_block_tells_a_denial() {
    let (server, sight) = seen(FILE).await;
    let block = r#"{"block": {"for": "10min", "reason": "scraper"}}"#;
    assert_eq!(server.put("/v1/keys/per-ip?client.ip=203.0.113.9", block).await.status, 200);
    assert_eq!(server.check("203.0.113.9").await.status, 403);
    assert_eq!(sight.verdicts("per-ip"), [Verdict::Denied]);
    assert!(sight.verdicts("soft").is_empty());
}

#[tokio::test]
async fn without_its_engine_a_policy_tells_an_error() {
    let (sight, engine) = (Arc::new(RecordedSight::default()), Engine::default());
    let (own, store) = (Arc::clone(&sight), Arc::new(engine.clone()));
    let server = start_with(FILE, |mut options| {
        options.sight = Some(own);
        options.store = Some(OpenStore::new(store, "engine"));
        options
    })
    .await;
    engine.be(ERRS);
    server.check("203.0.113.9").await;
    assert_eq!(sight.verdicts("per-ip")[0], Verdict::Error);
    let vitals = sight.server().vitals();
    assert!(vitals.store == "engine" && vitals.store_errors > 0, "{vitals:?}");
}

#[tokio::test]
async fn vitals_are_the_counts_of_the_server() {
    let (server, sight) = seen(FILE).await;
    for _ in 0..3 {
        server.check("203.0.113.9").await;
    }
    let vitals = sight.server().vitals();
    assert_eq!(vitals.requests, [2, 0, 1, 0, 0, 0, 0]);
    assert_eq!(vitals.durations.iter().map(|(_, count)| count).sum::<u64>(), 3);
    assert_eq!(vitals.durations.last().unwrap().0, u64::MAX);
    assert_eq!((vitals.store, vitals.store_away, vitals.store_errors), ("memory", None, 0));
    assert_eq!((vitals.configuration, vitals.now), ((1, NOON), NOON));
}

async fn asked(watched: &dyn WatchedServer, path: &str, token: Option<&str>) -> (u16, String) {
    let mut request = Request::builder().uri(path).header("origin", "http://evil.example");
    if let Some(token) = token {
        request = request.header("x-tidegate-token", token);
    }
    let answer = watched.ask(request.body(Bytes::new()).unwrap()).await;
    (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap())
}

#[tokio::test]
async fn pages_ask_what_their_reader_may_ask() {
    let (_server, sight) = seen(FILE).await;
    let watched = sight.server();
    let (status, text) = asked(&*watched, "/v1/policies/per-ip", None).await;
    assert!(status == 200 && text.contains("gcra 10/min burst 2"), "{text}");
    for stream in ["/v1/events", "/v1/live"] {
        assert_eq!(asked(&*watched, stream, None).await.0, 406);
    }
    assert_eq!(asked(&*watched, "/ui/", None).await.0, 404);

    let dir = tempfile::tempdir().unwrap();
    let (server, sight) = with_tokens(FILE, &dir, &format!("ann metrics {ANN}\n")).await;
    let watched = sight.server();
    assert_eq!(asked(&*watched, "/v1/policies", None).await.0, 401);
    assert_eq!(asked(&*watched, "/v1/policies", Some(ANN)).await.0, 403);
    assert_eq!(asked(&*watched, "/version", Some(ANN)).await.0, 200);
    server.handle.stop();
    server.stopped().await;
    drop(sight);
}

#[tokio::test]
async fn changes_name_who_made_them_and_no_key() {
    let file = "
version: 1
switches: { previews: { off_when: signal queue-length above 10 } }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
  - name: bank
    match: { path: /pay }
    by: [client.ip]
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
";
    let dir = tempfile::tempdir().unwrap();
    let (server, sight) = with_tokens(file, &dir, &format!("ann check,read,admin {ANN}\n")).await;
    let ask = async |method: Method, path: &str, body: &str| -> Answer {
        let answer = send(server.addr, method, path, &[("x-tidegate-token", ANN)], body).await;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
        answer
    };
    let one = || {
        let mut changes = sight.changes();
        assert_eq!(changes.len(), 1, "{changes:?}");
        let (what, who, reason, text) = changes.remove(0);
        assert!(!text.contains("203.0.113"), "{text}");
        assert!(who == "ann" || what == "policies", "{who}");
        (what, reason, text)
    };
    let told = |what: &'static str, reason: &str, text: &str| (what, reason.to_owned(), text.to_owned());

    ask(Method::PUT, "/v1/policies/tmp", "by: [user.id]\nlimit: { rate: 2/min }\n").await;
    assert_eq!(one(), told("policies", "", "+tmp"));
    let key = "?client.ip=203.0.113.9";
    let block = r#"{"block": {"for": "10min", "reason": "scraper"}}"#;
    let digest = ask(Method::PUT, &format!("/v1/keys/per-ip{key}"), block).await.json()["key"].clone();
    let digest = digest.as_str().unwrap();
    assert_eq!(one(), told("key", "scraper", &format!("per-ip: {digest} is blocked for 600 s")));
    ask(Method::PUT, &format!("/v1/keys/per-ip{key}"), r#"{"block": null}"#).await;
    assert_eq!(one(), told("key", "", &format!("per-ip: {digest} is no longer blocked")));
    ask(Method::DELETE, &format!("/v1/keys/per-ip{key}"), "").await;
    assert_eq!(one(), told("key", "", &format!("per-ip: {digest} is reset")));
    let force = r#"{"state": "open", "for": "5min", "reason": "upgrade"}"#;
    ask(Method::PUT, &format!("/v1/breakers/bank{key}"), force).await;
    let text = format!("bank: the breaker of {digest} is forced open for 300 s");
    assert_eq!(one(), told("breaker", "upgrade", &text));
    ask(Method::PUT, "/v1/switches/previews", r#"{"state": "off", "for": "10min", "reason": "moved"}"#).await;
    assert_eq!(one(), told("switch", "moved", "switch previews is turned off for 10min"));
    for _ in 0..2 {
        ask(Method::POST, "/v1/signals/queue-length", r#"{"value": 5}"#).await;
    }
    assert_eq!(one(), told("signal", "", "signal queue-length is known now: 5"));

    ask(Method::POST, "/v1/reload", "").await;
    assert_eq!(
        sight.changes(),
        [("policies", "ann".to_owned(), String::new(), "no policy changed".to_owned())]
    );
    server.handle.reload().await.unwrap();
    assert_eq!(one(), told("policies", "", "no policy changed"));
    server.write(&file.replace("10/min, burst: 3", "6/min, burst: 2"));
    let mut changes = Vec::new();
    until("the file is read again", async || {
        changes.extend(sight.changes());
        !changes.is_empty()
    })
    .await;
    let (what, who, reason, text) = &changes[0];
    assert_eq!((*what, who.as_str(), reason.as_str()), ("policies", "file", ""));
    assert_eq!(text, "per-ip: limit gcra 10/min burst 3 -> gcra 6/min burst 2");
}

/// What another run of the server has refused is explained from what it gave to the record.
#[tokio::test]
async fn refusals_that_are_wanted_are_explained_by_the_next_run() {
    let (server, sight) = seen(FILE).await;
    let refuse = async |server: &Running, ip: &str| {
        let mut last = None;
        for _ in 0..3 {
            last = Some(server.check(ip).await.json());
        }
        last.unwrap()["decision_id"].as_str().unwrap().to_owned()
    };
    let unwanted = refuse(&server, "203.0.113.9").await;
    sight.told.lock().wants_refusals = true;
    let wanted = refuse(&server, "203.0.113.8").await;
    let (record, configured) = {
        let told = sight.told.lock();
        let [(first, key), (second, other)] = told.asked_refusals[..] else { panic!("{told:?}") };
        assert_eq!((first, second), (Some(0), Some(0)));
        assert_ne!(key, other);
        let [record] = &told.refusals[..] else { panic!("{told:?}") };
        (record.clone(), told.configured.clone())
    };
    assert_eq!(configured.len(), 1);
    assert_eq!((record.configuration, record.key.starts_with('#')), (1, true));

    let before = server.get(&format!("/v1/explain?id={wanted}&reveal=true")).await.json();
    let next = Arc::new(RecordedSight::default());
    *next.told.lock() = Told { refusals: vec![record.clone()], configured, ..Told::default() };
    let own = Arc::clone(&next);
    let server = start_with(FILE, |mut options| {
        options.sight = Some(own);
        options
    })
    .await;
    let after = server.get(&format!("/v1/explain?id={wanted}&reveal=true")).await.json();
    for name in ["decided_at", "policy", "refused_by", "key", "retry_after_ms", "limits", "limits_left_out"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert_eq!((&before["from"], &after["from"]), (&json!("memory"), &json!("record")));
    assert_eq!(after["configuration"], json!({ "number": 1, "in_force": false }), "of another run");
    let then = after["policy_then"].as_str().unwrap();
    assert!(then.contains("\"burst\":2") && then.contains("per-ip"), "{then}");
    let hidden = server.get(&format!("/v1/explain?id={wanted}")).await.json();
    assert_eq!(hidden["policy_then"], json!(null), "its lists may have names of keys");
    assert_eq!(after["now"]["decision"], "allowed", "{after}");
    let body =
        r#"{"with": {"policy": "per-ip", "limit": {"algorithm": "gcra", "rate": "10/min", "burst": 3}}}"#;
    let with = server.post(&format!("/v1/explain?id={wanted}"), body).await.json();
    assert_eq!(with["with"]["decision"], "allowed", "{with}");

    let gone = server.get(&format!("/v1/explain?id={unwanted}")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert!(gone.detail().ends_with("nor in the record: the queue was full"), "{}", gone.detail());
    let digest = record.key.replace('#', "%23");
    let gone = server.get(&format!("/v1/explain?id={unwanted}&digest={digest}")).await.json();
    assert_eq!(gone["nearest"], json!(wanted), "{gone}");
}

/// What alerts are made of.
#[tokio::test]
async fn a_breaker_that_opened_and_a_file_that_is_refused_are_told() {
    let file = "
version: 1
policies:
  - name: bank
    match: { path: /pay }
    by: [client.ip]
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
";
    let (server, sight) = seen(file).await;
    let watched = sight.server();
    assert!(watched.open_breakers().is_empty());
    let call = r#"{"attributes": {"client.ip": "203.0.113.9", "request.path": "/pay"}}"#;
    let ticket = server.post("/v1/check", call).await.json()["ticket"].as_str().unwrap().to_owned();
    server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": 502}}"#)).await;
    let open = watched.open_breakers();
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!((open[0].policy.as_str(), open[0].since, open[0].probes), ("bank", Some(NOON), false));
    assert!(open[0].key.starts_with('#') && !open[0].why.is_empty(), "{open:?}");

    assert_eq!(watched.vitals().refused, None);
    server.write("version: 1\npolicies: none\n");
    until("the file is refused", async || watched.vitals().refused.is_some()).await;
    let changes = sight.changes();
    let (what, who, _, text) = changes.iter().find(|(what, ..)| *what == "refused").unwrap();
    assert_eq!((*what, who.as_str()), ("refused", "file"));
    assert!(text.contains("policies"), "{text}");
    server.write(file);
    until("the file is in force", async || watched.vitals().refused.is_none()).await;
}

/// Alerts go by what is told here, and nobody calls a service whose breaker has just opened: nobody told that it had
/// closed again, and of one whose thresholds are compared by time that it had opened.
#[tokio::test]
async fn breakers_open_and_close_for_alerts_while_nobody_calls() {
    let file = "
version: 1
policies:
  - name: bank
    match: { path: /pay }
    limit: { algorithm: breaker, consecutive: 1, open_for: 5s }
  - name: mail
    match: { path: /mail }
    limit: { algorithm: breaker, profile: hystrix }
";
    let (server, sight) = seen(file).await;
    let watched = sight.server();
    let fail = async |path: &str| {
        let call = format!(r#"{{"attributes": {{"request.path": "{path}"}}}}"#);
        let ticket = server.post("/v1/check", &call).await.ticket();
        server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", "status": 502}}"#)).await;
    };
    let open = || watched.open_breakers().into_iter().map(|open| open.policy).collect::<Vec<_>>();
    fail("/pay").await;
    assert_eq!(open(), ["bank"]);
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(open(), ["bank"], "no probe has come");
    server.clock.advance(Duration::from_secs(600));
    until("it was idle for so long that it began anew", async || open().is_empty()).await;

    for _ in 0..20 {
        fail("/mail").await;
    }
    assert!(open().is_empty(), "nothing was compared yet");
    server.clock.advance(Duration::from_secs(1));
    until("time has opened it", async || open() == ["mail"]).await;
}

#[tokio::test]
async fn a_server_without_sight_says_so() {
    let server = start(FILE).await;
    let alerts = server.post("/v1/alerts", r#"{"do": "test"}"#).await;
    assert_eq!(alerts.status, StatusCode::NOT_FOUND);
    for path in [
        "/v1/overview",
        "/v1/history",
        "/v1/changes",
        "/v1/busiest",
        "/v1/alerts",
        "/v1/live",
        "/ui/",
        "/ui/now",
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(answer.detail().contains("ServerOptions::sight"), "{path}");
    }
    let browser = [("accept", "text/html,*/*;q=0.8")];
    assert_eq!(send(server.addr, Method::GET, "/", &browser, "").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn its_paths_check_their_parameters_and_tell_what_is_wrong() {
    let (server, _sight) = seen(FILE).await;
    let told = server.get("/v1/busiest?by=denied&w=15m&reveal=true").await.json();
    let query = "by=denied&w=15m&reveal=true";
    assert_eq!(told, json!({ "path": "/v1/busiest", "query": query, "reveal": true }));
    let slip = server.get("/v1/busiest?polcy=per-ip").await;
    assert_eq!(
        (slip.status, slip.detail()),
        (StatusCode::BAD_REQUEST, "unknown parameter `polcy`; did you mean `policy`?".to_owned())
    );
    let done = server.post("/v1/alerts", r#"{"do": "test"}"#).await.json();
    assert_eq!(done, json!({ "path": "/v1/alerts", "bytes": 14, "who": "" }));
    let wrong = server.get("/v1/changes?limit=0").await;
    let detail = "limit `0` is not possible; use 1 to 200".to_owned();
    assert_eq!((wrong.status, wrong.detail()), (StatusCode::BAD_REQUEST, detail));
}

#[tokio::test]
async fn decisions_do_not_wait_for_what_is_read_from_a_disk() {
    let (server, sight) = seen(FILE).await;
    let (goes_on, disk) = std::sync::mpsc::channel();
    *sight.disk.lock() = Some(disk);
    let others = async {
        let status = server.check("203.0.113.9").await.status;
        goes_on.send(()).unwrap();
        status
    };
    let (read, decided) = tokio::join!(server.get("/v1/overview?w=24h"), others);
    assert_eq!((read.status, decided), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn a_limit_is_tried_in_the_words_of_the_file() {
    let file = format!("{FILE}  - name: busy\n    limit: {{ rate: 1/s }}\n");
    let (server, _sight) = seen(&file).await;
    let body =
        r#"{"policy": "per-ip", "limit": {"algorithm": "gcra", "rate": "6/s", "burst": 12}, "w": "30m"}"#;
    let told = server.post("/v1/lab?reveal=true", body).await.json();
    let tried = json!({
        "policy": "per-ip", "limit": "gcra 6/s burst 12", "max_wait_ms": 0, "per_second": 6.0, "window_s": 1800,
        "reveal": true,
    });
    assert_eq!(told, tried);
    for (body, status, part) in [
        (r#"{"policy": "per-ip", "limit": {"rate": "6/M"}}"#, 422, "could be minute or month"),
        (r#"{"policy": "per-op", "limit": {"rate": "6/s"}}"#, 400, "per-ip"),
        (r#"{"policy": "per-ip", "limit": {"rate": "6/s"}, "w": "2h"}"#, 400, "from 1m to 1h"),
        (r#"{"policy": "per-ip", "limit": "6/s"}"#, 400, "map"),
        (r#"{"policy": "per-ip", "limits": {}}"#, 400, "did you mean `limit`?"),
        (r#"{"policy": "per-ip"}"#, 400, "`limit` is missing"),
        (r#"{"policy": "busy", "limit": {"rate": "6/s"}}"#, 429, "another limit is being tried"),
    ] {
        let answer = server.post("/v1/lab", body).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        assert!(answer.detail().contains(part), "{body}: {}", answer.detail());
    }
    let without = start(FILE).await.post("/v1/lab", body).await;
    assert_eq!(without.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_browser_is_led_to_the_pages_and_foreign_ones_are_kept_out() {
    let (server, _sight) = seen(FILE).await;
    for path in ["/", "/ui"] {
        let led = send(server.addr, Method::GET, path, &[("accept", "text/html,*/*;q=0.8")], "").await;
        assert_eq!((led.status, led.header("location")), (StatusCode::SEE_OTHER, "/ui/"));
        assert_eq!(server.get(path).await.status, StatusCode::NOT_FOUND, "a program is told");
    }
    assert_eq!(
        server.get("/ui/policy/per-ip").await.text,
        "GET /ui/policy/per-ip 0 tokens:false encrypted:false"
    );
    assert_eq!(server.post("/ui/", "form=1").await.text, "POST /ui/ 6 tokens:false encrypted:false");
    assert_eq!(server.put("/ui/", "").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let large = server.post("/ui/", &"x".repeat((64 << 10) + 1)).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    let foreign = [("origin", "http://evil.example")];
    assert_eq!(send(server.addr, Method::POST, "/ui/", &foreign, "").await.status, StatusCode::FORBIDDEN);
    let rebound = [("host", "evil.example")];
    assert_eq!(send(server.addr, Method::GET, "/ui/", &rebound, "").await.status, StatusCode::FORBIDDEN);

    let dir = tempfile::tempdir().unwrap();
    let (server, _sight) = with_tokens(FILE, &dir, &format!("ann read {ANN}\n")).await;
    assert_eq!(server.get("/ui/").await.text, "GET /ui/ 0 tokens:true encrypted:false");
}

/// Who guesses tokens behind a proxy would lock out all others behind it.
#[tokio::test]
async fn a_page_knows_who_asks_for_it_through_a_trusted_proxy() {
    let from = async |file: &str, forwarded: &str| {
        let (server, _sight) = seen(file).await;
        let headers = [("x-forwarded-for", forwarded)];
        let text = send(server.addr, Method::GET, "/ui/", &headers, "").await.text;
        text.split_once(" from:").map(|(_, from)| from.to_owned())
    };
    let trusting = format!("{FILE}client_ip: {{ trusted_proxies: [127.0.0.0/8, 10.0.0.0/8] }}\n");
    let of_a_hop = from(&trusting, "192.0.2.7, 203.0.113.9, 10.0.0.1").await;
    assert_eq!(of_a_hop.as_deref(), Some("203.0.113.9"), "what the caller wrote is not believed");
    assert_eq!(from(&trusting, "nobody").await, None, "then it is the proxy");
    assert_eq!(from(FILE, "203.0.113.9").await, None, "no proxy is trusted");
}

async fn listen(server: &Running, token: &str) -> TcpStream {
    let asked = format!("GET /v1/live HTTP/1.1\r\nhost: localhost\r\nx-tidegate-token: {token}\r\n\r\n");
    sent(server.addr, asked.as_bytes()).await
}

#[tokio::test]
async fn listeners_get_each_second_until_their_token_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (server, sight) = with_tokens(FILE, &dir, &format!("ann read {ANN}\n")).await;
    sight.tell(r#"{"second":1}"#);
    let mut stream = listen(&server, ANN).await;
    let begun = read_until(&mut stream, "data: {\"second\":1}\n\n").await;
    assert!(begun.starts_with("HTTP/1.1 200 OK\r\n") && begun.contains("text/event-stream"), "{begun}");
    sight.tell(r#"{"second":2}"#);
    read_until(&mut stream, "data: {\"second\":2}\n\n").await;
    std::fs::write(dir.path().join("tokens"), "bob read bob-0123456789abcdef\n").unwrap();
    server.handle.reload().await.unwrap();
    let end = read_until(&mut stream, "\r\n0\r\n\r\n").await;
    assert!(end.contains("is no longer valid"), "{end}");
}

#[tokio::test]
async fn so_many_listen_at_once() {
    let (server, _sight) = seen(FILE).await;
    let mut streams = Vec::new();
    for _ in 0..32 {
        let mut stream = listen(&server, "").await;
        read_until(&mut stream, "once a second").await;
        streams.push(stream);
    }
    let full = server.get("/v1/live").await;
    assert_eq!(full.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(full.detail().contains("32 callers listen already"));
    server.handle.stop();
    for mut stream in streams {
        rest(&mut stream).await;
    }
}

//! Compares the server with its own description: a client reads `/openapi.json`, makes valid and invalid requests from
//! it, and checks that the document declares the status and the body of each answer.
//!
//! Requests come from a seed. `TIDEGATE_OPENAPI_SEED=7` runs only that one; `TIDEGATE_OPENAPI_SEEDS=500` runs this many
//! seeds instead of a few.

use crate::running;

mod client;
mod document;
mod made;

use std::sync::Arc;

use running::sight::RecordedSight;
use running::{Running, send, start_with};
use tidegate_server::Token;

use client::{Fuzzer, Seen};
use document::Document;

/// Policies of many kinds, so that answers contain every possible member.
const FILE: &str = "
version: 1
switches:
  previews: { off_when: signal queue-length above 10, below: critical }
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: nginx }
access: { deny: [198.51.100.0/24] }
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 5 }
    shadow_limit: { rate: 2/min }
    canary: { limit: { rate: 6/min }, share: 50%, for: 2h }
  - name: top
    by: [client.ip, user.id]
    over: demote
    limit: { rate: 5/min }
  - name: soft
    over: mark
    limit: { rate: 3/min }
  - name: login
    match: { path: /login }
    by: [client.ip]
    limit: { algorithm: sliding-log, rate: 3/h }
    charge: on-failure
  - name: work
    match: { path: /work }
    limit: { algorithm: concurrency, max: 2, ttl: 30s }
  - name: payments
    match: { path: /pay }
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
  - name: upstreams
    match: { path: /pay }
    by: [user.id]
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
  - name: tokens
    match: { path: /llm }
    cost: { estimate: learned, start: 3, settle: llm.output }
    limit: { rate: 100/min, max_wait: 5s, algorithm: token-bucket }
  - name: teapot
    match: { path: /tea }
    limit: { rate: 1/h }
    deny: { status: 418 }
  - name: busy
    when: signal queue-length above 1000
    limit: { rate: 1000/min }
  - name: few previews
    when: switch previews off
    limit: { rate: 1000/min }
  - name: trial
    mode: shadow
    by: [client.ip]
    limit: { rate: 1/min }
";

async fn served() -> Running {
    start_with(FILE, |mut options| {
        options.sight = Some(Arc::new(RecordedSight::default()));
        options
    })
    .await
}

async fn described(server: &Running) -> Document {
    let answer = server.get("/openapi.json").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/json"));
    Document::new(answer.json())
}

/// The seeds of this run.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<u64>().unwrap());
    match (number("TIDEGATE_OPENAPI_SEED"), number("TIDEGATE_OPENAPI_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => 0..seeds.unwrap_or(10),
    }
}

#[tokio::test]
async fn every_answer_is_one_that_the_document_declares() {
    let mut seen = Seen::default();
    let document = described(&served().await).await;
    for seed in seeds() {
        let server = served().await;
        let mut fuzzer = Fuzzer::new(server.addr, server.clock.clone(), &document, seed, seen);
        for round in 0..9 {
            for operation in &document.operations {
                fuzzer.ask(operation, round).await;
            }
        }
        seen = fuzzer.seen();
    }
    if seeds().count() > 1 {
        seen.is_enough(&document);
    }
}

#[tokio::test]
async fn who_may_not_ask_is_answered_as_the_document_says() {
    let server = start_with(FILE, |mut options| {
        options.token = Some(Token::new("0123456789abcdef0123").unwrap());
        options
    })
    .await;
    let with = [("x-tidegate-token", "0123456789abcdef0123")];
    let answer = send(server.addr, http::Method::GET, "/openapi.json", &with, "").await;
    let document = Document::new(answer.json());
    for operation in &document.operations {
        let path = operation.path.replace("{name}", "per-ip");
        let answer = send(server.addr, operation.method.clone(), &path, &[], "").await;
        document.holds(operation, &answer).unwrap();
        let needs = operation.scope.is_some();
        assert_eq!(answer.status.as_u16() == 401, needs, "{} {path}", operation.method);
        assert_eq!(answer.headers.contains_key("www-authenticate"), needs);
    }
}

/// Formerly fields were described by `const`: openapi-python-client made a client of it that Python could not parse, and
/// left out the answer of a refused check.
#[tokio::test]
async fn the_document_has_only_what_generators_of_clients_read() {
    let answer = served().await.get("/openapi.json").await;
    let document = answer.json();
    let mut all = vec![(String::new(), &document)];
    while let Some((path, value)) = all.pop() {
        // An example may be anything.
        if path.ends_with("/examples") || path.ends_with("/example") {
            continue;
        }
        if let Some(fields) = value.as_object() {
            assert!(
                fields.get("const").is_none_or(serde_json::Value::is_object),
                "{path} has a const: use enum"
            );
        }
        let entries =
            value.as_object().into_iter().flatten().map(|(name, of)| (format!("{path}/{name}"), of));
        let elements = value.as_array().into_iter().flatten().map(|of| (path.clone(), of));
        all.extend(entries.chain(elements));
    }
}

/// The test itself must be able to find errors.
#[tokio::test]
async fn a_field_or_a_status_that_is_not_declared_is_found() {
    let server = served().await;
    let document = described(&server).await;
    let check = document.operation("POST", "/v1/check");
    let answer = server.check("203.0.113.9").await;
    document.holds(check, &answer).unwrap();
    let text = answer.text.replacen('{', "{\"more\": 1, ", 1);
    let with_more = running::Answer { text, headers: answer.headers.clone(), ..answer };
    assert!(document.holds(check, &with_more).unwrap_err().contains("more"));
    let text = with_more
        .text
        .replace("\"charged\":true", "\"charged\":true,\"within\":1")
        .replace("\"more\": 1, ", "");
    let within = running::Answer { text, headers: with_more.headers.clone(), ..with_more };
    assert!(document.holds(check, &within).unwrap_err().contains("within"));
    let text = within.text.replace("\"within\":1,", "").replace("\"reset_at\"", "\"reset\"");
    let without = running::Answer { text, headers: within.headers.clone(), ..within };
    assert!(document.holds(check, &without).unwrap_err().contains("reset_at"));
    let livez = document.operation("GET", "/livez");
    let mut other = server.get("/livez").await;
    other.status = http::StatusCode::ACCEPTED;
    assert!(document.holds(livez, &other).unwrap_err().contains("202 is not declared"));
}

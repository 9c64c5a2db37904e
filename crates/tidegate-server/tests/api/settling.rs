//! The second half of a decision: its ticket, the report about its work, and callers that hang up in between.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use crate::running::{Answer, Client, Running, send, start, start_with, until};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tidegate::config::{Config, Format};
use tidegate::gate::ticket::TicketKeys;
use tidegate::store::MemoryStore;

/// The policies of a language model gateway: a user's requests and tokens, a model over all users, and a team's money.
const GATEWAY: &str = "
version: 1
policies:
  - name: requests
    by: [user.id]
    cost: 1
    limit: { rate: 60/min }
  - name: user-tokens
    by: [user.id]
    cost: { estimate: 800, settle: 'llm.input + llm.output' }
    limit: { rate: 2000/min }
  - name: model
    by: [llm.model]
    cost: { estimate: 800, settle: llm.output }
    limit: { rate: 100000/min }
  - name: money
    by: [team.id]
    cost: { estimate: 4000, settle: '3 * (llm.input - llm.cached) + 15 * llm.output', missing: { llm.cached: 0 } }
    limit: { algorithm: fixed-window, rate: 1000000/day, calendar: UTC }
";

const CALL: &str = r#"{"attributes": {"user.id": "ann", "llm.model": "large", "team.id": "search"}}"#;

async fn settle(server: &Running, ticket: &str, told: &str) -> Answer {
    server.post("/v1/settle", &format!(r#"{{"ticket": "{ticket}", {told}}}"#)).await
}

/// One member of each entry in `policies`.
fn each(answer: &Answer, member: &str) -> Vec<Value> {
    answer.json()["policies"].as_array().unwrap().iter().map(|part| part[member].clone()).collect()
}

#[tokio::test]
async fn one_call_is_settled_under_each_policy_by_its_own_weights() {
    let server = start(GATEWAY).await;
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let told =
        settle(&server, &ticket, r#""attributes": {"llm.input": 900, "llm.output": 400}, "status": 200"#)
            .await;
    assert_eq!(told.status, StatusCode::OK, "{told:?}");
    assert_eq!(each(&told, "name"), ["requests", "user-tokens", "model", "money"]);
    assert_eq!(each(&told, "charged"), [1, 800, 800, 4000]);
    assert_eq!(each(&told, "used"), [1, 1300, 400, 8700]);
    assert_eq!(each(&told, "effect"), ["kept", "owed", "returned", "owed"]);
    assert_eq!(each(&told, "remaining"), [59, 700, 99_600, 991_300]);
    assert_eq!(told.json()["outcome"], "success");
    // A debt is booked, never refused: the next call is estimated at 800, and the last one used 2,000.
    let answer = server.post("/v1/check", CALL).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "700 of 2000 are left");
    server.clock.advance(Duration::from_secs(6));
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let told = settle(&server, &ticket, r#""attributes": {"llm.input": 1800, "llm.output": 200}"#).await;
    assert_eq!(
        (each(&told, "remaining")[1].clone(), each(&told, "debt")[1].clone()),
        (json!(0), json!(1100))
    );
    let metrics = server.get("/metrics").await.text;
    for line in [
        "tidegate_settlements_total{result=\"settled\"} 2",
        "tidegate_settled_units_total{policy=\"user-tokens\",fate=\"owed\"} 1700",
        "tidegate_settled_units_total{policy=\"model\",fate=\"returned\"} 1000",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} is missing in\n{metrics}");
    }
}

#[tokio::test]
async fn a_ticket_is_answered_where_it_is_wanted() {
    let server = start(&GATEWAY.replace("cost: 1\n", "cost: 1\n    match: { path: /v1/** }\n")).await;
    let check = async |attributes: &str, more: &str| {
        server.post("/v1/check", &format!(r#"{{"attributes": {{{attributes}}}{more}}}"#)).await.json()
    };
    let plain = r#""user.id": "bob", "request.path": "/v1/x""#;
    let only = r#", "policies": ["requests"]"#;
    assert_eq!(check(plain, only).await.get("ticket"), None, "nothing expects to be settled");
    assert!(check(plain, &format!("{only}, \"ticket\": true")).await["ticket"].is_string());
    assert!(check(plain, "").await["ticket"].is_string(), "user-tokens expects it");
    assert_eq!(check(plain, r#", "ticket": false"#).await.get("ticket"), None);
    assert_eq!(check(r#""x": 1"#, r#", "ticket": true"#).await.get("ticket"), None, "nothing was charged");
    let batch = r#"[{"attributes": {"user.id": "eve"}}]"#;
    assert!(server.post("/v1/check/batch", batch).await.json()[0]["ticket"].is_string());
    let long = format!(r#"{{"attributes": {{"user.id": "{}"}}}}"#, "x".repeat(8192));
    let answer = server.post("/v1/check", &long).await.json();
    assert!(answer.get("ticket_error").is_none() == answer.get("ticket").is_some(), "{answer}");
}

#[tokio::test]
async fn what_is_left_out_or_misspelt_is_not_free() {
    let server = start(GATEWAY).await;
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let misspelt = settle(&server, &ticket, r#""attributes": {"llm.input": 9, "llm.outptu": 4}"#).await;
    assert_eq!(misspelt.status, StatusCode::BAD_REQUEST);
    assert!(
        misspelt.detail().starts_with("no policy settles by `llm.outptu`; there are llm.cached, llm.input"),
        "{misspelt:?}"
    );
    assert!(misspelt.detail().ends_with("did you mean llm.output?"), "{misspelt:?}");
    assert_eq!(misspelt.json()["attribute"], "llm.outptu");
    // The invalid request has not settled the ticket.
    let told = settle(&server, &ticket, r#""attributes": {"llm.input": 9}"#).await;
    assert_eq!(each(&told, "effect"), ["kept", "kept", "kept", "kept"]);
    assert_eq!(each(&told, "note")[1], "llm.output was not sent; the charge stays");
    assert_eq!(each(&told, "used"), [1, 800, 800, 4000]);
    // A cost affects policies that settle by the caller's cost, and there are none.
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let told = settle(&server, &ticket, r#""cost": 0"#).await;
    assert_eq!(each(&told, "used"), [1, 800, 800, 4000]);
    assert_eq!(
        told.json()["note"],
        "no policy that this decision charged settles by `cost`, so the cost changes nothing; what does is \
         \"attributes\": {\"llm.cached\": N, \"llm.input\": N, \"llm.output\": N}"
    );
    assert_eq!(settle(&server, &ticket, r#""cost": 0"#).await.status, StatusCode::CONFLICT);
    // All values null, and no values at all.
    server.clock.advance(Duration::from_secs(60));
    for nothing in [r#""attributes": {"llm.output": null}"#, r#""attributes": {}"#] {
        server.clock.advance(Duration::from_secs(60));
        let ticket = server.post("/v1/check", CALL).await.ticket();
        let told = settle(&server, &ticket, nothing).await;
        assert_eq!(each(&told, "used"), [1, 800, 800, 4000]);
        let note = "llm.output was not sent; the charge stays";
        assert_eq!(each(&told, "note")[2], note, "{told:?}");
        assert!(each(&told, "note")[1].as_str().unwrap().contains("llm.output"), "{told:?}");
        assert_eq!(told.json().get("note"), None);
    }
    // How the work ended says nothing about what it spent.
    for ended in [r#""status": 200"#, r#""outcome": "failure""#] {
        server.clock.advance(Duration::from_secs(60));
        let ticket = server.post("/v1/check", CALL).await.ticket();
        let told = settle(&server, &ticket, ended).await;
        assert_eq!(told.json()["policies"], json!([]));
        let note = told.json()["note"].as_str().unwrap().to_owned();
        assert!(note.contains("the outcome changes no limit"), "{note}");
        assert!(note.contains("until then the charge stays"), "{note}");
        let told = settle(&server, &ticket, r#""attributes": {"llm.input": 900, "llm.output": 400}"#).await;
        assert_eq!(told.status, StatusCode::OK, "what was spent can be told later: {told:?}");
    }
    // `undone` is different.
    server.clock.advance(Duration::from_secs(60));
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let told = settle(&server, &ticket, r#""outcome": "undone""#).await;
    assert_eq!(each(&told, "returned"), [1, 800, 800, 4000]);
    assert_eq!(told.json()["outcome"], "undone");
}

#[tokio::test]
async fn a_policy_learns_its_estimate_from_settlements() {
    let server = start(
        "
version: 1
policies:
  - name: tokens
    by: [user.id]
    cost: { estimate: learned 50%, start: 100, settle: llm.output }
    limit: { rate: 1000/min }
",
    )
    .await;
    let body = |at: usize| format!(r#"{{"attributes": {{"user.id": {at}}}}}"#);
    for at in 0..20 {
        let shown = server.get("/v1/policies/tokens").await.json();
        assert_eq!(shown["estimate"], Value::Null, "{shown}");
        assert_eq!(shown["estimate_from"], json!({ "settlements": at, "needed": 20 }));
        let answer = server.post("/v1/check", &body(at)).await;
        assert_eq!(answer.json()["policies"][0]["cost"], 100);
        settle(&server, &answer.ticket(), r#""attributes": {"llm.output": 480}"#).await;
    }
    let learned = server.post("/v1/peek", &body(20)).await.json()["policies"][0]["cost"].as_u64().unwrap();
    assert!((480..=510).contains(&learned), "{learned}");
    assert_eq!(server.get("/v1/policies/tokens").await.json()["estimate"].as_u64(), Some(learned));
    // Undone work says nothing about what work costs, and a reload forgets nothing.
    let ticket = server.post("/v1/check", &body(21)).await.ticket();
    settle(&server, &ticket, r#""outcome": "undone""#).await;
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    assert_eq!(server.post("/v1/peek", &body(20)).await.json()["policies"][0]["cost"], learned);
}

#[tokio::test]
async fn a_ticket_that_settles_nothing_says_why() {
    let server = start(GATEWAY).await;
    let told = r#""attributes": {"llm.input": 9, "llm.output": 4}"#;
    let ticket = server.post("/v1/check", CALL).await.ticket();
    assert_eq!(settle(&server, &ticket, told).await.status, StatusCode::OK);
    let again = settle(&server, &ticket, told).await;
    assert_eq!(
        (again.status, again.detail()),
        (StatusCode::CONFLICT, "this ticket is settled already".to_owned())
    );
    let cut = settle(&server, &ticket[..ticket.len() - 4], told).await;
    assert_eq!((cut.status, &cut.json()["field"]), (StatusCode::BAD_REQUEST, &json!("ticket")));
    for odd in ["", "x", "=", "AQ", "01ARZ3NDEKTSV4RRFFQ69G5FAV", &"A".repeat(30_000), "é"] {
        assert_eq!(settle(&server, odd, told).await.status, StatusCode::BAD_REQUEST, "{odd:.40}");
    }
    let other = start(GATEWAY).await;
    let foreign = other.post("/v1/check", CALL).await.ticket();
    let refused = settle(&server, &foreign, told).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.detail().contains("sealed with another key, by another deployment"), "{refused:?}");
    server.clock.advance(Duration::from_secs(60));
    let late = server.post("/v1/check", CALL).await.ticket();
    server.clock.advance(Duration::from_secs(600));
    let late = settle(&server, &late, told).await;
    assert_eq!((late.status, late.detail()), (StatusCode::GONE, "this ticket expired 0 ms ago".to_owned()));
    let metrics = server.get("/metrics").await.text;
    for result in ["repeated", "expired", "refused"] {
        let line = format!("tidegate_settlements_total{{result=\"{result}\"}} 0");
        assert!(!metrics.contains(&line), "{line}");
    }
}

#[tokio::test]
async fn nodes_with_one_key_settle_what_they_share_and_name_whose_the_rest_is() {
    let keys = TicketKeys::new([7; 32]);
    let node = async |issuer: &str, store: Option<MemoryStore>| {
        start_with(GATEWAY, |mut options| {
            options.tickets.keys = Some(keys.clone());
            options.tickets.issuer = Some(issuer.to_owned());
            if let Some(store) = store {
                options.store = Some(tidegate_server::OpenStore::new(Arc::new(store), "memory"));
            }
            options
        })
        .await
    };
    let told = r#""attributes": {"llm.input": 9, "llm.output": 4}"#;
    let (one, two) = (node("one", None).await, node("two", None).await);
    let ticket = one.post("/v1/check", CALL).await.ticket();
    let elsewhere = settle(&two, &ticket, told).await;
    assert_eq!(
        (elsewhere.status, &elsewhere.json()["issuer"]),
        (StatusCode::MISDIRECTED_REQUEST, &json!("one"))
    );
    assert!(elsewhere.detail().contains("made by `one`"), "{elsewhere:?}");
    assert_eq!(settle(&one, &ticket, told).await.status, StatusCode::OK);
    // Two servers in one process with one name and one store. Each can settle what the other charged, once.
    let store = MemoryStore::with_capacity(1000).unwrap();
    let (left, right) = (node("both", Some(store.clone())).await, node("both", Some(store)).await);
    let ticket = left.post("/v1/check", CALL).await.ticket();
    let settled = settle(&right, &ticket, told).await;
    assert_eq!(each(&settled, "used"), [1, 13, 4, 87], "{settled:?}");
    assert_eq!(settle(&left, &ticket, told).await.status, StatusCode::CONFLICT);
}

/// Regression: after a report, a settlement with a status was refused as settled already, and its units were never
/// booked.
#[tokio::test]
async fn the_half_that_is_open_is_settled_whatever_was_told_before() {
    let server = start(
        "
version: 1
policies:
  - { name: tokens, cost: { estimate: 100, settle: llm.output }, limit: { rate: 1000/h } }
  - { name: places, limit: { algorithm: concurrency, max: 2 } }
",
    )
    .await;
    let check = async || server.post("/v1/check", r#"{"attributes": {}}"#).await.ticket();
    let all = r#""attributes": {"llm.output": 250}, "status": 200"#;
    let ticket = check().await;
    assert_eq!(settle(&server, &ticket, r#""status": 200"#).await.status, StatusCode::OK);
    let told = settle(&server, &ticket, all).await;
    assert_eq!(
        (told.status, each(&told, "name"), each(&told, "owed")),
        (StatusCode::OK, vec![json!("tokens")], vec![json!(150)])
    );
    assert_eq!(
        told.json()["note"],
        "how the work ended was reported before, so this settles only what was spent"
    );
    assert_eq!(told.json()["outcome"], json!(null));
    assert_eq!(settle(&server, &ticket, all).await.status, StatusCode::CONFLICT);
    let ticket = check().await;
    assert_eq!(settle(&server, &ticket, r#""refund": 60"#).await.status, StatusCode::OK);
    let told = settle(&server, &ticket, all).await;
    assert_eq!(
        (told.status, each(&told, "name"), each(&told, "returned")),
        (StatusCode::OK, vec![json!("places")], vec![json!(1)])
    );
    assert_eq!(
        told.json()["note"],
        "what was spent was settled before, so this reports only how the work ended"
    );
    assert_eq!(settle(&server, &ticket, all).await.status, StatusCode::CONFLICT);
    let ticket = check().await;
    assert_eq!(settle(&server, &ticket, all).await.json().get("note"), None);
    for told in [all, r#""status": 200"#, r#""cost": 1"#, r#""refund": 1"#] {
        assert_eq!(settle(&server, &ticket, told).await.status, StatusCode::CONFLICT, "{told}");
    }
    let peek = server.post("/v1/peek", r#"{"attributes": {}}"#).await;
    assert_eq!(each(&peek, "remaining"), [json!(1000 - 250 - 40 - 250), json!(2)]);
}

/// Regression: a proxy's caller that hung up while its request was delayed had spent its place in the queue, and those
/// behind it waited for nothing.
#[tokio::test]
async fn a_caller_who_hangs_up_while_delayed_has_not_spent() {
    let server = start(
        "
version: 1
client_ip: { trusted_proxies: [127.0.0.0/8] }
forward_auth: { proxy: caddy }
policies:
  - name: steady
    limit: { algorithm: leaky-bucket, rate: 1/h, queue: 10, max_wait: 10h }
  - name: per-ip
    by: [client.ip]
    limit: { rate: 10/day }
",
    )
    .await;
    let headers = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("x-forwarded-host", "example.org"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    let peek = r#"{"attributes": {"client.ip": "203.0.113.9"}}"#;
    let left = async || {
        let answer = server.post("/v1/peek", peek).await.json();
        (answer["delay_ms"].as_u64().unwrap(), answer["policies"][1]["remaining"].as_u64().unwrap())
    };
    let first = send(server.addr, Method::GET, "/v1/forward-auth", &headers, "").await;
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(left().await, (3_600_000, 9));
    let mut client = Client::connect(server.addr).await;
    let held = tokio::spawn(async move {
        client.send(Method::GET, "/v1/forward-auth", &headers, axum::body::Body::empty()).await
    });
    until("he is held back", async || left().await == (7_200_000, 8)).await;
    held.abort();
    until("he has given back what he took", async || left().await == (3_600_000, 9)).await;
    // A caller that waits gets its answer, and has spent.
    assert_eq!(server.get("/readyz?verbose").await.status, StatusCode::OK);
}

/// The files on the pages are valid, and the first does what its page prints. (Blocks that begin with a comment are those
/// for Envoy.)
#[tokio::test]
async fn the_examples_of_the_pages_hold() {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages =
        ["token-budgets.md", "algorithms.md"].map(|page| std::fs::read_to_string(docs.join(page)).unwrap());
    let blocks = pages.iter().flat_map(|page| page.split("```yaml\n").skip(1));
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    let blocks: Vec<&str> = blocks.filter(|block| !block.starts_with('#')).collect();
    let files: Vec<&&str> = blocks.iter().filter(|block| block.starts_with("version")).collect();
    assert_eq!((files.len(), blocks.len()), (2, 3), "two files and a section");
    for file in &files {
        let (_, warnings) = Config::parse(file, "page", Format::Yaml).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    let section = format!("{}version: 1\npolicies: []\n", blocks[2]);
    assert!(Config::parse(&section, "page", Format::Yaml).is_ok(), "{section}");
    let server = start(files[0]).await;
    let ticket = server.post("/v1/check", CALL).await.ticket();
    let told =
        settle(&server, &ticket, r#""attributes": {"llm.input": 900, "llm.output": 400, "llm.cached": 300}"#)
            .await;
    assert_eq!(each(&told, "charged"), [1, 800, 300, 4000]);
    assert_eq!(each(&told, "used"), [1, 1300, 400, 7800]);
    assert_eq!(each(&told, "owed"), [Value::Null, json!(500), json!(100), json!(3800)]);
    let server = start(files[1]).await;
    let login =
        r#"{"attributes": {"client.ip": "203.0.113.9", "request.path": "/login", "form.username": "ann"}}"#;
    let body =
        format!(r#"{{"ticket": "{}", "status": 401}}"#, server.post("/v1/check", login).await.ticket());
    assert_eq!(server.post("/v1/settle", &body).await.json()["outcome"], "callers-fault");
    let export = r#"{"attributes": {"user.id": "7", "request.path": "/export"}}"#;
    let told = settle(&server, &server.post("/v1/check", export).await.ticket(), r#""cost": 250"#).await;
    assert_eq!((each(&told, "owed"), each(&told, "remaining")), (vec![json!(150)], vec![json!(750)]));
}

/// Formerly attributes were text: `+` joined them, each call cost 1, and four calls of 1,900 tokens passed 2,000 a
/// minute.
#[tokio::test]
async fn attributes_are_added_and_an_unknown_cost_is_refused_told_and_counted() {
    const FILE: &str = "
version: 1
policies:
  - name: tokens
    match: { path: /llm }
    cost: { estimate: llm.prompt_tokens + llm.max_tokens, settle: llm.output }
    limit: { rate: 2000/min }
  - name: lenient
    match: { path: /lenient }
    cost: llm.tokens
    on_cost_error: whole-limit
    limit: { rate: 10/min }
";
    let server = start(FILE).await;
    let check = async |path: &str, attributes: &str| {
        let body = format!(r#"{{"ticket": true, "attributes": {{"request.path": "{path}"{attributes}}}}}"#);
        server.post("/v1/check", &body).await
    };
    let call = r#", "llm.prompt_tokens": "1400", "llm.max_tokens": "500""#;
    let passed = check("/llm", call).await;
    for _ in 0..3 {
        assert_eq!(check("/llm", call).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
    let refused = check("/llm", r#", "llm.prompt_tokens": "1400""#).await;
    assert_eq!(
        (refused.status, &*refused.detail()),
        (
            StatusCode::TOO_MANY_REQUESTS,
            "policy \"tokens\" cannot work out what this request costs; it is computed from llm.max_tokens, llm.prompt_tokens"
        )
    );
    assert!(
        refused.json()["retry"] == "never" && refused.headers.get("retry-after").is_none(),
        "{refused:?}"
    );
    let explained = server.post("/v1/explain", r#"{"attributes": {"request.path": "/llm"}}"#).await;
    let why = "tokens: the request has no llm.prompt_tokens";
    assert!(explained.text.contains(why), "{}", explained.text);
    // A full limit is taken whole.
    assert_eq!(check("/lenient", "").await.status, StatusCode::OK);
    assert_eq!(check("/lenient", r#", "llm.tokens": "1""#).await.status, StatusCode::TOO_MANY_REQUESTS);
    let settled = settle(&server, &passed.ticket(), r#""attributes": {"llm.output": "many"}"#).await;
    assert_eq!(settled.json()["policies"][0]["note"], "llm.output is not a number; the charge stays");
    // Regression: each repetition was counted as another error.
    let repeated = settle(&server, &passed.ticket(), r#""attributes": {"llm.output": "many"}"#).await;
    assert_eq!(repeated.status, StatusCode::CONFLICT, "{repeated:?}");
    let metrics = server.get("/metrics").await.text;
    for line in [
        "tidegate_cost_errors_total{policy=\"tokens\",at=\"check\"} 1",
        "tidegate_cost_errors_total{policy=\"tokens\",at=\"settlement\"} 1",
        "tidegate_cost_errors_total{policy=\"lenient\",at=\"check\"} 1",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line}: {metrics}");
    }
}

/// Regression: they were answered `kept` without a word, and the ticket was used up.
#[tokio::test]
async fn values_that_no_charged_policy_settles_by_are_told() {
    const FILE: &str = "
version: 1
policies:
  - { name: fixed, match: { path: /fixed }, cost: 800, limit: { rate: 100000/min } }
  - { name: estimate, match: { path: /estimate }, cost: { estimate: 800 }, limit: { rate: 100000/min } }
  - { name: callers, match: { path: /callers }, limit: { rate: 100000/min } }
";
    let server = start(FILE).await;
    let both = r#""attributes": {"llm.input": 900, "llm.output": 400}"#;
    let none = "no policy that this decision charged settles by llm.input, llm.output, so they change nothing; a policy settles by them \
                with `settle: llm.input + llm.output` in its `cost`";
    let or_cost = format!("{none}, or send a `cost`");
    for (path, told, note) in [
        ("/fixed", both.to_owned(), json!(none)),
        ("/estimate", both.to_owned(), json!(or_cost)),
        ("/callers", both.to_owned(), json!(or_cost)),
        ("/callers", format!("{both}, \"cost\": 1300"), Value::Null),
        ("/fixed", r#""attributes": {}"#.to_owned(), Value::Null),
    ] {
        let call = format!(r#"{{"ticket": true, "attributes": {{"request.path": "{path}"}}}}"#);
        let ticket = server.post("/v1/check", &call).await.ticket();
        let answer = settle(&server, &ticket, &told).await;
        assert_eq!(
            (answer.status, &answer.json()["note"]),
            (StatusCode::OK, &note),
            "{path} {told}: {answer:?}"
        );
    }
}

/// Regression: a proxy or program that never reports how calls end was told by nothing.
#[tokio::test]
async fn a_policy_whose_calls_nobody_reports_as_ended_is_told() {
    let server = start(
        "
version: 1
policies:
  - { name: tokens, cost: { estimate: 1, settle: llm.output }, limit: { rate: 1000/s } }
  - { name: places, limit: { algorithm: concurrency, max: 1000 } }
  - { name: plain, limit: { rate: 1000/s } }
",
    )
    .await;
    let check = async || server.post("/v1/check", r#"{"attributes": {}}"#).await;
    for _ in 0..99 {
        assert_eq!(check().await.status, StatusCode::OK);
    }
    let told = async || server.get("/readyz?verbose").await.text;
    told().await;
    server.clock.advance(Duration::from_secs(300));
    assert!(!told().await.contains("as ended"), "a few may all be under way");
    check().await;
    assert!(!told().await.contains("as ended"), "they may take long");
    server.clock.advance(Duration::from_secs(300));
    let text = told().await;
    for (policy, then) in [
        ("tokens", "what it charges stays an estimate"),
        ("places", "its places return only after their time to live"),
    ] {
        let says = format!(
            "\n[!] no call of policy {policy} was ever reported as ended here (100 admitted since 2027-01-15T12:00:00.000Z): {then}; settle"
        );
        assert!(text.contains(&says), "{says} is missing in {text}");
    }
    assert!(!text.contains("plain"), "{text}");
    let ticket = check().await.ticket();
    let settled = settle(&server, &ticket, r#""attributes": {"llm.output": 3}, "status": 200"#).await;
    assert_eq!(settled.status, StatusCode::OK, "{settled:?}");
    assert!(!told().await.contains("as ended"));
}

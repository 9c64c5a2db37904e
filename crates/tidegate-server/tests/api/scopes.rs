//! Every route and every door checks the scope of tokens.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use http::{Method, StatusCode};
use tidegate_server::{ServerOptions, Token};

use crate::running::sight::RecordedSight;
use crate::running::wire::{read_until, sent};
use crate::running::{Running, send, start_with, until};
use tokio::io::AsyncWriteExt as _;

const FILE: &str = "
version: 1
forward_auth: { proxy: nginx }
client_ip: { trusted_proxies: [127.0.0.0/8] }
policies:
  - name: p
    by: [client.ip]
    limit: { rate: 100/min }
  - name: b
    by: [upstream.name]
    limit: { algorithm: breaker, consecutive: 2, open_for: 5s }
";

/// The secrets of tokens, each for one scope.
const CHECK: &str = "for-check-0123456";
const READ: &str = "for-read-01234567";
const ADMIN: &str = "for-admin-0123456";
const METRICS: &str = "for-metrics-01234";
const KEYS: &str = "for-keys-01234567";
/// A token that reads, and sees the names of keys.
const SEES: &str = "for-names-0123456";
const TOKENS: &str = "checker check for-check-0123456
reader read for-read-01234567
admin admin for-admin-0123456
scraper metrics for-metrics-01234
names keys for-keys-01234567
on-call read,keys for-names-0123456
";

async fn server(dir: &tempfile::TempDir, change: impl FnOnce(&mut ServerOptions)) -> Running {
    let file = dir.path().join("tokens");
    std::fs::write(&file, TOKENS).unwrap();
    let with_tokens = |mut options: ServerOptions| {
        options.tokens_file = Some(file);
        options.sight = Some(Arc::new(RecordedSight::default()));
        change(&mut options);
        options
    };
    start_with(FILE, with_tokens).await
}

/// The manual's table of paths: method, path with a name filled in, scope.
fn manual() -> Vec<(Method, String, String)> {
    let text = include_str!("../../../../docs/http-api.md");
    let table =
        text.split_once("| path | method | scope | what it does |").unwrap().1.split_once("\n\n").unwrap().0;
    let mut rows = Vec::new();
    for line in table.lines().skip(2) {
        let cells: Vec<_> = line.split(" | ").collect();
        for path in cells[0].split('`').skip(1).step_by(2) {
            let path = path.replace("NAME", "p").replace("POLICY", "p");
            for method in cells[1].replace("any", "GET, PATCH").split(", ") {
                let method = method.parse().unwrap();
                rows.push((method, path.clone(), cells[2].to_owned()));
            }
        }
    }
    assert!(rows.len() >= 24, "{rows:?}");
    rows
}

#[tokio::test]
async fn every_route_takes_its_scope_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, |_| {}).await;
    for (method, path, asks) in manual() {
        // The answer goes on for as long as the caller listens; without a body it ends at once.
        let method = if ["/v1/events", "/v1/live"].contains(&path.as_str()) { Method::HEAD } else { method };
        let answered = async |token: &str| {
            let headers = [("x-tidegate-token", token)];
            let headers = if token.is_empty() { &[][..] } else { &headers[..] };
            send(server.addr, method.clone(), &path, headers, "").await.status
        };
        for (scope, token) in
            [("check", CHECK), ("read", READ), ("admin", ADMIN), ("metrics", METRICS), ("keys", KEYS)]
        {
            let status = answered(token).await;
            let includes = (scope, asks.as_str()) == ("read", "metrics");
            let may = asks == "none" || asks == scope || includes;
            let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
            assert!(may != refused && (may || status == 403), "{method} {path} with {scope}: {status}");
            assert!(
                !may || status != 404
                    || path.contains("/signals/")
                    || path.contains("/switches/")
                    || path.contains("/breakers/"),
                "{path}"
            );
        }
        for nothing in ["", "for-check-0123457"] {
            let (status, may) = (answered(nothing).await, asks == "none");
            assert_eq!(status == 401, !may, "{method} {path} with {nothing:?}: {status}");
        }
    }
    let scrape = send(server.addr, Method::GET, "/metrics", &[("x-tidegate-token", READ)], "").await.text;
    assert!(!scrape.contains("tidegate_auth_failures_total{transport=\"http\"} 0"), "{scrape}");
}

#[tokio::test]
async fn names_of_keys_are_shown_to_those_who_may_see_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, |_| {}).await;
    for path in ["/v1/keys/top", "/v1/keys", "/v1/keys/p", "/v1/breakers", "/v1/busiest", "/v1/overview"] {
        let asked = async |query: &str, token: &str| {
            send(server.addr, Method::GET, &format!("{path}{query}"), &[("x-tidegate-token", token)], "")
                .await
        };
        for query in ["", "?reveal=false", "?reveal=0"] {
            assert_eq!(asked(query, READ).await.status, StatusCode::OK, "{path}{query}");
        }
        for query in ["?reveal=true", "?reveal", "?reveal=1", "?%72eveal=true"] {
            let refused = asked(query, READ).await;
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}{query}");
            let told =
                "the token reader has the scope read, and this needs keys; send a token with that scope";
            assert_eq!(refused.detail(), told);
            assert_eq!(refused.json()["scope"], "keys");
            assert_eq!(asked(query, KEYS).await.json()["scope"], "read", "keys alone read nothing");
            assert_eq!(asked(query, SEES).await.status, StatusCode::OK, "{path}{query}");
        }
    }
    let check = r#"{"attributes": {"client.ip": "192.0.2.1"}}"#;
    for (token, status) in [(READ, 403), (SEES, 200)] {
        let headers = [("x-tidegate-token", token)];
        let asked = send(server.addr, Method::POST, "/v1/explain?reveal=true", &headers, check).await;
        assert_eq!(asked.status, status);
    }
}

/// Unknown paths are answered with 404 only to callers with some token.
#[tokio::test]
async fn strangers_are_not_told_which_paths_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(&dir, |_| {}).await;
    for (token, status) in [("", 401), (READ, 404), (CHECK, 404)] {
        let headers = [("x-tidegate-token", token)];
        let headers = if token.is_empty() { &[][..] } else { &headers[..] };
        let answer = send(server.addr, Method::GET, "/v1/polices", headers, "").await;
        assert_eq!(answer.status, status, "{token}");
    }
    let verbose = async |token| {
        send(server.addr, Method::GET, "/readyz?verbose", &[("x-tidegate-token", token)], "").await.text
    };
    assert!(!verbose(CHECK).await.contains("config #"));
    assert!(!verbose(KEYS).await.contains("config #"));
    assert!(verbose(READ).await.contains("config #") && verbose(METRICS).await.contains("config #"));
    let wrong = send(server.addr, Method::POST, "/v1/reload", &[("x-tidegate-token", READ)], "").await;
    assert_eq!(
        wrong.detail(),
        "the token reader has the scope read, and this needs admin; send a token with that scope"
    );
}

#[tokio::test]
async fn tokens_are_changed_while_the_server_runs_and_the_one_of_all_scopes_stays() {
    let dir = tempfile::tempdir().unwrap();
    let sole = "0123456789abcdef";
    let server = server(&dir, |options| options.token = Some(Token::new(sole).unwrap())).await;
    let file = dir.path().join("tokens");
    let status = async |path: &str, token: &str| {
        send(server.addr, Method::GET, path, &[("x-tidegate-token", token)], "").await.status.as_u16()
    };
    assert_eq!((status("/metrics", sole).await, status("/metrics", READ).await), (200, 200));
    // The file watch notices it; no reload is needed.
    std::fs::write(&file, "next read for-read-next-0123\n").unwrap();
    until("the new token holds", async || status("/metrics", "for-read-next-0123").await == 200).await;
    assert_eq!(status("/metrics", READ).await, 401, "the old one is gone");
    std::fs::write(&file, "next reed for-read-next-0124\n").unwrap();
    server.handle.reload().await.unwrap();
    assert_eq!(status("/metrics", "for-read-next-0123").await, 200, "a file with a mistake changes nothing");
    assert_eq!(status("/metrics", sole).await, 200);
}

#[tokio::test]
async fn redis_clients_do_what_their_token_is_for_as_long_as_it_holds() {
    let dir = tempfile::tempdir().unwrap();
    let free = tidegate_testkit::free_address();
    let server = server(&dir, |options| options.resp = Some(free.into())).await;
    let mut client = sent(free, b"TG.CHECK p client.ip 192.0.2.1\r\n").await;
    read_until(&mut client, "-NOAUTH ").await;
    client.write_all(format!("AUTH {READ}\r\nTG.CHECK p client.ip 192.0.2.1\r\n").as_bytes()).await.unwrap();
    read_until(&mut client, "-NOPERM the token reader has the scope read, and this needs check\r\n").await;
    client
        .write_all(
            format!("AUTH {CHECK}\r\nTG.CHECK p client.ip 192.0.2.1\r\nTG.RESET p client.ip 192.0.2.1\r\n")
                .as_bytes(),
        )
        .await
        .unwrap();
    let told = read_until(&mut client, "needs admin\r\n").await;
    assert!(told.contains("*8\r\n"), "{told}");
    client
        .write_all(format!("AUTH {ADMIN}\r\nTG.RESET p client.ip 192.0.2.1\r\nPING\r\n").as_bytes())
        .await
        .unwrap();
    read_until(&mut client, "+OK\r\n+OK\r\n+PONG\r\n").await;

    std::fs::write(dir.path().join("tokens"), "other check for-check-0123456\n").unwrap();
    server.handle.reload().await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    read_until(&mut client, "-NOAUTH ").await;
}

#[tokio::test]
async fn a_server_does_not_start_on_tokens_with_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "a check hunter2hunter2hunter2 b\nb read short\n").unwrap();
    let policies = dir.path().join("tidegate.yaml");
    std::fs::write(&policies, FILE).unwrap();
    let mut options = ServerOptions::default();
    options.http = "127.0.0.1:0".parse().unwrap();
    options.tokens_file = Some(file);
    let error = tidegate_server::Server::bind(options, tidegate_server::Source::file(&policies)).await;
    let told = error.unwrap_err().to_string();
    assert!(told.contains("tokens:1: 4 words are not a token; write three: NAME SCOPES SECRET\n"), "{told}");
    assert!(
        told.contains("tokens:2: the token has 5 bytes, which can be guessed") && !told.contains("hunter2"),
        "{told}"
    );
}

//! The event stream: events are sent as they happen.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::running::wire::{read_until, sent};
use crate::running::{Running, send, start, start_with};
use http::{Method, StatusCode};
use tidegate::store::fallback::PROBE_EVERY;
use tidegate_server::Token;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

const FILE: &str = "
version: 1
policies:
  - name: per-ip
    by: [client.ip]
    limit: { algorithm: gcra, rate: 10/min, burst: 3 }
";

/// Listens, and waits until the server confirms it.
async fn listen(server: &Running) -> TcpStream {
    let mut stream = sent(server.addr, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let begun = read_until(&mut stream, "Last-Event-ID means nothing here").await;
    assert!(begun.starts_with("HTTP/1.1 200 OK\r\n") && begun.contains("text/event-stream"), "{begun}");
    stream
}

#[tokio::test]
async fn denials_policies_and_keys_are_told_and_keys_are_hidden() {
    let server = start(FILE).await;
    let mut stream = listen(&server).await;
    for _ in 0..4 {
        server.check("203.0.113.9").await;
    }
    let denied = read_until(&mut stream, "\"untold\":0").await;
    assert!(
        denied.contains("event: denied\ndata: {") && denied.contains("\"policy\":\"per-ip\""),
        "{denied}"
    );
    assert!(denied.contains("\"key\":\"#") && !denied.contains("203.0.113.9"), "{denied}");
    assert!(
        denied.contains("\"decision_id\":\"0") && denied.contains("\"refused_by\":\"limit\""),
        "{denied}"
    );
    server.post("/v1/reload", "").await;
    let reloaded = read_until(&mut stream, "in-force").await;
    assert!(reloaded.contains("event: policies"), "{reloaded}");
    let body = r#"{"block": {"for": "10min"}}"#;
    server.put("/v1/keys/per-ip?client.ip=203.0.113.9", body).await;
    let blocked = read_until(&mut stream, "\"state\":\"blocked\"").await;
    assert!(blocked.contains("event: key") && !blocked.contains("203.0.113.9"), "{blocked}");
}

#[tokio::test]
async fn so_many_listen_at_once_and_whoever_goes_makes_room() {
    let server = start(FILE).await;
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(listen(&server).await);
    }
    let full = server.get("/v1/events").await;
    assert_eq!(full.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(full.detail().contains("16 callers listen already"));
    drop(streams.pop());
    crate::running::until("the place of the one who went is free", async || {
        // The server notices that a listener is gone when it sends an event.
        server.post("/v1/reload", "").await;
        let asked = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let mut stream = sent(server.addr, asked).await;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        &first == b"HTTP/1.1 200"
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops_and_needs_the_token() {
    let server = start(FILE).await;
    let mut stream = listen(&server).await;
    server.handle.stop();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    server.stopped().await;
    let server = start_with(FILE, |mut options| {
        options.token = Some(Token::new("0123456789abcdef0123").unwrap());
        options
    })
    .await;
    assert_eq!(server.get("/v1/events").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_breaker_that_changes_is_told_with_why() {
    let server = start(
        "
version: 1
policies:
  - name: payments
    limit: { algorithm: breaker, profile: sentinel, window: 10s, consecutive: 1, open_for: 5s }
",
    )
    .await;
    let mut stream = listen(&server).await;
    let entered = server.post("/v1/check", r#"{"attributes": {}}"#).await.json();
    let report = serde_json::json!({ "ticket": entered["ticket"], "status": 500 });
    assert_eq!(server.post("/v1/settle", &report.to_string()).await.status, StatusCode::OK);
    let opened = read_until(&mut stream, "\"to\":\"open\"").await;
    assert!(opened.contains("event: breaker") && opened.contains("\"from\":\"closed\""), "{opened}");
    let forced = r#"{"state": "closed", "reason": "upgrade"}"#;
    server.put("/v1/breakers/payments", forced).await;
    let told = read_until(&mut stream, "\"to\":\"forced-closed\"").await;
    assert!(told.contains("\"from\":\"open\"") && told.contains("upgrade"), "{told}");
}

#[tokio::test]
async fn a_store_that_goes_and_comes_back_is_told() {
    let (server, engine) = crate::running::engine::start(FILE).await;
    let mut stream = listen(&server).await;
    engine.be(crate::running::engine::ERRS);
    let gone = crate::running::until("the store is held to be gone", async || {
        server.check("203.0.113.9").await;
        server.get("/readyz?verbose").await.text.contains("has been gone")
    });
    gone.await;
    let down = read_until(&mut stream, "\"state\":\"down\"").await;
    assert!(down.contains("event: store") && down.contains("\"store\":\"engine\""), "{down}");
    engine.be(crate::running::engine::ANSWERS);
    crate::running::until("it is back", async || {
        server.clock.advance(PROBE_EVERY);
        server.check("203.0.113.9").await;
        server.get("/readyz?verbose").await.text.contains("[+] store engine")
    })
    .await;
    read_until(&mut stream, "\"state\":\"up\"").await;
}

/// The log has the same, from the same line of the program.
#[tokio::test]
async fn a_change_names_the_token_of_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "ann read,admin ann-0123456789abcdef\nbob admin bob-0123456789abcdef\n").unwrap();
    let server = start_with(FILE, |mut options| {
        options.tokens_file = Some(file);
        options
    })
    .await;
    let listening =
        b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\nx-tidegate-token: ann-0123456789abcdef\r\n\r\n";
    let mut stream = sent(server.addr, listening).await;
    read_until(&mut stream, "Last-Event-ID means nothing here").await;
    let key = "/v1/keys/per-ip?client.ip=203.0.113.9";
    for (token, method, path, body, told) in [
        ("bob", Method::PUT, key, r#"{"block": {"for": "10min"}}"#, "/v1/keys/per-ip\",\"status\":200"),
        ("ann", Method::DELETE, "/v1/policies/none", "", "/v1/policies/none\",\"status\":404"),
        ("bob", Method::POST, "/v1/reload", "", "/v1/reload\",\"status\":200"),
    ] {
        let headers = [("authorization", format!("Bearer {token}-0123456789abcdef"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        send(server.addr, method, path, &headers, body).await;
        let told = format!("\"path\":\"{told},\"token\":\"{token}\"}}");
        let event = read_until(&mut stream, &told).await;
        assert!(!event.contains("203.0.113.9"), "{event}");
    }
}

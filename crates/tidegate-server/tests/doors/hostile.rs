//! Hostile input: whatever an outsider sends, the next caller is served.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;

use crate::running::start;
use http::StatusCode;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FILE: &str = "
version: 1
forward_auth: { proxy: caddy }
policies:
  - { name: per-ip, by: [client.ip], limit: { rate: 1000/s } }
  - { name: windows, by: [user.id], limit: { algorithm: sliding-window, rate: 100/min } }
";

/// Sends raw bytes, and reads until the server has answered or closed the connection.
async fn raw(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut answer = Vec::new();
    // Either may fail: the server closes the connection on nonsense before everything is written.
    if stream.write_all(bytes).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = stream.read_to_end(&mut answer).await;
    }
    answer
}

fn request(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn arbitrary_bodies_are_answered_and_hurt_nobody() {
    let server = start(FILE).await;
    let names = prop_oneof![Just("attributes"), Just("cost"), Just("policies"), Just("ticket"), Just("x")];
    let scalar = prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "\"[a-z\\\\]{0,20}\"",
        Just("{\"client.ip\": \"192.0.2.1\"}".to_owned()),
        Just("{\"user.id\": 18446744073709551615}".to_owned()),
        Just("[\"per-ip\"]".to_owned()),
        Just("[[[[[[[[".to_owned()),
    ];
    let object = prop::collection::vec((names, scalar), 0..4).prop_map(|pairs| {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{{}}}", pairs.join(", ")).into_bytes()
    });
    let bodies = prop_oneof![object, any::<Vec<u8>>()];
    let paths = ["/v1/check", "/v1/check/batch", "/v1/peek", "/v1/explain", "/v1/settle", "/v1/extend"];
    let mut runner = TestRunner::deterministic();
    for at in 0..600 {
        let body = bodies.new_tree(&mut runner).unwrap().current();
        let answer = raw(server.addr, &request(paths[at % paths.len()], &body)).await;
        let status = String::from_utf8_lossy(&answer);
        let code = status.get(9..12).unwrap_or_default();
        assert!(
            ["200", "400", "404", "409", "429"].contains(&code),
            "{:?}: {status}",
            String::from_utf8_lossy(&body)
        );
    }
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn nonsense_on_the_wire_hurts_nobody() {
    let server = start(FILE).await;
    let deep = format!("{{\"attributes\": {}", "[".repeat(60_000));
    let table: Vec<Vec<u8>> = vec![
        b"\0\x01\x02".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999\r\n\r\n".to_vec(),
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
        format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(200_000)).into_bytes(),
        format!("GET / HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "x: y\r\n".repeat(5000)).into_bytes(),
        request("/v1/check", deep.as_bytes()),
        request("/v1/keys/%ff%00%zz?%=&&=", b""),
        request("/v1/policies/../../etc/passwd", b""),
        b"GET /v1/forward-auth?deny_status=99999 HTTP/1.1\r\nhost: \xff\r\nx-original-uri: \xff\xfe\r\n\r\n".to_vec(),
    ];
    for bytes in table {
        let answer = raw(server.addr, &bytes).await;
        let start = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        assert!(
            start.starts_with("HTTP/1.1 4") || start.starts_with("HTTP/1.1 505"),
            "{start} to {:?}",
            String::from_utf8_lossy(&bytes)
        );
    }
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_largest_numbers_neither_wrap_nor_free_a_key() {
    let server = start(FILE).await;
    let cost = |cost: u64| format!(r#"{{"attributes": {{"user.id": 1}}, "cost": {cost}}}"#);
    assert_eq!(server.post("/v1/check", &cost(100)).await.status, StatusCode::OK);
    for huge in [1_u64 << 60, u64::MAX, 1 << 63, u64::MAX - 3] {
        let status = server.post("/v1/check", &cost(huge)).await.status;
        assert!(
            status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::BAD_REQUEST,
            "{huge}: {status}"
        );
    }
    assert_eq!(server.post("/v1/check", &cost(1)).await.status, StatusCode::TOO_MANY_REQUESTS);
}

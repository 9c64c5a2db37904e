//! Requests that cannot be served get an answer, and the answer arrives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use crate::running::wire::{exchange, read_until, rest, sent, statuses};
use crate::running::{start, start_with};
use http::StatusCode;
use tokio::io::AsyncWriteExt;

const FILE: &str = "
version: 1
policies:
  - { name: all, limit: { rate: 1000000/s } }
";
const BODY: &str = r#"{"attributes": {"client.ip": "192.0.2.1"}}"#;

/// A head of exactly this many bytes.
fn head_of(bytes: usize) -> String {
    let (start, end) = ("GET /livez HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\nfill: ", "\r\n\r\n");
    format!("{start}{}{end}", "x".repeat(bytes - start.len() - end.len()))
}

fn lines(count: usize) -> String {
    // Two lines are in the head already.
    let lines = "x: y\r\n".repeat(count - 2);
    format!("GET /livez HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n{lines}\r\n")
}

/// Regression: with `pipeline_flush`, hyper sent none of its own answers while unread bytes were left, as there are
/// after every head that it gives up on, so the connection just closed. nginx takes that for a broken server and stops
/// asking it. So one request with many headers removed the limits, and with them the site, for everybody.
#[tokio::test]
async fn a_head_beyond_the_bounds_is_answered_431_and_one_within_is_served() {
    let server = start(FILE).await;
    for (request, status) in [
        (head_of(64 * 1024), "200"),
        (head_of(64 * 1024 + 1), "431"),
        (head_of(100_000), "431"),
        (head_of(4_000_000), "431"),
        (lines(150), "200"),
        (lines(256), "200"),
        (lines(257), "431"),
        (lines(1000), "431"),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000)), "431"),
    ] {
        let answers = exchange(server.addr, request.as_bytes()).await;
        assert_eq!(statuses(&answers), [status], "{} bytes", request.len());
        assert!(answers.contains("connection: close\r\n"), "{answers}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_answered_400_after_the_answers_before_it() {
    let server = start(FILE).await;
    let table: Vec<Vec<u8>> = [
        "\0\u{1}\u{2}",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : localhost\r\n\r\n",
        "GET / HTTP/1.1\r\na: b\r\n folded: c\r\n\r\n",
        "GET / HTTP/1.1\r\na: b\0c\r\n\r\n",
        "GET / HTTP/1.1\r\na: b\rc: d\r\n\r\n",
        "GE(T / HTTP/1.1\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3} a hello of TLS",
        // The end of a body must be unambiguous.
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n123456",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5, 5\r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: +5\r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0x5\r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: \r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n12345",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked, identity\r\n\r\n12345",
        "POST /v1/check HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
    ]
    .iter()
    .map(|text| text.bytes().collect())
    .collect();
    let before = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for bytes in table {
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let answers = exchange(server.addr, &bytes).await;
        let answers = answers.replace("HTTP/1.0 ", "HTTP/1.1 ");
        assert_eq!(statuses(&answers), ["400"], "to {shown:?}: {answers}");
        // The same after two valid requests, and with more data after it than anybody reads.
        let more = [&before[..], before, &bytes, &vec![b'z'; 300_000]].concat();
        let answers = exchange(server.addr, &more).await.replace("HTTP/1.0 ", "HTTP/1.1 ");
        assert_eq!(statuses(&answers)[..2], ["200", "200"], "to {shown:?}");
        assert!(matches!(statuses(&answers)[2..], ["400" | "413" | "431"]), "to {shown:?}: {answers}");
    }
}

/// RFC 9112 lets a server use the chunks if a length is given as well, and then it must close. A client that sent both
/// may be hiding a second request from a proxy, and that one is never read.
#[tokio::test]
async fn a_request_hidden_behind_two_lengths_is_never_read() {
    let server = start(FILE).await;
    let chunk = format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    let hidden = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    for lengths in [
        "content-length: 3\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 3",
        "transfer-encoding: chunked\r\ncontent-length: nonsense",
        "Transfer-Encoding: Chunked\r\nContent-Length: 0",
    ] {
        let request =
            format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{lengths}\r\n\r\n{chunk}{hidden}");
        let answers = exchange(server.addr, request.as_bytes()).await;
        assert_eq!(statuses(&answers), ["200"], "{lengths}: {answers}");
        assert!(answers.contains("connection: close\r\n"), "{answers}");
    }
}

#[tokio::test]
async fn other_protocols_and_odd_targets_get_an_answer() {
    let server = start(FILE).await;
    for (request, status) in [
        ("GET /livez HTTP/1.0\r\n\r\n", "200"),
        (
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n\r\n",
            "200",
        ),
        (
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close, upgrade\r\nupgrade: websocket\r\n\r\n",
            "200",
        ),
        ("CONNECT example.org:443 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
        ("GET http://localhost/livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "200"),
        ("OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
        ("GET * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
        ("GET //livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
        ("GET /livez HTTP/1.1\nhost: localhost\nconnection: close\n\n", "200"),
    ] {
        let answers = exchange(server.addr, request.as_bytes()).await.replace("HTTP/1.0 ", "HTTP/1.1 ");
        assert_eq!(statuses(&answers), [status], "to {request:?}: {answers}");
    }
}

#[tokio::test]
async fn whoever_waits_to_be_told_to_continue_is_told_or_refused() {
    let server = start(FILE).await;
    let head = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        )
    };
    let mut stream = sent(server.addr, head("/v1/check", BODY.len()).as_bytes()).await;
    read_until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(BODY.as_bytes()).await.unwrap();
    assert_eq!(statuses(&rest(&mut stream).await), ["200"]);
    for (path, length, status) in [("/nowhere", 5, "404"), ("/v1/check", 70_000, "413")] {
        let answers = exchange(server.addr, head(path, length).as_bytes()).await;
        assert_eq!(statuses(&answers), [status], "{answers}");
    }
}

/// The refusal of a body that is still being sent must not be lost to the reset that unread bytes cause.
#[tokio::test]
async fn a_body_that_is_too_long_is_answered_413_and_all_of_it_may_be_sent() {
    let server = start(FILE).await;
    let length = 4_000_000;
    let mut request =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes();
    request.resize(request.len() + length, b' ');
    for _ in 0..5 {
        assert_eq!(statuses(&exchange(server.addr, &request).await), ["413"]);
    }
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{head}{}0\r\n\r\n", chunk.repeat(30));
    assert_eq!(statuses(&exchange(server.addr, chunked.as_bytes()).await), ["413"]);
}

#[tokio::test]
async fn a_head_or_a_body_that_takes_too_long_is_answered_408() {
    let server = start_with(FILE, |mut options| {
        options.timeouts.head = Duration::from_millis(100);
        options.timeouts.body = Duration::from_millis(100);
        options
    })
    .await;
    let late = exchange(server.addr, b"GET /livez HTTP/1.1\r\nhost: localh").await;
    assert_eq!(statuses(&late), ["408"]);
    assert!(late.contains("the head of the request did not arrive within 100 ms"), "{late}");
    // A client that sent nothing gets no answer.
    assert_eq!(exchange(server.addr, b"").await, "");
    // On a kept connection the time begins with the first byte of the head.
    let mut stream = sent(server.addr, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut stream, "ok\n").await;
    stream.write_all(b"GET /livez").await.unwrap();
    assert_eq!(statuses(&rest(&mut stream).await), ["408"]);

    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{";
    let late = exchange(server.addr, head.as_bytes()).await;
    assert_eq!(statuses(&late), ["408"]);
    assert!(late.contains("the body did not arrive within 100 ms"), "{late}");
}

/// Bytes that keep coming do not extend the time, which is for the whole head or body.
#[tokio::test]
async fn dripping_bytes_gain_no_time() {
    let server = start_with(FILE, |mut options| {
        options.timeouts.head = Duration::from_millis(300);
        options.timeouts.body = Duration::from_millis(300);
        options
    })
    .await;
    let body = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 60000\r\n\r\n";
    for head in ["GET /livez HTTP/1.1\r\nfill: ", body] {
        let stream = sent(server.addr, head.as_bytes()).await;
        let (mut read, mut write) = stream.into_split();
        let dripping = tokio::spawn(async move {
            // Ends when the server closes; 60,000 bytes take more than a minute.
            for _ in 0..60_000 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                if write.write_all(b" ").await.is_err() {
                    return;
                }
            }
        });
        let mut answer = String::new();
        let reading = tokio::io::AsyncReadExt::read_to_string(&mut read, &mut answer);
        // A byte that meets the closed socket resets it. The answer was read before.
        let _ = tokio::time::timeout(Duration::from_secs(30), reading).await.expect("closed");
        assert_eq!(statuses(&answer), ["408"], "{answer}");
        dripping.abort();
    }
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
}

//! Callers that speak another protocol than a door, or stop in the middle.

use std::time::Duration;

use super::caller::connect;
use super::made::Folder;
use super::running::wire::{exchange, rest, sent};
use super::{started, started_with};
use crate::running::start_with;
use tidegate_testkit::free_address;

/// The beginning of a handshake: the head of the record and a few of the bytes that it announces.
const HALF: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 7, 7, 7];

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_at_an_encrypted_door_is_told_so() {
    let folder = Folder::new();
    let doors = started(&folder).await;
    let body = "x".repeat(100_000);
    let request =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{body}");
    let answer = exchange(doors.http, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    assert!(answer.contains("served over TLS; write https://"), "{answer}");
    let answer = exchange(doors.resp, b"*1\r\n$4\r\nPING\r\n").await;
    assert!(answer.starts_with("-ERR this address is served over TLS; use redis-cli --tls"), "{answer}");
    // Closed without an answer: a plain HTTP/2 client learns that it is not understood.
    let mut http2 = sent(doors.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut said = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut http2, &mut said);
    let _ = tokio::time::timeout(Duration::from_secs(30), read).await.expect("closed");
    assert!(said.is_empty(), "{said:?}");
    for transport in ["http", "resp", "grpc"] {
        let series = format!(
            "tidegate_tls_handshake_failures_total{{transport=\"{transport}\",reason=\"plain_text\"}}"
        );
        doors.until_metric(&series, 1.0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_at_a_plain_door_ends_at_once() {
    let folder = Folder::new();
    let [grpc, resp] = [free_address(), free_address()];
    let server = start_with(super::POLICIES, |mut options| {
        (options.grpc, options.resp) = (Some(grpc.into()), Some(resp.into()));
        // Far longer than the test takes, so no deadline ends these connections.
        options.timeouts.head = Duration::from_secs(3600);
        options
    })
    .await;
    for door in [server.addr, grpc, resp] {
        let connecting = connect(door, &folder.ca, None);
        let connected = tokio::time::timeout(Duration::from_secs(30), connecting).await.expect("an end");
        assert!(connected.is_err(), "{door}");
    }
    let answer = rest(&mut sent(resp, HALF).await).await;
    assert!(answer.starts_with("-ERR Protocol error: this address is served without TLS"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_handshake_is_cut_after_its_time() {
    let folder = Folder::new();
    let doors = started_with(&folder, |options| options.timeouts.head = Duration::from_millis(30)).await;
    for door in [doors.http, doors.grpc, doors.resp] {
        for begun in [&b""[..], HALF] {
            let mut stream = sent(door, begun).await;
            let mut said = Vec::new();
            let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut said);
            let _ = tokio::time::timeout(Duration::from_secs(30), read).await.expect("closed");
        }
    }
    doors.until_metric(r#"tidegate_connections_cut_total{reason="handshake"}"#, 6.0).await;
}

/// A client that connects and disconnects, like a port probe, is not a failed handshake.
#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_not_counted_and_who_breaks_off_is() {
    let folder = Folder::new();
    let doors = started(&folder).await;
    for _ in 0..10 {
        drop(sent(doors.http, b"").await);
    }
    drop(sent(doors.http, HALF).await);
    let series =
        |reason| format!("tidegate_tls_handshake_failures_total{{transport=\"http\",reason=\"{reason}\"}}");
    doors.until_metric(&series("broken_off"), 1.0).await;
    for none in ["plain_text", "certificate", "refused", "protocol"] {
        assert!(doors.metric(&series(none)).await < 0.5, "{none}");
    }
}

/// TLS clients treat a connection that ends without a closing message as cut by an attacker.
#[tokio::test(flavor = "multi_thread")]
async fn who_idles_is_told_of_the_end() {
    let folder = Folder::new();
    let doors = started_with(&folder, |options| options.timeouts.idle = Duration::from_millis(30)).await;
    for (door, asks, answer) in [
        (doors.http, &b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], "ok\n"),
        (doors.resp, b"PING\r\n", "PONG"),
    ] {
        let mut connection = connect(door, &folder.ca, None).await.unwrap();
        super::caller::said(&mut connection, asks, answer).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut rest);
        let read = tokio::time::timeout(Duration::from_secs(30), read).await.expect("closed");
        read.unwrap_or_else(|error| panic!("{answer}: {error}"));
    }
}

/// A stop does not wait for handshakes: the drain may take an hour here.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_half_a_handshake() {
    let folder = Folder::new();
    let doors = started_with(&folder, |options| {
        options.timeouts.head = Duration::from_secs(3600);
        options.drain = Duration::from_secs(3600);
    })
    .await;
    let mut half = Vec::new();
    for door in [doors.http, doors.grpc, doors.resp] {
        half.push(sent(door, HALF).await);
    }
    doors.server.handle.stop();
    assert_eq!(doors.server.stopped().await, tidegate_server::Stopped::Drained);
}

//! Connections that take places and do nothing do not keep others out.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::running::wire::{connect_from, read_until, rest, statuses};
use crate::running::{Running, start_with};
use http::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

const FILE: &str = "
version: 1
policies:
  - { name: all, limit: { rate: 1000000/s } }
";
/// A request that stays in flight as long as its body does not come.
const BUSY: &str =
    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
const HALF: &str = "GET /livez HTTP/1.1\r\nhost: localh";
const WHOLE: &str = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Timeouts longer than any test, so that only the order of places decides.
async fn with_places(places: usize) -> Running {
    start_with(FILE, |mut options| {
        let hour = Duration::from_secs(3600);
        options.connections = places;
        let timeouts = &mut options.timeouts;
        (timeouts.head, timeouts.idle, timeouts.body, timeouts.unread) = (hour, hour, hour, hour);
        options
    })
    .await
}

async fn many(count: usize, from: [u8; 4], to: SocketAddr, bytes: &str) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = connect_from(from, to).await;
        stream.write_all(bytes.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    streams
}

/// Opens connections with requests that stay in flight.
async fn busy(count: usize, from: [u8; 4], to: SocketAddr) -> Vec<TcpStream> {
    let mut streams = many(count, from, to, BUSY).await;
    for stream in &mut streams {
        read_until(stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    }
    streams
}

/// Sends a short request from another address; returns its status.
async fn ask(from: [u8; 4], to: SocketAddr, path: &str) -> String {
    let mut stream = connect_from(from, to).await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    statuses(&answer)[0].to_owned()
}

/// Regression: an incomplete head held a place for up to 75 seconds, and ten thousand of them kept everybody out,
/// health checks included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_heads_keep_nobody_out() {
    let server = with_places(40).await;
    for from in [[127, 0, 0, 1], [127, 0, 0, 2], [127, 0, 0, 3]] {
        let _held = many(200, from, server.addr, HALF).await;
        for asking in [[127, 0, 0, 1], [127, 0, 0, 9]] {
            assert_eq!(ask(asking, server.addr, "/v1/policies").await, "200");
            assert_eq!(ask(asking, server.addr, "/livez").await, "200");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_keep_nobody_out() {
    let server = with_places(40).await;
    let _held = many(300, [127, 0, 0, 1], server.addr, "").await;
    assert_eq!(ask([127, 0, 0, 1], server.addr, "/v1/policies").await, "200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_that_idles_longest_makes_room_and_is_told_so_cleanly() {
    let server = with_places(4).await;
    let mut held = Vec::new();
    for at in 1..=4 {
        let mut stream = many(1, [127, 0, 0, at], server.addr, WHOLE).await.remove(0);
        read_until(&mut stream, "ok\n").await;
        held.push(stream);
    }
    // The first connection sends again, so the second has idled longest now.
    held[0].write_all(WHOLE.as_bytes()).await.unwrap();
    read_until(&mut held[0], "ok\n").await;
    let mut new = many(1, [127, 0, 0, 9], server.addr, WHOLE).await.remove(0);
    read_until(&mut new, "ok\n").await;
    assert_eq!(rest(&mut held.remove(1)).await, "", "an end, not a reset");
    for stream in &mut held {
        stream.write_all(WHOLE.as_bytes()).await.unwrap();
        read_until(stream, "ok\n").await;
    }
    drop(held);
    drop(new);
    let metrics = server.get("/metrics").await.text;
    let counted = metrics.lines().find(|line| line.contains("cut_total{reason=\"vacated\"}")).unwrap();
    assert!(!counted.ends_with(" 0"), "{counted}");
}

/// A connection that loses its place in the middle of a head is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_half_open_head_makes_room_after_the_idle_ones() {
    let server = with_places(2).await;
    let mut half = many(1, [127, 0, 0, 1], server.addr, HALF).await.remove(0);
    let mut idle = many(1, [127, 0, 0, 2], server.addr, WHOLE).await.remove(0);
    read_until(&mut idle, "ok\n").await;
    let mut third = many(1, [127, 0, 0, 3], server.addr, WHOLE).await.remove(0);
    read_until(&mut third, "ok\n").await;
    assert_eq!(rest(&mut idle).await, "");
    let busy = busy(1, [127, 0, 0, 4], server.addr).await;
    assert_eq!(rest(&mut third).await, "");
    assert_eq!(ask([127, 0, 0, 5], server.addr, "/v1/policies").await, "200");
    let told = rest(&mut half).await;
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: 1\r\n"), "{told}");
    drop(busy);
}

/// When every place is busy, no request is interrupted. The reserve answers operators, and tells others to come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_are_answered_when_every_place_is_busy() {
    let server = with_places(4).await;
    let mut answering = Vec::new();
    for at in 1..=4 {
        answering.extend(busy(1, [127, 0, 0, at], server.addr).await);
    }
    for path in ["/livez", "/readyz", "/healthz", "/metrics"] {
        assert_eq!(ask([127, 0, 0, 9], server.addr, path).await, "200", "{path}");
    }
    assert_eq!(server.post("/v1/reload", "").await.status, StatusCode::OK);
    let refused = server.check("192.0.2.1").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((refused.header("retry-after"), refused.header("connection")), ("1", "close"));
    let metrics = server.get("/metrics").await.text;
    assert!(metrics.contains("tidegate_connections_cut_total{reason=\"full\"} 1\n"), "{metrics}");
    // Incomplete heads cannot fill the reserve either.
    let _held = many(300, [127, 0, 0, 8], server.addr, HALF).await;
    assert_eq!(ask([127, 0, 0, 9], server.addr, "/livez").await, "200");
    for stream in &mut answering {
        stream.write_all(b"123456789").await.unwrap();
        assert_eq!(statuses(&read_until(stream, "problem+json").await), ["400"], "none was interrupted");
    }
    assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_never_has_all_places() {
    let server = with_places(40).await;
    let _busy = busy(30, [127, 0, 0, 2], server.addr).await;
    assert_eq!(ask([127, 0, 0, 2], server.addr, "/v1/policies").await, "503");
    assert_eq!(ask([127, 0, 0, 3], server.addr, "/v1/policies").await, "200");
    // A waiting connection of the same address makes room for that address's next one.
    let _more = busy(9, [127, 0, 0, 3], server.addr).await;
    assert_eq!(ask([127, 0, 0, 4], server.addr, "/v1/policies").await, "200");
}

/// Sends requests and never reads, until the server closes. Returns how many bytes were sent.
async fn send_only(to: SocketAddr, request: &str) -> usize {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 * 1024).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    let many = request.repeat(1000);
    let mut sent = 0;
    // Bounded, so that a server that takes everything does not make the test endless.
    while sent < 2 << 30 {
        match stream.write(many.as_bytes()).await {
            Ok(written) => sent += written,
            Err(_) => return sent,
        }
    }
    panic!("the server took {sent} bytes of requests whose answers nobody reads");
}

/// Regression: one such connection cost 70 to 110 MiB of memory a second, without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_is_answered_no_further_and_cut() {
    let server = start_with(FILE, |mut options| {
        options.timeouts.unread = Duration::from_millis(300);
        options
    })
    .await;
    let check = r#"{"attributes": {"client.ip": "192.0.2.1"}}"#;
    let length = check.len();
    for (request, least) in [
        // Answers with a body, without one, and made before the body of the request was read.
        (format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{check}"), 300),
        ("HEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 80),
        ("POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx".to_owned(), 200),
        ("HEAD /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\nx".to_owned(), 80),
        (
            "GET /v1/forward-auth HTTP/1.1\r\nhost: localhost\r\nx-original-uri: /\r\nx-original-method: GET\r\ncontent-length: 1\r\n\r\nx"
                .to_owned(),
            150,
        ),
    ] {
        let sent = tokio::time::timeout(Duration::from_secs(30), send_only(server.addr, &request));
        let sent = sent.await.unwrap_or_else(|_| panic!("not cut: {request}"));
        // The operating system buffers some megabytes of answers and requests, which the test cannot control.
        let answers = sent / request.len() * least;
        assert!(answers < 64 << 20, "{sent} bytes of {request}");
        assert_eq!(server.check("192.0.2.1").await.status, StatusCode::OK);
    }
}

/// A client that reads slowly gets all answers, in order and complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_that_is_read_is_answered_whole() {
    let server = with_places(4).await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let count = 20_000;
    let (mut read, mut write) = stream.split();
    let last = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let requests = "GET /v1/policies HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(count) + last;
    let writing = write.write_all(requests.as_bytes());
    let mut answers = String::new();
    let reading = tokio::io::AsyncReadExt::read_to_string(&mut read, &mut answers);
    let (written, read) =
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(writing, reading) })
            .await
            .expect("answered");
    written.unwrap();
    read.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), count + 1);
    assert!(answers.ends_with("ok\n"));
}

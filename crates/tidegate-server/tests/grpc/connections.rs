//! Connections: places, idle timeouts, floods, and a drain that loses no call.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::{Client, RATE_LIMIT, call, framed, reply};
use super::running::until;
use super::{started, started_with};
use tidegate_server::Stopped;

const POLICIES: &str = "
version: 1
policies:
  - name: witness
    limit: { rate: 1000000/s }
";

/// The preface of a connection, and its settings.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn body() -> Bytes {
    framed(&call(&[&[("a", "b")]]).encode_to_vec()).into()
}

/// Sends bytes and reads until the server closes.
pub(super) async fn until_closed(to: std::net::SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let mut read = Vec::new();
    // Ignores errors: the server may have closed already.
    let _ = stream.write_all(bytes).await;
    let rest = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut read));
    // A reset counts as closing too.
    let _ = rest.await.expect("the server closes");
    read
}

#[tokio::test]
async fn what_is_no_http_2_is_closed() {
    let (_server, grpc) = started(POLICIES).await;
    for bytes in [&b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], b"\0\0\0\0", &[0xff; 5000]] {
        let sent = if bytes.len() < 24 { [bytes, &[0; 24]].concat() } else { bytes.to_vec() };
        until_closed(grpc, &sent).await;
    }
    assert_eq!(Client::connect(grpc).await.ask(&call(&[&[("a", "b")]])).await.overall_code, 1);
}

#[tokio::test]
async fn a_preface_that_does_not_come_and_a_connection_that_idles_are_closed() {
    let (server, grpc) = started_with(POLICIES, |options| {
        options.timeouts.head = Duration::from_millis(50);
        options.timeouts.idle = Duration::from_millis(50);
    })
    .await;
    until_closed(grpc, b"PRI * HTTP/2.0\r\n").await;
    // A GOAWAY frame (type 7) comes before the end.
    let said = until_closed(grpc, PREFACE).await;
    assert!(said.windows(4).any(|frame| frame[0] == 8 && frame[1] == 7), "{said:?}");
    let cut = "tidegate_connections_cut_total{reason=\"head\"} 1";
    assert!(server.get("/metrics").await.text.contains(cut));
}

#[tokio::test]
async fn idle_connections_make_room_and_health_is_told_when_all_are_busy() {
    let (_server, grpc) = started_with(POLICIES, |options| {
        options.connections = 4;
        // By default, a call without a message ends after 10 s and leaves its connection idle, which is too soon on a
        // slow machine.
        options.timeouts.body = Duration::from_secs(3600);
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(Client::connect(grpc).await);
    }
    let mut client = Client::connect(grpc).await;
    assert_eq!(client.ask(&call(&[&[("a", "b")]])).await.overall_code, 1);
    drop(idle);
    // Calls without their messages keep their connections busy. One address has three of four places.
    let mut busy = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(grpc).await;
        let begun = client.begin(RATE_LIMIT, &[]).await.unwrap();
        // This call is answered, so the head before it was read. Until then the connection counts as idle, and would
        // lose its place to the next.
        client.ask(&call(&[&[("a", "b")]])).await;
        busy.push((begun, client));
    }
    let mut client = Client::connect(grpc).await;
    assert_eq!(
        client.call(RATE_LIMIT, &[], body()).await.unwrap().code,
        Some(14),
        "only the reserve is left"
    );
    let health = client.call("/grpc.health.v1.Health/Check", &[], framed(b"")).await.unwrap();
    assert_eq!(health.code, Some(0));
}

#[tokio::test]
async fn a_drain_answers_what_was_begun_and_says_that_it_goes() {
    let (server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let _idle = Client::connect(grpc).await;
    let (response, mut stream) = client.begin(RATE_LIMIT, &[]).await.unwrap();
    // This call is answered, so the head before it has arrived.
    client.ask(&call(&[&[("a", "b")]])).await;
    server.handle.stop();
    until("no new connection", async || TcpStream::connect(grpc).await.is_err()).await;
    stream.send_data(body(), true).unwrap();
    assert_eq!(reply(response).await.unwrap().answer().overall_code, 1);
    assert_eq!(server.stopped().await, Stopped::Drained);
    assert!(client.call(RATE_LIMIT, &[], body()).await.is_err());
}

/// Returns the bytes of a client that opens a connection and makes a call at once.
async fn first_bytes() -> Vec<u8> {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let (mut client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let request = http::Request::post(format!("http://localhost{RATE_LIMIT}"));
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (_response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(body(), true).unwrap();
    let mut sent = Vec::new();
    while !sent.ends_with(&body()) {
        assert!(far.read_buf(&mut sent).await.unwrap() > 0);
    }
    sent
}

/// A client that is accepted just before a drain has made its call already, and would take a closed connection for a
/// failure.
#[tokio::test]
async fn a_call_on_a_connection_that_was_just_accepted_is_answered_in_a_drain() {
    let (server, grpc) = started(POLICIES).await;
    let bytes = first_bytes().await;
    let mut just = TcpStream::connect(grpc).await.unwrap();
    let silent = TcpStream::connect(grpc).await.unwrap();
    // This call is answered, so the two connections before it are accepted.
    Client::connect(grpc).await.ask(&call(&[&[("a", "b")]])).await;
    server.handle.stop();
    until("no new connection", async || TcpStream::connect(grpc).await.is_err()).await;
    just.write_all(&bytes).await.unwrap();
    let mut said = Vec::new();
    let rest = tokio::time::timeout(Duration::from_secs(30), just.read_to_end(&mut said));
    rest.await.expect("the server closes").unwrap();
    // A gRPC message that begins with the overall code 1.
    let answered = said.windows(7).any(|bytes| matches!(bytes, [0, 0, 0, 0, _, 8, 1]));
    assert!(answered, "{}", said.escape_ascii());
    assert_eq!(server.stopped().await, Stopped::Drained, "one that never says anything does not hold it up");
    drop(silent);
}

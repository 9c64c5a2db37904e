//! Stopping a server: requests in flight are answered, deadlines hold, signals work.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::running::{Client, start, start_with};
use axum::body::{Body, Bytes};
use http::{Method, StatusCode};
use tidegate_server::{Server, ServerOptions, Settings, Source, Stopped};
use tokio::sync::mpsc;

const FILE: &str = "
version: 1
policies:
  - name: all
    limit: { rate: 1000000/s }
";
const HEAD: &[u8] = br#"{"attributes": "#;
const TAIL: &[u8] = br#"{"client.ip": "192.0.2.1"}}"#;

/// A body that is sent piece by piece.
fn slow_body() -> (mpsc::Sender<Bytes>, Body) {
    struct Pieces(mpsc::Receiver<Bytes>);
    impl hyper::body::Body for Pieces {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(hyper::body::Frame::data(piece))))
        }
    }
    let (send, pieces) = mpsc::channel(4);
    (send, Body::new(Pieces(pieces)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_answered_while_the_server_drains() {
    let server = start(FILE).await;
    let addr = server.addr;
    let mut flights = Vec::new();
    let mut pieces = Vec::new();
    for _ in 0..200 {
        let (send, body) = slow_body();
        send.send(Bytes::from_static(HEAD)).await.unwrap();
        pieces.push(send);
        let mut client = Client::connect(addr).await;
        flights.push(tokio::spawn(async move { client.send(Method::POST, "/v1/check", &[], body).await }));
    }
    // One more request, on its own connection, after the two hundred: so the others were accepted.
    let mut last = Client::connect(addr).await;
    assert_eq!(last.send(Method::GET, "/livez", &[], Body::empty()).await.unwrap().status, StatusCode::OK);
    crate::running::until("all heads have arrived", async || {
        let open = last.send(Method::GET, "/readyz?verbose", &[], Body::empty()).await.unwrap();
        open.text.contains("[+] 200 requests in flight")
    })
    .await;

    server.handle.stop();
    crate::running::until("nothing new is accepted", async || {
        tokio::net::TcpStream::connect(addr).await.is_err()
    })
    .await;
    crate::running::until("idle connections are closed", async || {
        last.send(Method::GET, "/livez", &[], Body::empty()).await.is_err()
    })
    .await;
    for send in pieces {
        send.send(Bytes::from_static(TAIL)).await.unwrap();
    }
    for flight in flights {
        let answer = flight.await.unwrap().expect("a request in flight is answered");
        assert_eq!((answer.status, answer.header("connection")), (StatusCode::OK, "close"));
    }
    assert_eq!(server.stopped().await, Stopped::Drained);
}

#[tokio::test]
async fn a_server_stopped_before_it_runs_does_not_serve() {
    let source = Source::new(|| Ok(Settings::default()));
    let mut options = ServerOptions::default();
    options.http = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    options.signals = false;
    let server = Server::bind(options, source).await.unwrap();
    server.handle().stop();
    assert_eq!(server.run().await, Stopped::Drained);
}

#[tokio::test]
async fn a_drain_ends_at_its_deadline_and_at_once_when_told_again() {
    for twice in [false, true] {
        let server = start_with(FILE, |mut options| {
            options.drain = if twice { Duration::from_secs(3600) } else { Duration::from_millis(20) };
            options
        })
        .await;
        let (send, body) = slow_body();
        send.send(Bytes::from_static(HEAD)).await.unwrap();
        let mut client = Client::connect(server.addr).await;
        let flight = tokio::spawn(async move { client.send(Method::POST, "/v1/check", &[], body).await });
        crate::running::until("the head has arrived", async || {
            server.get("/readyz?verbose").await.text.contains("[+] 1 requests in flight")
        })
        .await;
        server.handle.stop();
        if twice {
            server.handle.stop();
        }
        // The connections that asked for readiness may still be open.
        let stopped = server.stopped().await;
        assert!(matches!(stopped, Stopped::Cut { connections: 1.. }), "{stopped:?}");
        assert!(flight.await.unwrap().is_err());
        drop(send);
    }
}

/// Regression: an incomplete head could hold up a stop until the deadline.
#[tokio::test]
async fn half_a_head_does_not_hold_up_a_drain() {
    let server = start_with(FILE, |mut options| {
        options.drain = Duration::from_secs(3600);
        options.timeouts.head = Duration::from_secs(3600);
        options
    })
    .await;
    let mut half = crate::running::wire::sent(server.addr, b"GET /livez HTTP/1.1\r\nhost: loc").await;
    // Another connection, accepted after the first.
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    server.handle.stop();
    assert!(crate::running::wire::rest(&mut half).await.starts_with("HTTP/1.1 408 "));
    drop(half);
    assert_eq!(server.stopped().await, Stopped::Drained);
}

/// Callers beyond the places are told to come back, or take the place of a connection that idles, whose client
/// reconnects as for any server that keeps connections. No request that was answered is lost, and none is charged
/// twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_callers_than_places_are_all_served_in_the_end() {
    let server = start_with(FILE, |mut options| {
        options.connections = 50;
        options
    })
    .await;
    let addr = server.addr;
    let callers: Vec<_> = (0..400)
        .map(|_| {
            tokio::spawn(async move {
                let mut client = Client::connect(addr).await;
                let body = r#"{"attributes": {"user.id": 7}}"#;
                let mut served = 0;
                // Bounded, so that a server that refuses everything does not make the test endless.
                for _ in 0..100_000 {
                    match client.send(Method::POST, "/v1/check", &[], Body::from(body)).await {
                        Ok(answer) if answer.status == StatusCode::OK => served += 1,
                        Ok(answer) => {
                            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
                            assert_eq!(answer.header("retry-after"), "1", "{answer:?}");
                            client = Client::connect(addr).await;
                        }
                        Err(_) => client = Client::connect(addr).await,
                    }
                    if served == 5 {
                        return;
                    }
                }
                panic!("served {served} times only");
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    let text = server.get("/metrics").await.text;
    assert!(
        text.contains("tidegate_decisions_total{policy=\"all\",decision=\"allowed\",mode=\"enforce\"} 2000")
    );
    server.handle.stop();
    assert_eq!(server.stopped().await, Stopped::Drained);
}

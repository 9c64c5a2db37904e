//! Watching health: the answers, how many may watch, and what a connection that only watches costs others.

use std::net::SocketAddr;
use std::time::Duration;

use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method};
use tidegate_server::Stopped;
use tokio::net::TcpStream;

use super::client::{Client, RATE_LIMIT, call, framed};
use super::running::until;
use super::{started, started_with};

const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const POLICIES: &str = "version: 1\npolicies: [{ name: all, limit: { rate: 1000/s } }]\n";
/// Far longer than anything here takes.
const FOREVER: Duration = Duration::from_secs(30);

/// A caller that watches a service.
struct Watcher {
    answers: RecvStream,
    _asks: SendStream<bytes::Bytes>,
}

impl Watcher {
    /// Watches a service; `Err` with the code if that is refused.
    async fn of(client: &mut Client, service: &str) -> Result<Self, String> {
        let (response, mut asks) = client.begin(WATCH, &[]).await.unwrap();
        let mut message = vec![0x0a, u8::try_from(service.len()).unwrap()];
        message.extend_from_slice(service.as_bytes());
        asks.send_data(framed(&message).into(), true).unwrap();
        let response = tokio::time::timeout(FOREVER, response).await.expect("an answer").unwrap();
        match response.headers().get("grpc-status") {
            Some(code) => Err(code.to_str().unwrap().to_owned()),
            None => Ok(Self { answers: response.into_body(), _asks: asks }),
        }
    }

    /// Returns the next status; `None` at the end.
    async fn next(&mut self) -> Option<u8> {
        let said = tokio::time::timeout(FOREVER, self.answers.data()).await.expect("more")?.unwrap();
        assert_eq!((said.len(), &said[..6]), (7, &[0, 0, 0, 0, 2, 8][..]), "{said:?}");
        Some(said[6])
    }

    async fn end(mut self) -> HeaderMap {
        assert_eq!(self.next().await, None);
        tokio::time::timeout(FOREVER, self.answers.trailers()).await.expect("the end").unwrap().unwrap()
    }
}

#[tokio::test]
async fn who_watches_is_told_at_once_and_when_the_server_drains() {
    let (server, grpc) = started_with(POLICIES, |options| {
        options.token = Some(tidegate_server::Token::new("a-token-of-many-letters").unwrap());
    })
    .await;
    let mut client = Client::connect(grpc).await;
    let mut all = Watcher::of(&mut client, "").await.ok().unwrap();
    let mut one = Watcher::of(&mut client, "envoy.service.ratelimit.v3.RateLimitService").await.ok().unwrap();
    let mut none = Watcher::of(&mut client, "shop.Service").await.ok().unwrap();
    assert_eq!((all.next().await, one.next().await, none.next().await), (Some(1), Some(1), Some(3)));
    let no_message = client.call(WATCH, &[], framed(b"\xff")).await.unwrap();
    assert_eq!(no_message.code, Some(13), "{no_message:?}");
    // An operator takes the server out, and back again.
    for (method, says) in [(Method::POST, 2), (Method::DELETE, 1)] {
        let token = [("x-tidegate-token", "a-token-of-many-letters")];
        let changed = super::running::send(server.addr, method, "/v1/drain", &token, "").await;
        assert_eq!(changed.status, 200);
        assert_eq!((all.next().await, one.next().await), (Some(says), Some(says)));
    }
    server.handle.stop();
    assert_eq!((all.next().await, one.next().await), (Some(2), Some(2)));
    for watcher in [all, one, none] {
        assert_eq!(watcher.end().await["grpc-status"], "0");
    }
    assert_eq!(server.stopped().await, Stopped::Drained);
}

#[tokio::test]
async fn so_many_calls_of_a_connection_watch_and_no_more() {
    let (_server, grpc) = started(POLICIES).await;
    let mut client = Client::connect(grpc).await;
    let mut watchers = Vec::new();
    for _ in 0..16 {
        let mut watcher = Watcher::of(&mut client, "").await.ok().unwrap();
        assert_eq!(watcher.next().await, Some(1));
        watchers.push(watcher);
    }
    assert_eq!(Watcher::of(&mut client, "").await.err().as_deref(), Some("8"));
    let reflection = client.call(REFLECT, &[], framed(b"\x3a\0")).await.unwrap();
    assert_eq!(reflection.code, Some(8), "{reflection:?}");
    // Given up without an orderly end.
    drop(watchers.pop());
    until("room for one more", async || Watcher::of(&mut client, "").await.is_ok()).await;
    assert_eq!(client.ask(&call(&[&[("a", "b")]])).await.overall_code, 1, "decisions have room of their own");
}

#[tokio::test]
async fn connections_that_only_watch_give_way_and_are_not_idle() {
    let idle = Duration::from_millis(50);
    let (_server, grpc) = started_with(POLICIES, |options| {
        options.connections = 4;
        options.timeouts.idle = idle;
    })
    .await;
    let mut watching = Client::connect(grpc).await;
    let mut watcher = Watcher::of(&mut watching, "").await.ok().unwrap();
    assert_eq!(watcher.next().await, Some(1));
    // Two idle connections are closed meanwhile, one after the other.
    for _ in 0..2 {
        closed(grpc).await;
    }
    assert_eq!(watching.ask(&call(&[&[("a", "b")]])).await.overall_code, 1, "the connection stands");
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(grpc).await;
        let mut watcher = Watcher::of(&mut client, "").await.ok().unwrap();
        assert_eq!(watcher.next().await, Some(1));
        others.push((watcher, client));
    }
    let body = framed(&prost::Message::encode_to_vec(&call(&[&[("a", "b")]])));
    let reply = Client::connect(grpc).await.call(RATE_LIMIT, &[], body).await.unwrap();
    assert_eq!(reply.code, Some(0), "it has a place, and not one of the reserve: {reply:?}");
    // Once nobody watches any more, the connection is idle.
    let (last, client) = others.pop().unwrap();
    drop(last);
    until("the end of an idle connection", async || client.clone().begin(RATE_LIMIT, &[]).await.is_err())
        .await;
}

/// Waits until the server closes a connection that is silent after its preface.
async fn closed(grpc: SocketAddr) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = TcpStream::connect(grpc).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut said = Vec::new();
    let rest = tokio::time::timeout(FOREVER, stream.read_to_end(&mut said));
    // A reset counts as closing too.
    let _ = rest.await.expect("the server closes");
}

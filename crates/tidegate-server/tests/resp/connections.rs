//! Timeouts of Redis clients, and how their connections end.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_server::{ServerOptions, Stopped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::running::wire::{connect_from, exchange, read_until, rest, sent};
use super::running::{Running, start_with};
use super::{POLICIES, say, started};

/// Far longer than a test takes.
const FOREVER: Duration = Duration::from_secs(3600);

/// Starts a server with very long timeouts, except for what `change` sets.
async fn patient(change: impl FnOnce(&mut ServerOptions)) -> (Running, SocketAddr) {
    let free = tidegate_testkit::free_address();
    let server = start_with(POLICIES, |mut options| {
        options.resp = Some(free.into());
        let timeouts = &mut options.timeouts;
        (timeouts.head, timeouts.idle, timeouts.unread) = (FOREVER, FOREVER, FOREVER);
        change(&mut options);
        options
    });
    (server.await, free)
}

/// Regression: each byte gave a command its whole time again, so a few bytes a minute kept a connection for ever.
#[tokio::test]
async fn a_command_that_comes_byte_by_byte_has_one_deadline() {
    let (_server, resp) = patient(|options| options.timeouts.head = Duration::from_millis(300)).await;
    let mut stream = sent(resp, b"*1\r\n$4000\r\n").await;
    let (mut said, mut piece) = (Vec::new(), [0; 1024]);
    for _ in 0..4000 {
        // Writing fails once the server has closed; its reply is read below.
        let _ = stream.write_all(b"x").await;
        match timeout(Duration::from_millis(20), stream.read(&mut piece)).await {
            Ok(Ok(read)) if read > 0 => said.extend_from_slice(&piece[..read]),
            Ok(_) => break,
            Err(_) => {}
        }
    }
    let said = String::from_utf8_lossy(&said);
    assert_eq!(said, "-ERR Protocol error: the rest of the command did not come in time\r\n");
}

/// Regression: a new connection had the timeout of one that idles between two commands.
#[tokio::test]
async fn a_newcomer_that_says_nothing_is_closed_as_soon_as_a_command_is_late() {
    let (_server, resp) = patient(|options| options.timeouts.head = Duration::from_millis(50)).await;
    assert_eq!(rest(&mut sent(resp, b"").await).await, "");
    assert_eq!(say(resp, "PING").await, "+PONG\r\n+OK\r\n");
}

/// Regression: the socket was kept for as long as replies may take, although its place counted as free.
#[tokio::test]
async fn whoever_reads_nothing_is_gone_as_soon_as_his_place_is_needed() {
    let (_server, resp) = patient(|options| options.connections = 1).await;
    let mut deaf = TcpStream::connect(resp).await.unwrap();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    // If a line does not go out for a while, the buffers of both sides are full.
    while let Ok(sent) = timeout(Duration::from_secs(1), deaf.write_all(line.as_bytes())).await {
        sent.unwrap();
    }
    let mut other = connect_from([127, 0, 0, 9], resp).await;
    other.write_all(b"PING\r\n").await.unwrap();
    read_until(&mut other, "+PONG\r\n").await;
    let floods = async { while deaf.write_all(line.as_bytes()).await.is_ok() {} };
    timeout(Duration::from_secs(30), floods).await.expect("it is cut");
}

/// Regression: the order to finish was checked only when there was nothing to read.
#[tokio::test]
async fn a_server_that_stops_waits_for_no_client_that_goes_on_sending() {
    let (server, resp) = patient(|options| options.drain = Duration::from_secs(20)).await;
    let stream = TcpStream::connect(resp).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let lines = "PING\r\n".repeat(4000);
    let sends = tokio::spawn(async move { while write.write_all(lines.as_bytes()).await.is_ok() {} });
    let (begun, begins) = tokio::sync::oneshot::channel::<()>();
    let reads = tokio::spawn(async move {
        let (mut begun, mut piece) = (Some(begun), vec![0; 1 << 16]);
        while read.read(&mut piece).await.is_ok_and(|bytes| bytes > 0) {
            drop(begun.take());
        }
    });
    let _ = begins.await;
    server.handle.stop();
    assert_eq!(server.stopped().await, Stopped::Drained);
    reads.await.unwrap();
    sends.await.unwrap();
}

/// Closing a connection with unread bytes resets it, and a reset discards the last reply.
#[tokio::test]
async fn the_last_reply_arrives_although_more_was_sent() {
    let (_server, resp) = started().await;
    let said = exchange(resp, &vec![b'x'; 3 << 20]).await;
    assert_eq!(said, "-ERR Protocol error: too long a command\r\n");
}

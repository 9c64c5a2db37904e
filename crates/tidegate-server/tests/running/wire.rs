//! Plain sockets, for bytes that no client library would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Far longer than anything here takes.
const FOREVER: Duration = Duration::from_secs(30);

/// Starts an application that answers each request with the head that it received.
pub(crate) async fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let length = head.len();
                let start =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                let _ = stream.write_all(&[start.as_bytes(), head.as_slice()].concat()).await;
            });
        }
    });
    addr
}

/// Connects from this address of the loopback network.
pub(crate) async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    tokio::time::timeout(FOREVER, socket.connect(to)).await.expect("accepted").unwrap()
}

/// Connects and sends these bytes.
pub(crate) async fn sent(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until the server closes.
pub(crate) async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(FOREVER, stream.read_to_end(&mut bytes)).await.expect("closed");
    read.unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends everything, then reads all answers. The sending side stays open, so the server must close.
pub(crate) async fn exchange(to: SocketAddr, bytes: &[u8]) -> String {
    rest(&mut sent(to, bytes).await).await
}

/// Reads until these words arrive.
pub(crate) async fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let mut text = String::new();
    let mut piece = [0; 1024];
    while !text.contains(words) {
        let read = tokio::time::timeout(FOREVER, stream.read(&mut piece)).await.expect("an answer").unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text += &String::from_utf8_lossy(&piece[..read]);
    }
    text
}

/// The status of each answer, in order.
pub(crate) fn statuses(answers: &str) -> Vec<&str> {
    // An answer follows the body before it without a line end in between.
    answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect()
}

//! Probes an address by hand, because the client library's errors do not say what is wrong.

use std::error::Error as _;
use std::time::Duration;

use etcd_client::TlsOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use crate::error::ConnectError;

/// The time limit per address.
const PATIENCE: Duration = Duration::from_secs(2);

/// The start of an HTTP/2 connection: the preface and an empty settings frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The type of the first frame that an HTTP/2 server sends: settings.
const SETTINGS: u8 = 4;

/// A record of TLS 1.0 to 1.3 with an unknown handshake message (RFC 8446, section 5.1): a TLS server answers it with
/// an alert.
const NO_HANDSHAKE: &[u8] = &[22, 3, 1, 0, 4, 99, 0, 0, 0];

/// The first byte of an alert record.
const ALERT: u8 = 21;

/// The length of a frame's head, in bytes.
const FRAME_HEAD: u64 = 9;

/// The parts of an address.
pub(crate) struct Address {
    pub(crate) shown: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

impl Address {
    /// Opens a TCP connection.
    async fn tcp(&self) -> Result<TcpStream, String> {
        match timeout(PATIENCE, TcpStream::connect((self.host.as_str(), self.port))).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {} ms", PATIENCE.as_millis())),
        }
    }

    /// Starts HTTP/2 without TLS, and returns how the server answered.
    async fn greet(stream: TcpStream) -> Http2Greeting {
        let first = exchange(stream, PREFACE, FRAME_HEAD).await;
        match first.get(3) {
            Some(&SETTINGS) => Http2Greeting::Plaintext,
            _ if first.is_empty() => Http2Greeting::NoAnswer,
            _ => Http2Greeting::OtherProtocol,
        }
    }

    /// Returns whether the server answers TLS; for servers that close plain-text connections.
    async fn speaks_tls(&self) -> bool {
        let Ok(stream) = self.tcp().await else { return false };
        matches!(exchange(stream, NO_HANDSHAKE, 1).await.first(), Some(&ALERT))
    }

    /// Probes one address.
    async fn check(&self, tls: &TlsOptions) -> Result<(), Probed> {
        let stream = self.tcp().await.map_err(Probed::Silent)?;
        let address = self.shown.clone();
        if !self.secure {
            return match Self::greet(stream).await {
                Http2Greeting::Plaintext => Ok(()),
                Http2Greeting::OtherProtocol => Err(Probed::Wrong(ConnectError::WantsTls { address })),
                Http2Greeting::NoAnswer if self.speaks_tls().await => {
                    Err(Probed::Wrong(ConnectError::WantsTls { address }))
                }
                // A stopped process, or a balancer without backends: it may answer later.
                Http2Greeting::NoAnswer => {
                    Err(Probed::Silent("it accepts connections but does not answer".to_owned()))
                }
            };
        }
        let connected = async {
            let endpoint = Endpoint::from_shared(self.shown.clone())?.tls_config(tls.clone())?;
            endpoint.connect_timeout(PATIENCE).connect().await
        };
        let Err(error) = connected.await else { return Ok(()) };
        if matches!(Self::greet(stream).await, Http2Greeting::Plaintext) {
            return Err(Probed::Wrong(ConnectError::PlainText { address }));
        }
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            reason = error.to_string();
            source = error.source();
        }
        Err(Probed::Wrong(ConnectError::Certificate { address, reason }))
    }
}

/// Sends some bytes, and returns the first bytes of the answer; empty if there is none in time.
async fn exchange(mut stream: TcpStream, sent: &[u8], length: u64) -> Vec<u8> {
    let mut first = Vec::new();
    let asked = async {
        stream.write_all(sent).await?;
        stream.take(length).read_to_end(&mut first).await
    };
    // Bytes that came before the end or an error count.
    let _ = timeout(PATIENCE, asked).await;
    first
}

/// How a server answers the start of HTTP/2 without TLS.
enum Http2Greeting {
    Plaintext,
    OtherProtocol,
    NoAnswer,
}

enum Probed {
    /// No server answers, for this reason.
    Silent(String),
    /// The server is not etcd, or expects another protocol.
    Wrong(ConnectError),
}

/// Probes addresses until one is good.
pub(crate) async fn any(addresses: &[Address], tls: &TlsOptions) -> Result<(), ConnectError> {
    let (mut wrong, mut silent) = (None, Vec::new());
    for address in addresses {
        match address.check(tls).await {
            Ok(()) => return Ok(()),
            Err(Probed::Silent(reason)) => silent.push(format!("{} ({reason})", address.shown)),
            Err(Probed::Wrong(error)) => wrong = Some(error),
        }
    }
    Err(wrong.unwrap_or_else(|| ConnectError::Unreachable { tried: silent.join(", ") }))
}

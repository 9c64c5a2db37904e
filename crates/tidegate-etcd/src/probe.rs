//! What is at an address, asked by hand: the client's library only says that nothing came back.

use std::error::Error as _;
use std::time::Duration;

use etcd_client::TlsOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Endpoint;

use crate::error::ConnectError;

/// How long one address is tried before the next one is.
const PATIENCE: Duration = Duration::from_secs(2);

/// What begins a connection of HTTP/2: the preface, and settings that are empty.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What a server that speaks HTTP/2 sends first: a frame of settings, of this kind.
const SETTINGS: u8 = 4;

/// A record of TLS 1.0 to 1.3 with a message that no handshake has (RFC 8446, section 5.1): whoever speaks TLS answers it with an alert.
const NO_HANDSHAKE: &[u8] = &[22, 3, 1, 0, 4, 99, 0, 0, 0];

/// What a record with an alert begins with.
const ALERT: u8 = 21;

/// How long the head of a frame is.
const FRAME_HEAD: u64 = 9;

/// An address in its parts.
pub(crate) struct Address {
    pub(crate) shown: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

impl Address {
    /// Connects, says nothing and hangs up.
    async fn tcp(&self) -> Result<TcpStream, String> {
        match timeout(PATIENCE, TcpStream::connect((self.host.as_str(), self.port))).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no connection within {} ms", PATIENCE.as_millis())),
        }
    }

    /// Begins to speak HTTP/2 without TLS, and says how that was answered.
    async fn greet(stream: TcpStream) -> Greeted {
        let first = exchange(stream, PREFACE, FRAME_HEAD).await;
        match first.get(3) {
            Some(&SETTINGS) => Greeted::Plainly,
            _ if first.is_empty() => Greeted::Silently,
            _ => Greeted::Otherwise,
        }
    }

    /// Says whether a server that hangs up on plain text answers TLS.
    async fn speaks_tls(&self) -> bool {
        let Ok(stream) = self.tcp().await else { return false };
        matches!(exchange(stream, NO_HANDSHAKE, 1).await.first(), Some(&ALERT))
    }

    /// Tries one address.
    async fn check(&self, tls: &TlsOptions) -> Result<(), Probed> {
        let stream = self.tcp().await.map_err(Probed::Silent)?;
        let address = self.shown.clone();
        if !self.secure {
            return match Self::greet(stream).await {
                Greeted::Plainly => Ok(()),
                Greeted::Otherwise => Err(Probed::Wrong(ConnectError::WantsTls { address })),
                Greeted::Silently if self.speaks_tls().await => {
                    Err(Probed::Wrong(ConnectError::WantsTls { address }))
                }
                // A process that is stopped, or a balancer with nobody behind it: it may answer later.
                Greeted::Silently => Err(Probed::Silent("it takes connections and says nothing".to_owned())),
            };
        }
        let connected = async {
            let endpoint = Endpoint::from_shared(self.shown.clone())?.tls_config(tls.clone())?;
            endpoint.connect_timeout(PATIENCE).connect().await
        };
        let Err(error) = connected.await else { return Ok(()) };
        if matches!(Self::greet(stream).await, Greeted::Plainly) {
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

/// Sends some bytes, and returns the first ones of the answer: none where nothing comes in time.
async fn exchange(mut stream: TcpStream, sent: &[u8], length: u64) -> Vec<u8> {
    let mut first = Vec::new();
    let asked = async {
        stream.write_all(sent).await?;
        stream.take(length).read_to_end(&mut first).await
    };
    // What came before the end, or before an error, counts.
    let _ = timeout(PATIENCE, asked).await;
    first
}

/// How a server answers who begins to speak HTTP/2 without TLS.
enum Greeted {
    Plainly,
    Otherwise,
    Silently,
}

enum Probed {
    /// Nobody is there, for this reason.
    Silent(String),
    /// Somebody else is, or speaks otherwise.
    Wrong(ConnectError),
}

/// Tries addresses until one is good.
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

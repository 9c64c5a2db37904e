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

    /// Says whether a server speaks HTTP/2 without TLS.
    async fn speaks_plainly(mut stream: TcpStream) -> bool {
        let mut first = [0; 9];
        let asked = async {
            stream.write_all(PREFACE).await?;
            stream.read_exact(&mut first).await
        };
        matches!(timeout(PATIENCE, asked).await, Ok(Ok(_))) && first[3] == SETTINGS
    }

    /// Tries one address.
    async fn check(&self, tls: &TlsOptions) -> Result<(), Probed> {
        let stream = self.tcp().await.map_err(Probed::Silent)?;
        let address = self.shown.clone();
        if !self.secure {
            let plain = Self::speaks_plainly(stream).await;
            return if plain { Ok(()) } else { Err(Probed::Wrong(ConnectError::WantsTls { address })) };
        }
        let connected = async {
            let endpoint = Endpoint::from_shared(self.shown.clone())?.tls_config(tls.clone())?;
            endpoint.connect_timeout(PATIENCE).connect().await
        };
        let Err(error) = connected.await else { return Ok(()) };
        if Self::speaks_plainly(stream).await {
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

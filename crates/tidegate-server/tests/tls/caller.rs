//! A TLS client for what no program shows: the certificate that the server presented, and connections that stay open.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::made::{Authority, Pair};

pub(crate) type Connection = TlsStream<TcpStream>;

/// Connects with trust in this authority, and with a client certificate, if given.
pub(crate) async fn connect(
    to: SocketAddr,
    trusts: &Authority,
    shows: Option<&Pair>,
) -> io::Result<Connection> {
    connect_as(&somebody(trusts, shows), to).await
}

/// Connects with a connector that may have connected before.
pub(crate) async fn connect_as(somebody: &TlsConnector, to: SocketAddr) -> io::Result<Connection> {
    let name = ServerName::try_from("localhost").unwrap();
    somebody.connect(name, TcpStream::connect(to).await?).await
}

/// Makes a connector that trusts this authority, shows a client certificate, if given, and resumes sessions.
pub(crate) fn somebody(trusts: &Authority, shows: Option<&Pair>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusts.root()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match shows {
        Some(pair) => builder.with_client_auth_cert(vec![pair.cert()], pair.key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}

/// Returns the certificate that the server presented on a connection.
pub(crate) fn greeted_with(connection: &Connection) -> CertificateDer<'static> {
    connection.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Sends bytes, and reads until these words arrive.
pub(crate) async fn said(connection: &mut Connection, bytes: &[u8], words: &str) -> io::Result<String> {
    connection.write_all(bytes).await?;
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while !text.contains(words) {
        let read = connection.read(&mut piece).await?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("closed after {text:?}")));
        }
        text += &String::from_utf8_lossy(&piece[..read]);
    }
    Ok(text)
}

/// Requests `/livez`.
pub(crate) async fn lives(connection: &mut Connection) -> io::Result<String> {
    said(connection, b"GET /livez HTTP/1.1\r\nhost: tidegate.example:8443\r\n\r\n", "ok\n").await
}

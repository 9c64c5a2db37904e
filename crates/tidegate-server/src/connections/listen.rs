//! Listens, with as long a queue as the system allows.

use std::io;
use std::net::SocketAddr;

use tidegate::config::Address;
use tokio::net::{TcpListener, TcpSocket};

use super::inherited::{self, Inherited};
use super::stream::Stream;
#[cfg(unix)]
use super::unix_socket::UnixSocket;

/// Asks for the longest queue of connections that are not accepted yet; the system takes what it allows of it
/// (`net.core.somaxconn` on Linux, 4,096 unless set).
const QUEUE: u32 = i32::MAX as u32;

/// What accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl Listener {
    /// Listens on the address, by the socket that was handed over for it or by one of its own; returns it with its port filled in. Must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// What the system said: the address is taken, is not ours, needs a privilege.
    pub(crate) fn bind(address: &Address) -> io::Result<(Self, Address)> {
        if let Some(socket) = inherited::take(address) {
            tracing::info!(%address, "listens on a socket that was handed over");
            let listener = match socket {
                Inherited::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
                #[cfg(unix)]
                Inherited::Unix(socket) => Self::Unix(UnixSocket::inherited(socket)?),
            };
            return Ok((listener, address.clone()));
        }
        match address {
            Address::Tcp(addr) => {
                let listener = listen(*addr)?;
                let addr = listener.local_addr()?;
                Ok((Self::Tcp(listener), addr.into()))
            }
            #[cfg(unix)]
            Address::Unix(socket) => Ok((Self::Unix(UnixSocket::bind(socket, QUEUE)?), address.clone())),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Says whether the address could be listened on, without leaving anything behind. It does not listen: a caller who connected meanwhile would
    /// be cut off, or take the server for ready.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub(crate) fn check(address: &Address) -> io::Result<()> {
        match address {
            address if inherited::has(address) => Ok(()),
            Address::Tcp(addr) => bound(*addr).map(drop),
            #[cfg(unix)]
            Address::Unix(socket) => super::unix_socket::is_free(socket.path()),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The system's.
    pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, peer)| (Stream::Tcp(stream), peer)),
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.accept().await.map(|stream| (Stream::Unix(stream), super::stream::THIS_MACHINE))
            }
        }
    }
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    bound(addr)?.listen(QUEUE)
}

fn bound(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a restart need not wait for the last connections of the one before. Elsewhere the option means that two
    // programs may take the same port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

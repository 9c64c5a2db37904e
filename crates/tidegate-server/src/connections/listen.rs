//! Listens on addresses, with as long an accept queue as the system allows.

use std::io;
use std::net::SocketAddr;

use tidegate::config::Address;
use tokio::net::{TcpListener, TcpSocket};

use super::inherited::{self, Inherited};
use super::stream::Stream;
#[cfg(unix)]
use super::unix_socket::UnixSocket;

/// The accept queue that is asked for. The system caps it (`net.core.somaxconn` on Linux, 4,096 by default).
const QUEUE: u32 = i32::MAX as u32;

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl Listener {
    /// Listens on the socket that was handed over for the address, or on a new one. Returns the address with its
    /// port. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The system's: the address is taken, belongs to another machine, or needs a privilege.
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
                let listener = bound(*addr)?.listen(QUEUE)?;
                let addr = listener.local_addr()?;
                Ok((Self::Tcp(listener), addr.into()))
            }
            #[cfg(unix)]
            Address::Unix { path, mode } => {
                Ok((Self::Unix(UnixSocket::bind(path, *mode, QUEUE)?), address.clone()))
            }
            #[cfg(not(unix))]
            Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Checks whether the address could be listened on, without listening: a caller who connected meanwhile would be
    /// cut off, or take the server for ready.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub(crate) fn check(address: &Address) -> io::Result<()> {
        match address {
            address if inherited::has(address) => Ok(()),
            Address::Tcp(addr) => bound(*addr).map(drop),
            #[cfg(unix)]
            Address::Unix { path, .. } => super::unix_socket::is_free(path),
            #[cfg(not(unix))]
            Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The system's error.
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

fn bound(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart can bind while connections of the previous process are open. Elsewhere the option lets two programs
    // share a port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

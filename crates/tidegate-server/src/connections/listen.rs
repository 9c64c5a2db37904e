//! Listens, with as long a queue as the system allows.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Asks for the longest queue of connections that are not accepted yet; the system takes what it allows of it
/// (`net.core.somaxconn` on Linux, 4,096 unless set).
const QUEUE: u32 = i32::MAX as u32;

/// Binds the address and listens on it.
///
/// # Errors
/// What the system said: the address is taken, is not ours, needs a privilege.
pub(crate) fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a restart need not wait for the last connections of the one before. Elsewhere the option means that two
    // programs may take the same port.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(QUEUE)
}

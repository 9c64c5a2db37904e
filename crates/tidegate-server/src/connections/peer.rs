//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// The address of the other end of a connection, put into the extensions of every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

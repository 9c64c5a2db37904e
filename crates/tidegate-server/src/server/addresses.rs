//! Where a server listens, and whether it may.

use std::net::SocketAddr;

use super::error::ServeError;
use crate::options::ServerOptions;

impl ServerOptions {
    /// Says whether the server could listen: before a store is opened, which may take time, and which another server at the same address
    /// may have. Whoever else takes an address afterwards is seen by [`Server::bind`].
    ///
    /// # Errors
    /// [`ServeError::Open`] and [`ServeError::Listen`].
    pub fn check_addresses(&self) -> Result<(), ServeError> {
        self.check_token()?;
        self.addresses().try_for_each(|addr| {
            let listened = std::net::TcpListener::bind(addr);
            listened.map(drop).map_err(|source| ServeError::Listen { addr, source })
        })
    }

    /// Says whether others are kept out.
    pub(super) fn check_token(&self) -> Result<(), ServeError> {
        let open = self.token.is_none() && self.tokens_file.is_none();
        let reached = |addr: &SocketAddr| open && !addr.ip().to_canonical().is_loopback();
        self.addresses().find(reached).map_or(Ok(()), |addr| Err(ServeError::Open { addr }))
    }

    /// Returns where each door listens: what holds for one has to hold for all.
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        [Some(self.http), self.admin, self.grpc, self.resp].into_iter().flatten()
    }
}

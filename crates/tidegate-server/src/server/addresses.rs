//! Where a server listens, and whether it may.

use tidegate::config::Address;

use super::error::ServeError;
use crate::connections::Listener;
use crate::options::ServerOptions;

impl ServerOptions {
    /// Says whether the server could listen: before a store is opened, which may take time, and which another server at the same address
    /// may have. Whoever else takes an address afterwards is seen by [`crate::Server::bind`].
    ///
    /// # Errors
    /// [`ServeError::Open`] and [`ServeError::Listen`].
    pub fn check_addresses(&self) -> Result<(), ServeError> {
        self.check_token()?;
        self.addresses().try_for_each(|addr| {
            Listener::check(addr).map_err(|source| ServeError::Listen { addr: addr.clone(), source })
        })
    }

    /// Says whether others are kept out.
    pub(super) fn check_token(&self) -> Result<(), ServeError> {
        if self.token.is_some() || self.tokens_file.is_some() {
            return Ok(());
        }
        let open = self.addresses().filter(|addr| !addr.is_local()).find_map(Address::tcp);
        open.map_or(Ok(()), |addr| Err(ServeError::Open { addr }))
    }

    /// Returns where each door listens: what holds for one has to hold for all.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        [Some(&self.http), self.admin.as_ref(), self.grpc.as_ref(), self.resp.as_ref()].into_iter().flatten()
    }
}

//! The addresses of a server, and checks on them.

use tidegate::config::{Address, DoorName, TlsSettings};

use super::error::ServeError;
use crate::connections::Listener;
use crate::options::ServerOptions;
use crate::tls::TlsError;

impl ServerOptions {
    /// Checks whether the server could listen on its addresses. Call it before opening a store, which may take time and
    /// which another server at the same address may be using. [`crate::Server::bind`] still detects an address that is
    /// taken afterwards.
    ///
    /// # Errors
    /// [`ServeError::Open`], [`ServeError::Listen`], and [`ServeError::Tls`] for a plain door without an address.
    pub fn check_addresses(&self) -> Result<(), ServeError> {
        self.check_token()?;
        self.check_plain_doors()?;
        self.addresses().try_for_each(|addr| {
            Listener::check(addr).map_err(|source| ServeError::Listen { addr: addr.clone(), source })
        })
    }

    /// Checks that strangers are kept out: by loopback addresses, a token, or client certificates.
    pub(super) fn check_token(&self) -> Result<(), ServeError> {
        if self.token.is_some() || self.tokens_file.is_some() {
            return Ok(());
        }
        let shows_certificates =
            |door| self.tls_of(door).is_some_and(|settings| settings.client_ca.is_some());
        let open = self.doors().filter(|(door, addr)| !addr.is_local() && !shows_certificates(*door));
        let open = open.map(|(_, addr)| addr).find_map(Address::tcp);
        open.map_or(Ok(()), |addr| Err(ServeError::Open { addr }))
    }

    /// Checks that each door that is to stay plain has an address.
    pub(super) fn check_plain_doors(&self) -> Result<(), TlsError> {
        let plain = self.tls.iter().flat_map(|settings| settings.plain.iter());
        let mut absent = plain.filter(|door| self.doors().all(|(there, _)| there != **door));
        absent.next().map_or(Ok(()), |door| Err(TlsError::NoDoor { door: *door }))
    }

    /// Returns the TLS settings of a door; `None` for a Unix socket, which is never encrypted.
    pub(super) fn tls_of(&self, door: DoorName) -> Option<&TlsSettings> {
        let is_tcp = self.doors().any(|(there, addr)| there == door && addr.tcp().is_some());
        self.tls.as_ref().filter(|settings| is_tcp && !settings.plain.contains(&door))
    }

    /// Returns the doors that are encrypted.
    pub(super) fn encrypted(&self) -> Vec<DoorName> {
        self.doors().map(|(door, _)| door).filter(|door| self.tls_of(*door).is_some()).collect()
    }

    /// Returns the addresses of all doors.
    fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.doors().map(|(_, addr)| addr)
    }

    fn doors(&self) -> impl Iterator<Item = (DoorName, &Address)> {
        let of = |door, addr| Option::map(addr, |addr| (door, addr));
        let doors = [
            of(DoorName::Http, Some(&self.http)),
            of(DoorName::Admin, self.admin.as_ref()),
            of(DoorName::Grpc, self.grpc.as_ref()),
            of(DoorName::Resp, self.resp.as_ref()),
        ];
        doors.into_iter().flatten()
    }
}

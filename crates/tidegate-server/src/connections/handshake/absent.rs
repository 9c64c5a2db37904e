//! Placeholders for a build without TLS. Nothing in this module is ever called.

use std::net::SocketAddr;

use super::{NotEncrypted, Tls};
use crate::connections::places::ConnectionPlace;
use crate::connections::stream::Stream;
use crate::options::Timeouts;

impl Tls {
    pub(crate) async fn encrypt(
        &self,
        _: Stream,
        _: SocketAddr,
        _: &ConnectionPlace,
        _: Timeouts,
    ) -> Result<Stream, NotEncrypted> {
        match *self.certificates {}
    }
}

//! The TLS handshake of a connection, before a door serves it.
//!
//! It has a time of its own, [`Timeouts::head`], and its connection gives its place up as one does whose head is not complete. The first byte is
//! looked at before the handshake begins: a caller who does not speak TLS is told so in its own protocol.
//!
//! [`Timeouts::head`]: crate::options::Timeouts::head

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod with_rustls;

use std::sync::Arc;

use super::stream::Stream;
use crate::metrics::{CutReason, Transport};
use crate::tls::Certificates;

/// What encrypts the connections of one door.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    certificates: Arc<Certificates>,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no handshake is counted"))]
    transport: Transport,
}

/// Why there is no encrypted connection.
#[derive(Debug)]
#[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "nothing is encrypted"))]
pub(crate) enum NotEncrypted {
    /// The caller does not speak TLS; it waits for an answer.
    PlainText(Stream),
    /// It took too long, or the place is given away.
    Cut(CutReason),
    /// It failed, or the server stops; all is said.
    Over,
}

impl Tls {
    pub(crate) fn new(certificates: Arc<Certificates>, transport: Transport) -> Self {
        Self { certificates, transport }
    }
}

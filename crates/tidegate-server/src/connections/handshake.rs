//! The TLS handshake of a connection, before a door serves it.
//!
//! The handshake has its own time limit, [`Timeouts::head`], and its connection can lose its place like one with an
//! incomplete head. The first byte is checked before the handshake begins, so that a caller that does not speak TLS is
//! told so in its own protocol.
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

/// The TLS settings of one door's connections.
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
    /// The caller does not speak TLS and waits for an answer.
    PlainText(Stream),
    /// The handshake took too long, or the place was given to another connection.
    Cut(CutReason),
    /// The handshake failed, or the server stops; nothing is left to report.
    Over,
}

impl Tls {
    pub(crate) fn new(certificates: Arc<Certificates>, transport: Transport) -> Self {
        Self { certificates, transport }
    }
}

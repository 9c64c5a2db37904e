//! What the commands of a door and of one connection share.

use std::sync::Arc;

use crate::app::App;
use crate::requests::BroughtQuotas;

/// The RESP door of one server.
#[derive(Debug)]
pub(crate) struct RespDoor {
    pub(super) app: Arc<App>,
    pub(super) quotas: BroughtQuotas,
}

impl RespDoor {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { app, quotas: BroughtQuotas::default() }
    }
}

/// What a connection has agreed on.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Whether replies are of the protocol's third version.
    pub(super) resp3: bool,
    /// Whether the token was shown, or none is needed.
    pub(super) trusted: bool,
    /// What the client calls itself.
    pub(super) name: Vec<u8>,
    /// Whether the connection ends after the replies that are written.
    pub(super) closing: bool,
}

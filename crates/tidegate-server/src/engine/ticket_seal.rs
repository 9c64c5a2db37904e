//! The keys and settings by which a server seals its tickets.

use std::time::Duration;

use tidegate::config::Address;
use tidegate::gate::ticket::{KeyError, TicketKeys};

use crate::ticket_options::TicketOptions;

/// The keys of the tickets, their lifetime, and the name of this node in them.
#[derive(Debug)]
pub(crate) struct TicketSeal {
    pub(super) keys: TicketKeys,
    pub(super) ttl: Duration,
    pub(super) issuer: String,
}

impl TicketSeal {
    /// Uses the configured keys, or draws one at random. The node is named after `addr` unless it has a name.
    ///
    /// # Errors
    /// [`KeyError`] if no random key can be drawn.
    pub(crate) fn of(options: &TicketOptions, addr: &Address) -> Result<Self, KeyError> {
        Ok(Self {
            keys: options.keys.clone().map_or_else(TicketKeys::random, Ok)?,
            ttl: options.ttl,
            issuer: options.issuer.clone().unwrap_or_else(|| addr.to_string()),
        })
    }
}

//! Hands an admission on as a ticket.

use std::ops::Deref;
use std::time::Duration;

use super::Admission;
use crate::gate::Gate;
use crate::gate::ticket::{SealError, Ticket, TicketKeys};

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Converts the admission into a ticket, which can be settled once within `ttl`; see [`Gate::seal`]. If the ticket
    /// is never settled, all charges stay, and places are left when their time to live is over.
    ///
    /// # Errors
    /// The [`SealError`] together with the unchanged admission.
    pub fn into_ticket(mut self, keys: &TicketKeys, ttl: Duration) -> Result<Ticket, Box<(SealError, Self)>> {
        match self.gate.seal(&self.charged, keys, ttl, None) {
            Ok(ticket) => {
                self.ended = true;
                Ok(ticket)
            }
            Err(error) => Err(Box::new((error, self))),
        }
    }
}

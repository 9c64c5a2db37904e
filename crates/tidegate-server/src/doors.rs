//! The doors: one for each protocol by which requests enter. Doors know the gate; the gate knows no protocol.

#[cfg(feature = "grpc")]
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;

use tidegate::gate::Charged;
use tidegate::gate::ticket::Ticket;

use crate::decider::Decider;

/// Undoes the charges, and the ticket made for them, if dropped before the caller was answered.
struct HungUp<'a> {
    decider: &'a Decider,
    /// `None` once the caller was answered.
    held: Option<Charged>,
    ticket: Option<Ticket>,
}

impl Drop for HungUp<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.decider.tickets.undo_unwatched(&held);
            if let Some(ticket) = &self.ticket {
                self.decider.tickets.withdraw(ticket);
            }
        }
    }
}

//! The charges of a decision, while they can still be undone or sealed into a ticket.

use tidegate::Charged;

/// The charges of a decision.
#[derive(Debug, Default)]
pub(crate) struct HeldCharges {
    pub(super) charged: Charged,
}

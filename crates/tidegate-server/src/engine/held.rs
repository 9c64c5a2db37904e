//! What a decision charged, while it can still be undone or sealed as a ticket.

use tidegate::Charged;

/// What a decision charged.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(super) charged: Charged,
}

//! What a decision charged, while it can still be undone or sealed as a ticket.

use tidegate::Charged;

/// What a decision charged, and from which store.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(super) charged: Charged,
    /// Whether it was charged in the store that stands in while the real one cannot decide.
    pub(super) from_stand_in: bool,
}

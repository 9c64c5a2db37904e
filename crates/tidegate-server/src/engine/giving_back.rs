//! Units that a caller gives back without a ticket.

use tidegate::gate::Check;

use super::Engine;

impl Engine {
    /// Gives back what a check of these units would charge; see [`tidegate::Gate::give_back_async`]. What a store does not take back stays
    /// charged, and is counted as an error of the store.
    pub(crate) async fn give_back(&self, check: Check<'_, '_>) {
        if let Err(error) = self.gate.give_back_async(check).await {
            self.metrics.store_error(self.store_kind);
            tracing::warn!(%error, "units were not given back");
        }
    }
}

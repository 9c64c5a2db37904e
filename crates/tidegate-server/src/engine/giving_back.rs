//! Units that come without a ticket: those that a caller gives back, and those that were spent elsewhere.

use tidegate::gate::Check;
use tidegate::store::StoreError;

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

    /// Books what so many requests like this one would charge, also where that is more than is left; see [`tidegate::Gate::book_many_async`].
    ///
    /// # Errors
    /// What the store said; it is counted as an error of the store, and the caller tells the log.
    pub(crate) async fn book(&self, check: Check<'_, '_>, requests: u64) -> Result<(), StoreError> {
        let booked = self.gate.book_many_async(check, requests).await;
        booked.inspect_err(|_| self.metrics.store_error(self.store_kind))
    }
}

//! Returns units and books units for callers without a ticket.

use tidegate::gate::Check;
use tidegate::store::StoreError;

use super::Engine;

impl Engine {
    /// Returns the units that this check would charge; see [`tidegate::Gate::give_back_async`]. On an error of the
    /// store they stay charged, and the error is counted and logged.
    pub(crate) async fn give_back(&self, check: Check<'_, '_>) {
        if let Err(error) = self.gate.give_back_async(check).await {
            self.metrics.store_error(self.store_kind);
            tracing::warn!(%error, "units were not given back");
        }
    }

    /// Books what this many requests like the given one would charge, even beyond what is left; see
    /// [`tidegate::Gate::book_many_async`].
    ///
    /// # Errors
    /// The error of the store. It is counted here; the caller logs it.
    pub(crate) async fn book(&self, check: Check<'_, '_>, requests: u64) -> Result<(), StoreError> {
        let booked = self.gate.book_many_async(check, requests).await;
        booked.inspect_err(|_| self.metrics.store_error(self.store_kind))
    }
}

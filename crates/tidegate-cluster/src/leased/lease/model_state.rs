//! The part of a lease's state that determines its behaviour. The model check treats two leases that are equal in it as
//! the same.

use super::Lease;

impl Lease {
    /// Returns all that determines the lease's behaviour, except for the demand, which only sizes draws.
    pub(in super::super) fn model_state(&self) -> impl std::hash::Hash + '_ {
        let batches = [&self.current, &self.next]
            .map(|batch| batch.as_ref().map(|batch| (batch.rest, batch.from, batch.until)));
        let refused = (self.refusals.model_state(), self.failed_until);
        (
            batches,
            self.good_until,
            self.part,
            self.held,
            refused,
            self.waits,
            self.is_drawing(),
            self.remaining,
        )
    }
}

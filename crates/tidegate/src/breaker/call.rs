//! A call that a breaker has admitted.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Outcome, Receipt, Tick};

use super::shared::Shared;

/// A call that a [`Breaker`](crate::Breaker) has admitted. Dropping it reports no outcome: a panic, or a caller who
/// hung up, is neither success nor failure, and a probe's place becomes free.
#[must_use = "a call that is dropped at once says nothing of the service"]
pub struct Call {
    shared: Arc<Shared>,
    /// `None` once it has ended.
    receipt: Option<Receipt>,
}

impl Call {
    pub(super) const fn new(shared: Arc<Shared>, receipt: Receipt) -> Self {
        Self { shared, receipt: Some(receipt) }
    }

    /// Returns the tick at which it entered, by the breaker's clock.
    #[must_use]
    pub fn entered(&self) -> Tick {
        self.receipt.map_or(Tick::EPOCH, |receipt| receipt.at)
    }

    /// Reports how the call went. Its latency is the time since it entered.
    pub fn leave(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(receipt) = self.receipt.take() else { return };
        self.shared.change(|law, state, now, tell| law.leave_in_place(state, now, &receipt, outcome, tell));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Outcome::Ignored);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("entered", &self.entered()).finish_non_exhaustive()
    }
}

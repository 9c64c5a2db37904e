//! The right to be inside, and what the clones of a bulkhead share.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Outcome, Receipt};

use super::line::{Answer, Due, Line};
use crate::answer::{Answer as Answered, Denied};
use crate::clock::Clock;
use crate::sync::Mutex;

/// The places of a bulkhead, and the line of those who wait for one.
pub(super) struct Shared {
    pub(super) clock: Arc<dyn Clock>,
    /// Never held while a clock is called, or a waker called, copied or dropped.
    pub(super) line: Mutex<Line>,
}

impl Shared {
    pub(super) fn new(clock: Arc<dyn Clock>, line: Line) -> Arc<Self> {
        Arc::new(Self { clock, line: Mutex::new(line) })
    }

    /// Makes a permit of an answer that grants places.
    pub(super) fn permit(self: &Arc<Self>, answer: Answer) -> Result<Permit, Denied> {
        match answer {
            Ok(receipt) => Ok(Permit { shared: Arc::clone(self), receipt: Some(receipt) }),
            Err(refused) => Err(Answered::settled(refused, 0).into()),
        }
    }

    fn leave(&self, receipt: &Receipt, outcome: Outcome) {
        let due: Due = self.line.lock().leave(receipt, outcome);
        due.settle();
    }
}

/// The right to be inside a [`Bulkhead`](crate::Bulkhead). Dropping it returns its places and reports no outcome: a panic, or a caller who
/// hung up, says nothing about how the work went.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit {
    shared: Arc<Shared>,
    /// `None` once the places were returned.
    receipt: Option<Receipt>,
}

impl Permit {
    /// Returns how many places it holds.
    #[must_use]
    pub fn places(&self) -> u64 {
        self.receipt.map_or(0, |receipt| receipt.cost.units())
    }

    /// Returns its places and says how the work ended. The number of places of a bulkhead is fixed, so it makes no use of the outcome.
    pub fn leave(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(receipt) = self.receipt.take() {
            self.shared.leave(&receipt, outcome);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(Outcome::Ignored);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places()).finish_non_exhaustive()
    }
}

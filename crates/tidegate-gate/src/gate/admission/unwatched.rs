//! Ends an admission whose end nobody awaits.

use std::ops::Deref;

use tidegate_core::Outcome;

use super::Admission;
use crate::gate::Gate;
use crate::gate::charged::{ChargedLine, Part};
use tidegate_limits::store::StoreError;

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Settles a part of the charges without waiting for engines, and drops the rest: its places are left, and its charges
    /// stay.
    pub(in crate::gate) fn end_unwatched(
        mut self,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        self.is_done(outcome != Outcome::Ignored);
        // The work was done, or may have been, so a drop leaves places and keeps charges.
        self.undo = false;
        self.gate.settle_unwatched(&self.charged, self.charged.of(part), outcome, used)
    }
}

//! The right to be inside.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Outcome, Tick};

use super::line::{Answer, Granted};
use super::shared::Shared;
use crate::answer::Denied;

/// The right to be inside a [`Bulkhead`](crate::Bulkhead). Dropping it returns its places and reports no outcome: a panic, or a caller who
/// hung up, says nothing about how the work went.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit {
    shared: Arc<Shared>,
    granted: Granted,
    /// When the work began; only kept where a law asks how long it took.
    began: Tick,
    /// Reported when it is dropped.
    outcome: Outcome,
}

impl Permit {
    /// Makes a permit of places that were granted. Nothing foreign is called between the two: a panic would lose the places. So the clock
    /// was read before them: [`Shared::begin`].
    #[inline]
    pub(super) fn new(shared: &Arc<Shared>, granted: Granted, began: Tick) -> Self {
        Self { shared: Arc::clone(shared), granted, began, outcome: Outcome::Ignored }
    }

    /// Makes a permit of an answer that grants places.
    pub(super) fn of(shared: &Arc<Shared>, answer: Answer, began: Tick) -> Result<Self, Denied> {
        answer.map(|granted| Self::new(shared, granted, began)).map_err(|retry| shared.denied(retry))
    }

    /// Returns how many places it holds.
    #[must_use]
    pub const fn places(&self) -> u64 {
        self.granted.places()
    }

    /// Returns its places and says how the work ended. A fixed number of places makes no use of the outcome; the law of an
    /// [adaptive](crate::Bulkhead::adaptive) one learns from it and from the time since this permit was given.
    pub fn leave(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.shared.leave(&self.granted, &self.began, self.outcome);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places()).finish_non_exhaustive()
    }
}

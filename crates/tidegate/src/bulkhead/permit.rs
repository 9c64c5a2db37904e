//! The right to be inside, and its end.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Outcome, Tick};

use super::counter::Counter;
use super::line::{Answer, Granted};
use super::shared::Shared;
use crate::answer::Denied;

/// The right to be inside a [`Bulkhead`](crate::Bulkhead). Dropping it returns its places and reports no outcome: a panic, or a caller who
/// hung up, says nothing about how the work went. It may outlive the bulkhead.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit {
    granted: Granted,
    holder: Holder,
}

/// What the places are returned to.
enum Holder {
    /// The counter alone, where nobody asks how long the work took or whose places they were. No reference count is touched.
    Counter(&'static Counter),
    /// The bulkhead, kept alive until then.
    Bulkhead {
        shared: Arc<Shared>,
        /// When the work began.
        began: Tick,
        /// Reported when the permit is dropped.
        outcome: Outcome,
    },
}

impl Permit {
    /// Makes a permit of places that were granted. Nothing foreign is called between the two: a panic would lose the places. So the clock was
    /// read before them, by [`Shared::begin`].
    #[inline]
    pub(super) fn new(shared: &Arc<Shared>, granted: Granted, began: Tick) -> Self {
        let holder = match shared.counter() {
            Some(counter) => Holder::Counter(counter),
            None => Holder::Bulkhead { shared: Arc::clone(shared), began, outcome: Outcome::Ignored },
        };
        Self { granted, holder }
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
    #[inline]
    pub fn leave(mut self, outcome: Outcome) {
        if let Holder::Bulkhead { outcome: reported, .. } = &mut self.holder {
            *reported = outcome;
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        match &self.holder {
            Holder::Counter(counter) => counter.leave(&self.granted),
            Holder::Bulkhead { shared, began, outcome } => shared.leave(&self.granted, began, *outcome),
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places()).finish_non_exhaustive()
    }
}

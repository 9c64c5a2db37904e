//! What the observer of a bulkhead is told. It is called with no lock held, and after places are in order.

use std::time::Duration;

use tidegate_core::Outcome;

use super::super::latency::Times;
use super::super::rules::TurnedAway;
use super::super::waiters::Granted;
use super::{BulkheadState, DeferredPanic};
use crate::answer::Denied;
use crate::observer::PlaceDid;

impl BulkheadState {
    #[inline]
    pub(in crate::bulkhead) const fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Tells the observer, if there is one. Its panic goes on, unless another one is under way.
    pub(in crate::bulkhead) fn tell(&self, did: PlaceDid) {
        self.tell_held(did).resume_unless_panicking();
    }

    /// Tells the observer, if there is one. Returns its panic.
    pub(super) fn tell_held(&self, did: PlaceDid) -> DeferredPanic {
        match &self.observer {
            Some(observer) => DeferredPanic::of(|| observer.on_place(did)).1,
            None => DeferredPanic::default(),
        }
    }

    /// Tells the observer that a caller has places. If that panics, they are returned. Called before the permit is made: the
    /// fast path then keeps no permit across a call.
    #[cold]
    pub(in crate::bulkhead) fn tell_entered(&self, granted: Granted, times: Times, waited: Duration) {
        let panicked = self.tell_held(PlaceDid::Entered { waited });
        // During another panic this one is swallowed, and the caller gets its permit.
        if panicked.is_some() && !std::thread::panicking() {
            let again = DeferredPanic::of(|| self.leave(&granted, &times, Outcome::Ignored)).1;
            panicked.or(again).resume();
        }
    }

    /// Makes the refusal of a caller that waited for this time, and tells the observer.
    #[cold]
    pub(in crate::bulkhead) fn refuse(&self, refused: TurnedAway, waited: Duration) -> Denied {
        let denied = self.denied(refused);
        self.tell(PlaceDid::Refused { cause: refused.why, waited });
        denied
    }
}

//! The right to be inside: owned, or borrowed from the bulkhead.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::{Outcome, Tick};

use super::line::{Answer, Granted};
use super::shared::Shared;
use crate::answer::Denied;

/// The right to be inside a [`Bulkhead`](crate::Bulkhead). Dropping it returns its places and reports no outcome: a panic, or a caller who
/// hung up, says nothing about how the work went.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit(Held<Arc<Shared>>);

/// The right to be inside a [`Bulkhead`](crate::Bulkhead) that it borrows, of [`Bulkhead::try_enter_borrowed`](crate::Bulkhead::try_enter_borrowed);
/// otherwise as a [`Permit`].
#[must_use = "dropping a permit returns its place at once"]
pub struct BorrowedPermit<'a>(Held<&'a Shared>);

/// Places that are held. `S` is how the bulkhead is reached: an `Arc` of what its clones share, or a reference to it.
struct Held<S: Deref<Target = Shared>> {
    shared: S,
    granted: Granted,
    /// When the work began; only kept where a law asks how long it took.
    began: Tick,
    /// Reported when it is dropped.
    outcome: Outcome,
}

impl<S: Deref<Target = Shared>> Held<S> {
    /// Holds places that were granted. Nothing foreign is called between the two: a panic would lose the places. So the clock was read before
    /// them: [`Shared::begin`].
    #[inline]
    const fn new(shared: S, granted: Granted, began: Tick) -> Self {
        Self { shared, granted, began, outcome: Outcome::Ignored }
    }

    #[inline]
    fn leave(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<S: Deref<Target = Shared>> Drop for Held<S> {
    #[inline]
    fn drop(&mut self) {
        self.shared.leave(&self.granted, &self.began, self.outcome);
    }
}

impl Permit {
    /// Makes a permit of places that were granted, at once: see [`Held::new`].
    #[inline]
    pub(super) fn new(shared: &Arc<Shared>, granted: Granted, began: Tick) -> Self {
        Self(Held::new(Arc::clone(shared), granted, began))
    }

    /// Makes a permit of an answer that grants places.
    pub(super) fn of(shared: &Arc<Shared>, answer: Answer, began: Tick) -> Result<Self, Denied> {
        answer.map(|granted| Self::new(shared, granted, began)).map_err(|retry| shared.denied(retry))
    }

    /// Returns how many places it holds.
    #[must_use]
    pub const fn places(&self) -> u64 {
        self.0.granted.places()
    }

    /// Returns its places and says how the work ended. A fixed number of places makes no use of the outcome; the law of an
    /// [adaptive](crate::Bulkhead::adaptive) one learns from it and from the time since this permit was given.
    #[inline]
    pub fn leave(self, outcome: Outcome) {
        self.0.leave(outcome);
    }
}

impl<'a> BorrowedPermit<'a> {
    #[inline]
    pub(super) fn new(shared: &'a Arc<Shared>, granted: Granted, began: Tick) -> Self {
        Self(Held::new(shared, granted, began))
    }

    /// Returns its place and says how the work ended, as [`Permit::leave`].
    #[inline]
    pub fn leave(self, outcome: Outcome) {
        self.0.leave(outcome);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places()).finish_non_exhaustive()
    }
}

impl fmt::Debug for BorrowedPermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedPermit").finish_non_exhaustive()
    }
}

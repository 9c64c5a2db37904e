//! A request that a gate has admitted, until it ends.

use std::fmt;
use std::sync::Arc;

use tidegate::{Admission, Gate, GateDecision, Outcome};

use crate::call_notes::outcome_of_drop;
use crate::guarded::Entered;
use crate::name::Name;
use crate::real_cost::Spent;

/// An admission of a gate, which the [body](crate::body::HeldBody) of an answer holds until it ends: see
/// [`GateLayer::until_body_ends`](crate::GateLayer::until_body_ends).
pub struct HeldAdmission {
    admission: Admission<Arc<Gate>>,
    spent: Option<Spent>,
    /// Whose observer is told if a store does not settle.
    name: Name,
}

impl Entered for HeldAdmission {
    fn leave(self, outcome: Outcome) {
        finish_unwatched(self.admission, self.spent.as_ref(), outcome, &self.name);
    }
}

impl fmt::Debug for HeldAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldAdmission").field("admission", &self.admission).finish_non_exhaustive()
    }
}

/// Ends an admission whose end nobody awaits, by what the handler has reported.
fn finish_unwatched(admission: Admission<Arc<Gate>>, spent: Option<&Spent>, outcome: Outcome, name: &Name) {
    let usage = spent.and_then(Spent::usage);
    if let Err(error) = admission.finish_unwatched(outcome, usage.as_ref()) {
        name.not_settled(&error);
    }
}

/// An admitted request while its service is being called. Dropped, it reports the outcome of a drop.
pub(super) struct InGate<'n> {
    /// `None` once it has ended, or a body holds it.
    admission: Option<Admission<Arc<Gate>>>,
    spent: Option<Spent>,
    name: &'n Name,
}

impl<'n> InGate<'n> {
    pub(super) const fn new(admission: Admission<Arc<Gate>>, spent: Option<Spent>, name: &'n Name) -> Self {
        Self { admission: Some(admission), spent, name }
    }

    pub(super) fn decision(&self) -> &GateDecision {
        self.admission.as_ref().expect("it has not ended")
    }

    /// Tells the observer how the work ended, and returns the admission, which the caller still has to settle, and what
    /// settles it.
    pub(super) fn ended(mut self, outcome: Outcome) -> (Admission<Arc<Gate>>, Option<Spent>) {
        self.name.ended(outcome);
        (self.admission.take().expect("it has not ended"), self.spent.take())
    }

    /// Hands the admission over to the body of the answer, which ends it and tells the observer.
    pub(super) fn held(mut self) -> (HeldAdmission, Name) {
        let (admission, spent) = (self.admission.take().expect("it has not ended"), self.spent.take());
        (HeldAdmission { admission, spent, name: self.name.clone() }, self.name.clone())
    }
}

impl Drop for InGate<'_> {
    fn drop(&mut self) {
        let Some(admission) = self.admission.take() else { return };
        if std::thread::panicking() {
            return;
        }
        let outcome = outcome_of_drop();
        finish_unwatched(admission, self.spent.as_ref(), outcome, self.name);
        self.name.ended(outcome);
    }
}

//! A request that a gate has admitted, until it ends.

use std::sync::Arc;

use tidegate::store::StoreError;
use tidegate::{Admission, Gate, GateDecision, Outcome};

use crate::given_up::outcome_of_drop;
use crate::name::Name;

pub(super) struct InGate<'n> {
    /// `None` once it has ended.
    admission: Option<Admission<Arc<Gate>>>,
    name: &'n Name,
}

impl<'n> InGate<'n> {
    pub(super) const fn new(admission: Admission<Arc<Gate>>, name: &'n Name) -> Self {
        Self { admission: Some(admission), name }
    }

    pub(super) fn decision(&self) -> &GateDecision {
        self.admission.as_ref().expect("it has not ended")
    }

    /// Tells the observer how the work ended, and returns the admission, which the caller still has to settle.
    pub(super) fn ended(mut self, outcome: Outcome) -> Admission<Arc<Gate>> {
        self.name.ended(outcome);
        self.admission.take().expect("it has not ended")
    }
}

impl Drop for InGate<'_> {
    fn drop(&mut self) {
        let Some(admission) = self.admission.take() else { return };
        if std::thread::panicking() {
            return;
        }
        let outcome = outcome_of_drop();
        if outcome != Outcome::Ignored {
            match admission.finish(outcome) {
                // The store needs to be awaited, which a drop cannot do: the admission is dropped unsettled.
                Ok(()) | Err(StoreError::MustWait) => {}
                Err(error) => self.name.not_settled(&error),
            }
        }
        self.name.ended(outcome);
    }
}

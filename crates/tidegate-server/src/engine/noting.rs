//! Notes the outcome of a call for its tracing span.

use tidegate::policy::Descriptor;
use tidegate::store::DecidedBy;

use super::{Conclusion, Engine};
use crate::call_notes;

impl Engine {
    /// Notes a decision. If a call has several, the first that may not pass is kept, otherwise the first.
    pub(super) fn note_conclusion(&self, request: &Descriptor<'_>, conclusion: &Conclusion) {
        call_notes::note(|notes| {
            let told = matches!(notes.outcome, Some("denied" | "error"));
            if told || notes.outcome.is_some() && conclusion.allowed() {
                return;
            }
            let decision = match conclusion {
                Conclusion::Unsettled { policy, .. } => {
                    (notes.outcome, notes.key) = (Some("error"), None);
                    notes.policy.clone_from(policy);
                    return;
                }
                Conclusion::Decided(decision) => decision,
            };
            notes.outcome = Some(match decision.allowed {
                false => "denied",
                true if decision.wait.is_zero() => "allowed",
                true => "delayed",
            });
            notes.by_fallback = decision.by == DecidedBy::Fallback;
            let policy = decision.policy().map(|at| &decision.policies.policies()[at]);
            notes.policy = policy.map(|policy| policy.name.clone());
            let key = |policy| self.redact.key(&decision.policies, policy, request, notes.reveals_keys);
            notes.key = policy.map(key);
        });
    }
}

//! Tells the log of denials: which policy refused, whom, and by which name the decision can be asked for.
//!
//! Keys are shown as digests. The list of top keys has the same ones, and shows the keys themselves to whoever may see them.

use tidegate::policy::Descriptor;
use tidegate::{GateDecision, Retry};
use tracing::Level;
use ulid::Ulid;

use super::Engine;
use crate::live::Live;

/// What the log calls these lines: `TIDEGATE_LOG=info,tidegate_server::denials=off` leaves them out.
const TARGET: &str = "tidegate_server::denials";

impl Engine {
    /// Tells the log of a denial, unless it is left out.
    pub(super) fn tell_denial(
        &self,
        live: &Live,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        id: Ulid,
    ) {
        if !tracing::enabled!(target: TARGET, Level::INFO) {
            return;
        }
        let by_list = decision.denied_by_list.as_ref();
        let bound = decision.binding.map(|at| decision.limits[at].policy);
        // The list of the whole set is no policy's, and says nothing here; nor does a check that another one of its call refuses.
        let Some(at) = by_list.map_or(bound, |refusal| refusal.policy) else { return };
        let facts = live.facts(&decision.policies, &self.metrics);
        let Some(left_out) = facts[at].denials.turn(&self.denials) else { return };
        let policy = &decision.policies.policies()[at];
        let key = self.redact.key(&decision.policies, policy, request, false);
        let retry_after_ms = match decision.retry() {
            Retry::After(wait) => u64::try_from(wait.as_millis()).ok(),
            _ => None,
        };
        tracing::info!(
            target: TARGET,
            policy = policy.name,
            decision_id = %id,
            key,
            retry_after_ms,
            left_out,
            "denied"
        );
    }
}

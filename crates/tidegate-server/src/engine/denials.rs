//! Logs denials: the policy that refused, the key it refused, and the id by which the decision can be looked up.
//!
//! Keys are logged as digests. The list of top keys shows the same digests, and shows callers with the right to see
//! them the keys themselves.

use tidegate::policy::Descriptor;
use tidegate::{GateDecision, Retry};
use tracing::Level;
use ulid::Ulid;

use super::Engine;
use crate::live::Live;

/// The log target of these lines: `TIDEGATE_LOG=info,tidegate_server::denials=off` turns them off.
const TARGET: &str = "tidegate_server::denials";

impl Engine {
    /// Logs a denial, unless the log is rate-limited or turned off.
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
        let by_list = decision.refusal.as_ref();
        let bound = decision.binding.map(|at| decision.limits[at].policy);
        // Not logged: refusals by the deny list of the whole set, which belongs to no policy, and checks that only
        // another check of their call refuses.
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

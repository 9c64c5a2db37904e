//! Logs denials: the policy that refused, by what (a list, a block, a limit, ...), the key it refused, and the id by
//! which the decision can be looked up.
//!
//! Keys are logged as digests. The list of top keys shows the same digests, and shows callers with the right to see
//! them the keys themselves.

use tidegate::explain::key_text;
use tidegate::policy::{AccessEntry, Descriptor};
use tidegate::{GateDecision, Retry};
use tracing::Level;
use ulid::Ulid;

use super::Engine;
use crate::file_list;
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
        let Some(refuser) = Refuser::of(decision, request) else { return };
        let facts = live.facts(&decision.policies, &self.metrics);
        let (log, policy, key) = match refuser.source {
            Source::FileList(entry) => (&self.file_list.denials, file_list::NAME, file_list::key(entry)),
            Source::Policy(at) => {
                let policy = &decision.policies.policies()[at];
                let key = key_text(&decision.policies, policy, request);
                (&*facts[at].denials, policy.name.as_str(), key)
            }
        };
        let Some(left_out) = log.turn(&self.denials) else { return };
        let key = self.redact.text(&key, false);
        let retry_after_ms = match decision.retry() {
            Retry::After(wait) => u64::try_from(wait.as_millis()).ok(),
            _ => None,
        };
        tracing::info!(
            target: TARGET,
            policy,
            refused_by = refuser.by,
            decision_id = %id,
            key,
            retry_after_ms,
            left_out,
            "denied"
        );
    }
}

/// What refused a request.
struct Refuser<'d> {
    source: Source<'d>,
    /// The word of the log: one of a list that documentation has.
    by: &'static str,
}

enum Source<'d> {
    /// The deny list of the whole file, by this entry.
    FileList(&'d AccessEntry),
    /// The policy with this index.
    Policy(usize),
}

impl<'d> Refuser<'d> {
    /// Returns `None` for a check that only another check of its call refuses.
    fn of(decision: &'d GateDecision, request: &Descriptor<'_>) -> Option<Self> {
        if let Some(refusal) = &decision.refusal {
            let by = match (&refusal.block, refusal.needs) {
                (Some(_), _) => "block",
                (None, Some(_)) => "deadline",
                (None, None) => "list",
            };
            let source = refusal.policy.map_or(Source::FileList(&refusal.entry), Source::Policy);
            return Some(Self { source, by });
        }
        let line = &decision.limits[decision.binding?];
        let brought = decision.quota_of(line, request).is_some_and(|(_, brought)| brought);
        let limit = decision.policies.policies()[line.policy].limit(line.limit);
        // A quota that the check brought stands in place of the policy's own.
        let by = match limit.filter(|_| !brought) {
            Some(limit) if limit.is_breaker() => "breaker",
            Some(limit) if limit.is_guard() => "concurrency",
            _ => "limit",
        };
        Some(Self { source: Source::Policy(line.policy), by })
    }
}

//! Counts decisions that were made without their engine, and turns them into answers.
//!
//! The library makes these decisions ([`tidegate::store::fallback`]). A policy with `on_store_error: deny` answers 503.
//! One with `on_store_error: allow` is left out of the answer, since it counts nothing.

use std::sync::Arc;

use tidegate::GateDecision;
use tidegate::policy::{Mode, OnStoreError, Policy};
use tidegate::store::StoreError;

use super::Deciding;
use crate::active_config::ActiveConfig;
use crate::engine::Conclusion;
use crate::engine::telemetry::tally;
use crate::metrics::Decided;

impl Deciding {
    /// Counts a decision that was made without the engine, then does what [`Deciding::left_by_engine`] does.
    pub(super) fn without_engine(
        &self,
        live: &ActiveConfig,
        decision: &mut GateDecision,
    ) -> Option<Conclusion> {
        self.base.count_store_error();
        let policies = decision.policies.policies();
        let facts = live.facts(&decision.policies, &self.base.metrics);
        for at in matching(decision) {
            tally(&facts[at], policies[at].mode == Mode::Enforce).count(Decided::error);
        }
        self.left_by_engine(decision)
    }

    /// Turns a decision that was made without the engine into its answer: keeps only the limits of policies with
    /// `on_store_error: local`, and picks the binding one anew. Returns another conclusion if a policy refuses, or if
    /// no limit is left.
    pub(super) fn left_by_engine(&self, decision: &mut GateDecision) -> Option<Conclusion> {
        let outage = self.storage.down();
        let reason = outage.as_deref().unwrap_or("it could not decide this request");
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        let set = Arc::clone(&decision.policies);
        let policy = |at: usize| -> &Policy { &set.policies()[at] };
        let closes = |at: &usize| {
            policy(*at).on_store_error == OnStoreError::Deny && policy(*at).mode == Mode::Enforce
        };
        if let Some(closed) = matching(decision).find(closes).map(|at| policy(at).name.clone()) {
            return Some(Conclusion::Unsettled { allowed: false, policy: Some(closed), error });
        }
        let bound = decision.binding.map(|at| (decision.limits[at].policy, decision.limits[at].limit));
        decision.limits.retain(|limit| policy(limit.policy).on_store_error == OnStoreError::Local);
        if decision.limits.is_empty() {
            return Some(Conclusion::Unsettled { allowed: true, policy: None, error });
        }
        let enforced = || decision.limits.iter().enumerate().filter(|(_, limit)| limit.binding);
        decision.binding = enforced()
            .find(|(_, limit)| Some((limit.policy, limit.limit)) == bound)
            .or_else(|| enforced().min_by_key(|(_, limit)| limit.remaining()))
            .map(|(at, _)| at);
        None
    }

    /// Makes the conclusion of a request that could not be decided at all: because of a bug here or in the store, or
    /// because the time that its caller gives was over first. It is refused in each case, also where
    /// `on_store_error: allow` lets requests pass: a caller must not get through uncharged by giving little time.
    pub(super) fn undecided(&self, error: StoreError) -> Conclusion {
        if error == StoreError::DeadlinePassed {
            // Not a failure of the store, so it is neither counted as one nor logged as a bug.
            tracing::debug!(%error, "a request could not be decided");
        } else {
            self.base.count_store_error();
            tracing::error!(%error, "a request could not be decided");
        }
        Conclusion::Unsettled { allowed: false, policy: None, error }
    }
}

/// Returns the index of each policy that took part in a decision, once.
fn matching(decision: &GateDecision) -> impl Iterator<Item = usize> {
    decision.limits.chunk_by(|one, next| one.policy == next.policy).map(|lines| lines[0].policy)
}

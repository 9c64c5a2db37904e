//! What a server says of decisions that were made without their engine, and of the engine going and coming back.
//!
//! How they are made is the library's ([`Fallback`]); here they are counted, told, and given the form of their answers: a policy with
//! `on_store_error: deny` answers 503, one with `allow` has no part in the answer, since it counts nothing.

use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{Mode, OnStoreError, Policy};
use tidegate::store::fallback::Change;
use tidegate::store::{Fallback, Store, StoreError};
use tidegate::{Clock, GateDecision};

use super::{Conclusion, Engine, tally};
use crate::live::Live;
use crate::metrics::{Decided, Metrics, StoreState};

/// How a store is, as health has it.
#[derive(Debug)]
pub(crate) struct Outage {
    /// Why the engine is not asked.
    pub(crate) reason: Arc<str>,
    /// For how long.
    pub(crate) lasts: Duration,
}

/// Returns what stands between the gate and a store, where the store may fail: one in memory cannot, and needs nothing.
pub(super) fn fallback_for(
    store: &Arc<dyn Store>,
    kind: &'static str,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Option<Fallback> {
    if store.caps().always_decides {
        return None;
    }
    let states = metrics.store_states(kind);
    let told = move |change: &Change| tell(change, kind, &states);
    Some(Fallback::around(Arc::clone(store), Arc::clone(clock)).on_change(told).build())
}

fn tell(change: &Change, store: &'static str, states: &StoreState) {
    states.turn(change.up);
    let (reason, lasted_ms) = (&*change.reason, change.lasted.as_millis());
    match change.up {
        true => tracing::info!(
            store,
            reason,
            lasted_ms,
            decided_without_it = change.without_engine,
            "the store is back"
        ),
        false => tracing::warn!(
            store,
            reason,
            "the store is gone; until it is back, policies go by on_store_error"
        ),
    }
}

impl Engine {
    /// Returns the outage there is.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let health = self.fallback.as_ref()?.health();
        Some(Outage { reason: health.down?, lasts: self.now().since(health.since) })
    }

    /// Gives a decision that was made without the engine the form of its answer, and counts it.
    pub(super) fn without_engine(&self, live: &Live, mut decision: GateDecision) -> Conclusion {
        self.metrics.store_error(self.store_kind);
        let outage = self.fallback.as_ref().and_then(|fallback| fallback.health().down);
        let reason = outage.as_deref().unwrap_or("it could not decide this request");
        let error = StoreError::Unavailable { reason: reason.to_owned() };
        let set = Arc::clone(&decision.policies);
        let policy = |at: usize| -> &Policy { &set.policies()[at] };
        let facts = live.facts(&decision.policies, &self.metrics);
        let mut matching: Vec<usize> = decision.limits.iter().map(|limit| limit.policy).collect();
        matching.dedup();
        for at in &matching {
            tally(&facts[*at], policy(*at).mode == Mode::Enforce).count(Decided::error);
        }
        let closes = |at: &&usize| {
            policy(**at).on_store_error == OnStoreError::Deny && policy(**at).mode == Mode::Enforce
        };
        if let Some(closed) = matching.iter().find(closes).map(|at| policy(*at).name.clone()) {
            return Conclusion::Unsettled { allowed: false, policy: Some(closed), error };
        }
        let bound = decision.binding.map(|at| (decision.limits[at].policy, decision.limits[at].limit));
        decision.limits.retain(|limit| policy(limit.policy).on_store_error == OnStoreError::Local);
        if decision.limits.is_empty() {
            return Conclusion::Unsettled { allowed: true, policy: None, error };
        }
        let enforced = || decision.limits.iter().enumerate().filter(|(_, limit)| limit.binding);
        decision.binding = enforced()
            .find(|(_, limit)| Some((limit.policy, limit.limit)) == bound)
            .or_else(|| enforced().min_by_key(|(_, limit)| limit.decision.standing.remaining))
            .map(|(at, _)| at);
        Conclusion::Decided(decision)
    }

    /// Answers a request that could not be decided at all, by a mistake of ours or of whoever wrote the store.
    pub(super) fn undecided(&self, error: StoreError) -> Conclusion {
        self.metrics.store_error(self.store_kind);
        tracing::error!(%error, "a request could not be decided");
        Conclusion::Unsettled { allowed: false, policy: None, error }
    }
}

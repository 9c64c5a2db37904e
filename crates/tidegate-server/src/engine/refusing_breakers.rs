//! Which breaker has refused a request; and the notes about breakers that were found refusing.

use tidegate::GateDecision;
use tidegate::gate::KeyedView;
use tidegate::policy::{Descriptor, Limit};
use tidegate::store::{BreakerView, DecidedBy, Handling};

use super::breaker_registry::{Occasion, breaker_of, charge_of, only_quota};
use super::{Conclusion, Engine};

impl Engine {
    /// Remembers the breakers that refuse a request and are not noted as refusing. Asks no store.
    pub(super) fn remember_refusers(&self, request: &Descriptor<'_>, decision: &GateDecision) {
        if decision.by == DecidedBy::Fallback {
            // The breakers of this node alone, which refuse until the engine is back, are not those of the list.
            return;
        }
        for line in decision.limits.iter().filter(|line| !line.decision.is_allowed()) {
            let policy = &decision.policies.policies()[line.policy];
            if !policy.limit(line.limit).is_some_and(Limit::is_breaker) {
                continue;
            }
            let Some(key) = decision.policies.key(line.policy, line.limit, request) else { continue };
            if !self.breakers.is_noted_as_refusing(&key) {
                self.breakers.unnoted.add(&key, &policy.name, line.limit);
            }
        }
    }

    /// Notes the breakers that have refused a request since the last call and had no note. After an error of the store
    /// the others wait for their next refusal.
    pub(crate) async fn note_refusers(&self) {
        for (key, (policy, limit)) in self.breakers.unnoted.take() {
            let live = self.base.live();
            let Some((words, quota)) = breaker_of(&live, &policy, limit) else { continue };
            let charge = charge_of(words, limit, &key, quota);
            let handled = self.base.gate.handle_breaker_async(words.share, &charge, Handling::Look).await;
            let Ok((view, at)) = handled else { return };
            if let Some(view) = view {
                self.note(KeyedView::new(&key, &policy, limit, view, at), Occasion::Refused);
            }
        }
    }

    /// Returns the state of the breaker that refuses a request; `None` if none does, or its state is not known. In a store
    /// of this process it is the present state, otherwise the one that was last seen: a refusal costs no exchange with
    /// an engine.
    pub(crate) fn refusing_breaker(
        &self,
        request: &Descriptor<'_>,
        conclusion: &Conclusion,
    ) -> Option<BreakerView> {
        let Conclusion::Decided(decision) = conclusion else { return None };
        let bound = decision.binding.filter(|_| !decision.allowed).map(|at| &decision.limits[at])?;
        let policy = &decision.policies.policies()[bound.policy];
        policy.limit(bound.limit).filter(|limit| Limit::is_breaker(limit))?;
        let key = decision.policies.key(bound.policy, bound.limit, request)?;
        let charge = charge_of(policy, bound.limit, &key, only_quota(policy, bound.limit)?);
        match self.base.gate.handle_breaker(policy.share, &charge, Handling::Look) {
            Ok((seen, _)) => seen,
            Err(_) => self.breakers.last_seen(&key),
        }
    }
}

//! What becomes of breakers at a reload, and which of them has refused a request.

use tidegate::gate::KeyedView;
use tidegate::policy::{Descriptor, Limit};
use tidegate::store::{BreakerView, Charge, Handling};
use tidegate::{Cost, Quota};

use super::breakers::{charge_of, only_quota, replace_of};
use super::{Conclusion, Engine};

impl Engine {
    /// Carries breakers over to their changed limits, and notes their new states. Without it a store does so at the next
    /// use of each key: a breaker that nobody uses before its limit is changed back would still be open.
    ///
    /// Returns how many were not carried over, since the store did not answer. It is not asked again after that, so that
    /// an engine that is gone does not hold up a reload once for each breaker.
    pub(crate) async fn start_anew(&self, breakers: &[KeyedView]) -> usize {
        for (at, KeyedView { key, policy, limit, .. }) in breakers.iter().enumerate() {
            let live = self.live();
            let Some((_, words)) = live.set.find(policy) else { continue };
            let Some(quota) = only_quota(words, *limit) else { continue };
            let charge = match **quota {
                Quota::Breaker(_) => charge_of((words, *limit), key, quota),
                _ => Charge { replace: replace_of(words, *limit), ..Charge::new(key, quota, Cost::ONE) },
            };
            if self.look(words, *limit, &charge, Handling::Adopt).await.is_err() {
                return breakers.len() - at;
            }
        }
        0
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
        let charge = charge_of((policy, bound.limit), &key, only_quota(policy, bound.limit)?);
        match self.gate.handle_breaker(policy.share, &charge, Handling::Look) {
            Ok((seen, _)) => seen,
            Err(_) => self.breakers.last_seen(&key),
        }
    }
}

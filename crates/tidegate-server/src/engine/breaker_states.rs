//! What becomes of breakers at a reload, and which of them has refused a request.

use std::time::Duration;

use tidegate::gate::KeyedView;
use tidegate::policy::{Descriptor, Limit};
use tidegate::store::{BreakerView, Charge, Handling, StoreError};
use tidegate::{Cost, Quota};

use super::breakers::{charge_of, only_quota, replace_of};
use super::{Conclusion, Engine};

/// How long a reload waits for a store that carries its breakers over.
const STARTED_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    /// Carries breakers over to their changed limits, and notes their new states. Without it a store does so at the next
    /// use of each key: a breaker that nobody uses before its limit is changed back would still be open.
    ///
    /// Returns how many were not carried over, since the store did not answer, or not within five seconds for all of them.
    /// After an error it is not asked again, so that an engine that is gone does not hold up a reload.
    pub(crate) async fn start_anew(&self, breakers: &[KeyedView]) -> usize {
        let mut done = 0;
        let all = tokio::time::timeout(STARTED_WITHIN, self.carry_over(breakers, &mut done)).await;
        if matches!(all, Ok(Ok(()))) { 0 } else { breakers.len() - done }
    }

    /// Carries breakers over one after the other, and counts in `done` how many are.
    async fn carry_over(&self, breakers: &[KeyedView], done: &mut usize) -> Result<(), StoreError> {
        for KeyedView { key, policy, limit, .. } in breakers {
            let live = self.live();
            let found =
                live.set.find(policy).and_then(|(_, words)| Some((words, only_quota(words, *limit)?)));
            let Some((words, quota)) = found else {
                *done += 1;
                continue;
            };
            let charge = match **quota {
                Quota::Breaker(_) => charge_of((words, *limit), key, quota),
                _ => Charge { replace: replace_of(words, *limit), ..Charge::new(key, quota, Cost::ONE) },
            };
            self.look(words, *limit, &charge, Handling::Adopt).await?;
            *done += 1;
        }
        Ok(())
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

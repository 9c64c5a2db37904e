//! What becomes of breakers at a reload.

use std::time::Duration;

use tidegate::gate::KeyedView;
use tidegate::store::{Charge, Handling, StoreError};
use tidegate::{Cost, Quota};

use super::Engine;
use super::breakers::{charge_of, only_quota, replace_of};

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
}

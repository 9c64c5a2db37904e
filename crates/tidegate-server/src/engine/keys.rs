//! Single keys: forgotten for an operator, charged for a caller who brings the limit.

use tidegate::Cost;
use tidegate::policy::Descriptor;
use tidegate::store::{Answer, Charge, Op, StoreError};

use super::Engine;
use crate::live::Live;
use crate::metrics::Transport;

impl Engine {
    /// Forgets what one key has spent under one policy; `key` holds the attributes of the policy's `by`.
    ///
    /// Takes the key, so operators need not invent a matching path.
    pub(crate) async fn reset(
        &self,
        live: &Live,
        policy: usize,
        key: &Descriptor<'_>,
    ) -> Result<(), StoreError> {
        let words = &live.set.policies()[policy];
        let limits = words.limits.iter().chain(&words.shadow_limit).enumerate();
        let quotas = limits.filter_map(|(at, limit)| {
            let quota = limit.all_terms().find_map(|terms| terms.quota.as_ref())?;
            Some((live.set.key(policy, at, key)?, quota))
        });
        let quotas: Vec<_> = quotas.collect();
        let charges: Vec<_> = quotas.iter().map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
        let reset = self.gate.reset_charges_async(&charges).await;
        reset.inspect_err(|_| self.metrics.store_error(self.store_kind))
    }

    /// Settles a limit that a caller brings, under a key that is no policy's.
    pub(crate) async fn settle_brought(&self, op: Op<'_>, charge: Charge<'_>) -> Answer {
        let settled = self.metrics.time(Transport::resp, self.gate.settle_charge_async(op, charge)).await;
        settled.inspect_err(|_| self.metrics.store_error(self.store_kind))
    }
}

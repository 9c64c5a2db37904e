//! Operations on single keys: operators read, block and reset them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::Cost;
use tidegate::breaker::Condition;
use tidegate::gate::{BlockError, PlacesStanding};
use tidegate::policy::{AccessEntry, Block, Descriptor, Limit, PolicySet};
use tidegate::store::{Charge, StoreError};
use tidegate_core::Standing;

use super::Base;
use super::breakers::{Breakers, ListedBreaker, charge_of};
use super::telemetry::BLOCKS;
use crate::active_config::ActiveConfig;
use crate::top_keys::entry_key;

/// The spending of a key was not reset.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}the store did not settle it and nothing is forgotten; try again ({store})",
    if *.unblocked { "the key is not blocked any more, but " } else { "" }
)]
pub(crate) struct NotForgotten {
    /// Whether a block of the key has ended nevertheless.
    unblocked: bool,
    #[source]
    store: StoreError,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LetGo {
    /// Whether the key was blocked.
    pub(crate) unblocked: bool,
    /// The places in use just before: their work goes on without one. `None` if unknown.
    pub(crate) places: Option<u64>,
    /// How many of its breakers stay forced. `None` if unknown.
    pub(crate) still_forced: Option<usize>,
}

/// What the keys of policies have spent, their blocks and their places.
#[derive(Debug)]
pub(crate) struct PolicyKeys {
    base: Arc<Base>,
    /// Says which breakers of a key are forced.
    breakers: Arc<Breakers>,
}

impl PolicyKeys {
    pub(super) fn new(base: Arc<Base>, breakers: Arc<Breakers>) -> Self {
        Self { base, breakers }
    }

    /// Ends the block of a key and resets what it has spent. Forced states of its breakers stay.
    ///
    /// # Errors
    /// [`NotForgotten`] if the store did not reset. The block may have ended even then.
    pub(crate) async fn let_go(
        &self,
        live: &ActiveConfig,
        policy: usize,
        key: &Descriptor<'_>,
    ) -> Result<LetGo, NotForgotten> {
        let unblocked = self.unblock(&live.set.policies()[policy].name, key).await;
        let unblocked = unblocked.map_err(|store| NotForgotten { unblocked: false, store })?;
        // Both looks only tell what the reset does, so it does not depend on them.
        let places = self.places_in_use(live, policy, key).await.ok();
        self.reset(live, policy, key).await.map_err(|store| NotForgotten { unblocked, store })?;
        let breakers = self.breakers.handle(live, policy, key, None).await.ok();
        let is_forced =
            |one: &&ListedBreaker| matches!(one.noted.seen.view.condition, Condition::Forced { .. });
        let still_forced = breakers.map(|breakers| breakers.iter().filter(is_forced).count());
        Ok(LetGo { unblocked, places, still_forced })
    }

    /// Counts the places that a key has in use, under all limits of a policy.
    async fn places_in_use(
        &self,
        live: &ActiveConfig,
        policy: usize,
        key: &Descriptor<'_>,
    ) -> Result<u64, StoreError> {
        let words = &live.set.policies()[policy];
        if !words.limits.iter().chain(&words.shadow_limit).any(Limit::is_guard) {
            return Ok(0);
        }
        let standings = self.standings(live, policy, key).await?;
        let in_use = standings.iter().enumerate().filter_map(|(at, (_, standing))| {
            let standing = standing.filter(|_| words.limit(at).is_some_and(Limit::is_guard))?;
            Some(standing.limit.saturating_sub(standing.remaining).saturating_add(standing.debt))
        });
        Ok(in_use.sum())
    }

    /// Resets what one key has spent under one policy. `key` holds the attributes that the policy's `by` names, not
    /// a request, so that operators need not make up a matching path.
    async fn reset(
        &self,
        live: &ActiveConfig,
        policy: usize,
        key: &Descriptor<'_>,
    ) -> Result<(), StoreError> {
        let words = &live.set.policies()[policy];
        let limits = words.limits.iter().chain(&words.shadow_limit).enumerate();
        let quotas = limits.filter_map(|(at, limit)| {
            let quota = limit.all_terms().find_map(|terms| terms.quota.as_ref())?;
            Some((at, live.set.key(policy, at, key)?, quota))
        });
        let quotas: Vec<_> = quotas.collect();
        let charges: Vec<_> =
            quotas.iter().map(|(at, key, quota)| charge_of(words, *at, key, quota)).collect();
        let reset = self.base.gate.keys().reset(&charges).await;
        reset.inspect_err(|_| self.base.count_store_error())
    }

    /// Returns each limit with the standing of a key. The standing is `None` for breakers, and for limits with
    /// tiers or overrides unless `key` has the attributes that select among them.
    pub(crate) async fn standings(
        &self,
        live: &ActiveConfig,
        policy: usize,
        key: &Descriptor<'_>,
    ) -> Result<Vec<(String, Option<Standing>)>, StoreError> {
        let words = &live.set.policies()[policy];
        let mut standings = Vec::new();
        for (at, limit) in limits_of(&live.set, policy, key).enumerate() {
            let is_known = missing(limit, key).next().is_none() && !limit.is_breaker();
            let terms = if is_known { limit.terms_for(key) } else { &limit.terms };
            let charged = live.set.key(policy, at, key).zip(terms.quota.as_ref()).filter(|_| is_known);
            let standing = match &charged {
                None => None,
                Some((bytes, quota)) => {
                    let charge = Charge::new(bytes, quota, Cost::ONE);
                    let looked = self.base.gate.keys().standing(words.share, charge).await;
                    looked.inspect_err(|_| self.base.count_store_error())?
                }
            };
            standings.push((terms.label.clone(), standing));
        }
        Ok(standings)
    }

    /// Blocks a key for `lasts`; `text` is the key as people read it.
    ///
    /// # Errors
    /// [`BlockError`] if the policy no longer exists, or there is no room.
    pub(crate) fn block(
        &self,
        policy: &str,
        key: &Descriptor<'_>,
        text: &str,
        lasts: Duration,
        reason: &str,
    ) -> Result<Block, BlockError> {
        let now = self.base.now();
        let block = Block::new(text, now, now.after(lasts), reason);
        self.base.gate.blocks().add(policy, key, block.clone())?;
        self.tell_key(Some(policy), text, "blocked");
        Ok(block)
    }

    /// Returns whether there was a block to end.
    ///
    /// # Errors
    /// [`StoreError`] if the store that keeps it did not answer; it has not ended then.
    pub(crate) async fn unblock(&self, policy: &str, key: &Descriptor<'_>) -> Result<bool, StoreError> {
        let ended = self.base.gate.blocks().remove(policy, key).await;
        let ended = ended.inspect_err(|_| self.base.count_store_error())?;
        let Some(ended) = ended else { return Ok(false) };
        self.tell_key(Some(policy), &ended.key, "unblocked");
        Ok(true)
    }

    /// Returns the block of a key.
    ///
    /// # Errors
    /// [`StoreError`] if the store that keeps the block did not answer.
    pub(crate) async fn block_of(
        &self,
        policy: &str,
        key: &Descriptor<'_>,
    ) -> Result<Option<Arc<Block>>, StoreError> {
        self.base.gate.blocks().find(policy, key).await.inspect_err(|_| self.base.count_store_error())
    }

    /// Blocks a caller for all policies.
    ///
    /// # Errors
    /// [`BlockError`] if there is no room.
    pub(crate) fn block_everywhere(
        &self,
        entry: AccessEntry,
        lasts: Duration,
        reason: &str,
    ) -> Result<Block, BlockError> {
        let (now, text) = (self.base.now(), entry_key(&entry));
        let block = Block::new(&text, now, now.after(lasts), reason);
        self.base.gate.blocks().add_everywhere(entry, block.clone())?;
        self.tell_key(None, &text, "blocked");
        Ok(block)
    }

    /// Returns whether there was a block to end.
    pub(crate) fn unblock_everywhere(&self, entry: &AccessEntry) -> bool {
        let Some(ended) = self.base.gate.blocks().remove_everywhere(entry) else { return false };
        self.tell_key(None, &ended.key, "unblocked");
        true
    }

    /// Returns the blocks for all policies.
    pub(crate) fn blocks_everywhere(&self) -> Vec<Arc<Block>> {
        self.base.gate.blocks().list_everywhere()
    }

    /// Returns the block for all policies that refuses these attributes.
    pub(crate) fn blocked_everywhere(&self, request: &Descriptor<'_>) -> Option<Arc<Block>> {
        self.base.gate.blocks().find_everywhere(request)
    }

    /// Returns how many blocks by limits found no room.
    pub(crate) fn blocks_left_out(&self) -> u64 {
        self.base.gate.blocks().left_out()
    }

    /// `policy`: `None` for all.
    fn tell_key(&self, policy: Option<&str>, key: &str, state: &str) {
        let told = || json!({ "policy": policy, "key": self.base.redact.text(key, false), "state": state });
        self.base.events.publish("key", told);
    }

    /// Returns a number that grows with each change of the configuration and of a block by hand.
    #[cfg(feature = "grpc")]
    pub(crate) fn number_in_force(&self, live: &ActiveConfig) -> u64 {
        // Both numbers only grow, so the sum changes whenever either does.
        live.number + self.base.gate.blocks().changes()
    }

    /// Returns how many keys of each policy are blocked.
    pub(crate) fn blocked_keys(&self) -> Vec<(String, usize)> {
        self.base.gate.blocks().counts()
    }

    /// Returns the blocks of a policy.
    pub(crate) fn blocks(&self, policy: &str) -> Vec<Arc<Block>> {
        self.base.gate.blocks().list(policy)
    }

    /// Returns the places of each policy with a single key. Of several limits, the smallest counts.
    pub(crate) fn places(&self, live: &ActiveConfig) -> HashMap<String, PlacesStanding> {
        let mut places: HashMap<String, PlacesStanding> = HashMap::new();
        for one in self.base.gate.places() {
            // The gate's set is another one for a moment during a reload.
            let Some(policy) = live.set.policies().get(one.policy) else { continue };
            let fewest = places.entry(policy.name.clone()).or_insert(one);
            if one.standing.limit < fewest.standing.limit {
                *fewest = one;
            }
        }
        places
    }

    /// Sets the gauges of places and of blocked keys.
    pub(super) fn show(&self, live: &ActiveConfig) {
        let gauges = &self.base.metrics.protection;
        let places = self.places(live);
        let blocked: HashMap<String, usize> = self.blocked_keys().into_iter().collect();
        for policy in live.set.policies() {
            match places.get(&policy.name) {
                Some(one) => gauges.show_places(&policy.name, one.standing.limit, one.in_use()),
                None => gauges.forget_places(&policy.name),
            }
            gauges.show_blocks(&policy.name, blocked.get(&policy.name).copied().unwrap_or(0));
        }
        gauges.show_blocks(BLOCKS, self.base.gate.blocks().list_everywhere().len());
    }
}

/// Returns the limits of a key, in the order of their indices: in the place of the first that of the canary, if it decides
/// about the key.
pub(crate) fn limits_of<'s>(
    set: &'s PolicySet,
    policy: usize,
    key: &Descriptor<'_>,
) -> impl Iterator<Item = &'s Limit> {
    let words = &set.policies()[policy];
    let canary =
        words.canary.as_ref().filter(|_| set.canary_decides(policy, key)).map(|canary| &canary.limit);
    let limits = words.limits.iter().chain(&words.shadow_limit).enumerate();
    limits.map(move |(at, limit)| canary.filter(|_| at == 0).unwrap_or(limit))
}

pub(crate) fn missing<'l>(limit: &'l Limit, key: &Descriptor<'_>) -> impl Iterator<Item = &'l str> {
    let selecting = limit.overrides.iter().chain(&limit.tiers).map(|choice| choice.by.as_str());
    selecting.filter(|name| key.value(name).is_none())
}

//! Manual blocks: requests of a key are refused for a while, whatever their limits say.
//!
//! Blocks belong to this gate alone: nothing is written to a store, other nodes do not know them, and they end with the
//! process. A check costs one relaxed load while there are no blocks, and one lookup per matching policy while there
//! are some.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Check, Gate};
use crate::policy::{AccessEntry, Block, Descriptor, Policy, PolicySet, Refusal};

/// Why a key could not be blocked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The policy does not exist.
    #[error("there is no policy {name:?}")]
    NoPolicy {
        /// The name.
        name: String,
    },
    /// The key lacks an attribute of the policy's `by`, so it would stand for all requests without that attribute.
    #[error("the key has no {attribute:?}, by which the policy is keyed")]
    NoKey {
        /// The attribute.
        attribute: String,
    },
    /// The maximum number of keys is blocked.
    #[error(
        "{} keys are blocked, which is the largest number possible; unblock some first",
        Gate::MOST_BLOCKS
    )]
    TooMany,
}

impl Gate {
    /// The most keys that may be blocked at once. For many more, use a deny-list or a filter in front of this process.
    pub const MOST_BLOCKS: usize = 10_000;

    /// Refuses the requests of one key of a policy until the block ends. `key` has the attributes of the policy's `by`.
    /// An earlier block of the same key is replaced. The block applies to requests that the policy matches, in place of
    /// its limits, and survives a change of policies that keeps the name and `by`. For a policy that is not enforced,
    /// the block has no effect.
    ///
    /// # Errors
    /// [`BlockError`] if there is no such policy, the key lacks an attribute of its `by`, or the maximum number of keys
    /// is blocked.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{Block, Limit};
    /// use tidegate::{Descriptor, Gate, Policy, PolicySet, Quota};
    ///
    /// let mut policy = Policy::new("per-user", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// policy.by = vec!["user.id".to_owned()];
    /// let gate = Gate::in_memory(PolicySet::new(vec![policy])?, 1000)?;
    /// let user = Descriptor::new().with("user.id", "42");
    /// let until = gate.now().after(std::time::Duration::from_secs(600));
    /// gate.block("per-user", &user, Block::new("user.id=42", gate.now(), until, "credential stuffing"))?;
    /// assert!(!gate.check(&user)?.allowed);
    /// assert!(gate.unblock("per-user", &user).is_some());
    /// assert!(gate.check(&user)?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn block(&self, policy: &str, key: &Descriptor<'_>, block: Block) -> Result<(), BlockError> {
        let no_policy = || BlockError::NoPolicy { name: policy.to_owned() };
        let set = self.policies.load();
        let (_, words) = set.find(policy).ok_or_else(no_policy)?;
        if let Some(attribute) = words.by.iter().find(|name| key.value(name).is_none()) {
            return Err(BlockError::NoKey { attribute: attribute.clone() });
        }
        let bytes = blocked_key(&set, policy, key).ok_or_else(no_policy)?;
        let now = self.time.now();
        let mut by_policy = self.blocks.by_policy.write();
        let known = by_policy.get(policy).is_some_and(|keys| keys.contains_key(&*bytes));
        if !known && self.blocks.count(&by_policy) >= Self::MOST_BLOCKS {
            // Blocks of policies that no longer exist have no effect.
            by_policy.retain(|name, _| set.find(name).is_some());
            self.blocks.tidy(&mut by_policy, now);
            if self.blocks.count(&by_policy) >= Self::MOST_BLOCKS {
                return Err(BlockError::TooMany);
            }
        }
        by_policy.entry(policy.into()).or_default().insert(bytes, Arc::new(block));
        self.blocks.note(&by_policy);
        self.blocks.changed();
        Ok(())
    }

    /// Ends the block of a key; returns it if it was still in effect.
    pub fn unblock(&self, policy: &str, key: &Descriptor<'_>) -> Option<Arc<Block>> {
        let bytes = blocked_key(&self.policies.load(), policy, key)?;
        let now = self.time.now();
        let mut by_policy = self.blocks.by_policy.write();
        let ended = by_policy.get_mut(policy)?.remove(&*bytes);
        self.blocks.changed();
        self.blocks.tidy(&mut by_policy, now);
        ended.filter(|block| now < block.until)
    }

    /// Returns the blocks of a policy that have not ended, ordered by key.
    #[must_use]
    pub fn blocks(&self, policy: &str) -> Vec<Arc<Block>> {
        if !self.blocks.any() {
            return Vec::new();
        }
        let now = self.time.now();
        let mut by_policy = self.blocks.by_policy.write();
        self.blocks.tidy(&mut by_policy, now);
        let mut found: Vec<Arc<Block>> =
            by_policy.get(policy).into_iter().flat_map(HashMap::values).cloned().collect();
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found
    }

    /// Returns the number of blocked keys of each policy that has any.
    #[must_use]
    pub fn blocked_keys(&self) -> Vec<(String, usize)> {
        if !self.blocks.any() {
            return Vec::new();
        }
        let now = self.time.now();
        let by_policy = self.blocks.by_policy.read();
        let counted = by_policy.iter().map(|(policy, keys)| {
            (policy.to_string(), keys.values().filter(|block| now < block.until).count())
        });
        counted.filter(|(_, keys)| *keys > 0).collect()
    }

    /// Returns how often keys were blocked and unblocked. A caller that caches an answer must refresh it when the
    /// number has changed.
    #[must_use]
    pub fn block_changes(&self) -> u64 {
        self.blocks.changes()
    }

    /// Returns the refusal of a request before any limit is checked: by a list, a deadline, or a block.
    #[inline(always)]
    pub(super) fn refusal(&self, policies: &PolicySet, check: &Check<'_, '_>) -> Option<Refusal> {
        let listed = policies.refusal(check.request, check.priority, check.among);
        if listed.is_some() || !self.blocks.any() {
            return listed;
        }
        self.blocked(policies, check)
    }

    #[cold]
    #[inline(never)]
    fn blocked(&self, policies: &PolicySet, check: &Check<'_, '_>) -> Option<Refusal> {
        let now = self.time.now();
        let by_policy = self.blocks.by_policy.read();
        policies.refuse_by(check.request, check.priority, check.among, |place, policy| {
            let keys = by_policy.get(policy.name.as_str())?;
            let block = keys.get(&*policies.key(place, 0, check.request)?)?;
            (now < block.until).then(|| refusal(place, policy, block))
        })
    }
}

/// Returns the key of a policy's first limit.
fn blocked_key(set: &PolicySet, policy: &str, key: &Descriptor<'_>) -> Option<Box<[u8]>> {
    let (place, _) = set.find(policy)?;
    Some(set.key(place, 0, key)?.into())
}

fn refusal(place: usize, policy: &Policy, block: &Arc<Block>) -> Refusal {
    let entry = AccessEntry::Attribute { name: "policy".to_owned(), value: policy.name.clone() };
    let (status, block) = (policy.access.status, Some(Arc::clone(block)));
    Refusal { policy: Some(place), entry, status, needs: None, block }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::{Limit, Mode};
    use crate::{ManualClock, Policy, Quota};
    use tidegate_core::{Retry, Tick};

    const NOON: Tick = Tick::from_secs(1_800_014_400);

    fn set(mode: Mode) -> PolicySet {
        let mut policy = Policy::new("per-user", Limit::new(Quota::per_minute(60).gcra().unwrap(), "60/min"));
        (policy.by, policy.mode) = (vec!["user.id".to_owned()], mode);
        PolicySet::new(vec![policy]).unwrap()
    }

    fn user(id: &str) -> Descriptor<'_> {
        Descriptor::new().with("user.id", id)
    }

    #[test]
    fn a_blocked_key_is_refused_until_its_block_ends_and_others_are_not() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(set(Mode::Enforce), 100).unwrap().with_clock(clock.clone());
        let block = Block::new("user.id=1", NOON, NOON.after(Duration::from_secs(60)), "abuse");
        assert!(gate.block("per-usr", &user("1"), block.clone()).is_err());
        gate.block("per-user", &user("1"), block.clone()).unwrap();
        let refused = gate.check(&user("1")).unwrap();
        assert!(!refused.allowed && refused.limits.is_empty(), "no limit is asked");
        assert_eq!(refused.retry(), Retry::After(Duration::from_secs(60)));
        assert_eq!(refused.policy_name(), Some("per-user"));
        assert!(gate.check(&user("2")).unwrap().allowed);
        gate.replace(set(Mode::Enforce));
        assert!(!gate.peek(&user("1")).unwrap().allowed, "it survives a change of the policies");
        gate.replace(set(Mode::Shadow));
        assert!(gate.check(&user("1")).unwrap().allowed, "a shadow refuses nobody");
        gate.replace(set(Mode::Enforce));
        assert_eq!(gate.blocks("per-user").len(), 1);
        clock.set(block.until);
        assert!(gate.check(&user("1")).unwrap().allowed);
        assert!(gate.blocks("per-user").is_empty() && !gate.blocks.any(), "free again");
    }

    #[test]
    fn there_are_so_many_blocks_and_no_more() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(set(Mode::Enforce), 100).unwrap().with_clock(clock.clone());
        let block = |until: u64| Block::new("k", NOON, NOON.after(Duration::from_secs(until)), "");
        for at in 0..Gate::MOST_BLOCKS {
            gate.block("per-user", &user(&at.to_string()), block(60)).unwrap();
        }
        assert_eq!(gate.block("per-user", &user("x"), block(60)), Err(BlockError::TooMany));
        gate.block("per-user", &user("0"), block(120)).unwrap();
        clock.set(NOON.after(Duration::from_secs(60)));
        gate.block("per-user", &user("x"), block(120)).unwrap();
        assert_eq!(gate.blocks("per-user").len(), 2, "those that ended made room");
        assert!(
            gate.unblock("per-user", &user("x")).is_some() && gate.unblock("per-user", &user("x")).is_none()
        );
    }
}

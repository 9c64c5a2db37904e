//! Blocks: requests of a key are refused for a while, whatever their limits say. A person blocks a key, or a limit that the
//! key exceeded does ([`Over::Block`]).
//!
//! Blocks by hand belong to this gate alone: nothing is written to a store, other nodes do not know them, and they end with
//! the process. Blocks by limits are kept where the counters are ([`stored_blocks`](super::stored_blocks)). A check costs
//! one relaxed load while there are no blocks, and one lookup per matching policy while there are some.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::Retry;
use tidegate_core::decision::Ruling;

use super::decide::binding;
use super::waits::{Asking, Waits};
use super::{Check, Gate, GateDecision};
use crate::explain::key_text;
use crate::policy::{AccessEntry, Block, Descriptor, Mode, Over, Policy, PolicySet, Refusal};
use tidegate_limits::store::StoreError;

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
    #[error("{} keys are blocked, which is the largest number possible; unblock some first", Blocks::MOST)]
    TooMany,
}

/// The keys and callers that a gate refuses for a while, see [`Gate::blocks`].
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'g>(&'g Gate);

impl<'g> Blocks<'g> {
    /// The most keys that may be blocked at once. For many more, use a deny-list or a filter in front of this process.
    pub const MOST: usize = 10_000;

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
    /// use tidegate::policy::{Block, Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let mut policy = Policy::new("per-user", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// policy.by = vec!["user.id".to_owned()];
    /// let gate = Gate::in_memory(PolicySet::new(vec![policy])?, 1000)?;
    /// let user = Descriptor::new().with("user.id", "42");
    /// let until = gate.now().after(std::time::Duration::from_secs(600));
    /// gate.blocks().add("per-user", &user, Block::new("user.id=42", gate.now(), until, "credential stuffing"))?;
    /// assert!(!gate.check(&user).now()?.allowed);
    /// assert!(gate.blocks().remove("per-user", &user).now()?.is_some());
    /// assert!(gate.check(&user).now()?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(self, policy: &str, key: &Descriptor<'_>, block: Block) -> Result<(), BlockError> {
        let no_policy = || BlockError::NoPolicy { name: policy.to_owned() };
        let set = self.0.policies.load();
        let (_, words) = set.find(policy).ok_or_else(no_policy)?;
        if let Some(attribute) = words.by.iter().find(|name| key.value(name).is_none()) {
            return Err(BlockError::NoKey { attribute: attribute.clone() });
        }
        let bytes = self.0.blocked_key(&set, policy, key).ok_or_else(no_policy)?;
        let now = self.0.time.now();
        let mut by_policy = self.0.blocks.by_policy.write();
        let known = by_policy.get(policy).is_some_and(|keys| keys.contains_key(&*bytes));
        if !known && self.0.blocks.has_by_hand(&by_policy, Self::MOST) {
            // Blocks of policies that no longer exist have no effect.
            by_policy.retain(|name, _| set.find(name).is_some());
            self.0.blocks.tidy(&mut by_policy, now);
            if self.0.blocks.has_by_hand(&by_policy, Self::MOST) {
                return Err(BlockError::TooMany);
            }
        }
        by_policy.entry(policy.into()).or_default().insert(bytes, Arc::new(block));
        self.0.blocks.note(&by_policy);
        self.0.blocks.changed();
        Ok(())
    }

    /// Ends the block of a key; returns it if it was still in effect. A store that keeps the block ends it too:
    /// [`Asking::now`] tells the store and does not wait for it, the future waits.
    ///
    /// # Errors
    /// [`StoreError`] from the future if a store that keeps the block did not answer: it has not ended.
    ///
    /// # Cancel safety
    /// If dropped before completion, the block may have ended or not.
    pub fn remove<'a, 'd: 'a>(
        self,
        policy: &'a str,
        key: &'a Descriptor<'d>,
    ) -> Asking<'a, Result<Option<Arc<Block>>, StoreError>>
    where
        'g: 'a,
    {
        let gate = self.0;
        Asking::new(move |waits| async move {
            match waits {
                Waits::Yes => gate.unblock_stored(policy, key).await,
                Waits::No | Waits::Unwatched => Ok(gate.unblock_untold(policy, key)),
            }
        })
    }

    /// Returns the block of one key of a policy, by hand or by a limit, that is in effect. Asks the store that keeps it,
    /// if there is one.
    ///
    /// # Errors
    /// [`StoreError`] if a store that keeps the block did not answer.
    ///
    /// # Cancel safety
    /// Changes nothing, so it may be dropped at any time.
    pub async fn find(self, policy: &str, key: &Descriptor<'_>) -> Result<Option<Arc<Block>>, StoreError> {
        self.0.block_of(policy, key).await
    }

    /// Returns the blocks of a policy that this gate knows, by hand or by a limit, and that have not ended; ordered by key.
    #[must_use]
    pub fn list(self, policy: &str) -> Vec<Arc<Block>> {
        if !self.0.blocks.any() {
            return Vec::new();
        }
        let now = self.0.time.now();
        let by_policy = self.0.blocks.by_policy.read();
        let mut found: Vec<Arc<Block>> =
            by_policy.get(policy).into_iter().flat_map(HashMap::values).cloned().collect();
        // Checks wait no longer than for the copy, or for the removal of what has ended.
        drop(by_policy);
        let all = found.len();
        found.retain(|block| now < block.until);
        if found.len() < all {
            self.0.blocks.tidy(&mut self.0.blocks.by_policy.write(), now);
        }
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found
    }

    /// Refuses the requests of a caller until the block ends, whatever the policies say: a network of `client.ip`, or a
    /// value of another attribute. Lists, matches, modes and limits do not matter; of several blocks that a request fits,
    /// one refuses it. An earlier block of the same entry is replaced. Survives a change of policies.
    ///
    /// The list is kept like that of [`Blocks::add`], and has [`Blocks::MOST`] entries at most.
    ///
    /// # Errors
    /// [`BlockError::TooMany`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::policy::{Block, Descriptor, PolicySet};
    ///
    /// let gate = Gate::in_memory(PolicySet::default(), 1000)?;
    /// let until = gate.now().after(std::time::Duration::from_secs(600));
    /// let block = Block::new("client.ip=203.0.113.0/24", gate.now(), until, "credential stuffing");
    /// gate.blocks().add_everywhere("203.0.113.0/24".parse()?, block)?;
    /// assert!(!gate.check(&Descriptor::new().with("client.ip", "203.0.113.9")).now()?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_everywhere(self, entry: AccessEntry, block: Block) -> Result<(), BlockError> {
        self.0.blocks.change_everywhere(self.0.time.now(), |everywhere| {
            everywhere.tidy(self.0.time.now());
            if everywhere.blocks.len() >= Self::MOST && !everywhere.blocks.contains_key(&entry) {
                return Err(BlockError::TooMany);
            }
            everywhere.blocks.insert(entry, Arc::new(block));
            Ok(())
        })?;
        self.0.blocks.changed();
        Ok(())
    }

    /// Ends the block of a caller for all policies; returns it if it was still in effect.
    pub fn remove_everywhere(self, entry: &AccessEntry) -> Option<Arc<Block>> {
        let now = self.0.time.now();
        let ended = self.0.blocks.change_everywhere(now, |everywhere| everywhere.blocks.remove(entry))?;
        self.0.blocks.changed();
        (now < ended.until).then_some(ended)
    }

    /// Returns the blocks for all policies that have not ended, ordered by key.
    #[must_use]
    pub fn list_everywhere(self) -> Vec<Arc<Block>> {
        if !self.0.blocks.any() {
            return Vec::new();
        }
        let now = self.0.time.now();
        let mut found: Vec<Arc<Block>> = self.0.blocks.everywhere.read().blocks.values().cloned().collect();
        found.retain(|block| now < block.until);
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found
    }

    /// Returns the block for all policies that refuses a request; `None` if none does.
    #[must_use]
    pub fn find_everywhere(self, request: &Descriptor<'_>) -> Option<Arc<Block>> {
        if self.0.blocks.any() { self.0.everywhere(request).map(|(_, block)| block) } else { None }
    }

    /// Returns the number of blocked keys of each policy that has any.
    #[must_use]
    pub fn counts(self) -> Vec<(String, usize)> {
        if !self.0.blocks.any() {
            return Vec::new();
        }
        let now = self.0.time.now();
        let by_policy = self.0.blocks.by_policy.read();
        let counted = by_policy.iter().map(|(policy, keys)| {
            (policy.to_string(), keys.values().filter(|block| now < block.until).count())
        });
        counted.filter(|(_, keys)| *keys > 0).collect()
    }

    /// Returns how many blocks by limits did not begin because there was no room; the limits themselves went on
    /// refusing. There is room for 100,000 blocks of keys, also those by hand. A policy gets another one while it has
    /// fewer than are left free, so one policy takes at most half.
    #[must_use]
    pub fn left_out(self) -> u64 {
        self.0.blocks.left_out()
    }

    /// Returns how often keys were blocked and unblocked. A caller that caches an answer must refresh it when the
    /// number has changed.
    #[must_use]
    pub fn changes(self) -> u64 {
        self.0.blocks.changes()
    }
}

impl Gate {
    /// Returns the keys and callers that are refused for a while, whatever their limits say: to add, end and list such
    /// blocks.
    #[must_use]
    pub const fn blocks(&self) -> Blocks<'_> {
        Blocks(self)
    }

    /// Ends the block of a key without waiting for a store that keeps it.
    fn unblock_untold(&self, policy: &str, key: &Descriptor<'_>) -> Option<Arc<Block>> {
        let set = self.policies.load_full();
        let (place, _) = set.find(policy)?;
        self.forget_stored(&set, place, key);
        self.unblock_here(policy, key)
    }

    /// Ends the block of a key in this process.
    pub(super) fn unblock_here(&self, policy: &str, key: &Descriptor<'_>) -> Option<Arc<Block>> {
        let bytes = self.blocked_key(&self.policies.load(), policy, key)?;
        let now = self.time.now();
        let mut by_policy = self.blocks.by_policy.write();
        let ended = by_policy.get_mut(policy)?.remove(&*bytes);
        self.blocks.changed();
        self.blocks.tidy(&mut by_policy, now);
        ended.filter(|block| now < block.until)
    }

    fn everywhere(&self, request: &Descriptor<'_>) -> Option<(AccessEntry, Arc<Block>)> {
        let now = self.time.now();
        let found = |everywhere: &super::blocks::Everywhere| {
            everywhere.find(request).map(|(entry, block)| (entry, Arc::clone(block)))
        };
        let first = found(&self.blocks.everywhere.read())?;
        if now < first.1.until {
            return Some(first);
        }
        // It has ended, and may hide another that has not.
        self.blocks.change_everywhere(now, |everywhere| {
            everywhere.tidy(now);
            found(everywhere)
        })
    }

    /// Blocks the keys whose limits refused a request, where the policy says so, and moves the retry of these limits to
    /// the end of the block. A look blocks nobody, and says what a check would say.
    #[inline(always)]
    pub(super) fn block_over(&self, check: &Check<'_, '_>, decision: &mut GateDecision) {
        if decision.policies.blocks_over(decision.allowed) {
            self.block_over_limits(check, decision);
        }
    }

    #[cold]
    #[inline(never)]
    fn block_over_limits(&self, check: &Check<'_, '_>, decision: &mut GateDecision) {
        let GateDecision { policies, limits, at, .. } = decision;
        let (set, now): (&PolicySet, _) = (policies, *at);
        for line in limits.iter_mut() {
            let policy = &set.policies()[line.policy];
            let Over::Block { lasts } = policy.over else { continue };
            let is_shadow = policy.mode == Mode::Shadow;
            if policy.is_shadow_limit(line.limit) || !(line.binding || is_shadow) {
                continue;
            }
            let blocks = if is_shadow { &self.would_be_blocks } else { &self.blocks };
            let Some(key) = set.key(line.policy, 0, check.request) else { continue };
            let ruling = &mut line.decision.ruling;
            if is_shadow && let Some(until) = blocks.until(&policy.name, &key, now) {
                *ruling = Ruling::Denied { retry: Retry::After(until.since(now)) };
                continue;
            }
            let Ruling::Denied { retry } = ruling else { continue };
            let moved = match *retry {
                Retry::After(wait) => Retry::After(wait.max(lasts)),
                Retry::Unknown => Retry::After(lasts),
                Retry::Never => continue,
            };
            let block = || Block::by_limit(&key_text(set, policy, check.request), now, now.after(lasts));
            if check.peek || blocks.begin(&policy.name, &key, now, block) {
                *retry = moved;
            }
        }
        decision.binding = binding(&decision.limits, decision.allowed);
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

    /// Returns what is kept of the key of a policy's first limit.
    fn blocked_key(&self, set: &PolicySet, policy: &str, key: &Descriptor<'_>) -> Option<Box<[u8]>> {
        let (place, _) = set.find(policy)?;
        Some((*self.blocks.kept(&set.key(place, 0, key)?)).into())
    }

    #[cold]
    #[inline(never)]
    fn blocked(&self, policies: &PolicySet, check: &Check<'_, '_>) -> Option<Refusal> {
        if let Some((entry, block)) = self.everywhere(check.request) {
            let status = policies.shared_access().status;
            return Some(Refusal { policy: None, entry, status, needs: None, block: Some(block) });
        }
        let now = self.time.now();
        let by_policy = self.blocks.by_policy.read();
        policies.refuse_by(check.request, check.priority, check.among, |place, policy| {
            let keys = by_policy.get(policy.name.as_str())?;
            let block = keys.get(&*self.blocks.kept(&policies.key(place, 0, check.request)?))?;
            block.holds(now).then(|| refusal(place, policy, block))
        })
    }
}

fn refusal(place: usize, policy: &Policy, block: &Arc<Block>) -> Refusal {
    let entry = AccessEntry::Attribute { name: "policy".to_owned(), value: policy.name.clone() };
    // Whoever exceeded a limit is answered as by the limit.
    let status = if block.by_limit { policy.deny.status } else { policy.access.status };
    let block = Some(Arc::clone(block));
    Refusal { policy: Some(place), entry, status, needs: None, block }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Policy;
    use crate::policy::Limit;
    use tidegate_core::Tick;
    use tidegate_limits::{ManualClock, Quota};

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
        assert!(gate.blocks().add("per-usr", &user("1"), block.clone()).is_err());
        gate.blocks().add("per-user", &user("1"), block.clone()).unwrap();
        let refused = gate.check(&user("1")).now().unwrap();
        assert!(!refused.allowed && refused.limits.is_empty(), "no limit is asked");
        assert_eq!(refused.retry(), Retry::After(Duration::from_secs(60)));
        assert_eq!(refused.policy_name(), Some("per-user"));
        assert!(gate.check(&user("2")).now().unwrap().allowed);
        gate.replace(set(Mode::Enforce));
        assert!(
            !gate.check(Check::of(&user("1")).peek()).now().unwrap().allowed,
            "it survives a change of the policies"
        );
        gate.replace(set(Mode::Shadow));
        assert!(gate.check(&user("1")).now().unwrap().allowed, "a shadow refuses nobody");
        gate.replace(set(Mode::Enforce));
        assert_eq!(gate.blocks().list("per-user").len(), 1);
        clock.set(block.until);
        assert!(gate.check(&user("1")).now().unwrap().allowed);
        assert!(gate.blocks().list("per-user").is_empty() && !gate.blocks.any(), "free again");
    }

    fn blocking(mode: Mode) -> PolicySet {
        let mut policy =
            Policy::new("per-user", Limit::new(Quota::per_minute(2).fixed_window().unwrap(), "2/min"));
        (policy.by, policy.mode) = (vec!["user.id".to_owned()], mode);
        policy.over = Over::Block { lasts: Duration::from_secs(600) };
        PolicySet::new(vec![policy]).unwrap()
    }

    /// The block begins with the refusal, refusals do not make it longer, and only the key that exceeded is blocked.
    #[test]
    fn a_key_over_its_limit_is_refused_for_the_stated_time_and_no_longer() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(blocking(Mode::Enforce), 100).unwrap().with_clock(clock.clone());
        let (one, secs) = (user("1"), Duration::from_secs);
        for _ in 0..2 {
            assert!(gate.check(&one).now().unwrap().allowed);
        }
        let looked = gate.check(Check::of(&one).peek()).now().unwrap();
        assert_eq!(
            (looked.allowed, looked.retry()),
            (false, Retry::After(secs(600))),
            "as a check would say"
        );
        assert!(gate.blocks().list("per-user").is_empty(), "a look blocks nobody");
        clock.advance(secs(10));
        let first = gate.check(&one).now().unwrap();
        assert_eq!((first.allowed, first.retry(), first.limits.len()), (false, Retry::After(secs(600)), 1));
        assert_eq!(gate.blocks().list("per-user")[0].until, NOON.after(secs(610)));
        clock.advance(secs(100));
        let second = gate.check(&one).now().unwrap();
        assert_eq!(
            (second.allowed, second.retry()),
            (false, Retry::After(secs(500))),
            "the window is new, the block holds"
        );
        let refusal = second.refusal.unwrap();
        assert_eq!((refusal.status, refusal.block.unwrap().by_limit), (429, true));
        assert!(gate.check(&user("2")).now().unwrap().allowed);
        clock.advance(secs(499));
        assert!(!gate.check(&one).now().unwrap().allowed);
        clock.advance(secs(1));
        assert!(gate.check(&one).now().unwrap().allowed, "refusals did not make it longer");
        let dear = Check::of(&one).cost(tidegate_core::Cost::new(3).unwrap());
        assert_eq!(gate.check(dear).now().unwrap().retry(), Retry::Never);
        assert!(gate.check(&one).now().unwrap().allowed, "a cost that never passes blocks nobody");
        assert!(!gate.check(&one).now().unwrap().allowed);
        assert!(gate.blocks().remove("per-user", &one).now().unwrap().is_some(), "a person may end it");
    }

    #[test]
    fn in_shadow_mode_a_key_would_be_blocked_and_is_not() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(blocking(Mode::Shadow), 100).unwrap().with_clock(clock.clone());
        let (one, secs) = (user("1"), Duration::from_secs);
        let would_deny = || {
            let decision = gate.check(&one).now().unwrap();
            assert!(decision.allowed);
            (!decision.limits[0].decision.is_allowed()).then(|| decision.limits[0].decision.retry())
        };
        assert_eq!([would_deny(), would_deny()], [None, None]);
        assert_eq!(would_deny(), Some(Retry::After(secs(600))));
        clock.advance(secs(599));
        assert_eq!(would_deny(), Some(Retry::After(secs(1))), "the window is new, the block would hold");
        assert!(gate.blocks().list("per-user").is_empty());
        gate.replace(blocking(Mode::Enforce));
        assert!(gate.check(&one).now().unwrap().allowed, "what would be blocked is not blocked");
        gate.replace(blocking(Mode::Shadow));
        clock.advance(secs(120));
        assert_eq!(would_deny(), None, "the block would have ended");
    }

    /// Whoever is on call blocks a caller once, and not under each policy that may let it through.
    #[test]
    fn a_caller_that_is_blocked_for_all_policies_is_refused_whatever_they_say() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(set(Mode::Shadow), 100).unwrap().with_clock(clock.clone());
        let block = |secs| Block::new("k", NOON, NOON.after(Duration::from_secs(secs)), "abuse");
        let from = |address: &'static str| user("1").with("client.ip", address);
        gate.blocks().add_everywhere("client.ip=203.0.113.0/24".parse().unwrap(), block(60)).unwrap();
        gate.blocks().add_everywhere("203.0.113.9".parse().unwrap(), block(120)).unwrap();
        gate.blocks().add_everywhere("user.id=2".parse().unwrap(), block(60)).unwrap();
        let refused = gate.check(&from("203.0.113.8")).now().unwrap();
        assert!(!refused.allowed && refused.limits.is_empty() && refused.policy_name().is_none());
        assert_eq!(refused.retry(), Retry::After(Duration::from_secs(60)));
        assert_eq!(refused.refusal.unwrap().status, 403);
        assert!(
            !gate.check(&user("2")).now().unwrap().allowed && gate.check(&user("1")).now().unwrap().allowed
        );
        assert!(gate.check(&from("203.0.114.9")).now().unwrap().allowed);
        gate.replace(PolicySet::default());
        assert!(
            !gate.check(&from("203.0.113.8")).now().unwrap().allowed,
            "it survives a change of the policies"
        );
        clock.set(NOON.after(Duration::from_secs(60)));
        assert!(gate.check(&from("203.0.113.8")).now().unwrap().allowed, "it has ended");
        assert!(!gate.check(&from("203.0.113.9")).now().unwrap().allowed, "a longer one within it has not");
        assert_eq!(gate.blocks().list_everywhere().len(), 1);
        assert!(gate.blocks().remove_everywhere(&"203.0.113.9".parse().unwrap()).is_some());
        assert!(gate.check(&from("203.0.113.9")).now().unwrap().allowed && !gate.blocks.any());
    }

    #[test]
    fn whoever_fills_the_blocks_of_one_policy_leaves_room_to_the_others() {
        let policy = |name: &str, by: &str| {
            let limit = Limit::new(Quota::per_hour(60).burst(1).gcra().unwrap(), "60/h");
            let over = Over::Block { lasts: Duration::from_secs(600) };
            Policy { by: vec![by.to_owned()], over, ..Policy::new(name, limit) }
        };
        let set = PolicySet::new(vec![policy("many", "user.id"), policy("logins", "client.ip")]).unwrap();
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(set, 10).unwrap().with_clock(clock.clone());
        // A key of any length takes the room of a short one.
        let long = "u".repeat(8_000);
        let begin = |policy: &str, key: &str| {
            let block = || Block::by_limit(key, NOON, NOON.after(Duration::from_secs(600)));
            gate.blocks.begin(policy, key.as_bytes(), NOON, block)
        };
        let begun = (0..60_000).filter(|at| begin("many", &format!("{long}{at}"))).count();
        assert_eq!((begun, gate.blocks().left_out()), (50_000, 10_000));
        let kept = gate.blocks().list("many");
        assert!(kept.iter().all(|block| block.key.len() < 200), "{}", kept[0].key.len());
        assert!(begin("many", &format!("{long}7")), "it is blocked");
        let caller = Descriptor::new().with("client.ip", "192.0.2.1");
        let retry = || gate.check(&caller).now().unwrap().retry();
        retry();
        assert_eq!(retry(), Retry::After(Duration::from_secs(600)));
        clock.set(NOON.after(Duration::from_secs(1)));
        assert!(gate.check(&caller).now().unwrap().refusal.is_some_and(|refusal| refusal.block.is_some()));
        // What does not begin moves no retry.
        assert!((0..60_000).any(|at| !begin("logins", &at.to_string())));
        let other = Descriptor::new().with("client.ip", "192.0.2.2");
        assert!(gate.check(&other).now().unwrap().allowed);
        assert_eq!(gate.check(&other).now().unwrap().retry(), Retry::After(Duration::from_secs(60)));
        assert!(gate.check(&other).now().unwrap().refusal.is_none());
    }

    #[test]
    fn there_are_so_many_blocks_and_no_more() {
        let clock = ManualClock::at(NOON);
        let gate = Gate::in_memory(set(Mode::Enforce), 100).unwrap().with_clock(clock.clone());
        let block = |until: u64| Block::new("k", NOON, NOON.after(Duration::from_secs(until)), "");
        for at in 0..Blocks::MOST {
            gate.blocks().add("per-user", &user(&at.to_string()), block(60)).unwrap();
        }
        assert_eq!(gate.blocks().add("per-user", &user("x"), block(60)), Err(BlockError::TooMany));
        gate.blocks().add("per-user", &user("0"), block(120)).unwrap();
        clock.set(NOON.after(Duration::from_secs(60)));
        gate.blocks().add("per-user", &user("x"), block(120)).unwrap();
        assert_eq!(gate.blocks().list("per-user").len(), 2, "those that ended made room");
        assert!(
            gate.blocks().remove("per-user", &user("x")).now().unwrap().is_some()
                && gate.blocks().remove("per-user", &user("x")).now().unwrap().is_none()
        );
    }
}

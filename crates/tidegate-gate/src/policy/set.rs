//! The policies of a whole file, checked together.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::Cost;

use super::access::{Access, AccessList};
use super::canary::Portion;
use super::compiled::{Compiled, share_quotas};
use super::cost::CostErrors;
use super::cost_error::CostError;
use super::descriptor::Descriptor;
use super::estimated_cost::Learned;
use super::index::Index;
use super::named::{BUILT_IN, Named};
use super::over_limit::Over;
use super::path;
use super::policy::{CanaryError, Limit, Mode, Policy};
use super::sensed::{ConditionsError, Sensed};
use super::share::Shares;
use super::trigger::Trigger;
use tidegate_limits::priority::KeepForError;

/// Why policies cannot form a set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicySetError {
    /// A policy has no name.
    #[error("a policy has no name; give it one")]
    NoName,
    /// Two policies have the same name.
    #[error("policy \"{name}\" exists twice; counters are kept by name, so give each policy its own name")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// A policy has no limit.
    #[error("policy \"{name}\" has no limit")]
    NoLimit {
        /// The policy.
        name: String,
    },
    /// An attribute occurs twice in one key.
    #[error("policy \"{name}\": {attribute} is named twice in `by`")]
    RepeatedAttribute {
        /// The policy.
        name: String,
        /// The attribute.
        attribute: String,
    },
    /// The prefix is not a valid length for an IPv6 network.
    #[error("{bits} bits are not a prefix of an IPv6 network; use 1 to 128, usually 64")]
    Ipv6Prefix {
        /// The number of bits.
        bits: u8,
    },
    /// Conditions or moving rates are invalid.
    #[error(transparent)]
    Conditions(#[from] ConditionsError),
    /// A limit cannot keep back the part that `keep_for` states.
    #[error("policy \"{name}\": {error} ({limit})")]
    KeepFor {
        /// The policy.
        name: String,
        /// The short form of the limit.
        limit: String,
        /// The reason.
        error: KeepForError,
    },
    /// A policy cannot have its canary.
    #[error("policy \"{name}\": canary: {error}")]
    Canary {
        /// The name of the policy.
        name: String,
        /// The reason.
        error: CanaryError,
    },
}

/// An immutable set of policies, always replaced as a whole.
///
/// All matching policies are tried in order; a denial charges none of them. Share the set in an `Arc`: planning takes no
/// lock.
///
/// # Examples
/// ```
/// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
/// use tidegate::{Gate, Quota};
///
/// let mut per_user = Policy::new("per-user", Limit::new(Quota::per_second(5).gcra()?, "5/s"));
/// per_user.by = vec!["user.id".to_owned()];
/// let all = Policy::new("all", Limit::new(Quota::per_second(1000).gcra()?, "1000/s"));
/// let gate = Gate::in_memory(PolicySet::new(vec![per_user, all])?, 100_000)?;
/// assert!(gate.check(&Descriptor::new().with("user.id", "42")).now()?.allowed);
///
/// let twice = ["all", "all"].map(|name| Policy::new(name, Limit::new(Quota::per_second(1).gcra().unwrap(), "1/s")));
/// assert!(PolicySet::new(twice.to_vec()).is_err(), "each name is given once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct PolicySet {
    pub(super) policies: Vec<Policy>,
    pub(super) compiled: Vec<Compiled>,
    places: HashMap<Box<str>, usize, RandomState>,
    pub(super) index: Index,
    pub(super) access: Access,
    /// Whether some policy has a deny-list of its own or a deadline.
    pub(super) guarded: bool,
    /// Whether some policy has a deadline.
    has_deadlines: bool,
    /// Whether some limit may delay a request.
    delays: bool,
    /// Whether some policy uses path or host as a value: in a key, a list or a cost.
    pub(super) compares_places: bool,
    /// The names of values that policies settle by.
    settled_by: Named,
    pub(super) ipv6_prefix: u8,
    /// The values of `share` that its policies have.
    pub(super) shares: Shares,
    /// Whether some policy lowers the priority of requests over its limits.
    demoting: bool,
    /// Whether some policy lets requests over its limits pass.
    lets_through: bool,
    /// Whether some policy charges refused requests too.
    charges_always: bool,
    /// Whether some policy blocks keys over its limits, enforced or in shadow mode.
    blocks_over: bool,
    /// Whether one in shadow mode would.
    would_block_over: bool,
    /// The sources of conditions and moving rates.
    pub(super) sensed: Option<Box<Sensed>>,
    /// What turns switches off.
    pub(super) triggers: Vec<Trigger>,
}

impl PolicySet {
    /// Creates a set.
    ///
    /// # Errors
    /// [`PolicySetError`] if a name is missing or repeated, a policy has no limits, a key names an attribute twice,
    /// conditions or moving rates are invalid, a limit cannot keep a part back, or a policy cannot have its canary.
    pub fn new(policies: Vec<Policy>) -> Result<Self, PolicySetError> {
        Self::with(policies, Access::default(), 64)
    }

    /// Creates a set with lists that apply to all policies, and the IPv6 prefix that `client.ip` is keyed by.
    ///
    /// # Errors
    /// As [`PolicySet::new`], and if the prefix is 0 or more than 128 bits.
    pub fn with(mut policies: Vec<Policy>, access: Access, ipv6_prefix: u8) -> Result<Self, PolicySetError> {
        if !(1..=128).contains(&ipv6_prefix) {
            return Err(PolicySetError::Ipv6Prefix { bits: ipv6_prefix });
        }
        let mut places: HashMap<Box<str>, usize, RandomState> = HashMap::default();
        for (place, policy) in policies.iter().enumerate() {
            let name = policy.name.clone();
            if name.is_empty() {
                return Err(PolicySetError::NoName);
            }
            if places.insert(policy.name.as_str().into(), place).is_some() {
                return Err(PolicySetError::RepeatedName { name });
            }
            if policy.limits.is_empty() && policy.shadow_limit.is_none() {
                return Err(PolicySetError::NoLimit { name });
            }
            if let Some((_, attribute)) =
                policy.by.iter().enumerate().find(|(at, by)| policy.by[..*at].contains(by))
            {
                return Err(PolicySetError::RepeatedAttribute { name, attribute: attribute.clone() });
            }
            for limit in policy.each_limit() {
                check_keep_for(&name, limit)?;
            }
            if let Some(Err(error)) = policy.canary.as_ref().map(|canary| canary.check(policy)) {
                return Err(PolicySetError::Canary { name, error });
            }
        }
        let applied = policies.iter().enumerate().filter(|(_, policy)| policy.mode != Mode::Off);
        let index = Index::build(applied.map(|(place, policy)| (place as u32, &policy.matching)));
        share_quotas(&mut policies);
        let compiled = Compiled::all(&policies);
        let sensed = Sensed::of(&policies, &[])?;
        let has_deadlines = policies.iter().any(|policy| policy.deadline.is_some());
        let delays = policies.iter().any(Policy::delays);
        let guarded = has_deadlines || policies.iter().any(|policy| !policy.access.deny.is_empty());
        let mut compares_places = false;
        let mut see = |name: &str, group: bool| {
            compares_places |= ["request.path", "request.host"].into_iter().any(|place| {
                place == name || group && place.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            });
        };
        access.allow.names().chain(access.deny.names()).for_each(|name| see(name, false));
        policies.iter().for_each(|policy| policy.each_named(&mut see));
        let settled_by = settled_by(&policies);
        let shares = policies.iter().filter_map(|policy| policy.share).collect::<Shares>();
        let demoting = policies.iter().any(demotes);
        let lets_through = policies.iter().any(Policy::lets_through);
        let charges_always = policies.iter().any(Policy::charges_always);
        let blocks = |policy: &Policy| policy.mode != Mode::Off && matches!(policy.over, Over::Block { .. });
        let blocks_over = policies.iter().any(blocks);
        let would_block_over = policies.iter().any(|policy| blocks(policy) && policy.mode == Mode::Shadow);
        let shares = shares.with_prepared(sensed.is_some() || demoting || charges_always || blocks_over);
        Ok(Self {
            policies,
            compiled,
            places,
            index,
            access,
            guarded,
            has_deadlines,
            delays,
            compares_places,
            settled_by,
            ipv6_prefix,
            shares,
            demoting,
            lets_through,
            charges_always,
            blocks_over,
            would_block_over,
            sensed,
            triggers: Vec::new(),
        })
    }

    /// Returns the policies in order; their indices are those of [`Line::policy`](super::Line::policy).
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns how many leading bits of an IPv6 address in `client.ip` make a key; 1 to 128.
    #[must_use]
    pub const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Returns the values of `share` that the policies have.
    pub(crate) const fn shares(&self) -> Shares {
        self.shares
    }

    /// Reports whether some policy has a deadline.
    pub(crate) const fn has_deadlines(&self) -> bool {
        self.has_deadlines
    }

    /// Reports whether some limit may delay a request.
    #[inline]
    pub(crate) const fn delays(&self) -> bool {
        self.delays
    }

    /// Reports whether some policy lowers the priority of requests over its limits.
    #[inline]
    pub(crate) const fn demotes(&self) -> bool {
        self.demoting
    }

    /// Reports whether some policy lets requests over its limits pass and the decision says so: `over: mark` or
    /// `demote`.
    #[must_use]
    pub const fn lets_through(&self) -> bool {
        self.lets_through
    }

    /// Reports whether some policy charges refused requests too.
    #[inline]
    pub(crate) const fn charges_always(&self) -> bool {
        self.charges_always
    }

    /// Reports whether a decision may begin a block of a key, or count as one of a key that would be blocked.
    #[inline]
    pub(crate) const fn blocks_over(&self, allowed: bool) -> bool {
        if allowed { self.would_block_over } else { self.blocks_over }
    }

    /// Returns the number of policies, including those that are switched off.
    #[must_use]
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Reports whether the set has no policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Returns a policy and its index by name; `None` if there is no such policy. Takes one hash, however many policies
    /// there are.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(usize, &Policy)> {
        let place = *self.places.get(name)?;
        Some((place, &self.policies[place]))
    }

    /// Returns the lists that apply to all policies.
    #[must_use]
    pub fn shared_access(&self) -> &Access {
        &self.access
    }

    /// Returns how often the cost of a policy could not be determined, and why last; nothing for an index without a
    /// policy. Takes a short lock of the policy, for which checks never wait.
    #[must_use]
    pub fn cost_errors(&self, policy: usize) -> CostErrors {
        self.compiled.get(policy).map(Compiled::cost_errors).unwrap_or_default()
    }

    /// Counts a settlement whose real cost under a policy could not be determined.
    pub(crate) fn note_unsettled(&self, policy: usize, why: &CostError) {
        if let Some(compiled) = self.compiled.get(policy) {
            compiled.unsettled(why);
        }
    }

    /// Returns the estimate of a policy that learns its cost, before any limit caps it; `None` if it does not learn or
    /// does not know enough yet.
    #[must_use]
    pub fn estimate(&self, policy: usize) -> Option<Cost> {
        self.learned(policy)?.estimate()
    }

    /// Returns the number of settlements behind the estimate of a policy that learns, at most 1,024; below
    /// [`Learning::ENOUGH`] there is no estimate yet. `None` for a policy that does not learn. Takes a short lock of
    /// the policy; checks do not.
    ///
    /// [`Learning::ENOUGH`]: crate::policy::Learning::ENOUGH
    #[must_use]
    pub fn settlements_learnt(&self, policy: usize) -> Option<u64> {
        Some(self.learned(policy)?.settlements())
    }

    /// Takes over what the policies of another set have learned, by their names: call it before this set is put in
    /// force in place of the other. A policy whose settlement rule has changed starts anew, since it counts other
    /// units. Readings, the results of unchanged conditions, the counts of [`PolicySet::cost_errors`], and the shares of
    /// canaries with the same [text](field@super::Canary::text) are taken over too.
    pub fn learn_from(&self, before: &Self) {
        // A set that is put in force again keeps what it knows.
        if std::ptr::eq(self, before) {
            return;
        }
        self.sense_on_from(before);
        self.keep_canary_shares(before);
        for (place, policy) in self.policies.iter().enumerate() {
            let same = |other: &Policy| match (&policy.settle, &other.settle) {
                (Some(one), Some(two)) => one.is_same(two),
                (None, None) => true,
                _ => false,
            };
            if let Some((at, other)) = before.find(&policy.name) {
                self.compiled[place].count_on_from(&before.compiled[at]);
                if same(other) {
                    self.compiled[place].learn_from(&before.compiled[at]);
                }
            }
        }
    }

    /// Takes over the shares that are in force for the same canaries of another set, as [`PolicySet::learn_from`] does.
    pub fn keep_canary_shares(&self, before: &Self) {
        for (place, policy) in self.policies.iter().enumerate() {
            let Some(canary) = &policy.canary else { continue };
            if let Some((at, other)) = before.find(&policy.name)
                && other.canary.as_ref().is_some_and(|other| other.text == canary.text)
            {
                self.compiled[place].canary_on_from(&before.compiled[at]);
            }
        }
    }

    /// Returns the share of the keys that a policy's canary decides now; `None` for a policy without one.
    #[must_use]
    pub fn canary_share(&self, policy: usize) -> Option<Portion> {
        self.compiled.get(policy)?.canary_share()
    }

    /// Puts a share of the keys of a policy's canary in force, at once, and for all sets that have
    /// [taken it over](PolicySet::learn_from) or will. Returns whether there is a canary with this
    /// [text](field@super::Canary::text); another one is left alone.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Quota;
    /// use tidegate::policy::{Canary, Limit, Policy, PolicySet, Portion};
    ///
    /// let limit = |rate| Quota::per_second(rate).gcra().map(|quota| Limit::new(quota, format!("{rate}/s")));
    /// let mut policy = Policy::new("per-ip", limit(10)?).by(["client.ip"]);
    /// policy.canary = Some(Canary::new(limit(6)?, Portion::of(0.05), Duration::from_secs(7200)));
    /// let text = policy.canary.iter().map(|canary| canary.text.clone()).collect::<String>();
    /// let set = PolicySet::new(vec![policy])?;
    /// assert!(set.set_canary_share("per-ip", &text, Portion::NONE));
    /// assert_eq!(set.canary_share(0), Some(Portion::NONE));
    /// assert!(!set.set_canary_share("per-ip", "another", Portion::of(0.05)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_canary_share(&self, policy: &str, text: &str, share: Portion) -> bool {
        let is_it = |policy: &Policy| policy.canary.as_ref().is_some_and(|canary| canary.text == text);
        let found = self.find(policy).filter(|(_, policy)| is_it(policy));
        if let Some((at, _)) = found {
            self.compiled[at].set_canary_share(share);
        }
        found.is_some()
    }

    /// Reports whether the canary of a policy decides about the key of a request.
    #[must_use]
    pub fn canary_decides(&self, policy: usize, request: &Descriptor<'_>) -> bool {
        let Some(words) = self.policies.get(policy).filter(|words| words.canary.is_some()) else {
            return false;
        };
        let deciding = self.key(policy, 0, request).and_then(|key| self.deciding_limit(&key));
        deciding.is_some_and(|(_, limit)| words.is_canary(limit))
    }

    pub(super) fn learned(&self, policy: usize) -> Option<&Learned> {
        self.compiled.get(policy)?.learned().map(|learned| &**learned)
    }

    /// Returns the names of values that policies settle by.
    pub(super) fn settled_by(&self) -> &Named {
        &self.settled_by
    }

    /// Reports whether a path is ambiguous as a value: some policy or list uses it as one, and servers resolve its `..`
    /// differently, so that no single value can represent it. A door that does not know the server behind should refuse
    /// it: legitimate clients need no such paths.
    #[must_use]
    pub fn is_ambiguous_path(&self, path: &str) -> bool {
        self.compares_places && path::is_ambiguous(path)
    }

    /// Returns the attributes that the policies and lists of this set name, and those that Tidegate itself defines
    /// (client, method, host, path and direction).
    #[must_use]
    pub fn named(&self) -> Named {
        let mut named = self.attributes_read();
        for name in BUILT_IN {
            named.add(name);
        }
        named
    }

    /// Returns the attributes that checks under this set read: without the method, the host, the path or the client if no
    /// policy or list needs them. Callers that describe requests to this set only can leave out the rest.
    #[must_use]
    pub fn attributes_read(&self) -> Named {
        let mut named = Named::default();
        named.add("request.direction");
        for policy in self.policies() {
            let places = ["request.method", "request.host", "request.path"];
            let read = places.into_iter().zip(policy.matching.reads_places()).filter(|(_, reads)| *reads);
            read.for_each(|(name, _)| named.add(name));
        }
        let mut add = |name: &str, group: bool| named.add_name(name, group);
        self.policies().iter().for_each(|policy| policy.each_named(&mut add));
        let shared = self.shared_access();
        let lists = [&shared.allow, &shared.deny];
        lists.into_iter().flat_map(AccessList::names).for_each(|name| named.add(name));
        named
    }

    /// Feeds the real cost of a request, in units, into the estimate of a policy, if it learns; 0 counts as 1. Takes a
    /// short lock of the policy; checks do not.
    pub fn learn(&self, policy: usize, real: u64) {
        // At least one unit, like any cost.
        let real = Cost::new(real).unwrap_or_default();
        if let Some(learned) = self.learned(policy) {
            learned.learn(real);
        }
    }
}

/// Reports whether a policy lowers the priority of requests over its limits.
pub(super) fn demotes(policy: &Policy) -> bool {
    policy.lets_through() && matches!(policy.over, Over::Demote { .. })
}

/// Checks that a limit can keep back the parts of `keep_for`, under each of its terms.
fn check_keep_for(name: &str, limit: &Limit) -> Result<(), PolicySetError> {
    if limit.keep_for.is_nothing() {
        return Ok(());
    }
    for terms in limit.all_terms() {
        let Some(quota) = &terms.quota else { continue };
        limit.keep_for.check(quota, limit.max_wait).map_err(|error| PolicySetError::KeepFor {
            name: name.to_owned(),
            limit: terms.label.clone(),
            error,
        })?;
    }
    Ok(())
}

/// Collects the names of values that the policies settle by.
fn settled_by(policies: &[Policy]) -> Named {
    let mut named = Named::default();
    let mut add = |name: &str, group: bool| named.add_name(name, group);
    policies.iter().filter_map(|policy| policy.settle.as_ref()).for_each(|rule| rule.each_name(&mut add));
    named
}

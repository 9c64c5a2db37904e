//! The policies of a whole file, checked together.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::Cost;

use super::access::{Access, AccessList};
use super::compiled::{Compiled, share_quotas};
use super::index::Index;
use super::keep_for::KeepForError;
use super::learned::Learned;
use super::named::{BUILT_IN, Named};
use super::over::Over;
use super::path;
use super::policy::{Limit, Mode, Policy};
use super::sensed::{ConditionsError, Sensed};
use super::share::Shares;

/// Why policies make no set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicySetError {
    /// A policy without a name.
    #[error("a policy without a name cannot be told of in an answer; give it one")]
    NoName,
    /// Two policies of one name.
    #[error("policy \"{name}\" is there twice; counters are kept by name, give each its own")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// A policy that limits nothing.
    #[error("policy \"{name}\" has no limit")]
    NoLimit {
        /// The policy.
        name: String,
    },
    /// An attribute named twice in one key.
    #[error("policy \"{name}\": {attribute} is named twice in `by`")]
    RepeatedAttribute {
        /// The policy.
        name: String,
        /// The attribute.
        attribute: String,
    },
    /// A prefix that no IPv6 network has.
    #[error("{bits} bits are no prefix of an IPv6 network; use 1 to 128, as a rule 64")]
    Ipv6Prefix {
        /// The bits given.
        bits: u8,
    },
    /// Conditions and moving rates that cannot be.
    #[error(transparent)]
    Conditions(#[from] ConditionsError),
    /// A limit that keeps a part of itself which it cannot keep.
    #[error("policy \"{name}\": {error} ({limit})")]
    KeepFor {
        /// The policy.
        name: String,
        /// The limit, as people read it.
        limit: String,
        /// Why not.
        error: KeepForError,
    },
}

/// An immutable set of policies, replaced whole.
///
/// All matching policies are tried in order; a denial charges none of them. Share it in an `Arc`; planning takes `&self` and
/// no lock.
#[derive(Debug, Default)]
pub struct PolicySet {
    pub(super) policies: Vec<Policy>,
    pub(super) compiled: Vec<Compiled>,
    places: HashMap<Box<str>, usize, RandomState>,
    pub(super) index: Index,
    pub(super) access: Access,
    /// Whether some policy has a deny-list of its own.
    pub(super) guarded: bool,
    /// Whether path or host are values for some policy: part of a key, in a list, in a cost.
    pub(super) compares_places: bool,
    /// The names that policies settle by.
    settled_by: Named,
    pub(super) ipv6_prefix: u8,
    /// Where its policies say that they are decided.
    shares: Shares,
    /// Whether some policy lowers the priority of requests over its limits.
    demoting: bool,
    /// Whether some policy lets requests pass that are over its limits.
    lets_through: bool,
    /// The numbers that conditions and moving rates go by.
    pub(super) sensed: Option<Box<Sensed>>,
}

impl PolicySet {
    /// Makes a set.
    ///
    /// # Errors
    /// [`PolicySetError`] for a name missing or repeated, a policy without limits, an attribute twice in a key, a part of a limit that cannot
    /// be kept.
    pub fn new(policies: Vec<Policy>) -> Result<Self, PolicySetError> {
        Self::with(policies, Access::default(), 64)
    }

    /// Makes a set with lists that hold for all policies, and the IPv6 prefix that `client.ip` is keyed by.
    ///
    /// # Errors
    /// As [`PolicySet::new`], and for a prefix of 0 or of more than 128 bits.
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
            for limit in policy.limits.iter().chain(&policy.shadow_limit) {
                check_keep_for(&name, limit)?;
            }
        }
        let applied = policies.iter().enumerate().filter(|(_, policy)| policy.mode != Mode::Off);
        let index = Index::build(applied.map(|(place, policy)| (place as u32, &policy.matching)));
        share_quotas(&mut policies);
        let compiled = Compiled::all(&policies);
        let sensed = Sensed::of(&policies)?;
        let guarded =
            policies.iter().any(|policy| !policy.access.deny.is_empty() || policy.deadline.is_some());
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
        let shares = shares.with_prepared(sensed.is_some() || demoting);
        Ok(Self {
            policies,
            compiled,
            places,
            index,
            access,
            guarded,
            compares_places,
            settled_by,
            ipv6_prefix,
            shares,
            demoting,
            lets_through,
            sensed,
        })
    }

    /// Returns the policies in order; the index is that of [`Line::policy`](super::Line::policy).
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns how many leading bits of an IPv6 address in `client.ip` make a key; 1 to 128.
    #[must_use]
    pub const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Returns where its policies say that they are decided.
    pub(crate) const fn shares(&self) -> Shares {
        self.shares
    }

    /// Says whether some policy lowers the priority of requests over its limits.
    #[inline]
    pub(crate) const fn demotes(&self) -> bool {
        self.demoting
    }

    /// Says whether some policy lets requests pass that are over its limits, and tells of them: `over: mark` or `demote`.
    #[must_use]
    pub const fn lets_through(&self) -> bool {
        self.lets_through
    }

    /// Returns how many policies there are, those switched off included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.policies.len()
    }

    /// Says whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Returns a policy and its index by name. One hash, however many there are.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(usize, &Policy)> {
        let place = *self.places.get(name)?;
        Some((place, &self.policies[place]))
    }

    /// Returns the lists that hold for all policies.
    #[must_use]
    pub fn shared_access(&self) -> &Access {
        &self.access
    }

    /// Returns how often the cost of a policy could not be found and 1 was charged, since the set was made.
    #[must_use]
    pub fn cost_fallbacks(&self, policy: usize) -> u64 {
        self.compiled.get(policy).map_or(0, Compiled::cost_fallbacks)
    }

    /// Returns what a policy that learns its estimate reckons a request to cost, before any limit cuts it; `None` where it does not learn
    /// or does not know enough yet.
    #[must_use]
    pub fn estimate(&self, policy: usize) -> Option<Cost> {
        self.learned(policy)?.estimate()
    }

    /// Returns how many settlements the estimate of a policy that learns goes by, at most 1,024; below [`Learning::ENOUGH`] there is no
    /// estimate yet. `None` for a policy that does not learn. A short lock of the policy's own; checks do not take it.
    ///
    /// [`Learning::ENOUGH`]: crate::policy::Learning::ENOUGH
    #[must_use]
    pub fn settlements_learnt(&self, policy: usize) -> Option<u64> {
        Some(self.learned(policy)?.settlements())
    }

    /// Goes on from what the policies of another set have learnt, by their names: before this set is put in force in its place. A policy that
    /// settles by other words now starts anew: it counts other units. Numbers that were read, and conditions that stayed the same, go on too.
    pub fn learn_from(&self, before: &Self) {
        // A set that is put in force once more knows all that it knows.
        if std::ptr::eq(self, before) {
            return;
        }
        self.sense_on_from(before);
        for (place, policy) in self.policies.iter().enumerate() {
            let same = |other: &Policy| match (&policy.settle, &other.settle) {
                (Some(one), Some(two)) => one.is_same(two),
                (None, None) => true,
                _ => false,
            };
            if let Some((at, other)) = before.find(&policy.name)
                && same(other)
            {
                self.compiled[place].learn_from(&before.compiled[at]);
            }
        }
    }

    pub(super) fn learned(&self, policy: usize) -> Option<&Learned> {
        self.compiled.get(policy)?.learned().map(|learned| &**learned)
    }

    /// Returns the names that policies settle by.
    pub(super) fn settled_by(&self) -> &Named {
        &self.settled_by
    }

    /// Says whether a path is a value for some policy or list (a key, an entry, a price) that servers behind would read
    /// differently, because it goes up with `..` from a place that they see differently. No one value can stand for such a path;
    /// nobody needs it, and a door that does not know the server behind should refuse it.
    #[must_use]
    pub fn is_ambiguous_path(&self, path: &str) -> bool {
        self.compares_places && path::is_ambiguous(path)
    }

    /// Returns the attributes that the policies and lists of this set name, and those that Tidegate itself names (the client, method, host,
    /// path and direction).
    #[must_use]
    pub fn named(&self) -> Named {
        let mut named = self.looked_at();
        for name in BUILT_IN {
            named.add(name);
        }
        named
    }

    /// Returns the attributes that checks under this set look at. Less than [`PolicySet::named`] where no policy or list asks for the
    /// method, the host, the path or the client: for callers who describe requests to this set alone and can leave out the rest.
    #[must_use]
    pub fn looked_at(&self) -> Named {
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

    /// Teaches the estimate of a policy what a request really cost; nothing where the policy does not learn. A short lock of the policy's
    /// own; checks do not take it.
    pub fn learn(&self, policy: usize, real: u64) {
        // At least one unit, as any cost.
        let real = Cost::new(real).unwrap_or_default();
        if let Some(learned) = self.learned(policy) {
            learned.learn(real);
        }
    }
}

/// Says whether a policy lowers the priority of requests over its limits.
pub(super) fn demotes(policy: &Policy) -> bool {
    policy.lets_through() && matches!(policy.over, Over::Demote { .. })
}

/// Checks that a limit can keep what it says, under each of its terms.
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

/// Collects the names that the policies settle by.
fn settled_by(policies: &[Policy]) -> Named {
    let mut named = Named::default();
    let mut add = |name: &str, group: bool| named.add_name(name, group);
    policies.iter().filter_map(|policy| policy.settle.as_ref()).for_each(|rule| rule.each_name(&mut add));
    named
}

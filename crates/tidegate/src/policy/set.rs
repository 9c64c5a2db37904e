//! The whole validated file's policies: which of them a request meets, and what it is charged.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;
use tidegate_core::Cost;

use super::access::{Access, Refusal};
use super::among::Among;
use super::compiled::Compiled;
use super::descriptor::Descriptor;
use super::index::{Candidates, Index};
use super::key;
use super::learned::Learned;
use super::matching::{View, plain_values};
use super::named::Named;
use super::path;
use super::plan::{Line, Plan};
use super::policy::{Absent, Direction, Mode, Policy, Shares};
use super::usage;

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
}

/// An immutable set of policies, replaced whole.
///
/// All matching policies are tried in order; a denial charges none of them. Share it in an `Arc`; planning takes `&self` and
/// no lock.
#[derive(Debug, Default)]
pub struct PolicySet {
    policies: Vec<Policy>,
    compiled: Vec<Compiled>,
    places: HashMap<Box<str>, usize, RandomState>,
    index: Index,
    access: Access,
    /// Whether some policy has a deny-list of its own.
    guarded: bool,
    /// Whether path or host are values for some policy: part of a key, in a list, in a cost.
    compares_places: bool,
    /// The names that policies settle by.
    settled_by: Named,
    ipv6_prefix: u8,
    /// Where its policies say that they are decided.
    shares: Shares,
}

impl PolicySet {
    /// Makes a set.
    ///
    /// # Errors
    /// [`PolicySetError`] for a name missing or repeated, a policy without limits, an attribute twice in a key.
    pub fn new(policies: Vec<Policy>) -> Result<Self, PolicySetError> {
        Self::with(policies, Access::default(), 64)
    }

    /// Makes a set with lists that hold for all policies, and the IPv6 prefix that `client.ip` is keyed by.
    ///
    /// # Errors
    /// As [`PolicySet::new`].
    pub fn with(policies: Vec<Policy>, access: Access, ipv6_prefix: u8) -> Result<Self, PolicySetError> {
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
        }
        let applied = policies.iter().enumerate().filter(|(_, policy)| policy.mode != Mode::Off);
        let index = Index::build(applied.map(|(place, policy)| (place as u32, &policy.matching)));
        let compiled = Compiled::all(&policies);
        let guarded = policies.iter().any(|policy| !policy.access.deny.is_empty());
        let mut compares_places = false;
        let mut see = |name: &str, group: bool| {
            compares_places |= ["request.path", "request.host"].into_iter().any(|place| {
                place == name || group && place.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            });
        };
        access.allow.names().chain(access.deny.names()).for_each(|name| see(name, false));
        policies.iter().for_each(|policy| policy.each_named(&mut see));
        let ipv6_prefix = ipv6_prefix.clamp(1, 128);
        let settled_by = usage::settled_by(&policies);
        let shares = policies.iter().filter_map(|policy| policy.share).collect();
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
        })
    }

    /// Returns the policies in order; the index is that of [`Line::policy`].
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns where its policies say that they are decided.
    pub(crate) const fn shares(&self) -> Shares {
        self.shares
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
    /// settles by other words now starts anew: it counts other units.
    pub fn learn_from(&self, before: &Self) {
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

    /// Says whether a deny-list refuses a request, before any limit is asked. Free when no list exists; the policies
    /// are looked up only when one of them has a list.
    ///
    /// A policy in shadow refuses nobody.
    #[must_use]
    pub fn access(&self, descriptor: &Descriptor<'_>) -> Option<Refusal> {
        self.refusal(descriptor, None)
    }

    /// Like [`PolicySet::access`], with the lists of those policies only, and of the set.
    #[must_use]
    pub(crate) fn refusal(&self, request: &Descriptor<'_>, among: Option<&Among>) -> Option<Refusal> {
        if self.access.deny.is_empty() && !self.guarded {
            return None;
        }
        let plain = if self.compares_places { plain_values(request) } else { None };
        let descriptor = plain.as_ref().unwrap_or(request);
        if !self.access.deny.is_empty()
            && let Some(entry) = self.access.deny.find(descriptor)
        {
            return Some(Refusal { policy: None, entry, status: self.access.status });
        }
        if !self.guarded {
            return None;
        }
        let view = View::over(request, descriptor);
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        candidates.find_map(|place| {
            let policy = &self.policies[place];
            if among.is_some_and(|among| !among.has(place))
                || policy.access.deny.is_empty()
                || policy.mode != Mode::Enforce
                || (policy.direction == Direction::Outbound) != view.outbound
                || policy.matching.misfit(&view).is_some()
            {
                return None;
            }
            let entry = policy.access.deny.find(descriptor)?;
            Some(Refusal { policy: Some(place), entry, status: policy.access.status })
        })
    }

    /// Says whether a path is a value for some policy or list (a key, an entry, a price) that servers behind would read
    /// differently, because it goes up with `..` from a place that they see differently. No one value can stand for such a path;
    /// nobody needs it, and a door that does not know the server behind should refuse it.
    #[must_use]
    pub fn is_ambiguous_path(&self, path: &str) -> bool {
        self.compares_places && path::is_ambiguous(path)
    }

    /// Lists the charges of a request, in the order of the policies.
    ///
    /// `cost` is what the caller says the request costs; a policy with a cost of its own goes by that, because the file is
    /// the operator's word. Allow-lists are heeded, deny-lists are not: ask [`PolicySet::access`] first. Allocates for the
    /// keys, and beyond them only for more than sixteen lines or an odd path.
    #[must_use]
    pub fn plan(&self, descriptor: &Descriptor<'_>, cost: Option<Cost>) -> Plan<'_> {
        let mut plan = Plan::default();
        self.plan_into(descriptor, cost, &mut plan);
        plan
    }

    /// Like [`PolicySet::plan`], into a plan that is emptied first, keeping its memory.
    pub fn plan_into<'p>(&'p self, descriptor: &Descriptor<'_>, cost: Option<Cost>, plan: &mut Plan<'p>) {
        self.fill(descriptor, cost, plan, |_| true);
    }

    /// Like [`PolicySet::plan_into`], with the lines of those policies only.
    pub(crate) fn plan_among<'p>(
        &'p self,
        descriptor: &Descriptor<'_>,
        cost: Option<Cost>,
        among: &Among,
        plan: &mut Plan<'p>,
    ) {
        self.fill(descriptor, cost, plan, |place| among.has(place));
    }

    fn fill<'p>(
        &'p self,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        plan: &mut Plan<'p>,
        wanted: impl Fn(usize) -> bool,
    ) {
        plan.lines.clear();
        plan.keys.clear();
        let plain = if self.compares_places { plain_values(request) } else { None };
        let descriptor = plain.as_ref().unwrap_or(request);
        if !self.access.allow.is_empty() && self.access.allow.find(descriptor).is_some() {
            return;
        }
        let view = View::over(request, descriptor);
        // Policies of one kind often follow each other in the file: what was found for the last is asked for once.
        let mut spoken: Option<(usize, bool)> = None;
        let mut keyed: Option<Values> = None;
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        // By reference: a loop over the thing itself would move it.
        for place in candidates.by_ref() {
            let compiled = &self.compiled[place];
            let speaks = match spoken {
                Some((like, speaks)) if like == compiled.speaks_like => speaks,
                _ => {
                    compiled.outbound == view.outbound
                        && self.policies[place].matching.misfit(&view).is_none()
                }
            };
            spoken = Some((compiled.speaks_like, speaks));
            if !speaks || !wanted(place) {
                continue;
            }
            let policy = &self.policies[place];
            if compiled.exempts && policy.access.allow.find(descriptor).is_some() {
                continue;
            }
            // The first key is made in one piece; those that end alike take their end from it.
            let mut made = None;
            let values = match &keyed {
                Some(values) if values.like == compiled.keyed_like => values,
                _ => {
                    let start = plan.keys.len();
                    plan.keys.extend_from_slice(&compiled.limits[0].prefix);
                    let from = plan.keys.len();
                    let there = key::push_values(&mut plan.keys, &policy.by, descriptor, self.ipv6_prefix);
                    made = Some(start..plan.keys.len());
                    let at = from..plan.keys.len();
                    keyed.insert(Values { like: compiled.keyed_like, there, at })
                }
            };
            if values.there < compiled.needs {
                continue;
            }
            let cost = compiled.cost(policy, descriptor, cost);
            for (at, ready) in compiled.limits.iter().enumerate() {
                let Some(quota) = ready.quota(descriptor, || policy.limit(at)) else { continue };
                let key = made.take_if(|_| at == 0).unwrap_or_else(|| {
                    let start = plan.keys.len();
                    plan.keys.extend_from_slice(&ready.prefix);
                    plan.keys.extend_from_within(values.at.clone());
                    start..plan.keys.len()
                });
                plan.lines.push(Line {
                    policy: place,
                    limit: at,
                    key,
                    quota,
                    cost: if ready.one_place { Cost::ONE } else { cost },
                    max_wait: ready.max_wait,
                    binding: ready.binding,
                    on_failure: compiled.on_failure,
                    on_error: compiled.on_error,
                    share: compiled.share,
                    passing: false,
                    by_fallback: false,
                    replace: ready.replace,
                    owner: ready.owner,
                });
            }
        }
    }

    /// Returns the bytes of one key, as plans have them: what to look up or reset by hand. `None` for an unknown limit.
    #[must_use]
    pub fn key(&self, policy: usize, limit: usize, descriptor: &Descriptor<'_>) -> Option<Vec<u8>> {
        let mut key = self.compiled.get(policy)?.limits.get(limit)?.prefix.to_vec();
        let plain = if self.compares_places { plain_values(descriptor) } else { None };
        let descriptor = plain.as_ref().unwrap_or(descriptor);
        key::push_values(&mut key, &self.policies[policy].by, descriptor, self.ipv6_prefix);
        Some(key)
    }
}

/// The end of keys: the values of a `by`.
struct Values {
    /// The first policy with that `by`.
    like: usize,
    /// How many of its attributes the request has.
    there: usize,
    /// Where their bytes are in [`Plan::keys`].
    at: Range<usize>,
}

impl Policy {
    /// Returns how many attributes of the key a request must have to be charged.
    pub(crate) fn needs(&self) -> usize {
        match self.absent {
            Absent::Charge => 0,
            Absent::Skip => self.by.len(),
            Absent::SkipIfNone => self.by.len().min(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Quota;

    use super::super::matching::Match;
    use super::super::policy::{Limit, Terms};
    use super::*;

    /// Keys that end alike take their end from the first, which may have been skipped or have no limit.
    #[test]
    fn planned_keys_are_those_looked_up_by_hand() {
        let quota = || Limit::new(Quota::per_second(1).gcra().unwrap(), "one");
        let policy = |name: &str, by: &[&str], absent: Absent, path: &str| {
            let mut policy = Policy::new(name, quota());
            policy.by = by.iter().map(|name| (*name).to_owned()).collect();
            (policy.absent, policy.matching) = (absent, Match::any().path(path).unwrap());
            policy
        };
        let mut unlimited = policy("unlimited first", &["client.ip", "user.id"], Absent::Charge, "/api/**");
        unlimited.limits = vec![Limit::of(Terms::unlimited()), quota(), quota()];
        let set = PolicySet::new(vec![
            policy("skipped", &["client.ip", "user.id"], Absent::Skip, "/api/**"),
            unlimited,
            policy("alike", &["client.ip", "user.id"], Absent::SkipIfNone, "/api/**"),
            policy("elsewhere", &["client.ip", "user.id"], Absent::SkipIfNone, "/other"),
            policy("of another end", &["client.ip"], Absent::SkipIfNone, "/api/**"),
            policy("of no end", &[], Absent::SkipIfNone, "/api/**"),
            policy("the first end again", &["client.ip", "user.id"], Absent::Charge, "/**"),
        ])
        .unwrap();
        let request = Descriptor::new().with("client.ip", "2001:db8::1").with("request.path", "/api/items");
        let plan = set.plan(&request, None);
        let places: Vec<_> = plan.lines.iter().map(|line| (line.policy, line.limit)).collect();
        assert_eq!(places, [(1, 1), (1, 2), (2, 0), (4, 0), (5, 0), (6, 0)]);
        for line in &plan.lines {
            let by_hand = set.key(line.policy, line.limit, &request).unwrap();
            assert_eq!(plan.keys[line.key.clone()], by_hand, "{}", set.policies()[line.policy].name);
        }
    }
}

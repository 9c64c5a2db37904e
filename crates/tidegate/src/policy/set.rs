//! The whole validated file's policies: which of them a request meets, and what it is charged.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use tidegate_core::Cost;

use super::access::{Access, Refusal};
use super::descriptor::Descriptor;
use super::index::Index;
use super::key;
use super::matching::View;
use super::plan::{Line, Plan};
use super::policy::{Absent, ChargeOn, Direction, Limit, Mode, Policy};

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

/// What is worked out of a policy once, so that a check does not.
#[derive(Debug)]
struct Compiled {
    /// The start of the keys of each limit, the shadow limit's last.
    prefixes: SmallVec<[Box<[u8]>; 2]>,
    /// The first policy of the set with the same `by`: their keys end alike.
    like: usize,
    /// How often its cost could not be found.
    cost_fallbacks: AtomicU64,
}

/// An immutable set of policies, replaced whole.
///
/// All matching policies are tried in order; a denial charges none of them. Share it in an `Arc`; planning takes `&self` and
/// no lock.
#[derive(Debug, Default)]
pub struct PolicySet {
    policies: Vec<Policy>,
    compiled: Vec<Compiled>,
    index: Index,
    access: Access,
    /// Whether some policy has a deny-list of its own.
    guarded: bool,
    ipv6_prefix: u8,
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
        let mut names = HashSet::new();
        for policy in &policies {
            let name = policy.name.clone();
            if name.is_empty() {
                return Err(PolicySetError::NoName);
            }
            if !names.insert(policy.name.as_str()) {
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
        let mut first_by = HashMap::new();
        let compiled = policies.iter().enumerate().map(|(place, policy)| {
            let like = *first_by.entry(policy.by.as_slice()).or_insert(place);
            Compiled::of(policy, like)
        });
        let compiled = compiled.collect();
        let guarded = policies.iter().any(|policy| !policy.access.deny.is_empty());
        Ok(Self { policies, compiled, index, access, guarded, ipv6_prefix: ipv6_prefix.clamp(1, 128) })
    }

    /// Returns the policies in order; the index is that of [`Line::policy`].
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
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

    /// Returns a policy and its index by name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(usize, &Policy)> {
        self.policies.iter().enumerate().find(|(_, policy)| policy.name == name)
    }

    /// Returns the lists that hold for all policies.
    #[must_use]
    pub fn shared_access(&self) -> &Access {
        &self.access
    }

    /// Returns how often the cost of a policy could not be found and 1 was charged, since the set was made.
    #[must_use]
    pub fn cost_fallbacks(&self, policy: usize) -> u64 {
        // Relaxed: a count for people, which orders nothing.
        self.compiled.get(policy).map_or(0, |compiled| compiled.cost_fallbacks.load(Ordering::Relaxed))
    }

    /// Says whether a deny-list refuses a request, before any limit is asked. Free when no list exists; the policies
    /// are looked up only when one of them has a list.
    ///
    /// A policy in shadow refuses nobody.
    #[must_use]
    pub fn access(&self, descriptor: &Descriptor<'_>) -> Option<Refusal> {
        if !self.access.deny.is_empty()
            && let Some(entry) = self.access.deny.find(descriptor)
        {
            return Some(Refusal { policy: None, entry, status: self.access.status });
        }
        if !self.guarded {
            return None;
        }
        let view = View::of(descriptor);
        let mut refusal = None;
        self.index.candidates(&view, |place| {
            let policy = &self.policies[place];
            if refusal.is_some() || policy.access.deny.is_empty() || policy.mode != Mode::Enforce {
                return;
            }
            if policy.speaks_of(&view)
                && let Some(entry) = policy.access.deny.find(descriptor)
            {
                refusal = Some(Refusal { policy: Some(place), entry, status: policy.access.status });
            }
        });
        refusal
    }

    /// Lists the charges of a request, in the order of the policies.
    ///
    /// `cost` is what the caller says the request costs; a policy with a cost of its own goes by that, because the file is
    /// the operator's word. Allow-lists are heeded, deny-lists are not: ask [`PolicySet::access`] first. Allocates only for
    /// more than sixteen lines, more than 1,024 bytes of keys, or an odd path.
    #[must_use]
    pub fn plan(&self, descriptor: &Descriptor<'_>, cost: Option<Cost>) -> Plan<'_> {
        let mut plan = Plan::default();
        self.plan_into(descriptor, cost, &mut plan);
        plan
    }

    /// Like [`PolicySet::plan`], into a plan that is emptied first, keeping its memory.
    pub fn plan_into<'p>(&'p self, descriptor: &Descriptor<'_>, cost: Option<Cost>, plan: &mut Plan<'p>) {
        self.fill(descriptor, cost, plan, |_| true, None);
    }

    /// Lists what the report of a failure charges: the lines of policies with `charge: on-failure`, which now spend.
    ///
    /// They bind nobody, the request has passed. Reset the same keys to report a success.
    #[must_use]
    pub fn plan_report(&self, descriptor: &Descriptor<'_>, cost: Option<Cost>) -> Plan<'_> {
        let mut plan = Plan::default();
        let on_failure = |policy: &Policy| policy.charge == ChargeOn::Failure;
        self.fill(descriptor, cost, &mut plan, on_failure, Some((false, true)));
        plan
    }

    /// Returns the bytes of one key, as plans have them: what to look up or reset by hand. `None` for an unknown limit.
    #[must_use]
    pub fn key(&self, policy: usize, limit: usize, descriptor: &Descriptor<'_>) -> Option<Vec<u8>> {
        let prefix = self.compiled.get(policy)?.prefixes.get(limit)?;
        let mut values = SmallVec::new();
        key::push_values(&mut values, &self.policies[policy].by, descriptor, self.ipv6_prefix);
        Some([prefix, &values[..]].concat())
    }

    fn fill<'p>(
        &'p self,
        descriptor: &Descriptor<'_>,
        cost: Option<Cost>,
        plan: &mut Plan<'p>,
        wanted: impl Fn(&Policy) -> bool,
        binding_spends: Option<(bool, bool)>,
    ) {
        plan.lines.clear();
        plan.keys.clear();
        if !self.access.allow.is_empty() && self.access.allow.find(descriptor).is_some() {
            return;
        }
        let view = View::of(descriptor);
        let mut values: SmallVec<[u8; 96]> = SmallVec::new();
        // Whose values those are, and how many are there.
        let mut made = None;
        self.index.candidates(&view, |place| {
            let policy = &self.policies[place];
            if !wanted(policy) || !policy.speaks_of(&view) {
                return;
            }
            if !policy.access.allow.is_empty() && policy.access.allow.find(descriptor).is_some() {
                return;
            }
            let compiled = &self.compiled[place];
            let there = match made {
                Some((like, there)) if like == compiled.like => there,
                _ => {
                    values.clear();
                    key::push_values(&mut values, &policy.by, descriptor, self.ipv6_prefix)
                }
            };
            made = Some((compiled.like, there));
            if !policy.charges_with(there) {
                return;
            }
            let cost = compiled.cost(policy, descriptor, cost);
            let limits = policy.limits.iter().chain(&policy.shadow_limit);
            for (at, (limit, prefix)) in limits.zip(&compiled.prefixes).enumerate() {
                let Some(quota) = &limit.terms_for(descriptor).quota else { continue };
                let start = plan.keys.len();
                plan.keys.extend_from_slice(prefix);
                plan.keys.extend_from_slice(&values);
                let measured = policy.mode == Mode::Shadow || policy.is_shadow_limit(at);
                let (binding, spends) =
                    binding_spends.unwrap_or((!measured, policy.charge == ChargeOn::Check));
                plan.lines.push(Line {
                    policy: place,
                    limit: at,
                    key: start..plan.keys.len(),
                    quota,
                    cost,
                    max_wait: limit.max_wait,
                    binding,
                    spends,
                    replace: limit.replace,
                });
            }
        });
    }
}

impl Compiled {
    fn of(policy: &Policy, like: usize) -> Self {
        let limits: Vec<&Limit> = policy.limits.iter().chain(&policy.shadow_limit).collect();
        let prefixes = (0..limits.len()).map(|at| key::prefix(&policy.name, at, &policy.by)).collect();
        Self { prefixes, like, cost_fallbacks: AtomicU64::new(0) }
    }

    fn cost(&self, policy: &Policy, descriptor: &Descriptor<'_>, asked: Option<Cost>) -> Cost {
        match &policy.cost {
            None => asked.unwrap_or_default(),
            Some(rule) => rule.cost(descriptor).unwrap_or_else(|_| {
                self.cost_fallbacks.fetch_add(1, Ordering::Relaxed);
                Cost::ONE
            }),
        }
    }
}

impl Policy {
    pub(crate) fn speaks_of(&self, view: &View<'_, '_>) -> bool {
        (self.direction == Direction::Outbound) == view.outbound && self.matching.misfit(view).is_none()
    }

    /// Says whether a request with so many of the key's attributes is charged.
    pub(crate) fn charges_with(&self, there: usize) -> bool {
        match self.absent {
            Absent::Charge => true,
            Absent::Skip => there == self.by.len(),
            Absent::SkipIfNone => there > 0 || self.by.is_empty(),
        }
    }
}

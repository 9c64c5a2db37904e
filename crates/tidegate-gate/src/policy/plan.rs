//! The plan of a request: the list of charges that a policy set makes and a store executes; or the refusal of a list, which
//! comes before.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Priority, Quota};

use super::access::{AccessEntry, Refusal};
use super::compiled::{LimitRules, Stated};
use super::deadline::time_left;
use super::descriptor::Descriptor;
use super::in_force::Among;
use super::index::Candidates;
use super::key;
use super::matching::{View, plain_values};
use super::policy::{Direction, Mode, Policy};
use super::set::{PolicySet, demotes};
use tidegate_limits::store::Charge;

/// One charge of a plan, with the policy it comes from.
#[derive(Clone, Debug)]
pub struct Line<'p> {
    /// Index of the policy in its set.
    pub policy: usize,
    /// Index of the limit within the policy: the policy's own limits first, then its shadow limit, then that of its canary,
    /// which may stand in the place of the first.
    pub limit: usize,
    /// The range of the key's bytes in [`Plan::keys`].
    pub key: Range<usize>,
    /// The quota that applies to this key.
    pub quota: &'p Arc<Quota>,
    /// The units to charge.
    pub cost: Cost,
    /// How much the request must leave of the limit, see [`Charge::kept_back`].
    pub kept_back: u64,
    /// The longest delay that the policy accepts.
    pub max_wait: Duration,
    /// Whether a refusal refuses the request: `false` in shadow mode and for shadow limits.
    pub binding: bool,
    /// The rules of the limit.
    pub rules: LimitRules,
    /// Whether the quota belongs to this one check, as in [`Charge::inline_quota`].
    pub inline_quota: bool,
    /// After charging: whether the fallback store charged it in place of an engine.
    pub by_fallback: bool,
}

/// The number of lines that a plan holds without allocating. Few requests meet 16 limits, and a plan is filled in
/// place, so unused room costs nothing.
pub(crate) const LINES: usize = 16;

impl Line<'_> {
    /// Reports whether the policy could not determine what the request costs, and refuses it for that
    /// ([`OnCostError::Deny`](super::OnCostError::Deny)).
    #[must_use]
    pub fn cost_is_unknown(&self) -> bool {
        self.cost == super::UNKNOWN_COST
    }

    /// Reports whether the line either permits at once or refuses the step: it is not a shadow and has no delay.
    pub(crate) const fn is_plain(&self) -> bool {
        self.binding && self.max_wait.is_zero()
    }
}

/// All charges of one request, in the order of the policies.
///
/// Takes more than a kilobyte, for 16 lines without allocation: fill it in place rather than moving it.
#[derive(Clone, Debug, Default)]
pub struct Plan<'p> {
    /// One line per limit of each matching policy.
    pub lines: SmallVec<[Line<'p>; LINES]>,
    /// The bytes of all keys, and of some that were not needed. A key of an address takes about 40 bytes.
    pub keys: Vec<u8>,
}

impl Plan<'_> {
    /// Removes all lines and keeps the memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.keys.clear();
    }

    /// Returns the lines as charges for a store.
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.lines.iter().map(|line| self.charge(line))
    }

    /// Returns one of the lines as a charge for a store.
    #[inline]
    pub(crate) fn charge<'c>(&'c self, line: &Line<'c>) -> Charge<'c> {
        Charge {
            key: &self.keys[line.key.clone()],
            quota: line.quota,
            cost: line.cost,
            kept_back: line.kept_back,
            max_wait: line.max_wait,
            binding: line.binding,
            rules: line.rules.charge,
            by_fallback: line.by_fallback,
            inline_quota: line.inline_quota,
        }
    }
}

/// The number of policies whose keys [`PolicySet::push_likely_keys`] makes: if a set has many policies, few match a
/// request.
const LIKELY: usize = 4;

impl PolicySet {
    /// Returns the refusal by a deny-list or a deadline, before any limit is checked; `None` if neither refuses. Costs
    /// nothing if the set has neither; policies are looked up only if one of them has one.
    ///
    /// A policy in shadow mode refuses no request. A policy with a switch is evaluated for the default priority.
    #[must_use]
    pub fn access(&self, descriptor: &Descriptor<'_>) -> Option<Refusal> {
        self.refuse(descriptor, Priority::default(), |_| true)
    }

    /// Like [`PolicySet::access`], with only the lists of the wanted policies and of the set.
    #[inline(always)]
    pub(super) fn refuse(
        &self,
        request: &Descriptor<'_>,
        priority: Priority,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<Refusal> {
        if self.access.deny.is_empty() && !self.guarded {
            return None;
        }
        let plain = if self.compares_places { plain_values(request) } else { None };
        let descriptor = plain.as_ref().unwrap_or(request);
        if !self.access.deny.is_empty()
            && let Some(entry) = self.access.deny.find(descriptor)
        {
            return Some(Refusal {
                policy: None,
                entry,
                status: self.access.status,
                needs: None,
                block: None,
            });
        }
        if !self.guarded {
            return None;
        }
        let view = View::over(request, descriptor);
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        candidates.find_map(|place| {
            let policy = &self.policies[place];
            if !wanted(place)
                || !self.compiled[place].holds(priority)
                || policy.access.deny.is_empty() && policy.deadline.is_none()
                || policy.mode != Mode::Enforce
                || (policy.direction == Direction::Outbound) != view.outbound
                || policy.matching.misfit(&view).is_some()
            {
                return None;
            }
            let (policy_at, status) = (Some(place), policy.access.status);
            if let Some(entry) = policy.access.deny.find(descriptor) {
                return Some(Refusal { policy: policy_at, entry, status, needs: None, block: None });
            }
            let (needs, entry) = self.too_late(policy, request, descriptor)?;
            let status = policy.shed.status;
            Some(Refusal { policy: policy_at, entry, status, needs: Some(needs), block: None })
        })
    }

    /// Reports whether any of these policies is about a request: it matches and has what the key is made of, or a list
    /// exempts it. `false`: nobody has thought of such a request, and nothing limits it. It tells such requests from
    /// those that conditions, lists or unlimited terms leave out on purpose. Costs a look-up of the policies that may
    /// match.
    #[must_use]
    pub fn meets(&self, request: &Descriptor<'_>, among: Option<&Among>) -> bool {
        let plain = if self.compares_places { plain_values(request) } else { None };
        let descriptor = plain.as_ref().unwrap_or(request);
        if !self.access.allow.is_empty() && self.access.allow.find(descriptor).is_some() {
            return true;
        }
        let view = View::over(request, descriptor);
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        candidates.by_ref().any(|place| {
            let (policy, compiled) = (&self.policies[place], &self.compiled[place]);
            let there = || policy.by.iter().filter(|name| descriptor.value(name).is_some()).count();
            among.is_none_or(|among| among.has(place))
                && compiled.outbound == view.outbound
                && policy.matching.misfit(&view).is_none()
                && (there() >= compiled.needs || policy.access.allow.find(descriptor).is_some())
        })
    }

    /// Calls `refuses` for each wanted policy that matches the request and is enforced, in order; returns the first
    /// refusal.
    pub(crate) fn refuse_by(
        &self,
        request: &Descriptor<'_>,
        priority: Priority,
        among: Option<&Among>,
        mut refuses: impl FnMut(usize, &Policy) -> Option<Refusal>,
    ) -> Option<Refusal> {
        let plain = if self.compares_places { plain_values(request) } else { None };
        let view = View::over(request, plain.as_ref().unwrap_or(request));
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        candidates.find_map(|place| {
            let policy = &self.policies[place];
            let applies = among.is_none_or(|among| among.has(place))
                && policy.mode == Mode::Enforce
                && self.compiled[place].holds(priority)
                && (policy.direction == Direction::Outbound) == view.outbound
                && policy.matching.misfit(&view).is_none();
            if applies { refuses(place, policy) } else { None }
        })
    }

    /// Returns the time that the policy's requests need and the header that leaves less, unless the caller is on an
    /// allow-list.
    pub(super) fn too_late(
        &self,
        policy: &Policy,
        request: &Descriptor<'_>,
        descriptor: &Descriptor<'_>,
    ) -> Option<(Duration, AccessEntry)> {
        let needs = policy.deadline?;
        let (_, entry) = time_left(request).filter(|(left, _)| *left < needs)?;
        let mut lists = [&self.access.allow, &policy.access.allow].into_iter();
        lists.all(|list| list.find(descriptor).is_none()).then_some((needs, entry))
    }

    /// Lists the charges of a request of the default priority, in the order of the policies.
    ///
    /// `cost` is the cost that the caller states; a policy with a cost of its own uses that instead, unless it believes
    /// its callers. Allow-lists apply; for deny-lists call [`PolicySet::access`] first.
    ///
    /// Allocates for the keys, and otherwise only for more than sixteen lines or a path that needs normalising.
    #[must_use]
    pub fn plan(&self, descriptor: &Descriptor<'_>, cost: Option<Cost>) -> Plan<'_> {
        let mut plan = Plan::default();
        self.plan_for(descriptor, Stated::cost(cost), &mut plan);
        plan
    }

    /// Like [`PolicySet::plan`], for a request of any priority; appends to what the plan already holds.
    #[inline]
    pub(crate) fn plan_for<'p>(&'p self, descriptor: &Descriptor<'_>, stated: Stated, plan: &mut Plan<'p>) {
        self.fill(descriptor, stated, plan, |_| true);
    }

    /// Like [`PolicySet::plan_for`], with only the lines of policies that are `wanted` and lower priorities.
    #[inline(never)]
    pub(crate) fn plan_demoting<'p>(
        &'p self,
        descriptor: &Descriptor<'_>,
        stated: Stated,
        plan: &mut Plan<'p>,
        wanted: impl Fn(usize) -> bool,
    ) {
        self.fill(descriptor, stated, plan, |place| demotes(&self.policies[place]) && wanted(place));
    }

    /// Returns how much a request of a priority must leave of a quota that applies in place of a line's own.
    pub(crate) fn kept_back(&self, line: &Line<'_>, quota: &Arc<Quota>, priority: Priority) -> u64 {
        self.compiled[line.policy].ready(line.limit).map_or(0, |ready| ready.kept_back(quota, priority))
    }

    /// Returns the quota of a limit of the set that currently applies to a request; `None`: unlimited.
    pub(crate) fn quota_in_force(
        &self,
        policy: usize,
        limit: usize,
        request: &Descriptor<'_>,
    ) -> Option<&Arc<Quota>> {
        let ready = self.compiled.get(policy)?.ready(limit)?;
        ready.quota(request, || self.policies[policy].limit(limit))
    }

    /// Appends the lines of the wanted policies to a plan.
    #[inline(always)]
    pub(super) fn fill<'p>(
        &'p self,
        request: &Descriptor<'_>,
        stated: Stated,
        plan: &mut Plan<'p>,
        wanted: impl Fn(usize) -> bool,
    ) {
        let plain = if self.compares_places { plain_values(request) } else { None };
        let descriptor = plain.as_ref().unwrap_or(request);
        if !self.access.allow.is_empty() && self.access.allow.find(descriptor).is_some() {
            return;
        }
        let view = View::over(request, descriptor);
        // Policies of one kind often follow each other in the file, so the last result is reused.
        let mut last_match: Option<(usize, bool)> = None;
        let mut keyed: Option<Values> = None;
        let mut candidates = Candidates::default();
        self.index.look_up(&view, &mut candidates);
        // By reference: a loop over the value itself would move it.
        for place in candidates.by_ref() {
            let compiled = &self.compiled[place];
            let matches = match last_match {
                Some((like, matches)) if like == compiled.same_match_as => matches,
                _ => {
                    compiled.outbound == view.outbound
                        && self.policies[place].matching.misfit(&view).is_none()
                }
            };
            last_match = Some((compiled.same_match_as, matches));
            if !matches || !wanted(place) {
                continue;
            }
            let policy = &self.policies[place];
            if compiled.may_skip && compiled.skips(policy, descriptor, stated.priority) {
                continue;
            }
            // The first key is made in one piece; later keys with the same values copy their end from it.
            let mut made = None;
            let values = match &keyed {
                Some(values) if values.like == compiled.same_key_as => values,
                _ => {
                    let start = plan.keys.len();
                    plan.keys.extend_from_slice(&compiled.limits[0].prefix);
                    let from = plan.keys.len();
                    let there = key::push_values(&mut plan.keys, &policy.by, descriptor, self.ipv6_prefix);
                    made = Some(start..plan.keys.len());
                    let at = from..plan.keys.len();
                    keyed.insert(Values { like: compiled.same_key_as, there, at })
                }
            };
            if values.there < compiled.needs {
                continue;
            }
            let cost = compiled.cost(policy, descriptor, stated, || &plan.keys[values.at.clone()]);
            for (at, ready) in compiled.limits.iter().enumerate() {
                // Limits that vary are told apart for their quota in any case, so all others do not pay for canaries.
                let (limit, ready) = if ready.varies {
                    compiled.deciding(at, ready, || &plan.keys[values.at.clone()])
                } else {
                    (at, ready)
                };
                let Some(quota) = ready.quota(descriptor, || policy.limit(limit)) else { continue };
                let key = made.take_if(|_| at == 0).unwrap_or_else(|| {
                    let start = plan.keys.len();
                    plan.keys.extend_from_slice(&ready.prefix);
                    plan.keys.extend_from_within(values.at.clone());
                    start..plan.keys.len()
                });
                plan.lines.push(Line {
                    policy: place,
                    limit,
                    key,
                    quota,
                    cost: if ready.one_place { Cost::ONE } else { cost },
                    kept_back: ready.kept_back(quota, stated.priority),
                    max_wait: ready.max_wait,
                    binding: ready.binding,
                    rules: ready.rules,
                    inline_quota: false,
                    by_fallback: false,
                });
            }
        }
    }

    /// Appends the keys that a request is likely to be charged under: those of the first few policies, whether they
    /// match or not. Cheaper than a plan, for callers that tolerate wrong guesses. Appends the end of each key to
    /// `ends`.
    pub(crate) fn push_likely_keys(
        &self,
        descriptor: &Descriptor<'_>,
        keys: &mut Vec<u8>,
        ends: &mut SmallVec<[usize; 16]>,
    ) {
        for (policy, compiled) in self.policies.iter().zip(&self.compiled).take(LIKELY) {
            for ready in &compiled.limits {
                keys.extend_from_slice(&ready.prefix);
                key::push_values(keys, &policy.by, descriptor, self.ipv6_prefix);
                ends.push(keys.len());
            }
        }
    }

    /// Returns the bytes of the key under which a store keeps the block of a key, its limit and its owner; `None` for a
    /// policy that blocks no keys.
    pub(crate) fn block_key(
        &self,
        policy: usize,
        descriptor: &Descriptor<'_>,
    ) -> Option<(Vec<u8>, &Arc<Quota>, u32)> {
        let compiled = self.compiled.get(policy)?;
        let (block, limit) = (compiled.block.as_ref()?, compiled.limits.first()?);
        let mut key = self.key(policy, 0, descriptor)?;
        key.splice(..limit.prefix.len(), block.prefix.iter().copied());
        Some((key, &block.quota, limit.rules.charge.owner))
    }

    /// Returns the indices of the policy and the limit that decide about a key now: its own limit, or the canary's in the
    /// place of the first. `None` if the bytes are not a key, or there is no such limit any more.
    pub(crate) fn deciding_limit(&self, key: &[u8]) -> Option<(usize, usize)> {
        let (head, values) = (key::head_of_key(key)?, key::values_of_key(key)?);
        let (policy, _) = self.find(head.policy)?;
        let compiled = &self.compiled[policy];
        let ready = compiled.limits.get(head.limit)?;
        Some((policy, compiled.deciding(head.limit, ready, || values).0))
    }

    /// Reports whether a request has the attributes that a policy needs to charge it.
    pub(crate) fn is_keyed(&self, policy: usize, descriptor: &Descriptor<'_>) -> bool {
        let there = self.policies[policy].by.iter().filter(|name| descriptor.value(name).is_some());
        there.count() >= self.compiled[policy].needs
    }

    /// Returns the bytes of one key, as in plans, for looking up or resetting a key by hand. `None` for an unknown
    /// limit.
    #[must_use]
    pub fn key(&self, policy: usize, limit: usize, descriptor: &Descriptor<'_>) -> Option<Vec<u8>> {
        let mut key = self.compiled.get(policy)?.ready(limit)?.prefix.to_vec();
        let plain = if self.compares_places { plain_values(descriptor) } else { None };
        let descriptor = plain.as_ref().unwrap_or(descriptor);
        key::push_values(&mut key, &self.policies[policy].by, descriptor, self.ipv6_prefix);
        Some(key)
    }
}

/// The values of a `by`, which are the end of keys.
struct Values {
    /// The first policy with the same `by`.
    like: usize,
    /// How many of the attributes the request has.
    there: usize,
    /// Their range in [`Plan::keys`].
    at: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::super::matching::Match;
    use super::super::policy::{Absent, Limit, Policy, Terms};
    use super::*;

    /// Keys with the same values copy their end from the first key, whose policy may have been skipped or have no limit.
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

//! The compiled form of policies: what checks need, computed once.
//!
//! A policy is spread over many cache lines, but a check needs only a short record per policy and one per limit. Parts
//! that only some policies have (lists, tiers, a cost of their own) have a flag here, and are read from the policy if
//! the flag is set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::rate::Gcra;
use tidegate_core::{Cost, Criticality, Priority, Quota, Rate};

use super::canary::{ChosenKeys, Portion};
use super::cost::{CostErrors, CostRule, OnCostError};
use super::cost_error::CostError;
use super::descriptor::Descriptor;
use super::estimated_cost::{Learned, Learning};
use super::key;
use super::matching::Match;
use super::over_limit::Over;
use super::policy::{Canary, ChargeOn, Direction, Limit, Mode, Policy};
use super::share::Share;
use super::signal_rate::{Levels, busy_from, busy_levels};
use tidegate_limits::priority::{KeepFor, graded, most_at_once};
use tidegate_limits::store::{ChargeRules, Durable, kept_back};

/// The number of levels of priority.
pub(super) const ALL_LEVELS: u8 = Criticality::ALL.len() as u8;

/// What a caller says of a request besides its descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stated {
    /// The cost; `None`: the policies decide.
    pub(crate) cost: Option<Cost>,
    pub(crate) priority: Priority,
    /// Whether a cost that cannot be determined is counted: a look counts nothing, and of several plans for one request
    /// only one counts.
    pub(crate) counts: bool,
}

impl Stated {
    pub(crate) fn cost(cost: Option<Cost>) -> Self {
        Self { cost, priority: Priority::default(), counts: true }
    }
}

/// The record of one policy for checks.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The first policy of the set with the same direction and match: a request fits both or neither.
    pub(crate) same_match_as: usize,
    /// The first policy of the set with the same `by`: the keys of both end with the same bytes.
    pub(crate) same_key_as: usize,
    /// The number of key attributes that a request must have to be charged.
    pub(crate) needs: usize,
    /// Whether the policy applies to requests that this service sends.
    pub(crate) outbound: bool,
    /// Whether the policy may skip requests that match: it has an allow-list of its own, or a condition.
    pub(crate) may_skip: bool,
    /// The number of levels of priority that the conditions hold for, the least important first; all levels if there
    /// are no conditions.
    holds: AtomicU8,
    /// Whether the policy has a cost rule.
    costs: bool,
    /// Whether a cost that the caller sends replaces the policy's cost.
    caller_cost: bool,
    /// The learned estimate, if the policy learns its cost.
    estimate: Option<Estimate>,
    /// The records of its limits, the shadow limit last.
    pub(crate) limits: SmallVec<[Ready; 1]>,
    /// The record of its canary, whose first limit then [varies](Ready::varies).
    canary: Option<Box<ReadyCanary>>,
    /// The key under which a store keeps a block of the policy, if it blocks keys.
    pub(crate) block: Option<BlockKey>,
    /// What the policy does then, and how often the cost could not be determined.
    on_cost_error: OnCostError,
    cost_errors: CostErrorCount,
    /// The units that each limit grants at once, for limits that are the same for all requests.
    most: OnceLock<Box<[u64]>>,
}

/// The record of one limit for checks.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The first bytes of its keys.
    pub(crate) prefix: Box<[u8]>,
    /// The limit for everyone; `None`: unlimited.
    pub(crate) quota: Option<Arc<Quota>>,
    pub(crate) max_wait: Duration,
    pub(crate) rules: LimitRules,
    /// Whether a refusal by this limit refuses the request.
    pub(crate) binding: bool,
    /// Whether some requests have other terms, returned by [`Limit::terms_for`], the rate moves, or a canary decides for
    /// some keys.
    pub(crate) varies: bool,
    /// The levels of the rate, if it moves.
    levels: Option<Box<Levels>>,
    /// The parts that the limit keeps for requests of higher priority; `None`: it keeps nothing.
    keeps: Option<Box<Keeps>>,
    /// Whether a request takes one place, whatever cost its caller states: a guard of a policy without a cost rule.
    pub(crate) one_place: bool,
}

/// The record of a canary for checks.
#[derive(Debug)]
struct ReadyCanary {
    /// Its limit, with the keys of the first one.
    ready: Ready,
    /// The index of its limit.
    index: usize,
    keys: ChosenKeys,
}

/// The rules of a limit that are the same for all requests, as one value of 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRules {
    /// The rules for stores.
    pub charge: ChargeRules,
    /// Where the policy is decided; `None`: by the gate's own store.
    pub share: Option<Share>,
    /// Whether a report decides if a charge stays: `true` for a policy that charges failures only.
    pub on_failure: bool,
}

impl LimitRules {
    fn of(policy: &Policy, limit: &Limit, owner: u32) -> Self {
        Self {
            charge: ChargeRules {
                owner,
                replace: limit.replace,
                on_error: policy.on_store_error,
                durable: policy.durable,
                settled: policy.is_settled(),
            },
            share: policy.share,
            on_failure: policy.charge == ChargeOn::Failure,
        }
    }

    /// Returns the rules by which a charge is ended: what a ticket holds of them, and otherwise the usual ones.
    pub(crate) const fn for_ending(self) -> Self {
        // Names every rule, as below: a new one does not compile until it is said what an ending does with it.
        let ChargeRules { owner, replace: _, on_error: _, durable, settled: _ } = self.charge;
        let Self { charge: _, share, on_failure } = self;
        Self::of_ending(owner, durable, share, on_failure)
    }

    /// Makes the rules by which a charge is ended, from what a ticket holds of them.
    pub(crate) const fn of_ending(
        owner: u32,
        durable: Durable,
        share: Option<Share>,
        on_failure: bool,
    ) -> Self {
        let charge = ChargeRules { durable, ..ChargeRules::new(owner) };
        Self { charge, share, on_failure }
    }
}

/// The key of the blocks of a policy in a store, and the limit of it: one, which comes back when the block ends.
#[derive(Debug)]
pub(crate) struct BlockKey {
    pub(crate) prefix: Box<[u8]>,
    pub(crate) quota: Arc<Quota>,
}

impl BlockKey {
    /// Stands for the index of a limit in the key. No policy has so many limits.
    const LIMIT: usize = 1 << 20;

    fn of(policy: &Policy) -> Option<Self> {
        let Over::Block { lasts } = policy.over else { return None };
        let quota = Arc::new(Quota::per(1, lasts).gcra().ok()?);
        Some(Self { prefix: key::prefix(&policy.name, Self::LIMIT, &policy.by), quota })
    }
}

/// The parts of a limit that are kept for requests of higher priority.
#[derive(Debug)]
struct Keeps {
    keep_for: KeepFor,
    /// How much of the limit for everyone a request must leave, by its level: in cohort 0, and beyond the last cohort.
    kept_back: [(u64, u64); Criticality::ALL.len()],
}

impl Compiled {
    /// Compiles the policies of a set.
    pub(crate) fn all(policies: &[Policy]) -> Vec<Self> {
        let mut first_of: HashMap<(Direction, &Match), usize> = HashMap::new();
        let mut first_by: HashMap<&[String], usize> = HashMap::new();
        let places = policies.iter().enumerate();
        places
            .map(|(place, policy)| Self {
                same_match_as: *first_of.entry((policy.direction, &policy.matching)).or_insert(place),
                same_key_as: *first_by.entry(&policy.by).or_insert(place),
                needs: policy.needs(),
                outbound: policy.direction == Direction::Outbound,
                may_skip: !policy.access.allow.is_empty() || !policy.when.is_empty(),
                holds: AtomicU8::new(if policy.when.is_empty() { ALL_LEVELS } else { 0 }),
                costs: policy.cost.is_some(),
                caller_cost: policy.caller_cost,
                estimate: match policy.cost {
                    Some(CostRule::Learned(learning)) => Some(Estimate::new(learning)),
                    _ => None,
                },
                limits: Ready::all(policy),
                canary: policy.canary.as_ref().map(|canary| Box::new(ReadyCanary::of(policy, canary))),
                block: BlockKey::of(policy),
                on_cost_error: policy.on_cost_error,
                cost_errors: CostErrorCount::default(),
                most: OnceLock::new(),
            })
            .collect()
    }

    /// Returns the record of the limit that decides about a key, and its index: the given one, or the canary's in the place
    /// of the first. `values` returns the end of the key. For limits that [vary](Ready::varies): all others decide
    /// themselves.
    #[inline]
    pub(crate) fn deciding<'p, 'k>(
        &'p self,
        at: usize,
        ready: &'p Ready,
        values: impl FnOnce() -> &'k [u8],
    ) -> (usize, &'p Ready) {
        match &self.canary {
            Some(canary) if at == 0 && canary.decides(values()) => (canary.index, &canary.ready),
            _ => (at, ready),
        }
    }

    /// Returns the record of the limit with an index, which may be the canary's.
    pub(crate) fn ready(&self, index: usize) -> Option<&Ready> {
        let canary = self.canary.as_ref().filter(|canary| canary.index == index);
        self.limits.get(index).or_else(|| canary.map(|canary| &canary.ready))
    }

    /// Returns the share of the canary's keys that is in force; `None` if the policy has none.
    pub(super) fn canary_share(&self) -> Option<Portion> {
        Some(self.canary.as_ref()?.keys.in_force())
    }

    /// Sets the share of the canary's keys.
    pub(super) fn set_canary_share(&self, share: Portion) {
        if let Some(canary) = &self.canary {
            canary.keys.set(share);
        }
    }

    /// Goes by the share that is in force for the same canary in another record of the policy.
    pub(super) fn canary_on_from(&self, before: &Self) {
        if let (Some(canary), Some(before)) = (&self.canary, &before.canary) {
            canary.keys.go_on_from(&before.keys);
        }
    }

    /// Returns the cost of a request. `values` returns the end of its key.
    #[inline]
    pub(crate) fn cost<'k>(
        &self,
        policy: &Policy,
        descriptor: &Descriptor<'_>,
        stated: Stated,
        values: impl Fn() -> &'k [u8],
    ) -> Cost {
        let rule = if self.costs { policy.cost.as_ref() } else { None };
        let Some(rule) = rule else { return stated.cost.unwrap_or_default() };
        if let Some(asked) = stated.cost.filter(|_| self.caller_cost) {
            return asked;
        }
        if let Some(estimate) = &self.estimate {
            return self.estimated(estimate, policy, descriptor, stated.priority, values());
        }
        rule.cost(descriptor).unwrap_or_else(|why| self.unknown(&why, policy, descriptor, stated, values()))
    }

    /// Counts a cost that could not be determined, and returns what is charged instead.
    #[cold]
    fn unknown(
        &self,
        why: &CostError,
        policy: &Policy,
        descriptor: &Descriptor<'_>,
        stated: Stated,
        values: &[u8],
    ) -> Cost {
        if stated.counts {
            self.cost_errors.count(&self.cost_errors.at_check, why);
        }
        match self.on_cost_error {
            OnCostError::Deny => UNKNOWN,
            OnCostError::WholeLimit => self.most(policy, descriptor, stated.priority, values),
        }
    }

    /// Counts a settlement whose real cost could not be determined.
    pub(crate) fn unsettled(&self, why: &CostError) {
        self.cost_errors.count(&self.cost_errors.at_settlement, why);
    }

    /// Returns the learned cost, capped at what each binding limit grants at once to a request of this priority.
    #[cold]
    fn estimated(
        &self,
        estimate: &Estimate,
        policy: &Policy,
        descriptor: &Descriptor<'_>,
        priority: Priority,
        values: &[u8],
    ) -> Cost {
        let most = self.most(policy, descriptor, priority, values);
        estimate.learned().estimate().unwrap_or(estimate.learning.start).min(most)
    }

    /// Returns the most that all limits grant at once to a request of this priority, as they would if they were enforced.
    fn most(&self, policy: &Policy, descriptor: &Descriptor<'_>, priority: Priority, values: &[u8]) -> Cost {
        let most = self.limits.iter().enumerate().filter(|(at, _)| !policy.is_shadow_limit(*at)).filter_map(
            |(at, first)| {
                let (at, ready) = self.deciding(at, first, || values);
                let quota = ready.quota(descriptor, || policy.limit(at))?;
                let least_left = ready.kept_back(quota, priority);
                let beside = |most: u64| most.saturating_sub(least_left).max(1);
                if first.varies {
                    return Some(beside(most_at_once(quota, ready.max_wait)));
                }
                let known = self.most.get_or_init(|| {
                    let most = |ready: &Ready| {
                        ready.quota.as_ref().map_or(u64::MAX, |quota| most_at_once(quota, ready.max_wait))
                    };
                    self.limits.iter().map(most).collect()
                });
                known.get(at).copied().map(beside)
            },
        );
        most.min().and_then(Cost::new).unwrap_or(Cost::MAX)
    }

    /// Returns the learned estimate; `None` if the policy does not learn.
    pub(crate) fn learned(&self) -> Option<&Arc<Learned>> {
        self.estimate.as_ref().map(Estimate::learned)
    }

    /// Takes over how often the cost could not be determined under another record of the same policy.
    pub(crate) fn count_on_from(&self, before: &Self) {
        self.cost_errors.add(&before.cost_errors());
    }

    /// Takes over what another record of the same policy has learned. If this record has learned already, it keeps its
    /// own.
    pub(crate) fn learn_from(&self, before: &Self) {
        let (Some(own), Some(before)) = (&self.estimate, &before.estimate) else { return };
        let learned = own.learned.get_or_init(|| Arc::clone(before.learned()));
        learned.set_percent(own.learning);
    }

    /// Reports whether the conditions hold for a request of a priority.
    #[inline]
    pub(crate) fn holds(&self, priority: Priority) -> bool {
        // Relaxed: of two concurrent checks, it does not matter which sees a change first.
        usize::from(self.holds.load(Ordering::Relaxed)) > priority.level() as usize
    }

    /// Returns the number of levels of priority that the conditions hold for, the least important first.
    pub(super) fn levels_held(&self) -> u8 {
        // Relaxed: as above.
        self.holds.load(Ordering::Relaxed)
    }

    /// Sets the number of levels of priority that the conditions hold for, the least important first: 0 to
    /// [`ALL_LEVELS`].
    pub(super) fn set_holding(&self, levels: u8) {
        // Relaxed: as above.
        self.holds.store(levels, Ordering::Relaxed);
    }

    /// Reports whether the policy skips a request that matches.
    pub(super) fn skips(&self, policy: &Policy, descriptor: &Descriptor<'_>, priority: Priority) -> bool {
        !self.holds(priority) || policy.access.allow.find(descriptor).is_some()
    }

    /// Returns how often the cost could not be determined.
    pub(crate) fn cost_errors(&self) -> CostErrors {
        let CostErrorCount { at_check, at_settlement, last } = &self.cost_errors;
        // Relaxed: statistics, which order nothing.
        CostErrors {
            at_check: at_check.load(Ordering::Relaxed),
            at_settlement: at_settlement.load(Ordering::Relaxed),
            last: last.lock().clone(),
        }
    }
}

/// The cost of a request whose cost is not known and which is refused: more than any limit grants, and more than any
/// request can cost otherwise.
pub(crate) const UNKNOWN: Cost = match Cost::new(Rate::MAX_COUNT + 1) {
    Some(cost) => cost,
    None => Cost::MAX,
};

/// Counts costs that could not be determined.
#[derive(Debug, Default)]
struct CostErrorCount {
    at_check: AtomicU64,
    at_settlement: AtomicU64,
    last: Mutex<Option<CostError>>,
}

impl CostErrorCount {
    fn count(&self, one: &AtomicU64, why: &CostError) {
        // Relaxed: a statistic, which orders nothing.
        one.fetch_add(1, Ordering::Relaxed);
        // Of concurrent reasons, one is kept; nobody waits for that.
        if let Some(mut last) = self.last.try_lock() {
            *last = Some(why.clone());
        }
    }

    /// Takes over the counts of another record of the same policy.
    fn add(&self, before: &CostErrors) {
        // The record may have been in force before, so what it has counted is part of what came after.
        self.at_check.fetch_max(before.at_check, Ordering::Relaxed);
        self.at_settlement.fetch_max(before.at_settlement, Ordering::Relaxed);
        let mut last = self.last.lock();
        if last.is_none() {
            last.clone_from(&before.last);
        }
    }
}

/// The state of a policy that learns its cost.
#[derive(Debug)]
struct Estimate {
    learning: Learning,
    learned: OnceLock<Arc<Learned>>,
}

impl Estimate {
    fn new(learning: Learning) -> Self {
        Self { learning, learned: OnceLock::new() }
    }

    fn learned(&self) -> &Arc<Learned> {
        self.learned.get_or_init(|| Arc::new(Learned::new(self.learning)))
    }
}

/// Makes equal limits that a store keeps as words share one quota, which is looked up by its address.
pub(super) fn share_quotas(policies: &mut [Policy]) {
    let mut quotas: HashMap<Gcra, Arc<Quota>> = HashMap::new();
    let limits = policies.iter_mut().flat_map(|policy| {
        let canary = policy.canary.iter_mut().map(|canary| &mut canary.limit);
        policy.limits.iter_mut().chain(&mut policy.shadow_limit).chain(canary)
    });
    for quota in limits.flat_map(Limit::all_terms_mut).filter_map(|terms| terms.quota.as_mut()) {
        if let Quota::Gcra(limit) = **quota {
            *quota = Arc::clone(quotas.entry(limit).or_insert_with(|| Arc::clone(quota)));
        }
    }
}

impl Ready {
    fn all(policy: &Policy) -> SmallVec<[Self; 1]> {
        let limits = policy.limits.iter().chain(&policy.shadow_limit).enumerate();
        let mut all: SmallVec<[Self; 1]> =
            limits.map(|(at, limit)| Self::of(policy, limit, at, policy.is_shadow_limit(at))).collect();
        if let (Some(first), true) = (all.first_mut(), policy.canary.is_some()) {
            first.varies = true;
        }
        all
    }

    /// Makes the record of a limit. `key_of`: the index of the limit in its keys.
    fn of(policy: &Policy, limit: &Limit, key_of: usize, is_shadow: bool) -> Self {
        Self {
            prefix: key::prefix(&policy.name, key_of, &policy.by),
            quota: limit.terms.quota.clone(),
            max_wait: limit.max_wait,
            rules: LimitRules::of(policy, limit, key::owner(&policy.name)),
            binding: policy.mode != Mode::Shadow && policy.over.refuses() && !is_shadow,
            varies: limit.tiers.is_some()
                || !limit.overrides.is_empty()
                || limit.follows.is_some()
                || busy_from(limit).is_some(),
            levels: limit.follows.as_ref().map(Levels::of).or_else(|| busy_levels(limit)).map(Box::new),
            keeps: Keeps::of(limit),
            one_place: limit.is_guard() && policy.cost.is_none(),
        }
    }

    /// Puts one level of the rate in force; no effect if the rate does not move.
    pub(super) fn set_level(&self, level: usize) {
        if let Some(levels) = &self.levels {
            levels.set(level);
        }
    }

    /// Returns the level of the rate that is in force; `None` if the rate does not move.
    pub(super) fn level(&self) -> Option<usize> {
        self.levels.as_ref().map(|levels| levels.level())
    }

    /// Returns how much of the given quota a request of a priority must leave.
    #[inline]
    pub(crate) fn kept_back(&self, quota: &Arc<Quota>, priority: Priority) -> u64 {
        match &self.keeps {
            None => 0,
            Some(keeps) => {
                let for_everyone = self.quota.as_ref().is_some_and(|own| Arc::ptr_eq(own, quota));
                keeps.kept_back(quota, priority, for_everyone)
            }
        }
    }

    /// Returns the quota that applies to a request; `None`: unlimited. `limit` returns the policy's limit.
    #[inline]
    pub(crate) fn quota<'p>(
        &'p self,
        descriptor: &Descriptor<'_>,
        limit: impl FnOnce() -> Option<&'p Limit>,
    ) -> Option<&'p Arc<Quota>> {
        if !self.varies {
            return self.quota.as_ref();
        }
        if let Some(levels) = &self.levels {
            return Some(levels.in_force());
        }
        limit()?.terms_for(descriptor).quota.as_ref()
    }
}

impl ReadyCanary {
    fn of(policy: &Policy, canary: &Canary) -> Self {
        // With the keys of the first limit: so the counters are the same ones, and a key keeps what it has spent.
        let ready = Ready::of(policy, &canary.limit, 0, false);
        Self { ready, index: policy.canary_index(), keys: ChosenKeys::of(&policy.name, canary.share) }
    }

    /// Reports whether it decides about the key with these values.
    #[cold]
    #[inline(never)]
    fn decides(&self, values: &[u8]) -> bool {
        self.keys.has(values)
    }
}

impl Keeps {
    fn of(limit: &Limit) -> Option<Box<Self>> {
        let keep_for = limit.keep_for;
        let capacity = limit.terms.quota.as_ref().map_or(0, |quota| kept_back::whole(quota));
        let kept_back = Criticality::ALL
            .map(|level| (keep_for.kept_from(level, capacity), keep_for.kept_below(level, capacity)));
        (!keep_for.is_nothing()).then(|| Box::new(Self { keep_for, kept_back }))
    }

    fn kept_back(&self, quota: &Quota, priority: Priority, for_everyone: bool) -> u64 {
        if for_everyone {
            let (kept, below) = self.kept_back[priority.level() as usize];
            return if priority.cohort() == 0 { kept } else { graded(kept, below, priority) };
        }
        self.keep_for.kept_back(priority, kept_back::whole(quota))
    }
}

//! What is computed of a policy once, so that no check has to.
//!
//! A policy holds much, spread over many cache lines, and a check needs little of it: one short record for the policy, and one for each
//! limit. What only some policies have (lists, tiers, a cost of their own) has a flag here, and is read from the policy where the flag is
//! set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::rate::Gcra;
use tidegate_core::{Cost, Criticality, Priority, Quota, Replace};

use super::busy;
use super::cost::CostRule;
use super::descriptor::Descriptor;
use super::follows::Levels;
use super::keep_for::KeepFor;
use super::key;
use super::learned::{Learned, Learning, most_at_once};
use super::matching::Match;
use super::policy::{ChargeOn, Direction, Limit, Mode, Policy};
use super::share::Share;
use crate::store::{Durable, OnStoreError, kept_back};

/// How many levels of priority there are.
pub(super) const ALL_LEVELS: u8 = Criticality::ALL.len() as u8;

/// One policy, as a check sees it.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The first policy of the set with the same match: a request fits both or neither.
    pub(crate) speaks_like: usize,
    /// The first policy of the set with the same `by`: their keys end with the same bytes.
    pub(crate) keyed_like: usize,
    /// How many attributes of its key a request must have to be charged.
    pub(crate) needs: usize,
    /// Whether it is for requests that we send.
    pub(crate) outbound: bool,
    /// Whether it may leave out requests that match: it has an allow-list of its own, or a condition.
    pub(crate) may_skip: bool,
    /// For how many levels of priority its conditions hold, the least important first; for all where it has none.
    holds: AtomicU8,
    /// Whether it has a cost of its own.
    costs: bool,
    /// Whether a cost that the caller sends replaces its own.
    caller_cost: bool,
    /// What it learns, if it does.
    estimate: Option<Estimate>,
    /// Whether it charges failures only: what a check takes waits for a report.
    pub(crate) on_failure: bool,
    /// What becomes of its charges when an engine cannot decide.
    pub(crate) on_error: OnStoreError,
    /// When its charges have to be on disk.
    pub(crate) durable: Durable,
    /// Where it is decided.
    pub(crate) share: Option<Share>,
    /// Its limits, the shadow limit last.
    pub(crate) limits: SmallVec<[Ready; 1]>,
    /// How often its cost could not be found.
    cost_fallbacks: AtomicU64,
}

/// One limit, as a check sees it.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The start of its keys.
    pub(crate) prefix: Box<[u8]>,
    /// The limit for everyone; `None` is unlimited.
    pub(crate) quota: Option<Arc<Quota>>,
    pub(crate) max_wait: Duration,
    pub(crate) replace: Replace,
    /// The number of its policy, by which a full store keeps the keys of one policy from evicting those of another.
    pub(crate) owner: u32,
    /// Whether its refusal refuses the request.
    pub(crate) binding: bool,
    /// Whether some requests have other terms, which [`Limit::terms_for`] returns, or its rate moves.
    pub(crate) varies: bool,
    /// Its rates, if they move.
    levels: Option<Box<Levels>>,
    /// What it keeps for requests of higher priority, if it does.
    keeps: Option<Box<Keeps>>,
    /// Whether a request takes one place, whatever the caller says that it costs: a guard of a policy without a cost of its own.
    pub(crate) one_place: bool,
}

/// What a limit keeps for requests of higher priority.
#[derive(Debug)]
struct Keeps {
    keep_for: KeepFor,
    /// How much a request has to leave of the limit for everyone, by its level.
    kept_back: [u64; Criticality::ALL.len()],
}

impl Compiled {
    /// Compiles the policies of a set.
    pub(crate) fn all(policies: &[Policy]) -> Vec<Self> {
        let mut first_of: HashMap<(Direction, &Match), usize> = HashMap::new();
        let mut first_by: HashMap<&[String], usize> = HashMap::new();
        let places = policies.iter().enumerate();
        places
            .map(|(place, policy)| Self {
                speaks_like: *first_of.entry((policy.direction, &policy.matching)).or_insert(place),
                keyed_like: *first_by.entry(&policy.by).or_insert(place),
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
                on_failure: policy.charge == ChargeOn::Failure,
                on_error: policy.on_store_error,
                durable: policy.durable,
                share: policy.share,
                limits: Ready::all(policy),
                cost_fallbacks: AtomicU64::new(0),
            })
            .collect()
    }

    /// Returns what a request costs, where the caller says `asked`.
    #[inline]
    pub(crate) fn cost(
        &self,
        policy: &Policy,
        descriptor: &Descriptor<'_>,
        (asked, priority): (Option<Cost>, Priority),
    ) -> Cost {
        let rule = if self.costs { policy.cost.as_ref() } else { None };
        let Some(rule) = rule else { return asked.unwrap_or_default() };
        if let Some(asked) = asked.filter(|_| self.caller_cost) {
            return asked;
        }
        if let Some(estimate) = &self.estimate {
            return self.estimated(estimate, policy, descriptor, priority);
        }
        rule.cost(descriptor).unwrap_or_else(|_| {
            // Relaxed: a count for people, which orders nothing.
            self.cost_fallbacks.fetch_add(1, Ordering::Relaxed);
            Cost::ONE
        })
    }

    /// Returns what was learnt, at most what each of the limits that may refuse grants at once to a request of this priority.
    #[cold]
    fn estimated(
        &self,
        estimate: &Estimate,
        policy: &Policy,
        descriptor: &Descriptor<'_>,
        priority: Priority,
    ) -> Cost {
        let most =
            self.limits.iter().enumerate().filter(|(_, ready)| ready.binding).filter_map(|(at, ready)| {
                let quota = ready.quota(descriptor, || policy.limit(at))?;
                let least_left = ready.kept_back(quota, priority);
                let beside = |most: u64| most.saturating_sub(least_left).max(1);
                if ready.varies {
                    return Some(beside(most_at_once(quota, ready.max_wait)));
                }
                let known = estimate.most.get_or_init(|| {
                    let most = |ready: &Ready| {
                        ready.quota.as_ref().map_or(u64::MAX, |quota| most_at_once(quota, ready.max_wait))
                    };
                    self.limits.iter().map(most).collect()
                });
                known.get(at).copied().map(beside)
            });
        let most = most.min().and_then(Cost::new).unwrap_or(Cost::MAX);
        estimate.learned().estimate().unwrap_or(estimate.learning.start).min(most)
    }

    /// Returns what it learns; `None` where it does not.
    pub(crate) fn learned(&self) -> Option<&Arc<Learned>> {
        self.estimate.as_ref().map(Estimate::learned)
    }

    /// Goes on from what another record of the same policy has learnt. Before the first use, else it keeps its own.
    pub(crate) fn learn_from(&self, before: &Self) {
        let (Some(own), Some(before)) = (&self.estimate, &before.estimate) else { return };
        let learned = own.learned.get_or_init(|| Arc::clone(before.learned()));
        learned.set_percent(own.learning);
    }

    /// Says whether its conditions hold for a request of a priority.
    #[inline]
    pub(crate) fn holds(&self, priority: Priority) -> bool {
        // Relaxed: which of two checks at the same time meets a change first does not matter.
        usize::from(self.holds.load(Ordering::Relaxed)) > priority.level() as usize
    }

    /// Puts it in force for so many levels of priority, the least important first: [`ALL_LEVELS`], or as many as a switch is off for.
    pub(super) fn set_holding(&self, levels: u8) {
        // Relaxed: as above.
        self.holds.store(levels, Ordering::Relaxed);
    }

    /// Says whether it leaves out a request that matches.
    pub(super) fn skips(&self, policy: &Policy, descriptor: &Descriptor<'_>, priority: Priority) -> bool {
        !self.holds(priority) || policy.access.allow.find(descriptor).is_some()
    }

    /// Returns how often its cost could not be found.
    pub(crate) fn cost_fallbacks(&self) -> u64 {
        // Relaxed: as above.
        self.cost_fallbacks.load(Ordering::Relaxed)
    }
}

/// The estimate of a policy that learns.
#[derive(Debug)]
struct Estimate {
    learning: Learning,
    learned: OnceLock<Arc<Learned>>,
    /// What each limit grants at once, where it is the same for all.
    most: OnceLock<Box<[u64]>>,
}

impl Estimate {
    fn new(learning: Learning) -> Self {
        Self { learning, learned: OnceLock::new(), most: OnceLock::new() }
    }

    fn learned(&self) -> &Arc<Learned> {
        self.learned.get_or_init(|| Arc::new(Learned::new(self.learning)))
    }
}

/// Lets equal limits that a store keeps as words have one quota between them: who looks a quota up by its address then finds it.
pub(super) fn share_quotas(policies: &mut [Policy]) {
    let mut quotas: HashMap<Gcra, Arc<Quota>> = HashMap::new();
    let limits =
        policies.iter_mut().flat_map(|policy| policy.limits.iter_mut().chain(&mut policy.shadow_limit));
    for quota in limits.flat_map(Limit::all_terms_mut).filter_map(|terms| terms.quota.as_mut()) {
        if let Quota::Gcra(limit) = **quota {
            *quota = Arc::clone(quotas.entry(limit).or_insert_with(|| Arc::clone(quota)));
        }
    }
}

impl Ready {
    fn all(policy: &Policy) -> SmallVec<[Self; 1]> {
        let owner = key::owner(&policy.name);
        let ready = |(at, limit): (usize, &Limit)| Self {
            prefix: key::prefix(&policy.name, at, &policy.by),
            quota: limit.terms.quota.clone(),
            max_wait: limit.max_wait,
            replace: limit.replace,
            owner,
            binding: policy.mode != Mode::Shadow && policy.over.refuses() && !policy.is_shadow_limit(at),
            varies: limit.tiers.is_some()
                || !limit.overrides.is_empty()
                || limit.follows.is_some()
                || busy::busy_from(limit).is_some(),
            levels: limit.follows.as_ref().map(Levels::of).or_else(|| busy::levels(limit)).map(Box::new),
            keeps: Keeps::of(limit),
            one_place: limit.is_guard() && policy.cost.is_none(),
        };
        policy.limits.iter().chain(&policy.shadow_limit).enumerate().map(ready).collect()
    }

    /// Puts one of the rates in force, where they move.
    pub(super) fn set_level(&self, level: usize) {
        if let Some(levels) = &self.levels {
            levels.set(level);
        }
    }

    /// Returns how much a request of a priority has to leave of the limit that holds for it.
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

    /// Returns the limit that holds for a request; `None` is unlimited. `limit` gives it as the policy has it.
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

impl Keeps {
    fn of(limit: &Limit) -> Option<Box<Self>> {
        let keep_for = limit.keep_for;
        let capacity = limit.terms.quota.as_ref().map_or(0, |quota| kept_back::whole(quota));
        let kept_back = Criticality::ALL.map(|level| keep_for.kept_back(level.into(), capacity));
        (!keep_for.is_nothing()).then(|| Box::new(Self { keep_for, kept_back }))
    }

    fn kept_back(&self, quota: &Quota, priority: Priority, for_everyone: bool) -> u64 {
        if for_everyone {
            return self.kept_back[priority.level() as usize];
        }
        self.keep_for.kept_back(priority, kept_back::whole(quota))
    }
}

//! What is worked out of a policy once, so that a check does not.
//!
//! A policy says much, spread over many cache lines, and a check needs little of it: one short record for the policy, one for
//! each limit. What only some policies have (lists, tiers, a cost of their own) is told here by a flag, and read from the
//! policy where the flag is up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::rate::Gcra;
use tidegate_core::{Cost, Quota, Replace};

use super::descriptor::Descriptor;
use super::key;
use super::matching::Match;
use super::policy::{ChargeOn, Direction, Limit, Mode, Policy};

/// One policy, as a check sees it.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The first policy of the set that speaks of the same requests: what holds for it holds for this one.
    pub(crate) speaks_like: usize,
    /// The first policy of the set with the same `by`: their keys end alike.
    pub(crate) keyed_like: usize,
    /// How many attributes of its key a request must have to be charged.
    pub(crate) needs: usize,
    /// Whether it speaks of requests that we send.
    pub(crate) outbound: bool,
    /// Whether it has an allow-list of its own.
    pub(crate) exempts: bool,
    /// Whether it has a cost of its own.
    costs: bool,
    /// Whether it charges failures only: what a check takes waits for a report.
    pub(crate) on_failure: bool,
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
    /// The number of its policy: where a store is full, the keys of one policy cost no other its own.
    pub(crate) owner: u32,
    /// Whether its refusal refuses the request.
    pub(crate) binding: bool,
    /// Whether it has other terms for some: ask [`Limit::terms_for`].
    pub(crate) varies: bool,
}

impl Compiled {
    /// Compiles the policies of a set.
    pub(crate) fn all(policies: &[Policy]) -> Vec<Self> {
        let mut first_of: HashMap<(Direction, &Match), usize> = HashMap::new();
        let mut first_by: HashMap<&[String], usize> = HashMap::new();
        let mut quotas = Quotas::default();
        let places = policies.iter().enumerate();
        places
            .map(|(place, policy)| Self {
                speaks_like: *first_of.entry((policy.direction, &policy.matching)).or_insert(place),
                keyed_like: *first_by.entry(&policy.by).or_insert(place),
                needs: policy.needs(),
                outbound: policy.direction == Direction::Outbound,
                exempts: !policy.access.allow.is_empty(),
                costs: policy.cost.is_some(),
                on_failure: policy.charge == ChargeOn::Failure,
                limits: Ready::all(policy, &mut quotas),
                cost_fallbacks: AtomicU64::new(0),
            })
            .collect()
    }

    /// Returns what a request costs, where the caller says `asked`.
    #[inline]
    pub(crate) fn cost(&self, policy: &Policy, descriptor: &Descriptor<'_>, asked: Option<Cost>) -> Cost {
        let rule = if self.costs { policy.cost.as_ref() } else { None };
        let Some(rule) = rule else { return asked.unwrap_or_default() };
        rule.cost(descriptor).unwrap_or_else(|_| {
            // Relaxed: a count for people, which orders nothing.
            self.cost_fallbacks.fetch_add(1, Ordering::Relaxed);
            Cost::ONE
        })
    }

    /// Returns how often its cost could not be found.
    pub(crate) fn cost_fallbacks(&self) -> u64 {
        // Relaxed: as above.
        self.cost_fallbacks.load(Ordering::Relaxed)
    }
}

/// Quotas that a store keeps as words, once each: it then knows them by where they are.
#[derive(Debug, Default)]
struct Quotas(HashMap<Gcra, Arc<Quota>>);

impl Quotas {
    fn of(&mut self, quota: &Arc<Quota>) -> Arc<Quota> {
        let Quota::Gcra(limit) = &**quota else { return Arc::clone(quota) };
        Arc::clone(self.0.entry(*limit).or_insert_with(|| Arc::clone(quota)))
    }
}

impl Ready {
    fn all(policy: &Policy, quotas: &mut Quotas) -> SmallVec<[Self; 1]> {
        let owner = key::owner(&policy.name);
        let ready = |(at, limit): (usize, &Limit)| Self {
            prefix: key::prefix(&policy.name, at, &policy.by),
            quota: limit.terms.quota.as_ref().map(|quota| quotas.of(quota)),
            max_wait: limit.max_wait,
            replace: limit.replace,
            owner,
            binding: policy.mode != Mode::Shadow && !policy.is_shadow_limit(at),
            varies: limit.tiers.is_some() || !limit.overrides.is_empty(),
        };
        policy.limits.iter().chain(&policy.shadow_limit).enumerate().map(ready).collect()
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
        limit()?.terms_for(descriptor).quota.as_ref()
    }
}

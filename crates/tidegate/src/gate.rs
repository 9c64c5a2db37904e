//! Policies, store and clock together: one check over many limits, all or nothing.
//!
//! A door turns bytes into a [`Descriptor`] and a [`Cost`]; the gate asks the policy set which limits match, takes the time,
//! and has the store settle them all in one step. Where every limit either permits at once or refuses, that is the process's
//! shared tick, and a refusal is settled once more by the clock (see [`Precision`]); shadows and queues, whose answers cannot
//! be taken back, go by the clock from the start. What comes back names the policy that binds. The gate knows no
//! protocol: status codes and headers are the doors' business.

mod admission;
mod by_usage;
mod charged;
mod settling;
#[cfg(feature = "ticket")]
pub mod ticket;

use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Retry, Tick};

pub use admission::{Admission, Entry};
#[cfg(feature = "ticket")]
pub use by_usage::FinishedBy;
use charged::Keep;
pub use charged::{Charged, ChargedLine, Part};
pub use settling::{Fate, Finished, Followed};

use crate::clock::{Clock, SystemClock, Time};
use crate::policy::{Among, Descriptor, LINES, Line, Plan, PolicySet, Refusal};
use crate::precision::Precision;
use crate::scratch::{Borrowed, Scratch};
use crate::store::{Charge, MemoryStore, Occupancy, Op, Settled, Step, Store, StoreError};

/// The longest name of a node, in bytes: a DNS name, a port and some.
const LONGEST_ISSUER: usize = 128;

/// Decides requests under a policy set.
///
/// Share it behind an `Arc`; every call takes `&self`. A check allocates nothing in the usual case and holds no lock but the
/// store's.
#[derive(Debug)]
pub struct Gate {
    policies: ArcSwap<PolicySet>,
    store: Box<dyn Store>,
    time: Time,
    precision: Precision,
    /// The name of this node in tickets.
    issuer: Arc<str>,
}

/// One limit's part in a [`GateDecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// Index of the policy in [`GateDecision::policies`].
    pub policy: usize,
    /// Index of the limit within the policy; a shadow limit comes after the policy's own.
    pub limit: usize,
    /// Whether its refusal refuses the request: `false` in shadow.
    pub binding: bool,
    /// Whether a report decides if what it spent stays: of a policy that charges failures only.
    pub on_failure: bool,
    /// What was asked of it.
    pub cost: Cost,
    /// What this limit by itself decided, and how it stands now.
    pub decision: Decision,
}

/// The answer to one request.
#[derive(Clone, Debug)]
#[must_use = "a decision is worth nothing unless it is followed"]
pub struct GateDecision {
    /// Whether the request may pass, now or after [`GateDecision::wait`].
    pub allowed: bool,
    /// How long to hold it back: only queues delay.
    pub wait: Duration,
    /// Every limit that matched, in the order of the policies.
    pub limits: SmallVec<[LimitDecision; 4]>,
    /// Index into `limits` of the one that binds: of a denial the one that lasts longest, else the one with least left.
    pub binding: Option<usize>,
    /// The deny-list that refused the request; no limit was asked then.
    pub denied_by_list: Option<Box<Refusal>>,
    /// When it was decided.
    pub at: Tick,
    /// The policies it was decided under.
    pub policies: InForce,
}

/// The policies that were in force at one moment; reads as an `Arc<PolicySet>`.
///
/// What a check takes and drops is a lease and not a count on the `Arc`, on which all threads would meet. A clone is a count.
/// Leases are made for as long as a request takes: to keep the policies, clone the `Arc`.
#[derive(Debug)]
pub struct InForce(Guard<Arc<PolicySet>>);

impl Deref for InForce {
    type Target = Arc<PolicySet>;

    fn deref(&self) -> &Arc<PolicySet> {
        &self.0
    }
}

impl Clone for InForce {
    fn clone(&self) -> Self {
        Self(Guard::from_inner(Arc::clone(&self.0)))
    }
}

impl GateDecision {
    /// Returns the index of the policy that binds, if any limit matched.
    #[must_use]
    pub fn policy(&self) -> Option<usize> {
        match &self.denied_by_list {
            Some(refusal) => refusal.policy,
            None => self.binding.map(|at| self.limits[at].policy),
        }
    }

    /// Returns when the same request is worth repeating; after no time when it was allowed.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self.binding {
            _ if self.allowed => Retry::After(Duration::ZERO),
            Some(binding) => self.limits[binding].decision.retry(),
            // A list refuses, and lists do not change by waiting.
            None => Retry::Never,
        }
    }

    /// Returns the limits that refuse, shadows left out.
    pub fn refusing(&self) -> impl Iterator<Item = &LimitDecision> {
        self.limits.iter().filter(|limit| limit.binding && !limit.decision.is_allowed())
    }
}

impl Gate {
    /// Makes a gate over a store, on the machine's clock.
    #[must_use]
    pub fn new(policies: impl Into<Arc<PolicySet>>, store: impl Store + 'static) -> Self {
        let time = Time::new(SystemClock::new());
        Self {
            policies: ArcSwap::new(policies.into()),
            store: Box::new(store),
            time,
            precision: Precision::default(),
            issuer: Arc::default(),
        }
    }

    /// Makes a gate with room for `keys` live keys in memory.
    #[must_use]
    pub fn in_memory(policies: impl Into<Arc<PolicySet>>, keys: usize) -> Self {
        Self::new(policies, MemoryStore::with_capacity(keys))
    }

    /// Replaces the clock: a virtual one for tests and replays.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + 'static) -> Self {
        self.time = Time::new(clock);
        self
    }

    /// Chooses how exactly it takes the time: [`Precision::Exact`], or [`Precision::Shared`], which [`Precision::Leased`] means as well here.
    #[must_use]
    pub const fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Names this node in its tickets, so that another one that is handed a ticket of a store in this node's memory can say whose it
    /// is: an address such as `10.0.0.7:8080`. Cut after 128 bytes; unnamed where it is not called.
    #[must_use]
    pub fn with_issuer(mut self, name: &str) -> Self {
        self.issuer = name[..name.floor_char_boundary(LONGEST_ISSUER)].into();
        self
    }

    /// Returns the policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.policies.load_full()
    }

    /// Puts other policies in force. Counters survive: keys are named after policies, and a changed limit of the same
    /// algorithm takes over what was spent when the key is next used. Estimates that policies have learnt go on by their names.
    pub fn replace(&self, policies: impl Into<Arc<PolicySet>>) {
        let policies = policies.into();
        policies.learn_from(&self.policies.load());
        self.policies.store(policies);
    }

    /// Returns how full the store is.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    /// Returns now, by the gate's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.time.now()
    }

    /// Decides a request and spends what it costs, on all matching limits or on none.
    ///
    /// `cost` is what the caller says; a policy with a cost of its own goes by that.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made; the caller chooses to fail open or closed.
    pub fn check(&self, request: &Descriptor<'_>, cost: Option<Cost>) -> Result<GateDecision, StoreError> {
        self.decide(request, cost, Op::Take, None, &mut ())
    }

    /// Decides like [`Gate::check`] and spends nothing.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made.
    pub fn peek(&self, request: &Descriptor<'_>, cost: Option<Cost>) -> Result<GateDecision, StoreError> {
        self.decide(request, cost, Op::Peek, None, &mut ())
    }

    /// Decides like [`Gate::peek`] by some policies only, and by the lists that hold for all.
    ///
    /// Goes by the set of `among`, whichever is in force.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made.
    pub fn peek_among(
        &self,
        among: &Among,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
    ) -> Result<GateDecision, StoreError> {
        self.decide(request, cost, Op::Peek, Some(among), &mut ())
    }

    fn decide<K: Keep>(
        &self,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        op: Op<'_>,
        among: Option<&Among>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        // Filled in place: the limits lie within, and moving them costs more than deciding them.
        let mut decision = GateDecision {
            allowed: false,
            wait: Duration::ZERO,
            limits: SmallVec::new(),
            binding: None,
            denied_by_list: None,
            at: Tick::EPOCH,
            policies: match among {
                None => InForce(self.policies.load()),
                Some(among) => InForce(Guard::from_inner(Arc::clone(among.set()))),
            },
        };
        let policies: &PolicySet = &decision.policies;
        if let Some(refusal) = policies.refusal(request, among) {
            decision.at = self.time.now();
            decision.denied_by_list = Some(Box::new(refusal));
            return Ok(decision);
        }
        let mut scratch = Borrowed::take();
        let Scratch { keys, settled } = &mut *scratch;
        let mut plan = Plan { lines: SmallVec::new(), keys: mem::take(keys) };
        match among {
            None => policies.plan_into(request, cost, &mut plan),
            Some(among) => policies.plan_among(request, cost, among, &mut plan),
        }
        let by_tick = self.precision != Precision::Exact
            && matches!(op, Op::Take)
            && plan.lines.iter().all(Line::is_plain);
        decision.at = if by_tick { self.time.recent() } else { self.time.now() };
        // A refusal by the tick has spent nothing, and is asked again by the clock, which alone may refuse.
        let mut again = by_tick;
        loop {
            self.settle_plan::<K>(&plan, decision.at, op, settled)?;
            if settled.allowed || !mem::take(&mut again) {
                break;
            }
            decision.at = self.time.now();
        }
        if settled.allowed {
            keep.allowed(&plan, settled);
        }
        decision.limits.reserve_exact(plan.lines.len());
        // Extended by an iterator that knows its length: written where they stay, without a look at the room for each.
        decision.limits.extend(plan.lines.iter().zip(&settled.lines).map(|(line, settlement)| {
            LimitDecision {
                policy: line.policy,
                limit: line.limit,
                binding: line.binding,
                on_failure: line.on_failure,
                cost: line.cost,
                decision: settlement.decision,
            }
        }));
        *keys = mem::take(&mut plan.keys);
        drop(plan);
        decision.allowed = settled.allowed;
        decision.wait = settled.wait;
        decision.binding = binding(&decision.limits, settled.allowed);
        Ok(decision)
    }

    fn settle_plan<K: Keep>(
        &self,
        plan: &Plan<'_>,
        now: Tick,
        op: Op<'_>,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        if plan.lines.is_empty() {
            (settled.allowed, settled.wait) = (true, Duration::ZERO);
            return Ok(());
        }
        let step = |charges: &[Charge<'_>], settled: &mut Settled| {
            let step = Step { now, op, charges };
            if K::KEEPS {
                self.store.settle_into(&step, settled)
            } else {
                self.store.settle_for_good(&step, settled)
            }
        };
        if let [line] = &*plan.lines {
            return step(&[plan.charge(line)], settled);
        }
        let mut charges: SmallVec<[Charge<'_>; LINES]> = SmallVec::new();
        charges.reserve_exact(plan.lines.len());
        // Extended and not collected: a collected list is moved once more.
        charges.extend(plan.charges());
        step(&charges, settled)
    }
}

/// Picks the limit that a caller should hear of: among refusals the one that lasts longest, else the one with least left.
///
/// Of equals, the first policy of the file is named. `allowed` says that none of them refuses, shadows left out.
fn binding(limits: &[LimitDecision], allowed: bool) -> Option<usize> {
    let enforced = limits.iter().enumerate().filter(|(_, limit)| limit.binding);
    let first = if allowed {
        enforced.min_by_key(|(_, limit)| limit.decision.standing.remaining)
    } else {
        // From the last on, for of equals the last is kept.
        let refusing = enforced.filter(|(_, limit)| !limit.decision.is_allowed());
        refusing.rev().max_by_key(|(_, limit)| limit.decision.retry())
    };
    first.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Standing;
    use tidegate_core::decision::Ruling;

    use super::*;

    fn limit(binding: bool, remaining: u64, retry_after: Option<Option<u64>>) -> LimitDecision {
        let ruling = match retry_after {
            None => Ruling::Allowed { wait: Duration::ZERO },
            Some(after) => Ruling::Denied {
                retry: after.map_or(Retry::Never, |secs| Retry::After(Duration::from_secs(secs))),
            },
        };
        let standing = Standing { limit: 9, remaining, debt: 0, reset_after: Duration::ZERO };
        let decision = Decision { ruling, standing };
        LimitDecision { policy: 0, limit: 0, binding, on_failure: false, cost: Cost::ONE, decision }
    }

    /// Limit by limit: one takes the place of those before only where it is tighter.
    fn model(limits: &[LimitDecision]) -> Option<usize> {
        let tighter = |limit: &LimitDecision, than: &LimitDecision| {
            let (one, other) = (limit.decision, than.decision);
            match (one.is_allowed(), other.is_allowed()) {
                (true, true) => one.standing.remaining < other.standing.remaining,
                (false, false) => one.retry() > other.retry(),
                (allowed, _) => !allowed,
            }
        };
        let enforced = limits.iter().enumerate().filter(|(_, limit)| limit.binding);
        enforced.reduce(|held, next| if tighter(next.1, held.1) { next } else { held }).map(|(at, _)| at)
    }

    proptest! {
        #[test]
        fn the_binding_limit_is_the_first_of_the_tightest(
            asked in proptest::collection::vec(
                (proptest::bool::weighted(0.8), 0..3_u64, proptest::option::weighted(0.3, proptest::option::of(0..3_u64))),
                0..6,
            ),
        ) {
            let limits: Vec<_> = asked.into_iter().map(|(binding, left, after)| limit(binding, left, after)).collect();
            let allowed = limits.iter().all(|limit| !limit.binding || limit.decision.is_allowed());
            prop_assert_eq!(binding(&limits, allowed), model(&limits));
        }
    }
}

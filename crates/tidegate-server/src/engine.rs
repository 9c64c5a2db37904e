//! What every door asks: decides under the policies in force, counts decisions, remembers refusals.
//!
//! The gate decides; this adds what only a server has: a choice of policies by name, an answer when the store has none,
//! counters, the keys at their limits, a memory of the last refusals. What comes after a decision is in [`settling`].

mod held;
mod settling;
mod ticket;
mod ticket_seal;

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tidegate::explain::key_text;
use tidegate::gate::Check;
use tidegate::policy::{Among, Descriptor, Mode, OnStoreError, PolicySet};
use tidegate::store::{Charge, MemoryStore, Occupancy, Store, StoreError};
use tidegate::{Charged, Clock, Cost, Gate, GateDecision, LimitDecision, Tick};
use ulid::Ulid;

use crate::live::{Facts, Live};
use crate::metrics::{Decided, Metrics, Tally};
use crate::refused_requests::{RefusedRequest, RefusedRequests};
use crate::settings::Settings;

pub(crate) use self::held::Held;
pub(crate) use self::settling::{SettleError, SettledTicket, Settlement, Spent};
pub(crate) use self::ticket::{NoTicket, TicketAnswer, TicketFor};
pub(crate) use self::ticket_seal::TicketSeal;

/// Refused requests that are remembered for a question: some seconds of a flood, hours of ordinary service.
const REMEMBERED: usize = 8192;
const REMEMBERED_BYTES: usize = 4 << 20;
/// Keys of the store that stands in while the real one cannot decide.
const STAND_IN_KEYS: usize = 65_536;
/// Headers that hold secrets; they are not remembered unless a key is made of them.
const SECRET: [&str; 4] = [
    "request.header.authorization",
    "request.header.cookie",
    "request.header.proxy-authorization",
    "request.header.x-api-key",
];

/// The engine behind all doors.
#[derive(Debug)]
pub(crate) struct Engine {
    gate: Gate,
    store: Arc<dyn Store>,
    store_kind: &'static str,
    clock: Arc<dyn Clock>,
    live: ArcSwap<Live>,
    pub(crate) metrics: Metrics,
    refused: RefusedRequests,
    ticket_seal: TicketSeal,
    /// Decides for policies with `on_store_error: local` while the store cannot.
    stand_in: OnceLock<MemoryStore>,
}

/// What is asked of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Spend and count.
    Take,
    /// Look.
    Peek,
}

/// How a request was decided.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and it never leaves the stack")]
pub(crate) enum Conclusion {
    /// By the policies.
    Decided(GateDecision),
    /// By what the policies say for when the store cannot decide.
    Unsettled {
        /// Whether it may pass.
        allowed: bool,
        /// The first policy that refuses without its store.
        policy: Option<String>,
        /// What the store said.
        error: StoreError,
    },
}

impl Engine {
    pub(crate) fn new(
        settings: &Settings,
        store: Arc<dyn Store>,
        store_kind: &'static str,
        clock: Arc<dyn Clock>,
        ticket_seal: TicketSeal,
    ) -> Self {
        let metrics = Metrics::new();
        let gate = Gate::new(Arc::clone(&settings.policies), Arc::clone(&store))
            .with_clock(Arc::clone(&clock))
            .with_issuer(&ticket_seal.issuer);
        let live = Live::new(settings, &metrics, None, gate.now());
        Self {
            gate,
            store,
            store_kind,
            clock,
            live: ArcSwap::from_pointee(live),
            metrics,
            refused: RefusedRequests::new(REMEMBERED, REMEMBERED_BYTES),
            ticket_seal,
            stand_in: OnceLock::new(),
        }
    }

    /// Returns what is in force.
    pub(crate) fn live(&self) -> Arc<Live> {
        self.live.load_full()
    }

    pub(crate) fn now(&self) -> Tick {
        self.gate.now()
    }

    /// Puts other settings in force. Callers take turns.
    pub(crate) fn replace(&self, settings: &Settings) {
        let before = self.live();
        self.gate.replace(Arc::clone(&settings.policies));
        let live = Live::new(settings, &self.metrics, Some(&before), self.now());
        for gone in before.set.policies().iter().filter(|policy| live.set.find(&policy.name).is_none()) {
            self.metrics.forget(&gone.name);
        }
        self.live.store(Arc::new(live));
    }

    /// Decides a request, and puts into `held` what it was charged, where somebody wants that; `only` names the indices of the policies
    /// that are asked, in the set of `live`.
    pub(crate) fn decide(
        &self,
        live: &Live,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        only: Option<&[usize]>,
        want: Want,
        held: Option<&mut Held>,
    ) -> Conclusion {
        let keeps = held.is_some();
        let mut unwanted = Held::default();
        let held = held.unwrap_or(&mut unwanted);
        let ask = |gate: &Gate, among: Option<&Among>, charged: &mut Charged| {
            let check = Check::of(request).cost(cost).among(among);
            match want {
                Want::Take if among.is_none() && !keeps => gate.check(check),
                Want::Take => gate.charge(check, charged),
                Want::Peek => gate.peek(check),
            }
        };
        let among = only.map(|only| Among::new(Arc::clone(&live.set), only.iter().copied()));
        let decided = self.metrics.time(|| ask(&self.gate, among.as_ref(), &mut held.charged));
        let decision = match decided {
            Ok(decision) => decision,
            Err(error) => return self.without_store(live, request, cost, only, error, want, &ask, held),
        };
        self.counted(live, request, decision, want)
    }

    /// Names a decision; remembers the request of a refusal.
    pub(crate) fn name(
        &self,
        live: &Live,
        request: &Descriptor<'_>,
        only: Option<&[usize]>,
        cost: Option<Cost>,
        conclusion: &Conclusion,
    ) -> Ulid {
        let (at, allowed) = match conclusion {
            Conclusion::Decided(decision) => (decision.at, decision.allowed),
            Conclusion::Unsettled { allowed, .. } => (self.now(), *allowed),
        };
        if allowed {
            return self.refused.name(at);
        }
        // By name: places move when the file changes.
        let named = |at: &usize| live.set.policies().get(*at).map(|policy| policy.name.as_str().into());
        let only = only.map(|only| only.iter().filter_map(named).collect());
        let secret = |name: &str| SECRET.contains(&name) && !live.keys_by(name);
        self.refused.remember(at, request, only, secret, cost)
    }

    /// Returns the request of a refusal, `None` where it was too long to be kept, and the cost its caller gave.
    pub(crate) fn find(&self, id: Ulid) -> Option<(Option<Cost>, Option<RefusedRequest>)> {
        self.refused.find(id)
    }

    /// Forgets what one key has spent under one policy; `key` holds the attributes of the policy's `by`.
    ///
    /// Takes the key, so operators need not invent a matching path.
    pub(crate) fn reset(&self, live: &Live, policy: usize, key: &Descriptor<'_>) -> Result<(), StoreError> {
        let words = &live.set.policies()[policy];
        let limits = words.limits.iter().chain(&words.shadow_limit).enumerate();
        let quotas = limits.filter_map(|(at, limit)| {
            let quota = limit.all_terms().find_map(|terms| terms.quota.as_ref())?;
            Some((live.set.key(policy, at, key)?, quota))
        });
        let quotas: Vec<_> = quotas.collect();
        let charges: Vec<_> = quotas.iter().map(|(key, quota)| Charge::new(key, quota, Cost::ONE)).collect();
        self.gate.reset_charges(&charges).inspect_err(|_| self.metrics.store_error(self.store_kind))
    }

    /// Returns the facts of the policies that a conclusion was made under.
    pub(crate) fn facts(&self, live: &Live, conclusion: &Conclusion) -> Arc<[Facts]> {
        match conclusion {
            Conclusion::Decided(decision) => live.facts(&decision.policies, &self.metrics),
            Conclusion::Unsettled { .. } => Arc::clone(&live.policies),
        }
    }

    /// Writes all metrics.
    pub(crate) fn write_metrics(&self) -> String {
        let live = self.live();
        let series = live.policies.iter().map(|facts| &*facts.series);
        self.metrics.write(self.now(), self.store.occupancy(), series)
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }

    pub(crate) fn store_kind(&self) -> &'static str {
        self.store_kind
    }

    fn gate_of(&self, policies: impl Into<Arc<PolicySet>>, store: impl Store + 'static) -> Gate {
        Gate::new(policies, store).with_clock(Arc::clone(&self.clock)).with_issuer(&self.ticket_seal.issuer)
    }

    /// Decides although the store cannot: one policy that closes refuses, else those that say so are decided here.
    #[allow(clippy::too_many_arguments, reason = "all that `decide` was asked, and what came of it")]
    fn without_store(
        &self,
        live: &Live,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        only: Option<&[usize]>,
        error: StoreError,
        want: Want,
        ask: &impl Fn(&Gate, Option<&Among>, &mut Charged) -> Result<GateDecision, StoreError>,
        held: &mut Held,
    ) -> Conclusion {
        self.metrics.store_error(self.store_kind);
        tracing::warn!(%error, "the store could not decide");
        let plan = live.set.plan(request, cost);
        let mut matching: Vec<usize> = plan.lines.iter().map(|line| line.policy).collect();
        matching.dedup();
        matching.retain(|at| only.is_none_or(|only| only.contains(at)));
        for at in &matching {
            tally(&live.policies[*at], live.set.policies()[*at].mode == Mode::Enforce).count(Decided::error);
        }
        let policy = |at: &usize| &live.set.policies()[*at];
        let closes = matching
            .iter()
            .map(policy)
            .find(|policy| policy.on_store_error == OnStoreError::Deny && policy.mode == Mode::Enforce);
        if let Some(closed) = closes {
            let policy = Some(closed.name.clone());
            return Conclusion::Unsettled { allowed: false, policy, error };
        }
        matching.retain(|at| policy(at).on_store_error == OnStoreError::Local);
        if matching.is_empty() {
            return Conclusion::Unsettled { allowed: true, policy: None, error };
        }
        let stand_in = self.stand_in.get_or_init(|| MemoryStore::with_capacity(STAND_IN_KEYS));
        held.from_stand_in = true;
        let among = Among::new(Arc::clone(&live.set), matching);
        let gate = self.gate_of(Arc::clone(&live.set), stand_in.clone());
        match ask(&gate, Some(&among), &mut held.charged) {
            Ok(decision) => self.counted(live, request, decision, want),
            Err(_) => Conclusion::Unsettled { allowed: true, policy: None, error },
        }
    }

    fn counted(
        &self,
        live: &Live,
        request: &Descriptor<'_>,
        decision: GateDecision,
        want: Want,
    ) -> Conclusion {
        if want == Want::Take {
            self.count(&live.facts(&decision.policies, &self.metrics), request, &decision);
        }
        Conclusion::Decided(decision)
    }

    /// Counts a decision under each of its policies.
    fn count(&self, facts: &[Facts], request: &Descriptor<'_>, decision: &GateDecision) {
        if let Some(at) = decision.denied_by_list.as_ref().and_then(|refusal| refusal.policy) {
            facts[at].series.enforce.count(Decided::denied);
            return;
        }
        let policies = decision.policies.policies();
        for lines in decision.limits.chunk_by(|one, next| one.policy == next.policy) {
            let Some(first) = lines.first() else { continue };
            let (policy, facts) = (&policies[first.policy], &facts[first.policy]);
            let own = lines.iter().filter(|line| !policy.is_shadow_limit(line.limit));
            if let Some(decided) = together(own.clone()) {
                tally(facts, policy.mode == Mode::Enforce).count(decided);
            }
            let shadow = lines.iter().filter(|line| policy.is_shadow_limit(line.limit));
            if let Some(decided) = together(shadow) {
                facts.series.shadow.count(decided);
            }
            let (mut denied, mut near) = (false, false);
            for line in own {
                let standing = line.decision.standing;
                let used = standing.limit.saturating_sub(standing.remaining);
                facts.series.utilization.note(decision.at, used, standing.limit);
                denied |= !line.decision.is_allowed();
                near |= u128::from(used) * 100 >= u128::from(standing.limit) * u128::from(policy.near_limit);
            }
            if denied {
                facts.keys.denied.add(&key_text(policy, request));
            } else if near && decision.allowed {
                facts.series.near.inc();
                facts.keys.near.add(&key_text(policy, request));
            }
        }
    }
}

fn tally(facts: &Facts, enforced: bool) -> &Tally {
    if enforced { &facts.series.enforce } else { &facts.series.shadow }
}

/// Returns what several limits of one policy decided together.
fn together<'l>(lines: impl Iterator<Item = &'l LimitDecision>) -> Option<Decided> {
    lines.fold(None, |so_far, line| {
        let decided = match (line.decision.is_allowed(), line.decision.wait().is_zero()) {
            (false, _) => Decided::denied,
            (true, false) => Decided::delayed,
            (true, true) => Decided::allowed,
        };
        match (so_far, decided) {
            (Some(Decided::denied), _) | (_, Decided::denied) => Some(Decided::denied),
            (Some(Decided::delayed), _) => Some(Decided::delayed),
            (_, decided) => Some(decided),
        }
    })
}

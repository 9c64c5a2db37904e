//! The decision engine behind every door (HTTP, gRPC, RESP): decides requests under the policies in force, counts the
//! decisions and remembers refused requests.
//!
//! The [`Gate`] decides. This module adds what only a server needs: the choice of policies by name, an answer when the
//! store has none, metrics, the keys at their limits, and a memory of the last refusals. [`tickets`] handles what
//! follows a decision.

mod base;
mod breakers;
mod conditions;
mod counting;
mod decide;
mod decide_each;
#[cfg(feature = "grpc")]
mod decide_together;
mod denials;
mod dry_run;
mod held_charges;
mod keys;
mod outage;
mod peer_names;
mod storage;
mod tickets;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::{ArcSwap, Guard};
use foldhash::fast::RandomState;
use prometheus_client::registry::Registry;
use tidegate::config::{Address, Peer};
use tidegate::gate::{Check, KeyedView, Unfit};
use tidegate::policy::{Among, Descriptor, Limit, PolicySet};
use tidegate::store::{self, Store, StoreError};
use tidegate::{Clock, Gate, GateDecision, LimitDecision, Tick};
use tokio::runtime::Handle;
use ulid::Ulid;

use crate::active_config::{ActiveConfig, Facts};
use crate::denial_log::DenialLog;
use crate::events::Events;
use crate::global_deny_list::{self, GlobalDenyList};
use crate::metrics::peer_names::PeerNames;
use crate::metrics::{Metrics, admitted_share};
use crate::redact::Redact;
use crate::refused_requests::{Refused as RefusedBefore, RefusedRequests, Stated};
use crate::settings::{Refused, Settings};
use crate::span_attributes;
use crate::stores::OpenStore;

use self::base::Base;
use self::breakers::Breakers;
pub(crate) use self::breakers::{ListedBreaker, Wanted, breakers_of, why};
use self::conditions::Conditions;
pub(crate) use self::conditions::{Setting, SwitchedBy, WATCHED_EVERY, known, per_second};
#[cfg(feature = "grpc")]
pub(crate) use self::decide_together::Together;
pub(crate) use self::held_charges::HeldCharges;
use self::keys::PolicyKeys;
pub(crate) use self::keys::{LetGo, NotForgotten, missing};
use self::storage::Storage;
pub(crate) use self::storage::{ClusterPolicies, LEASES_EVERY, Outage};
#[cfg(feature = "grpc")]
pub(crate) use self::tickets::Committed;
use self::tickets::Tickets;
pub(crate) use self::tickets::{
    NoTicket, SettleError, SettledTicket, Settlement, Spent, TicketAnswer, TicketFor, TicketSeal,
};

/// How many refused requests are remembered for later questions: those of a few seconds in a flood, those of hours in
/// ordinary service.
pub(crate) const REMEMBERED: usize = 8192;
/// The most bytes of the remembered requests.
const REMEMBERED_BYTES: usize = 6 << 20;
/// Headers that hold secrets. They are remembered only when a policy's key is made of them.
const SECRET: [&str; 4] = [
    "request.header.authorization",
    "request.header.cookie",
    "request.header.proxy-authorization",
    "request.header.x-api-key",
];

/// The engine behind all doors.
#[derive(Debug)]
pub(crate) struct Engine {
    base: Arc<Base>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    /// Whether no other process is asked for decisions: counters are in memory or on this machine's disk.
    asks_no_engine: bool,
    pub(crate) storage: Storage,
    refused: Arc<RefusedRequests>,
    pub(crate) tickets: Tickets,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) keys: PolicyKeys,
    pub(crate) conditions: Conditions,
    denials: DenialLog,
    pub(crate) file_list: GlobalDenyList,
    /// The blocks for all policies.
    pub(crate) blocked: GlobalDenyList,
    peer_names: PeerNames,
    /// Makes the hashes of keys by which their rates are counted.
    hasher: RandomState,
    /// The address for calls over gRPC, if there is one.
    grpc: Option<Address>,
}

/// The options of an engine that are not in the policy file.
#[derive(Debug, Default)]
pub(crate) struct EngineOptions {
    /// Counted by the writer of the log.
    pub(crate) log_lines_dropped: Arc<AtomicU64>,
    /// The rate limiter under whose names metrics are shown as well.
    pub(crate) metrics_names: Option<Peer>,
    /// The address for calls over gRPC, if there is one.
    pub(crate) grpc: Option<Address>,
}

/// Whether a decision changes the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Charges the request and counts the decision.
    Take,
    /// Only looks: charges and counts nothing.
    Peek,
}

/// How a request was decided.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and it never leaves the stack")]
pub(crate) enum Conclusion {
    /// The policies decided.
    Decided(GateDecision),
    /// The store could not decide; `on_store_error` of the policies applies.
    Unsettled {
        /// Whether the request may pass.
        allowed: bool,
        /// The name of the first policy that refuses because its store is away.
        policy: Option<String>,
        /// The error of the store.
        error: StoreError,
    },
}

impl Conclusion {
    /// Returns whether the request may pass.
    /// Returns how many limits were asked.
    pub(crate) fn met(&self) -> usize {
        match self {
            Self::Decided(decision) => decision.limits.len(),
            Self::Unsettled { .. } => 1,
        }
    }

    pub(crate) fn allowed(&self) -> bool {
        match self {
            Self::Decided(decision) => decision.allowed,
            Self::Unsettled { allowed, .. } => *allowed,
        }
    }
}

impl Engine {
    /// Makes the engine. Must be called inside a tokio runtime: background messages to the store are spawned on it.
    pub(crate) fn new(
        settings: &Settings,
        opened: OpenStore,
        clock: Arc<dyn Clock>,
        ticket_seal: TicketSeal,
        options: EngineOptions,
    ) -> Self {
        let EngineOptions { log_lines_dropped, metrics_names, grpc } = options;
        let mut metrics = Metrics::new();
        metrics.log_lines_dropped = log_lines_dropped;
        let (metrics, events) = (Arc::new(metrics), Arc::new(Events::default()));
        let OpenStore { store, kind: store_kind, sharing, kept, away, .. } = opened;
        let fallback = storage::fallback_for(&store, store_kind, sharing.as_ref(), &clock, &metrics, &events);
        if let (Some(fallback), true) = (&fallback, away) {
            storage::find_away(fallback, clock.now());
        }
        let policies = Arc::clone(&settings.policies);
        let asked: Arc<dyn Store> = match &fallback {
            Some(fallback) => Arc::new(fallback.clone()),
            None => Arc::clone(&store),
        };
        let caps = store.caps();
        let decides_at_once = sharing.is_none() && caps.always_decides && !caps.may_wait;
        let asks_no_engine = sharing.is_none() && (caps.always_decides || caps.later_if_strict);
        let (gate, shared) = match &sharing {
            None => (Gate::new(policies, asked), None),
            Some(sharing) => {
                let (gate, shared) =
                    storage::shared_gate(policies, asked, sharing, &clock, &ticket_seal.issuer);
                (gate, Some(shared))
            }
        };
        let switches = conditions::make_switches(&settings.policies, &clock, &metrics);
        let runtime = Handle::current();
        let wall = clock.wall().unwrap_or_default();
        let gate = gate
            .with_clock(clock)
            .with_switches(switches.clone())
            .with_background(move |later| drop(runtime.spawn(later)))
            .with_issuer(&ticket_seal.issuer);
        let started = gate.now();
        let live = ActiveConfig::new(settings, &metrics, None, started);
        let file_list = GlobalDenyList::new(global_deny_list::NAME);
        file_list.show(&metrics);
        let base = Arc::new(Base {
            gate,
            live: ArcSwap::from_pointee(live),
            metrics: Arc::clone(&metrics),
            events: Arc::clone(&events),
            redact: Redact::new(ticket_seal.keys.digest_secret()),
            store,
            store_kind,
            decides_at_once,
            started,
        });
        let breakers = Arc::new(Breakers::new(Arc::clone(&base), kept.is_some()));
        let storage = Storage::new(Arc::clone(&base), fallback, shared, kept);
        let keys = PolicyKeys::new(Arc::clone(&base), Arc::clone(&breakers));
        let conditions = Conditions::new(Arc::clone(&base), switches, wall);
        let refused = Arc::new(RefusedRequests::new(REMEMBERED, REMEMBERED_BYTES));
        let tickets =
            Tickets::new(Arc::clone(&base), Arc::clone(&breakers), Arc::clone(&refused), ticket_seal);
        Self {
            base,
            metrics,
            events,
            file_list,
            blocked: GlobalDenyList::new(global_deny_list::BLOCKS),
            asks_no_engine,
            storage,
            refused,
            tickets,
            breakers,
            keys,
            conditions,
            denials: DenialLog::of_all(),
            peer_names: PeerNames::of(metrics_names),
            hasher: RandomState::default(),
            grpc,
        }
    }

    /// Returns the settings in force, held by an arc-swap guard: a shared reference count would be written by all
    /// threads. Keep the guard for one request at most.
    pub(crate) fn live(&self) -> Guard<Arc<ActiveConfig>> {
        self.base.live()
    }

    /// Returns whether no other process is asked for decisions: counters are in memory or on this machine's disk.
    pub(crate) fn asks_no_engine(&self) -> bool {
        self.asks_no_engine
    }

    pub(crate) fn now(&self) -> Tick {
        self.base.now()
    }

    /// Checks that the running store can do what these policies need.
    ///
    /// # Errors
    /// [`Refused`] names each policy that the store cannot serve.
    pub(crate) fn fits(&self, policies: &PolicySet) -> Result<(), Refused> {
        let unfit = self.base.gate.unfit(policies);
        let kind = self.base.store_kind;
        let told = |unfit: &Unfit| match unfit {
            Unfit::NoStore { .. } | Unfit::NotDurable { .. } => format!(
                "{unfit}; this server runs on `store.kind: {kind}`, and another one takes a restart, since `store` is read at the start only"
            ),
            unfit => unfit.to_string(),
        };
        let unfit: Vec<String> = unfit.iter().map(told).collect();
        if unfit.is_empty() { Ok(()) } else { Err(Refused::new(unfit)) }
    }

    /// Puts other settings in force. Calls must not overlap. Returns the breakers that start anew, for
    /// [`Breakers::start_anew`].
    pub(crate) fn replace(&self, settings: &Settings) -> Vec<KeyedView> {
        let before = self.live();
        self.conditions.follow(&settings.policies);
        self.base.gate.replace(Arc::clone(&settings.policies));
        let live = ActiveConfig::new(settings, &self.metrics, Some(&before), self.now());
        for gone in before.set.policies().iter().filter(|policy| live.set.find(&policy.name).is_none()) {
            self.metrics.forget(&gone.name);
        }
        for policy in live.set.policies().iter().filter(|policy| breakers_of(policy).next().is_none()) {
            self.metrics.protection.forget_breakers(&policy.name);
        }
        let anew = self.breakers.follow(&before, &live);
        self.base.live.store(Arc::new(live));
        anew
    }

    /// Counts a decision and turns it into a [`Conclusion`].
    fn conclude(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        decided: Result<GateDecision, StoreError>,
        want: Want,
    ) -> Conclusion {
        let mut conclusion = match decided {
            Ok(decision) => Conclusion::Decided(decision),
            Err(error) => self.undecided(error),
        };
        self.settle_form(live, request, &mut conclusion, want);
        self.note_conclusion(request, &conclusion);
        conclusion
    }

    /// Counts a decision and adjusts it for the answer, in place: it is large, and moving it costs as much as counting
    /// it.
    fn settle_form(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        conclusion: &mut Conclusion,
        want: Want,
    ) {
        let Conclusion::Decided(decision) = conclusion else { return };
        if let Some(anyway) = &decision.anyway {
            self.count_anyway(live, decision, anyway);
        }
        if live.breaks && decision.allowed {
            decision.binding = least_left(decision).or(decision.binding);
        }
        if decision.by == store::DecidedBy::Fallback
            && let Some(other) = self.without_engine(live, decision)
        {
            *conclusion = other;
            return;
        }
        if want == Want::Take {
            self.count(&live.facts(&decision.policies, &self.metrics), request, decision);
            if live.breaks {
                self.breakers.remember_refusers(request, decision);
            }
        }
    }

    /// Gives a decision its id. For a refusal, also remembers the request and logs the denial.
    pub(crate) fn name(
        &self,
        live: &ActiveConfig,
        check: &Check<'_, '_>,
        only: Option<&[usize]>,
        conclusion: &Conclusion,
    ) -> Ulid {
        let at = match conclusion {
            Conclusion::Decided(decision) => decision.at,
            Conclusion::Unsettled { .. } => self.now(),
        };
        if conclusion.allowed() {
            let id = self.refused.name(at);
            span_attributes::note(|notes| _ = notes.id.get_or_insert(id));
            return id;
        }
        // Policies are remembered by name, because their indices change when the file changes.
        let named = |at: &usize| live.set.policies().get(*at).map(|policy| policy.name.as_str().into());
        let only = only.map(|only| only.iter().filter_map(named).collect());
        let secret = |name: &str| SECRET.contains(&name) && !live.keys_by(name);
        let stated = Stated { cost: check.stated_cost(), priority: check.priority };
        let record = self.record(live, check.request, conclusion, at);
        let id = self.refused.remember(record, check.request, only, secret, stated);
        span_attributes::note(|notes| _ = notes.id.get_or_insert(id));
        if let Conclusion::Decided(decision) = conclusion {
            self.tell_denial(live, check.request, decision, id);
        }
        id
    }

    /// Returns what is remembered of a refusal.
    pub(crate) fn find(&self, id: Ulid) -> Option<RefusedBefore> {
        self.refused.find(id)
    }

    /// Returns the redactor that hides keys.
    pub(crate) fn redact(&self) -> Redact {
        self.base.redact.clone()
    }

    /// When this process started, by the gate's clock.
    pub(crate) fn started(&self) -> Tick {
        self.base.started
    }

    /// Returns the facts of the policies that this conclusion was made under.
    pub(crate) fn facts<'l>(&self, live: &'l ActiveConfig, conclusion: &Conclusion) -> Cow<'l, [Facts]> {
        match conclusion {
            Conclusion::Decided(decision) => live.facts(&decision.policies, &self.metrics),
            Conclusion::Unsettled { .. } => Cow::Borrowed(&live.policies),
        }
    }

    /// Writes all metrics as text; `others` registers those that are not about decisions.
    pub(crate) fn write_metrics(&self, others: impl FnOnce(&mut Registry)) -> String {
        self.conditions.tell();
        let live = self.live();
        self.breakers.show(&live);
        self.keys.show(&live);
        let series = live.policies.iter().map(|facts| &*facts.series);
        let shared = |registry: &mut Registry| {
            self.storage.show(registry);
            self.conditions.show(&live, registry);
            let judges = live.set.policies().iter().zip(&*live.policies);
            let judges =
                judges.filter_map(|(policy, facts)| Some((policy.name.as_str(), facts.judge.as_deref()?)));
            admitted_share::show(registry, judges);
            others(registry);
        };
        let of_peers = self.peer_metrics(&live);
        of_peers + &self.metrics.write(self.now(), self.base.occupancy(), series, shared)
    }

    /// Returns the lists that refuse and belong to no policy.
    pub(crate) fn lists(&self) -> [&GlobalDenyList; 2] {
        [&self.file_list, &self.blocked]
    }
}

/// Returns the policies in force that have these indices.
fn among(live: &ActiveConfig, only: &[usize]) -> Among {
    Among::new(Arc::clone(&live.set), only.iter().copied())
}

/// Returns the index of the limit that has least left for an allowed request. Skips breakers: a closed breaker always
/// has one left, however many requests it admits.
fn least_left(decision: &GateDecision) -> Option<usize> {
    let policies = decision.policies.policies();
    let is_breaker =
        |line: &LimitDecision| policies[line.policy].limit(line.limit).is_some_and(Limit::is_breaker);
    let counting = decision.limits.iter().enumerate().filter(|(_, line)| line.binding && !is_breaker(line));
    counting.min_by_key(|(_, line)| line.remaining()).map(|(at, _)| at)
}

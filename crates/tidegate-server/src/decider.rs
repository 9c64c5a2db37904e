//! What decides behind every door.
//!
//! The [`Gate`] decides; this adds what only a server needs. [`deciding`] turns decisions into answers, also without
//! the store; [`tickets`] has what follows a decision; [`breakers`], [`keys`] and [`conditions`] are for operators;
//! [`storage`] is the store, and [`telemetry`] what is told.

mod base;
mod breakers;
mod conditions;
mod deciding;
mod keys;
mod storage;
mod telemetry;
mod tickets;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arc_swap::{ArcSwap, Guard};
use prometheus_client::registry::Registry;
use tidegate::clock::Clock;
use tidegate::config::{Address, Peer};
use tidegate::gate::{KeyedView, Unfit};
use tidegate::policy::{Mode, PolicySet};
use tidegate::store::Store;
use tidegate::{Gate, Tick};
use tokio::runtime::Handle;

use self::base::Base;
pub(crate) use self::base::{Conclusion, Want};
use self::breakers::Breakers;
pub(crate) use self::breakers::{ListedBreaker, Wanted, breakers_of, why};
use self::conditions::Conditions;
pub(crate) use self::conditions::{Setting, SwitchedBy, WATCHED_EVERY, known, per_second};
use self::deciding::Deciding;
#[cfg(feature = "grpc")]
pub(crate) use self::deciding::Together;
use self::keys::PolicyKeys;
pub(crate) use self::keys::{LetGo, limits_of, missing};
use self::storage::Storage;
pub(crate) use self::storage::{ClusterPolicies, LEASES_EVERY, Nodes, Outage, REPORTS_EVERY};
pub(crate) use self::telemetry::REMEMBERED;
use self::telemetry::Telemetry;
#[cfg(feature = "grpc")]
pub(crate) use self::tickets::Committed;
use self::tickets::Tickets;
pub(crate) use self::tickets::{
    NoTicket, SettleError, SettledTicket, Settlement, Spent, TicketAnswer, TicketFor, TicketSeal,
};
use crate::active_config::ActiveConfig;
use crate::events::Events;
use crate::metrics::{Metrics, RequestOutcome, Transport, admitted_share, show_alerts, show_history};
use crate::settings::{Refused, Settings};
use crate::sight::{Canary, Changed, Sight, Vitals};
use crate::stores::OpenStore;
use crate::text::Redact;

/// The parts of the decider, and the few operations that take several of them.
#[derive(Debug)]
pub(crate) struct Decider {
    base: Arc<Base>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) deciding: Deciding,
    pub(crate) tickets: Tickets,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) keys: PolicyKeys,
    pub(crate) conditions: Conditions,
    pub(crate) storage: Arc<Storage>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The options of a decider that are not in the policy file.
#[derive(Debug, Default)]
pub(crate) struct DeciderOptions {
    /// Counted by the writer of the log.
    pub(crate) log_lines_dropped: Arc<AtomicU64>,
    pub(crate) metrics_names: Option<Peer>,
    pub(crate) grpc: Option<Address>,
    pub(crate) sight: Option<Arc<dyn Sight>>,
}

impl Decider {
    /// Makes the decider. Call it inside a tokio runtime: background messages to the store are spawned on it.
    pub(crate) fn new(
        settings: &Settings,
        opened: OpenStore,
        clock: Arc<dyn Clock>,
        ticket_seal: TicketSeal,
        options: DeciderOptions,
    ) -> Self {
        let DeciderOptions { log_lines_dropped, metrics_names, grpc, sight } = options;
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
        let live = ActiveConfig::new(settings, &metrics, sight.as_ref(), None, started);
        if let Some(sight) = &sight {
            live.tell(&**sight);
        }
        let base = Arc::new(Base {
            gate,
            live: ArcSwap::from_pointee(live),
            metrics: Arc::clone(&metrics),
            events: Arc::clone(&events),
            sight,
            redact: Redact::new(ticket_seal.keys.digest_secret()),
            store,
            store_kind,
            decides_at_once,
            started,
        });
        let telemetry = Arc::new(Telemetry::new(Arc::clone(&base), metrics_names, grpc));
        let breakers = Arc::new(Breakers::new(Arc::clone(&base), kept.is_some()));
        let storage = Arc::new(Storage::new(Arc::clone(&base), fallback, shared, kept));
        Self {
            deciding: Deciding::new(
                Arc::clone(&base),
                Arc::clone(&telemetry),
                Arc::clone(&breakers),
                Arc::clone(&storage),
                asks_no_engine,
            ),
            tickets: Tickets::new(
                Arc::clone(&base),
                Arc::clone(&breakers),
                Arc::clone(&telemetry),
                ticket_seal,
            ),
            keys: PolicyKeys::new(Arc::clone(&base), Arc::clone(&breakers)),
            conditions: Conditions::new(Arc::clone(&base), switches, wall),
            base,
            metrics,
            events,
            breakers,
            storage,
            telemetry,
        }
    }

    /// Returns the settings in force, held by an arc-swap guard: a shared reference count would be written by all
    /// threads. Keep it for one request at most.
    pub(crate) fn live(&self) -> Guard<Arc<ActiveConfig>> {
        self.base.live()
    }

    pub(crate) fn now(&self) -> Tick {
        self.base.now()
    }

    /// Checks that the running store can serve these policies.
    ///
    /// # Errors
    /// [`Refused`] names each policy that it cannot serve.
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
        if unfit.is_empty() { Ok(()) } else { Err(Refused { diagnostics: unfit }) }
    }

    /// Puts settings in force. Calls must not overlap. Returns the breakers that start anew, for
    /// [`Breakers::start_anew`].
    pub(crate) fn replace(&self, settings: &Settings) -> Vec<KeyedView> {
        let before = self.live();
        self.conditions.follow(&settings.policies);
        self.base.gate.replace(Arc::clone(&settings.policies));
        let sight = self.base.sight.as_ref();
        let live = ActiveConfig::new(settings, &self.metrics, sight, Some(&before), self.now());
        for gone in before.set.policies().iter().filter(|policy| live.set.find(&policy.name).is_none()) {
            self.metrics.forget(&gone.name);
        }
        for policy in live.set.policies().iter().filter(|policy| breakers_of(policy).next().is_none()) {
            self.metrics.protection.forget_breakers(&policy.name);
        }
        if let Some(sight) = sight {
            live.tell(&**sight);
        }
        let anew = self.breakers.follow(&before, &live);
        self.base.live.store(Arc::new(live));
        anew
    }

    /// Returns the redactor that hides keys.
    pub(crate) fn redact(&self) -> Redact {
        self.base.redact.clone()
    }

    /// Returns what sees decisions, if there is something.
    pub(crate) fn sight(&self) -> Option<&Arc<dyn Sight>> {
        self.base.sight.as_ref()
    }

    /// Tells the sight of a change, if there is one. `text` is computed only then.
    pub(crate) fn tell_change(
        &self,
        what: &'static str,
        who: &str,
        reason: &str,
        text: impl FnOnce() -> String,
    ) {
        let Some(sight) = &self.base.sight else { return };
        sight.changed(Changed {
            at: self.now(),
            what,
            who: who.to_owned(),
            reason: reason.to_owned(),
            text: text(),
            configuration: self.live().number,
        });
    }

    /// Reads the counts and the state of the server.
    pub(crate) fn vitals(&self) -> Vitals {
        let requests = &self.metrics.requests;
        let of =
            |outcome| Transport::ALL.into_iter().map(|door| requests.counted(door, outcome)).sum::<u64>();
        let live = self.live();
        let outage = self.storage.outage().map(|outage| outage.reason.to_string());
        Vitals {
            requests: RequestOutcome::ALL.map(of),
            in_flight: requests.in_flight() as u64,
            durations: self.metrics.durations(),
            store: self.base.store_kind,
            store_away: outage.or_else(|| self.storage.trouble().map(|(reason, _)| reason)),
            fleet: self.storage.fleet_in_words(&live.set),
            store_errors: self.metrics.store_errors_of(self.base.store_kind),
            // The reload knows it, and is no part of this.
            refused: None,
            configuration: (live.number, live.since),
            now: self.now(),
        }
    }

    /// Returns the canaries of the policies in force, without those that are off.
    pub(crate) fn canaries(&self) -> Vec<Canary> {
        let live = self.live();
        let each = live.set.policies().iter().enumerate();
        let canaries = each.filter_map(|(at, policy)| {
            let canary = policy.canary.as_ref().filter(|_| policy.mode != Mode::Off)?;
            Some(Canary {
                policy: policy.name.clone(),
                text: canary.text.clone(),
                limit: canary.limit.terms.label.clone(),
                share: canary.share.as_f64(),
                in_force: live.set.canary_share(at)?.as_f64(),
                lasts: canary.lasts,
                denied: canary.guard.denied.as_f64(),
                keys_refused: canary.guard.keys_refused,
                failures: canary.guard.failures.as_f64(),
                enforce: canary.enforce,
            })
        });
        canaries.collect()
    }

    /// When this process started, by the gate's clock.
    pub(crate) fn started(&self) -> Tick {
        self.base.started
    }

    /// Writes all metrics as text; `others` registers those that are not about decisions.
    pub(crate) fn write_metrics(&self, others: impl FnOnce(&mut Registry)) -> String {
        self.conditions.tell();
        let live = self.live();
        self.breakers.show(&live);
        self.keys.show(&live);
        let series = live.policies.iter().map(|facts| &*facts.series);
        let shared = |registry: &mut Registry| {
            self.storage.show(&live.set, registry);
            self.conditions.show(&live, registry);
            let judges = live.set.policies().iter().zip(&*live.policies);
            let judges =
                judges.filter_map(|(policy, facts)| Some((policy.name.as_str(), facts.judge.as_deref()?)));
            admitted_share::show(registry, judges);
            if let Some(sight) = &self.base.sight {
                show_alerts(registry, sight.firing(), sight.alert_messages());
                if let Some(is_written) = sight.history_written() {
                    show_history(registry, is_written);
                }
            }
            others(registry);
        };
        let of_peers = self.telemetry.peer_metrics(&live, self.storage.is_away());
        of_peers + &self.metrics.write(self.now(), self.base.store.occupancy(), series, shared)
    }
}

#[cfg(test)]
mod tests {
    //! The parts of a decider together: one limit in memory, and a clock that stands still.

    use std::net::{Ipv4Addr, SocketAddr};

    use tidegate::clock::ManualClock;
    use tidegate::config::StoreSettings;
    use tidegate::gate::ticket::TicketError;
    use tidegate::gate::{Charged, Check, Part};
    use tidegate::policy::{Descriptor, Limit, Policy};
    use tidegate::{Outcome, Quota};

    use super::*;
    use crate::ticket_options::TicketOptions;

    /// Makes a decider with one policy: one request a minute, for all together.
    fn decider() -> Decider {
        let quota = Quota::per_minute(1).gcra().unwrap();
        let policies = PolicySet::new(vec![Policy::new("all", Limit::new(quota, "1/minute"))]).unwrap();
        let store = OpenStore::in_memory(&StoreSettings::default(), Some(100)).unwrap();
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let seal = TicketSeal::of(&TicketOptions::default(), &here.into()).unwrap();
        let clock = Arc::new(ManualClock::at(Tick::from_secs(1000)));
        Decider::new(&Settings::new(policies), store, clock, seal, DeciderOptions::default())
    }

    async fn take(decider: &Decider, check: Check<'_, '_>, held: Option<&mut Charged>) -> Conclusion {
        decider.deciding.decide(&decider.live(), check, None, Want::Take, held, Transport::http).await
    }

    #[tokio::test]
    async fn a_refusal_is_found_by_its_id_and_a_permission_is_not() {
        let (decider, request) = (decider(), Descriptor::new());
        let check = Check::of(&request);
        let (first, second) = (take(&decider, check, None).await, take(&decider, check, None).await);
        assert_eq!((first.allowed(), second.allowed()), (true, false));
        let name =
            |conclusion: &Conclusion| decider.telemetry.name(&decider.live(), &check, None, conclusion);
        assert!(decider.telemetry.find(name(&first)).is_none());
        let refused = decider.telemetry.find(name(&second)).unwrap();
        assert_eq!((refused.record.policy.as_deref(), refused.record.by), (Some("all"), "limit"));
    }

    #[tokio::test]
    async fn a_ticket_gives_its_units_back_once() {
        let (decider, request, mut held) = (decider(), Descriptor::new(), Charged::default());
        let check = Check::of(&request);
        let decided = take(&decider, check, Some(&mut held)).await;
        let id = decider.telemetry.name(&decider.live(), &check, None, &decided);
        let wanted = TicketFor::Caller(Some(true));
        let made = decider.tickets.make_or_undo(&request, &decided, &held, wanted, Some(id)).await;
        let ticket = made.unwrap().and_then(|answer| answer.ticket).unwrap();
        let undone = Settlement { part: Part::All, outcome: Outcome::Ignored, spent: Spent::Undone };
        let live = decider.live();
        let settled = decider.tickets.settle(&live, &ticket, &undone, |settled| settled.id).await;
        assert_eq!(settled.unwrap(), id);
        let again = decider.tickets.settle(&live, &ticket, &undone, |settled| settled.id).await;
        assert!(matches!(again, Err(SettleError::Ticket(TicketError::Settled))), "{again:?}");
        assert!(take(&decider, check, None).await.allowed());
        assert!(!take(&decider, check, None).await.allowed());
    }

    #[tokio::test]
    async fn a_key_that_is_let_go_has_its_units_again() {
        let (decider, request) = (decider(), Descriptor::new());
        let check = Check::of(&request);
        assert!(take(&decider, check, None).await.allowed());
        let let_go = decider.keys.let_go(&decider.live(), 0, &request).await.unwrap();
        assert_eq!((let_go.unblocked, let_go.places, let_go.still_forced), (false, Some(0), Some(0)));
        assert!(take(&decider, check, None).await.allowed());
    }
}

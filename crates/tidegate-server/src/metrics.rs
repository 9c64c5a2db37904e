//! The metrics for Prometheus.
//!
//! Labels come from the configuration, never from a request, so the number of series is known when a file is
//! loaded. Series of removed policies are dropped. A decision finds its counters by the policy's index
//! ([`crate::active_config::ActiveConfig`]).

pub(crate) mod admitted_share;
mod labels;
pub(crate) mod peer_names;
mod policy_series;
pub(crate) mod protection;
#[cfg(feature = "grpc")]
mod quota;
mod requests;
pub(crate) mod stores;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use tidegate::Tick;
use tidegate::clock::{Clock, SystemClock};
use tidegate::store::Occupancy;

use self::labels::{
    AlertLabels, AlertMessageLabels, BuildLabels, CutLabel, DecisionLabels, ExtensionLabel, PolicyLabel,
    SettlementLabel, StoreChangeLabels, StoreLabel, StoreStateLabel, TransportLabel, UnitsLabels,
};
pub(crate) use self::labels::{
    BreakerStateLabel, CutReason, Decided, ExtensionResult, RequestOutcome, SettlementResult,
    SwitchedByLabel, Transport,
};
use self::policy_series::Limits;
pub(crate) use self::policy_series::{PolicySeries, Used, count_units};
use self::protection::{Protection, SwitchSeries};
#[cfg(feature = "grpc")]
pub(crate) use self::quota::{Assigned, Counted, Quotas};
use self::requests::{DecisionTimes, Throttled};
pub(crate) use self::requests::{InFlight, Requests};
pub(crate) use self::stores::{StoreOp, StoreState, StoreTimes};
use crate::sight::{AlertMessages, Firing};
use crate::span_attributes;

/// All metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    near: Family<PolicyLabel, Counter>,
    limits: Limits,
    utilization: Family<PolicyLabel, Gauge<f64, AtomicU64>>,
    /// Indexed by the position of the transport in [`Transport::ALL`].
    decision_times: [DecisionTimes; Transport::ALL.len()],
    /// Decisions on limits that callers bring along.
    pub(crate) throttled: Throttled,
    auth_failed: Family<TransportLabel, Counter>,
    store_errors: Family<StoreLabel, Counter>,
    store_up: Family<StoreLabel, Gauge<i64, AtomicI64>>,
    store_changes: Family<StoreChangeLabels, Counter>,
    settlements: Family<SettlementLabel, Counter>,
    extensions: Family<ExtensionLabel, Counter>,
    units: Family<UnitsLabels, Counter>,
    cut: Family<CutLabel, Counter>,
    /// The series of breakers, deadlines and soft limits.
    pub(crate) protection: Protection,
    /// The series of degrade switches.
    pub(crate) switches: SwitchSeries,
    /// Requests in flight, and delays.
    pub(crate) requests: Requests,
    store_times: stores::Times,
    /// The series of the quota service of the gRPC door.
    #[cfg(feature = "grpc")]
    pub(crate) quotas: Quotas,
    reload_ok: Gauge<i64, AtomicI64>,
    reload_at: Gauge<f64, AtomicU64>,
    /// Counted by the writer of the log.
    pub(crate) log_lines_dropped: Arc<AtomicU64>,
    /// Measures decisions. Separate from the gate's clock, which a test may stop.
    stopwatch: SystemClock,
}

/// Makes a metric and registers it.
fn new_series<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let series = M::default();
    registry.register(name, help, series.clone());
    series
}

/// Registers the alerts that fire, and how messages about them fared.
pub(crate) fn show_alerts(registry: &mut Registry, firing: Vec<Firing>, messages: Vec<AlertMessages>) {
    let alerts: Family<AlertLabels, Gauge> = new_series(
        registry,
        "alerts",
        "Alerts that fire, of each policy, and without one those about the server; 0 for a rule without any",
    );
    for Firing { rule, policy, alerts: count } in firing {
        alerts.get_or_create(&AlertLabels { rule, policy }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    if messages.is_empty() {
        return;
    }
    let told: Family<AlertMessageLabels, Counter> = new_series(
        registry,
        "alert_messages",
        "Messages to receivers of alerts; failed: attempts, which are repeated; dropped: too many waited; left_out: too many in an hour",
    );
    for AlertMessages { receiver, fate, count } in messages {
        told.get_or_create(&AlertMessageLabels { receiver, fate }).inc_by(count);
    }
}

/// Registers whether the last write of the history succeeded.
pub(crate) fn show_history(registry: &mut Registry, is_written: bool) {
    let up: Gauge = new_series(
        registry,
        "sight_history_up",
        "1 when the last write of the history succeeded, 0 when it failed",
    );
    up.set(i64::from(is_written));
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("tidegate");
        let metrics = Self {
            decisions: new_series(
                &mut registry,
                "decisions",
                "Decisions, one for each policy that a request meets; (access.deny): by the file's deny list, (blocked): by blocks for all policies",
            ),
            near: new_series(
                &mut registry,
                "near_limit",
                "Requests that passed with little left of the limit, as near_limit of the policy says",
            ),
            utilization: new_series(
                &mut registry,
                "policy_utilization_ratio",
                "Used share of the hottest key's limit, over one to two minutes",
            ),
            decision_times: {
                let times = Family::<TransportLabel, DecisionTimes>::default();
                registry.register_with_unit(
                    "decision_duration",
                    "Time to decide, without reading and writing the request",
                    Unit::Seconds,
                    times.clone(),
                );
                Transport::ALL.map(|transport| times.get_or_create_owned(&TransportLabel { transport }))
            },
            throttled: Throttled::registered(&mut registry),
            auth_failed: new_series(
                &mut registry,
                "auth_failures",
                "Requests without a valid token, if one is required",
            ),
            store_errors: new_series(
                &mut registry,
                "store_errors",
                "Steps that the store could not execute, also while it was gone",
            ),
            store_up: new_series(
                &mut registry,
                "store_up",
                "1 while the store is asked, 0 while it is gone or counters cannot be written to disk",
            ),
            store_changes: new_series(
                &mut registry,
                "store_state_changes",
                "How often the store came back, and how often it went",
            ),
            settlements: new_series(
                &mut registry,
                "settlements",
                "Tickets sent to be settled, by result; lapsed: reservations that nobody committed",
            ),
            extensions: new_series(
                &mut registry,
                "extensions",
                "Tickets sent to hold their places longer, by result; not_held: their places have lapsed",
            ),
            units: new_series(
                &mut registry,
                "settled_units",
                "Units that settlements gave back, or booked beyond the charge, also by charge: always",
            ),
            cut: new_series(&mut registry, "connections_cut", "Connections that the server ended, by reason"),
            protection: Protection::registered(&mut registry),
            switches: SwitchSeries::registered(&mut registry),
            requests: Requests::registered(&mut registry),
            store_times: stores::registered(&mut registry),
            #[cfg(feature = "grpc")]
            quotas: Quotas::registered(&mut registry),
            reload_ok: new_series(
                &mut registry,
                "config_last_reload_successful",
                "1 when the last reload put its file in force, 0 when it was refused",
            ),
            reload_at: new_series(
                &mut registry,
                "config_last_reload_success_timestamp_seconds",
                "When a configuration was last put in force, in Unix time",
            ),
            limits: Limits::default(),
            log_lines_dropped: Arc::default(),
            stopwatch: SystemClock::new(),
            // Last: it is moved, with what the lines above have registered.
            registry: {
                let build = BuildLabels {
                    version: env!("CARGO_PKG_VERSION"),
                    commit: option_env!("TIDEGATE_COMMIT").unwrap_or("unknown"),
                };
                registry.register("build", "Version and commit of the running program", Info::new(build));
                registry
            },
        };
        // These series exist from the start, so that their first increase is visible.
        for transport in Transport::ALL {
            drop(metrics.auth_failed.get_or_create(&TransportLabel { transport }));
        }
        for result in SettlementResult::ALL {
            drop(metrics.settlements.get_or_create(&SettlementLabel { result }));
        }
        for result in ExtensionResult::ALL {
            drop(metrics.extensions.get_or_create(&ExtensionLabel { result }));
        }
        for reason in CutReason::ALL {
            // The series exists from the start, so that its first increase is visible.
            drop(metrics.cut.get_or_create(&CutLabel { reason }));
        }
        metrics.reloaded(true);
        metrics
    }

    /// Waits for a decision and records how long it took.
    pub(crate) async fn time<T>(&self, transport: Transport, deciding: impl Future<Output = T>) -> T {
        let start = self.start();
        let decided = deciding.await;
        self.note_time(transport, start);
        decided
    }

    /// Returns when a decision begins, for [`Metrics::note_time`].
    pub(crate) fn start(&self) -> Tick {
        self.stopwatch.now()
    }

    /// Records how long a decision took that began at `start`.
    pub(crate) fn note_time(&self, transport: Transport, start: Tick) {
        let took: Duration = self.stopwatch.now().since(start);
        span_attributes::note(|notes| span_attributes::add(&mut notes.deciding, took));
        self.decision_times[transport as usize].observe(took);
    }

    /// Waits for the decisions of a batch, which only HTTP has, and records for each an equal share of the total time.
    /// So the histogram's count is the number of decisions, and its sum is the time spent.
    pub(crate) async fn time_each<T>(&self, deciding: impl Future<Output = Vec<T>>) -> Vec<T> {
        let start = self.stopwatch.now();
        let decided = deciding.await;
        let took = self.stopwatch.now().since(start);
        span_attributes::note(|notes| span_attributes::add(&mut notes.deciding, took));
        let took = took / u32::try_from(decided.len().max(1)).unwrap_or(u32::MAX);
        let times = &self.decision_times[Transport::http as usize];
        decided.iter().for_each(|_| times.observe(took));
        decided
    }

    /// Counts a step that a store could not execute.
    pub(crate) fn store_error(&self, store: &'static str) {
        self.store_errors.get_or_create(&StoreLabel { store }).inc();
    }

    /// Returns the series about the state of a store. They exist from the start, with the state up.
    pub(crate) fn store_states(&self, store: &'static str) -> StoreState {
        let change = |state| self.store_changes.get_or_create_owned(&StoreChangeLabels { store, state });
        let shown = self.store_up.get_or_create_owned(&StoreLabel { store });
        shown.set(1);
        // Zero from the start: monitoring systems do not count a series that appears with its first value as an
        // increase.
        drop(self.store_errors.get_or_create(&StoreLabel { store }));
        StoreState { shown, went: change(StoreStateLabel::down), came_back: change(StoreStateLabel::up) }
    }

    /// Returns the series about the durations of store operations. They exist from the start.
    pub(crate) fn store_times(&self, store: &'static str) -> StoreTimes {
        StoreTimes::of(&self.store_times, store)
    }

    /// Sets whether a store keeps its counters; for stores that are asked when metrics are read.
    pub(crate) fn store_is(&self, store: &'static str, up: bool) {
        self.store_up.get_or_create(&StoreLabel { store }).set(i64::from(up));
    }

    /// Returns how many steps a store could not execute.
    pub(crate) fn store_errors_of(&self, store: &'static str) -> u64 {
        self.store_errors.get(&StoreLabel { store }).map_or(0, |errors| errors.get())
    }

    /// Returns how many decisions took how long, over all doors: the upper bounds in nanoseconds and the counts above
    /// the bound before.
    pub(crate) fn durations(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for times in &self.decision_times {
            for (at, (bound, count)) in times.counted().enumerate() {
                match all.get_mut(at) {
                    Some(sum) => sum.1 += count,
                    None => all.push((bound, count)),
                }
            }
        }
        all
    }

    /// Counts a request without a token, with an invalid one, or with one that lacks the scope.
    pub(crate) fn auth_failed(&self, transport: Transport) {
        self.auth_failed.get_or_create(&TransportLabel { transport }).inc();
    }

    /// Counts a settlement.
    pub(crate) fn settlement(&self, result: SettlementResult) {
        self.settlements.get_or_create(&SettlementLabel { result }).inc();
    }

    /// Counts an extension.
    pub(crate) fn extension(&self, result: ExtensionResult) {
        self.extensions.get_or_create(&ExtensionLabel { result }).inc();
    }

    /// Counts a connection that the server ended.
    pub(crate) fn connection_cut(&self, reason: CutReason) {
        self.cut.get_or_create(&CutLabel { reason }).inc();
    }

    /// Records the result of a reload.
    pub(crate) fn reloaded(&self, successful: bool) {
        self.reload_ok.set(i64::from(successful));
        if successful {
            self.reload_at.set(self.stopwatch.now().since(Tick::EPOCH).as_secs_f64());
        }
    }

    /// Writes all metrics in the OpenMetrics text format. `others` registers numbers that are read only now.
    pub(crate) fn write<'s>(
        &self,
        now: Tick,
        occupancy: Occupancy,
        policies: impl Iterator<Item = &'s PolicySeries>,
        others: impl FnOnce(&mut Registry),
    ) -> String {
        for series in policies {
            series.shown.set(series.utilization.ratio(now));
        }
        // The store's own numbers are read only now, so they go into a temporary registry.
        let mut store = Registry::with_prefix("tidegate_store");
        for (name, help, keys) in [
            ("keys", "Slots in use, including those that may be reused", occupancy.used),
            ("capacity", "The largest number of keys that the store can hold", occupancy.capacity),
        ] {
            store.register(name, help, ConstGauge::new(keys as i64));
        }
        store.register(
            "evicted",
            "Live keys, and marks of settled tickets, evicted because the store was full",
            ConstCounter::new(occupancy.evicted),
        );
        store.register(
            "evicted_over_limit",
            "Evicted keys that had nothing left, and evicted marks; if it rises, raise store.keys",
            ConstCounter::new(occupancy.evicted_over_limit),
        );
        let mut now_asked = Registry::with_prefix("tidegate");
        self.requests.show(&mut now_asked);
        others(&mut now_asked);
        // After the others, which set the limits whose rate moves.
        self.limits.show(&mut now_asked);
        let mut log = Registry::with_prefix("tidegate_log");
        let dropped = self.log_lines_dropped.load(Ordering::Relaxed);
        log.register(
            "lines_dropped",
            "Log lines that were not written: the log was full or failed, or one cause came too often",
            ConstCounter::new(dropped),
        );
        let mut text = String::new();
        // Writing to a String cannot fail. The last call writes the end of the text, so the other registries come
        // first.
        for registry in [store, now_asked, log] {
            let _ = encode_registry(&mut text, &registry);
        }
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(feature = "otel")]
pub(crate) mod otlp {
    //! Metrics of decision spans, by their fate. Written only where spans are sent.

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::registry::Registry;

    use super::labels::{label_sets, words};

    words! {
        /// The fate of a span.
        pub(crate) enum Fate {
            /// The collector accepted it.
            sent,
            /// The collector did not accept it, or did not answer.
            failed,
            /// The queue was full.
            dropped,
        }
    }

    label_sets! {
        struct FateLabel { fate: Fate }
    }

    /// The number of spans by fate. Clones share the counts.
    #[derive(Clone, Debug)]
    pub(crate) struct Fates(Family<FateLabel, Counter>);

    impl Default for Fates {
        fn default() -> Self {
            let family = Family::default();
            for fate in Fate::ALL {
                // The series exists from the start, so that its first increase is visible.
                drop(family.get_or_create(&FateLabel { fate }));
            }
            Self(family)
        }
    }

    impl Fates {
        /// Counts spans.
        pub(crate) fn count(&self, fate: Fate, spans: usize) {
            self.0.get_or_create(&FateLabel { fate }).inc_by(spans as u64);
        }

        /// Returns the number of spans with this fate.
        #[cfg(test)]
        pub(crate) fn of(&self, fate: Fate) -> u64 {
            self.0.get_or_create(&FateLabel { fate }).get()
        }
    }

    /// Registers the number of spans by fate.
    pub(crate) fn show(registry: &mut Registry, fates: &Fates) {
        registry.register(
            "otlp_spans",
            "Spans of decisions: sent, failed, or dropped because the queue was full",
            fates.0.clone(),
        );
    }
}

#[cfg(feature = "tls")]
pub(crate) mod tls {
    //! Metrics of certificates and handshakes. Written only where a door is encrypted.

    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::ConstGauge;
    use prometheus_client::registry::Registry;

    use super::Transport;
    use super::labels::{label_sets, words};

    words! {
        /// Why a handshake failed.
        pub(crate) enum Reason {
            /// The caller does not speak TLS.
            plain_text,
            /// The caller showed no certificate, or one that is not accepted.
            certificate,
            /// The caller refused, mostly because it does not trust the server's certificate.
            refused,
            /// There is no common version, cipher or protocol, or the caller violated the protocol.
            protocol,
            /// The caller went away.
            broken_off,
        }
    }

    label_sets! {
        struct FailureLabels { transport: Transport, reason: Reason }
    }

    /// The number of failed handshakes, by protocol and reason. Clones share the counts.
    #[derive(Clone, Debug)]
    pub(crate) struct Failures(Family<FailureLabels, Counter>);

    impl Default for Failures {
        fn default() -> Self {
            let family = Family::default();
            for transport in Transport::ALL {
                for reason in Reason::ALL {
                    // The series exists from the start, so that its first increase is visible.
                    drop(family.get_or_create(&FailureLabels { transport, reason }));
                }
            }
            Self(family)
        }
    }

    impl Failures {
        /// Counts a failed handshake.
        pub(crate) fn count(&self, transport: Transport, reason: Reason) {
            self.0.get_or_create(&FailureLabels { transport, reason }).inc();
        }
    }

    /// Registers when the certificate ends (Unix time in seconds), whether its last renewal succeeded, and the failed
    /// handshakes.
    pub(crate) fn show(registry: &mut Registry, ends: Option<u64>, renewed: bool, failures: &Failures) {
        if let Some(ends) = ends {
            registry.register(
                "tls_certificate_expiry_timestamp_seconds",
                "When the server's certificate expires, or an intermediate that expires sooner, in Unix time",
                ConstGauge::new(i64::try_from(ends).unwrap_or(i64::MAX)),
            );
        }
        registry.register(
        "tls_last_renewal_successful",
        "1 if the certificate's files were valid when last read, 0 if they were refused and the old certificate stays",
        ConstGauge::new(i64::from(renewed)),
    );
        registry.register("tls_handshake_failures", "Failed TLS handshakes", failures.0.clone());
    }
}

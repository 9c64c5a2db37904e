//! Metrics of stores: their state, the time of their answers, and units drawn ahead.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tidegate::cluster::shares::Status;
use tidegate::cluster::{MemberReport, Part};
use tidegate::store::leased::LeaseHealth;
use tidegate::store::{Op, Store};

use super::labels::{PolicyLabel, label_sets, words};
use super::new_series;
use crate::stores::EngineLoad;

/// The series about the state of one store.
#[derive(Debug)]
pub(crate) struct StoreState {
    pub(super) shown: Gauge<i64, AtomicI64>,
    pub(super) went: Counter,
    pub(super) came_back: Counter,
}

impl StoreState {
    pub(crate) fn turn(&self, up: bool) {
        self.shown.set(i64::from(up));
        if up {
            self.came_back.inc()
        } else {
            self.went.inc()
        };
    }
}

// How long operations of an engine take.

/// Upper bounds in seconds. A round trip nearby takes a fraction of a millisecond; after `store.deadline` (250 ms
/// by default) nobody waits any longer.
const STORE_TIMES: [f64; 12] =
    [100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0];

words! {
    /// The operations of an engine.
    pub(crate) enum StoreOp {
        take,
        draw,
        peek,
        finish,
        reset,
        breaker,
        /// Several steps in one exchange.
        batch,
    }
}

impl StoreOp {
    /// Returns the label of a step's operation.
    pub(crate) fn of(op: Op<'_>) -> Self {
        match op {
            Op::Take => Self::take,
            Op::Draw => Self::draw,
            Op::Peek => Self::peek,
            Op::Finish(_) => Self::finish,
            Op::Reset => Self::reset,
            Op::Breaker(_) => Self::breaker,
        }
    }
}

label_sets! {
    pub(super) struct StoreOpLabels { store: &'static str, op: StoreOp }
}

/// The durations of operations, for all stores.
pub(super) type Times = Family<StoreOpLabels, Histogram, fn() -> Histogram>;

pub(super) fn registered(registry: &mut Registry) -> Times {
    let times = Times::new_with_constructor(|| Histogram::new(STORE_TIMES));
    registry.register_with_unit(
        "store_operation_duration",
        "Time that the engine took, from the first request until it answered or its callers stopped waiting",
        Unit::Seconds,
        times.clone(),
    );
    times
}

/// The series of one store. Its steps are recorded without a look-up by name.
#[derive(Debug)]
pub(crate) struct StoreTimes([Histogram; StoreOp::ALL.len()]);

impl StoreTimes {
    pub(super) fn of(times: &Times, store: &'static str) -> Self {
        Self(StoreOp::ALL.map(|op| times.get_or_create_owned(&StoreOpLabels { store, op })))
    }

    /// Returns the series of one operation, in seconds.
    pub(crate) fn series(&self, op: StoreOp) -> Histogram {
        self.0[op as usize].clone()
    }
}

// Leases and the division of limits. The numbers are the store's own, so they are registered when they are read.

/// Registers the metrics of leases.
pub(crate) fn show(registry: &mut Registry, health: &LeaseHealth) {
    for (name, help, count) in [
        (
            "lease_granted",
            "Charges granted from units drawn before, without asking the engine",
            health.granted,
        ),
        ("lease_refused", "Charges refused without asking the engine", health.refused),
        ("lease_messages", "Calls that leases made to the engine", health.messages),
        ("lease_drawn_units", "Units drawn from the engine", health.drawn),
        ("lease_returned_units", "Units given back because they were not needed in time", health.returned),
        (
            "lease_burned_units",
            "Units that come back at the rate only: held too long far away, or lost",
            health.burned,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
}

/// Registers the units out of each policy.
pub(crate) fn show_outstanding(registry: &mut Registry, policies: impl IntoIterator<Item = (String, u64)>) {
    let family: Family<PolicyLabel, Gauge> = new_series(
        registry,
        "lease_outstanding_units",
        "Units of all keys drawn from the engine and not yet spent: lost until the rate returns them if this node dies",
    );
    for (policy, units) in policies {
        family.get_or_create(&PolicyLabel { policy }).set(i64::try_from(units).unwrap_or(i64::MAX));
    }
}

label_sets! {
    struct ShareLabels { policy: String, share: &'static str }
}

/// Registers what each policy, by the share that it really uses, may grant without the engine.
pub(crate) fn show_possible_excess(
    registry: &mut Registry,
    policies: impl IntoIterator<Item = (String, &'static str, f64)>,
) {
    let family: Family<ShareLabels, Gauge<f64, AtomicU64>> = new_series(
        registry,
        "policy_possible_excess_units",
        "Units beyond the limit of one key that this node grants if the engine goes away for a moment now, by the share that the policy really uses",
    );
    for (policy, share, units) in policies {
        family.get_or_create(&ShareLabels { policy, share }).set(units);
    }
}

/// Registers what was noticed about the engine.
pub(crate) fn show_engine(registry: &mut Registry, engine: &dyn Store) {
    for (name, help, count) in [
        (
            "store_clock_set_back",
            "How often this node found Redis's clock set back by more than a second",
            engine.clock_set_back(),
        ),
        (
            "store_losses",
            "How often this node found a key whose state Redis has lost; it counts as store.after_loss says",
            engine.losses(),
        ),
    ] {
        registry.register(name, help, ConstCounter::new(count));
    }
}

/// Registers how busy an engine is.
pub(crate) fn show_load(registry: &mut Registry, load: EngineLoad) {
    registry.register(
        "store_memory_ratio",
        "Used part of Redis's maxmemory, or of its machine; in a cluster of one master",
        ConstGauge::new(load.memory),
    );
    registry.register_with_unit(
        "store_processor",
        "Processor time of Redis's main thread; in a cluster of one master",
        Unit::Seconds,
        ConstCounter::new(load.processor.as_secs_f64()),
    );
}

pub(crate) fn show_part(registry: &mut Registry, status: &Status, of_region: bool) {
    let (name, help) = if of_region {
        ("region_part_ratio", "The part of this node's region in the limits of all regions, at present")
    } else {
        ("node_part_ratio", "This node's part of the limits of all nodes, at present")
    };
    registry.register(name, help, ConstGauge::new(f64::from(status.part) / f64::from(Part::WHOLE)));
}

pub(crate) fn show_agreement(registry: &mut Registry, agrees: bool) {
    registry.register(
        "cluster_agrees",
        "1 when this node's last round with the others succeeded, 0 when it failed",
        ConstGauge::new(i64::from(agrees)),
    );
}

pub(crate) fn show_members(registry: &mut Registry, too_many: bool, members: usize) {
    registry.register(
        "cluster_too_many_members",
        "1 while more nodes share the engine than store.nodes says, or more regions share the limits than store.region.max says",
        ConstGauge::new(i64::from(too_many)),
    );
    // On etcd and ZooKeeper only the leading node counts the members.
    if members > 0 {
        registry.register(
            "cluster_members",
            "Nodes that share the engine, or with store.region those of all regions; on etcd and ZooKeeper only on the leader",
            ConstGauge::new(i64::try_from(members).unwrap_or(i64::MAX)),
        );
    }
}

pub(crate) fn show_other_policies(registry: &mut Registry, nodes: usize) {
    registry.register(
        "cluster_other_policies",
        "Nodes that share the Redis and have other limits than this one, for more than ten seconds",
        ConstGauge::new(i64::try_from(nodes).unwrap_or(i64::MAX)),
    );
}

pub(crate) fn show_policies(registry: &mut Registry, report: &MemberReport) {
    registry.register(
        "cluster_policies_version",
        "Version of the policies of all nodes that this node uses; 0 for those of its file",
        ConstGauge::new(i64::try_from(report.policies).unwrap_or(i64::MAX)),
    );
    registry.register(
        "cluster_policies_refused",
        "1 while this node refuses the policies that were put last for all nodes",
        ConstGauge::new(i64::from(report.refused.is_some())),
    );
}

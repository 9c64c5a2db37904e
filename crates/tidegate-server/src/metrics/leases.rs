//! What leases hold and what they saved.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::cluster::Part;
use tidegate::cluster::shares::Status;
use tidegate::store::leased::LeaseHealth;

/// The series of leases. The counts are those of the store, copied when they are read.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    outstanding: Gauge,
    granted: Counter,
    refused: Counter,
    messages: Counter,
    drawn: Counter,
    returned: Counter,
    burned: Counter,
    part: Gauge<f64, AtomicU64>,
    members: Gauge,
}

impl Leases {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let made = Self::default();
        registry.register(
            "lease_outstanding_units",
            "Units drawn from the engine and not yet spent: what this node adds to the excess at most",
            made.outstanding.clone(),
        );
        registry.register("lease_granted", "Charges granted out of units drawn before", made.granted.clone());
        registry.register("lease_refused", "Charges refused without asking the engine", made.refused.clone());
        registry.register("lease_messages", "Calls to the engine by leases", made.messages.clone());
        registry.register("lease_drawn_units", "Units drawn from the engine", made.drawn.clone());
        registry.register(
            "lease_returned_units",
            "Units given back because they were not needed in time",
            made.returned.clone(),
        );
        registry.register(
            "lease_burned_units",
            "Units of which nobody knows whether they were given back",
            made.burned.clone(),
        );
        registry.register(
            "node_part_ratio",
            "This node's part of what nodes have together, as they agreed last",
            made.part.clone(),
        );
        registry.register(
            "cluster_members",
            "Nodes that share the engine, as this one sees it",
            made.members.clone(),
        );
        made
    }

    /// Sets what nodes agree on.
    pub(crate) fn show_part(&self, status: &Status) {
        self.part.set(f64::from(status.part) / f64::from(Part::WHOLE));
        self.members.set(i64::try_from(status.members).unwrap_or(i64::MAX));
    }

    /// Sets what leases tell.
    pub(crate) fn show(&self, health: &LeaseHealth) {
        self.outstanding.set(i64::try_from(health.outstanding).unwrap_or(i64::MAX));
        let counts = [
            (&self.granted, health.granted),
            (&self.refused, health.refused),
            (&self.messages, health.messages),
            (&self.drawn, health.drawn),
            (&self.returned, health.returned),
            (&self.burned, health.burned),
        ];
        for (counter, count) in counts {
            // Two readers at once may see one of them late, never too high.
            counter.inner().fetch_max(count, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

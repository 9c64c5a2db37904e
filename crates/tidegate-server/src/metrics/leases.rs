//! Metrics of leases and of the division of limits among nodes. Written only where nodes share an engine.
//!
//! The numbers are the store's own, so they go into a temporary registry when they are read.

use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tidegate::cluster::shares::Status;
use tidegate::cluster::{MemberReport, Part};
use tidegate::store::leased::LeaseHealth;

/// Registers the metrics of leases.
pub(crate) fn show(registry: &mut Registry, health: &LeaseHealth) {
    let outstanding = i64::try_from(health.outstanding).unwrap_or(i64::MAX);
    registry.register(
        "lease_outstanding_units",
        "Units drawn from the engine and not yet spent: the most that this node adds to the excess",
        ConstGauge::new(outstanding),
    );
    let count = ConstCounter::new;
    registry.register(
        "lease_granted",
        "Charges granted from units drawn before, without asking the engine",
        count(health.granted),
    );
    registry.register("lease_refused", "Charges refused without asking the engine", count(health.refused));
    registry.register("lease_messages", "Calls that leases made to the engine", count(health.messages));
    registry.register("lease_drawn_units", "Units drawn from the engine", count(health.drawn));
    registry.register(
        "lease_returned_units",
        "Units given back because they were not needed in time",
        count(health.returned),
    );
    registry.register(
        "lease_burned_units",
        "Units that may or may not have been given back",
        count(health.burned),
    );
}

/// Registers the part that this node, or its region, has of each limit.
pub(crate) fn show_part(registry: &mut Registry, status: &Status, of_region: bool) {
    let part = ConstGauge::new(f64::from(status.part) / f64::from(Part::WHOLE));
    if of_region {
        registry.register(
            "region_part_ratio",
            "The part of this node's region in the limits of all regions, as agreed last",
            part,
        );
    } else {
        registry.register(
            "node_part_ratio",
            "This node's part of the limits of all nodes, as agreed last",
            part,
        );
    }
}

/// Registers whether nodes, or regions, agree on their parts.
pub(crate) fn show_membership(registry: &mut Registry, status: &Status) {
    registry.register(
        "cluster_agrees",
        "1 when this node's last round with the others succeeded, 0 when it failed",
        ConstGauge::new(i64::from(status.failed.is_none())),
    );
    registry.register(
        "cluster_too_many_members",
        "1 while more nodes share the engine than store.nodes says, or more regions share the limits than store.region.max says",
        ConstGauge::new(i64::from(status.too_many)),
    );
    // Only the leading node counts the members.
    if status.members > 0 {
        registry.register(
            "cluster_members",
            "Nodes that share the engine, or with store.region those of all regions; only on the leader",
            ConstGauge::new(i64::try_from(status.members).unwrap_or(i64::MAX)),
        );
    }
}

/// Registers which of the policies published for all nodes this node uses.
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

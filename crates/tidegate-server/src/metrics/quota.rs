//! Metrics of the quota service: the reports of proxies that limit by buckets, and the assignments they get.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::policy_series::count_units;

/// The kind of an assignment to a bucket of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Assigned {
    /// A different part of a limit than before.
    changed,
    /// The same part again.
    renewed,
    /// No limit applies.
    allow,
    /// No request may pass.
    deny,
    /// The bucket is to be forgotten.
    abandoned,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AssignedLabel {
    assigned: Assigned,
}

/// The series of the quota service.
#[derive(Debug)]
pub(crate) struct Quotas {
    streams: Gauge<i64, AtomicI64>,
    buckets: Gauge<i64, AtomicI64>,
    reports: Counter,
    allowed: Counter,
    denied: Counter,
    /// Indexed by [`Assigned`].
    assigned: [Counter; 5],
}

impl Quotas {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let assigned = Family::<AssignedLabel, Counter>::default();
        let of = |assigned_as| assigned.get_or_create(&AssignedLabel { assigned: assigned_as }).clone();
        use Assigned::{abandoned, allow, changed, deny, renewed};
        let made = Self {
            streams: Gauge::default(),
            buckets: Gauge::default(),
            reports: Counter::default(),
            allowed: Counter::default(),
            denied: Counter::default(),
            assigned: [changed, renewed, allow, deny, abandoned].map(of),
        };
        registry.register("quota_streams", "Proxies that report to the quota service", made.streams.clone());
        registry.register("quota_buckets", "Buckets of these proxies", made.buckets.clone());
        registry.register("quota_reports", "Reports of one bucket by proxies", made.reports.clone());
        registry.register(
            "quota_allowed_requests",
            "Requests that proxies allowed by their buckets",
            made.allowed.clone(),
        );
        registry.register(
            "quota_denied_requests",
            "Requests that proxies denied by their buckets",
            made.denied.clone(),
        );
        registry.register("quota_assignments", "Assignments sent to proxies for their buckets", assigned);
        made
    }

    /// Counts a stream until the returned value is dropped.
    pub(crate) fn stream(&self) -> Counted {
        Counted::of(&self.streams)
    }

    /// Counts a bucket until the returned value is dropped.
    pub(crate) fn bucket(&self) -> Counted {
        Counted::of(&self.buckets)
    }

    /// Returns the number of buckets.
    pub(crate) fn buckets(&self) -> i64 {
        self.buckets.get()
    }

    /// Counts the report of one bucket, and its assignment.
    pub(crate) fn reported(&self, allowed: u64, denied: u64, assigned: Assigned) {
        self.reports.inc();
        count_units(&self.allowed, allowed);
        count_units(&self.denied, denied);
        self.assigned[assigned as usize].inc();
    }
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Gauge<i64, AtomicI64>);

impl Counted {
    fn of(gauge: &Gauge<i64, AtomicI64>) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

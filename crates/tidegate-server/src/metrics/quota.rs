//! Metrics of the quota service: reports of proxies that limit by buckets, and their assignments.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{label_sets, words};
use super::new_series;
use super::policy_series::count_units;

words! {
    /// The kind of an assignment to a bucket of a proxy.
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
}

label_sets! {
    struct AssignedLabel { assigned: Assigned }
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
    assigned: [Counter; Assigned::ALL.len()],
}

impl Quotas {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        Self {
            streams: new_series(registry, "quota_streams", "Proxies that report to the quota service"),
            buckets: new_series(registry, "quota_buckets", "Buckets of these proxies"),
            reports: new_series(registry, "quota_reports", "Reports of one bucket by proxies"),
            allowed: new_series(
                registry,
                "quota_allowed_requests",
                "Requests that proxies allowed by their buckets",
            ),
            denied: new_series(
                registry,
                "quota_denied_requests",
                "Requests that proxies denied by their buckets",
            ),
            assigned: {
                let help = "Assignments sent to proxies for their buckets";
                let family: Family<AssignedLabel, Counter> = new_series(registry, "quota_assignments", help);
                Assigned::ALL.map(|assigned| family.get_or_create_owned(&AssignedLabel { assigned }))
            },
        }
    }

    /// Counts one until the value is dropped.
    pub(crate) fn stream(&self) -> Counted {
        Counted::of(&self.streams)
    }

    /// Counts one until the value is dropped.
    pub(crate) fn bucket(&self) -> Counted {
        Counted::of(&self.buckets)
    }

    /// Returns the number of buckets.
    pub(crate) fn buckets(&self) -> i64 {
        self.buckets.get()
    }

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

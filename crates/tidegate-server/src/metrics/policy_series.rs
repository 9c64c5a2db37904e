//! The series of one policy. Decisions and settlements count into them without a look-up by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::busiest_keys::Hottest;
use super::labels::Decided;
use super::peak::Peak;

/// The counters of one policy in one mode, indexed by [`Decided`].
#[derive(Clone, Debug)]
pub(crate) struct Tally(pub(super) [Counter; 4]);

impl Tally {
    pub(crate) fn count(&self, decided: Decided) {
        self.0[decided as usize].inc();
    }

    pub(super) fn counted(&self, decided: Decided) -> u64 {
        self.0[decided as usize].get()
    }
}

/// The series of one policy.
#[derive(Debug)]
pub(crate) struct PolicySeries {
    pub(crate) enforce: Tally,
    pub(crate) shadow: Tally,
    pub(crate) near: Counter,
    /// Units that settlements returned.
    pub(crate) returned: Counter,
    /// Units that settlements booked beyond the charge.
    pub(crate) owed: Counter,
    pub(crate) utilization: Peak,
    /// What the busiest keys have used of their rate.
    pub(crate) hottest: Hottest,
    /// The gauge of the utilization; set when metrics are read.
    pub(super) shown: Gauge<f64, AtomicU64>,
}

impl PolicySeries {
    /// Returns how many decisions were counted, of any kind.
    pub(crate) fn decisions(&self) -> u64 {
        [&self.enforce, &self.shadow].into_iter().flat_map(|tally| &tally.0).map(Counter::get).sum()
    }

    /// Returns how many requests were admitted, in the mode that admitted more: a shadow limit counts beside its policy.
    pub(crate) fn admitted(&self) -> u64 {
        let admitted = |tally: &Tally| tally.counted(Decided::allowed) + tally.counted(Decided::delayed);
        admitted(&self.enforce).max(admitted(&self.shadow))
    }
}

/// Counts units, saturating at the largest value of a counter. One settlement may owe 2^60 units, and 16 of those would
/// wrap the counter to zero, which reads as a restart.
pub(crate) fn count_units(counter: &Counter, units: u64) {
    // Relaxed: the number stands alone. The loop ends, since each failure means that another thread succeeded.
    let _ = counter
        .inner()
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |counted| Some(counted.saturating_add(units)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: 25 settlements of 2^60 units showed as 10376293541461516784 owed, less than the value before.
    #[test]
    fn units_stay_at_the_most_that_a_counter_holds() {
        let counter = Counter::default();
        let mut before = 0;
        for _ in 0..25 {
            count_units(&counter, 1 << 60);
            assert!(counter.get() >= before, "{} after {before}", counter.get());
            before = counter.get();
        }
        assert_eq!(before, u64::MAX);
    }
}

/// The most units that policies grant one key at once, by the names of the policies.
#[derive(Debug, Default)]
pub(super) struct Limits(pub(super) Mutex<BTreeMap<String, MostUnits>>);

/// The most units that one policy grants one key at once.
#[derive(Debug, Default)]
pub(super) struct MostUnits {
    /// For keys without a plan of their own; `None` if unlimited.
    pub(super) usual: Option<u64>,
    /// By the plans of the file that have a limit.
    pub(super) plans: BTreeMap<String, u64>,
}

impl Limits {
    /// Registers the gauge of all limits.
    pub(super) fn show(&self, registry: &mut Registry) {
        let family = Family::<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>::default();
        for (policy, most) in &*self.0.lock() {
            let usual = most.usual.map(|units| (None, units));
            let plans = most.plans.iter().map(|(plan, units)| (Some(plan), *units));
            for (plan, units) in usual.into_iter().chain(plans) {
                let mut labels = vec![("policy", policy.clone())];
                labels.extend(plan.map(|plan| ("plan", plan.clone())));
                family.get_or_create(&labels).set(units as f64);
            }
        }
        registry.register("policy_limit", "The most units that a policy grants one key at once, for each value of rate.by (plan) and for all other keys", family);
    }
}

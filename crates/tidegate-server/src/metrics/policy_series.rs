//! The series of one policy, counted without a look-up by name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::busiest_keys::{Hottest, Peak};
use super::labels::{Decided, DecisionLabels, ModeLabel, PolicyLabel, UnitsFate, UnitsLabels};
use super::{Metrics, new_series};

/// The counters of one policy in one mode, indexed by [`Decided`].
#[derive(Clone, Debug)]
pub(crate) struct Tally(pub(super) [Counter; Decided::ALL.len()]);

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
    pub(crate) hottest: Hottest,
    /// The gauge of the utilization; set when metrics are read.
    pub(super) shown: Gauge<f64, AtomicU64>,
}

impl PolicySeries {
    pub(crate) fn decisions(&self) -> u64 {
        [&self.enforce, &self.shadow].into_iter().flat_map(|tally| &tally.0).map(Counter::get).sum()
    }

    /// Counts the admitted requests in the mode that admitted more: a shadow limit counts beside its policy.
    pub(crate) fn admitted(&self) -> u64 {
        let admitted = |tally: &Tally| tally.counted(Decided::allowed) + tally.counted(Decided::delayed);
        admitted(&self.enforce).max(admitted(&self.shadow))
    }
}

/// Counts units, saturating: one settlement may owe 2^60 units, and 16 of those would wrap the counter to zero, which reads as a
/// restart.
pub(crate) fn count_units(counter: &Counter, units: u64) {
    // Relaxed: the number stands alone. The loop ends, since each failure means that another thread succeeded.
    let _ = counter
        .inner()
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |counted| Some(counted.saturating_add(units)));
}

/// The most units that policies grant one key at once, by their names.
#[derive(Debug, Default)]
pub(super) struct Limits(pub(super) Mutex<BTreeMap<String, MostUnits>>);

#[derive(Debug, Default)]
pub(super) struct MostUnits {
    /// For keys without a plan; `None` if unlimited.
    pub(super) usual: Option<u64>,
    /// By the plans of the file that have a limit.
    pub(super) plans: BTreeMap<String, u64>,
}

impl Limits {
    /// Registers the gauge of all limits.
    pub(super) fn show(&self, registry: &mut Registry) {
        let family: Family<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>> = new_series(
            registry,
            "policy_limit",
            "The most units that a policy grants one key at once, for each value of rate.by (plan) and for all other keys",
        );
        for (policy, most) in &*self.0.lock() {
            let usual = most.usual.map(|units| (None, units));
            let plans = most.plans.iter().map(|(plan, units)| (Some(plan), *units));
            for (plan, units) in usual.into_iter().chain(plans) {
                let mut labels = vec![("policy", policy.clone())];
                labels.extend(plan.map(|plan| ("plan", plan.clone())));
                family.get_or_create(&labels).set(units as f64);
            }
        }
    }
}

// Makes and drops the series that policies have.

impl Metrics {
    /// Makes the series of a policy. `limit` is the most that it grants; `None` if unlimited.
    pub(crate) fn policy(&self, name: &str, limit: Option<u64>) -> PolicySeries {
        self.limit(name, limit);
        let label = PolicyLabel { policy: name.to_owned() };
        PolicySeries {
            enforce: self.tally(name, ModeLabel::enforce),
            shadow: self.tally(name, ModeLabel::shadow),
            near: self.near.get_or_create_owned(&label),
            returned: self.units_of(name, UnitsFate::returned),
            owed: self.units_of(name, UnitsFate::owed),
            utilization: Peak::default(),
            hottest: Hottest::default(),
            shown: self.utilization.get_or_create_owned(&label),
        }
    }

    /// Sets the gauge of a policy's limit.
    pub(crate) fn limit(&self, name: &str, limit: Option<u64>) {
        self.limits.0.lock().entry(name.to_owned()).or_default().usual = limit;
    }

    /// Sets the gauges of a policy's limits for plans: the values of the attribute that selects the rate.
    pub(crate) fn limits_of_plans(&self, name: &str, plans: BTreeMap<String, u64>) {
        self.limits.0.lock().entry(name.to_owned()).or_default().plans = plans;
    }

    fn units_of(&self, policy: &str, fate: UnitsFate) -> Counter {
        self.units.get_or_create_owned(&UnitsLabels { policy: policy.to_owned(), fate })
    }

    fn tally(&self, policy: &str, mode: ModeLabel) -> Tally {
        Tally(Decided::ALL.map(|decided| self.decisions_of(policy, decided, mode)))
    }

    fn decisions_of(&self, policy: &str, decision: Decided, mode: ModeLabel) -> Counter {
        self.decisions.get_or_create_owned(&DecisionLabels { policy: policy.to_owned(), decision, mode })
    }

    /// Returns the count of refusals by a list of no policy, under this name.
    pub(crate) fn refused_by_file(&self, name: &str) -> Counter {
        self.decisions_of(name, Decided::denied, ModeLabel::enforce)
    }

    /// Drops the series of a removed policy.
    pub(crate) fn forget(&self, name: &str) {
        let label = PolicyLabel { policy: name.to_owned() };
        self.near.remove(&label);
        self.limits.0.lock().remove(name);
        self.utilization.remove(&label);
        self.protection.forget(name);
        self.requests.forget(name);
        for fate in UnitsFate::ALL {
            self.units.remove(&UnitsLabels { policy: name.to_owned(), fate });
        }
        for decision in Decided::ALL {
            for mode in ModeLabel::ALL {
                self.decisions.remove(&DecisionLabels { policy: name.to_owned(), decision, mode });
            }
        }
    }
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

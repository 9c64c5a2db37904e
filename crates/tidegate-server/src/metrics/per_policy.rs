//! Makes and drops the series that policies have.

use std::collections::BTreeMap;

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use super::busiest_keys::Hottest;
use super::labels::{Decided, DecisionLabels, ModeLabel, PolicyLabel, UnitsFate, UnitsLabels};
use super::peak::Peak;
use super::policy_series::{PolicySeries, Tally};

impl Metrics {
    /// Returns the series of one policy. `limit` is the most that it grants; `None` if unlimited.
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

    /// Sets the gauges of the limits that a policy has for plans: the values of the attribute that selects the rate.
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

    /// Returns the count of refusals by the deny list of the whole file; `name` stands in place of a policy's name.
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
        for fate in [UnitsFate::returned, UnitsFate::owed] {
            self.units.remove(&UnitsLabels { policy: name.to_owned(), fate });
        }
        for decision in Decided::ALL {
            for mode in [ModeLabel::enforce, ModeLabel::shadow] {
                self.decisions.remove(&DecisionLabels { policy: name.to_owned(), decision, mode });
            }
        }
    }
}

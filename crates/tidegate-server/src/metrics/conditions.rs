//! Metrics of conditions, of rates that follow a number, of unknown costs and of switches.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::policy::{CostErrors, Holding};

use super::labels::{
    CostErrorAt, CostErrorLabels, PolicyLabel, SwitchChangeLabels, SwitchLabel, SwitchedByLabel,
};
use super::new_series;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedRate<'p> {
    pub(crate) policy: &'p str,
    /// Units a second.
    pub(crate) per_second: f64,
}

/// Registers what is in force when metrics are read, so that nothing stays of removed policies.
pub(crate) fn show<'p>(
    registry: &mut Registry,
    conditions: impl Iterator<Item = (&'p str, Holding)>,
    rates: &[FollowedRate<'_>],
) {
    let in_force: Family<PolicyLabel, Gauge> =
        new_series(registry, "policy_in_force", "1 while the conditions of a policy hold, else 0");
    let known: Family<PolicyLabel, Gauge> = new_series(
        registry,
        "policy_conditions_known",
        "0 while the conditions of a policy do not hold because a number is not known, else 1",
    );
    let followed: Family<PolicyLabel, Gauge<f64, AtomicU64>> = new_series(
        registry,
        "policy_followed_rate",
        "Units a second that a limit whose rate follows a number allows now",
    );
    for (policy, standing) in conditions {
        let label = PolicyLabel { policy: policy.to_owned() };
        in_force.get_or_create(&label).set(i64::from(standing.holds()));
        known.get_or_create(&label).set(i64::from(standing != Holding::Unknown));
    }
    for rate in rates {
        followed.get_or_create(&PolicyLabel { policy: rate.policy.to_owned() }).set(rate.per_second);
    }
}

/// Registers the counts of costs that could not be worked out, which the policies keep themselves.
pub(crate) fn show_unknown_costs<'p>(
    registry: &mut Registry,
    policies: impl Iterator<Item = (&'p str, CostErrors)>,
) {
    let family: Family<CostErrorLabels, Counter> = new_series(
        registry,
        "cost_errors",
        "Requests whose cost could not be worked out: at the check, on_cost_error decides; at the settlement, the charge stays",
    );
    for (policy, errors) in policies {
        for (at, count) in
            [(CostErrorAt::check, errors.at_check), (CostErrorAt::settlement, errors.at_settlement)]
        {
            let labels = CostErrorLabels { policy: policy.to_owned(), at };
            family.get_or_create(&labels).inc_by(count);
        }
    }
}

// Metrics of degrade switches.

#[derive(Debug)]
pub(crate) struct SwitchSeries {
    off: Family<SwitchLabel, Gauge>,
    changes: Family<SwitchChangeLabels, Counter>,
}

impl SwitchSeries {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        Self {
            off: new_series(
                registry,
                "switch_off",
                "1 while a degrade switch is off, also if only below a level, else 0",
            ),
            changes: new_series(
                registry,
                "switch_changes",
                "How often a degrade switch was set by hand, or by a signal or trigger, or a setting ended in time",
            ),
        }
    }

    /// Makes the series of a switch, so that its first change is visible as an increase.
    pub(crate) fn add(&self, switch: &str) {
        drop(self.off.get_or_create(&SwitchLabel { switch: switch.to_owned() }));
        for by in SwitchedByLabel::ALL {
            drop(self.changes.get_or_create(&SwitchChangeLabels { switch: switch.to_owned(), by }));
        }
    }

    pub(crate) fn forget(&self, switch: &str) {
        self.off.remove(&SwitchLabel { switch: switch.to_owned() });
        for by in SwitchedByLabel::ALL {
            self.changes.remove(&SwitchChangeLabels { switch: switch.to_owned(), by });
        }
    }

    /// Sets whether a switch is off.
    pub(crate) fn show(&self, switch: &str, off: bool) {
        self.off.get_or_create(&SwitchLabel { switch: switch.to_owned() }).set(i64::from(off));
    }

    /// Counts a change.
    pub(crate) fn changed(&self, switch: &str, by: SwitchedByLabel) {
        self.changes.get_or_create(&SwitchChangeLabels { switch: switch.to_owned(), by }).inc();
    }
}

//! Metrics of what protects beside rates: breakers, deadlines, places, blocks, soft limits, conditions with the rates
//! that follow a number, and switches.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::policy::{CostErrors, Holding, Over};

use super::labels::{
    BreakerLabels, BreakerStateLabel, CostErrorAt, CostErrorLabels, OverAction, OverLabels, PolicyLabel,
    SwitchChangeLabels, SwitchLabel, SwitchedByLabel,
};
use super::new_series;

/// The series of protection. A policy's are made when it first needs them.
#[derive(Debug)]
pub(crate) struct Protection {
    breakers: Family<BreakerLabels, Gauge>,
    breaker_changes: Family<BreakerLabels, Counter>,
    breaker_would_open: Family<PolicyLabel, Counter>,
    over: Family<OverLabels, Counter>,
    too_late: Family<PolicyLabel, Counter>,
    blocked: Family<PolicyLabel, Counter>,
    blocks: Family<PolicyLabel, Gauge>,
    places: Family<PolicyLabel, Gauge>,
    in_flight: Family<PolicyLabel, Gauge>,
}

impl Protection {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        Self {
            breakers: new_series(registry, "breaker_state", "Breakers of each policy by their state"),
            breaker_changes: new_series(
                registry,
                "breaker_changes",
                "How often breakers of a policy entered a state",
            ),
            breaker_would_open: new_series(
                registry,
                "breaker_would_open",
                "How often metrics-only breakers of a policy would have opened",
            ),
            over: new_series(
                registry,
                "over_limit",
                "Requests that a policy marked or demoted because they were over its limit",
            ),
            too_late: new_series(
                registry,
                "too_late",
                "Requests refused by a deadline, because too little time was left",
            ),
            blocked: new_series(
                registry,
                "blocked",
                "Requests refused because a person, or over: block, has blocked their key; (blocked): for all policies",
            ),
            blocks: new_series(registry, "blocked_keys", "How many keys of a policy are blocked"),
            places: new_series(
                registry,
                "concurrency_limit",
                "How many requests may be in flight now, for policies with one key for all requests, unless an engine keeps their places",
            ),
            in_flight: new_series(
                registry,
                "inflight",
                "How many requests are in flight, for the same policies",
            ),
        }
    }

    pub(crate) fn show_places(&self, policy: &str, limit: u64, in_use: u64) {
        let label = PolicyLabel { policy: policy.to_owned() };
        // At most 65,536 each; more places may be in use only after that number was lowered.
        let gauge = |places: u64| i64::try_from(places).unwrap_or(i64::MAX);
        self.places.get_or_create(&label).set(gauge(limit));
        self.in_flight.get_or_create(&label).set(gauge(in_use));
    }

    /// Drops the place series of a policy without places, or with places for each key.
    pub(crate) fn forget_places(&self, policy: &str) {
        let label = PolicyLabel { policy: policy.to_owned() };
        self.places.remove(&label);
        self.in_flight.remove(&label);
    }

    pub(crate) fn over(&self, policy: &str, over: Over) {
        let action = match over {
            Over::Demote { .. } => OverAction::demoted,
            _ => OverAction::marked,
        };
        self.over.get_or_create(&OverLabels { policy: policy.to_owned(), action }).inc();
    }

    pub(crate) fn too_late(&self, policy: &str) {
        self.too_late.get_or_create(&PolicyLabel { policy: policy.to_owned() }).inc();
    }

    /// Counts a request whose key is blocked.
    pub(crate) fn blocked(&self, policy: &str) {
        self.blocked.get_or_create(&PolicyLabel { policy: policy.to_owned() }).inc();
    }

    /// Sets how many keys of a policy are blocked. A policy that never had a blocked key has no series.
    pub(crate) fn show_blocks(&self, policy: &str, keys: usize) {
        let label = PolicyLabel { policy: policy.to_owned() };
        if keys > 0 || self.blocks.get(&label).is_some() {
            self.blocks.get_or_create(&label).set(i64::try_from(keys).unwrap_or(i64::MAX));
        }
    }

    /// Counts a breaker that entered a state.
    pub(crate) fn breaker_changed(&self, policy: &str, state: BreakerStateLabel) {
        self.breaker_changes.get_or_create(&BreakerLabels { policy: policy.to_owned(), state }).inc();
    }

    pub(crate) fn breaker_would_open(&self, policy: &str, times: u32) {
        let label = PolicyLabel { policy: policy.to_owned() };
        self.breaker_would_open.get_or_create(&label).inc_by(u64::from(times));
    }

    /// Sets how many breakers of a policy are in each state, indexed as in [`BreakerStateLabel::ALL`].
    pub(crate) fn show_breakers(&self, policy: &str, counts: [i64; BreakerStateLabel::ALL.len()]) {
        for (state, count) in BreakerStateLabel::ALL.into_iter().zip(counts) {
            self.breakers.get_or_create(&BreakerLabels { policy: policy.to_owned(), state }).set(count);
        }
    }

    /// Drops the series of a removed policy.
    pub(super) fn forget(&self, policy: &str) {
        let label = PolicyLabel { policy: policy.to_owned() };
        self.too_late.remove(&label);
        self.blocked.remove(&label);
        self.blocks.remove(&label);
        for action in OverAction::ALL {
            self.over.remove(&OverLabels { policy: policy.to_owned(), action });
        }
        self.forget_breakers(policy);
        self.forget_places(policy);
    }

    pub(crate) fn forget_breakers(&self, policy: &str) {
        self.breaker_would_open.remove(&PolicyLabel { policy: policy.to_owned() });
        for state in BreakerStateLabel::ALL {
            let label = BreakerLabels { policy: policy.to_owned(), state };
            self.breakers.remove(&label);
            self.breaker_changes.remove(&label);
        }
    }
}

// Metrics of conditions, of rates that follow a number, and of unknown costs.

#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowedRate<'p> {
    pub(crate) policy: &'p str,
    /// Units a second.
    pub(crate) per_second: f64,
}

/// Registers what is in force when metrics are read, so that nothing stays of removed policies.
pub(crate) fn show_conditions<'p>(
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

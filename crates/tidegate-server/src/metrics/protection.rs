//! Metrics of breakers, deadlines, places, blocks and soft limits.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::policy::Over;

use super::labels::{BreakerLabels, BreakerStateLabel, OverAction, OverLabels, PolicyLabel};
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

//! What is in force right now, with what the doors want to know of it worked out once.
//!
//! A reload makes a new one and puts it in place whole. A decision carries the policy set it was made under; the moment
//! between the gate's change and this one's is bridged by working the facts out for that one decision.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::config::HeaderForm;
use tidegate::policy::{Limit, Policy, PolicySet};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::{Algorithm, Ask, Transition};

use crate::metrics::{Metrics, PolicySeries};
use crate::proxy::Proxy;
use crate::settings::Settings;
use crate::span::seconds_up;
use crate::top_keys::TopKeys;

/// The configuration in force.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) set: Arc<PolicySet>,
    pub(crate) policies: Arc<[Facts]>,
    pub(crate) headers: HeaderForm,
    pub(crate) proxy: Proxy,
    /// Whether some policy expects to be settled: it says how, charges failures only, or lends places.
    pub(crate) settles: bool,
    /// Whether some policy may hold a request back.
    pub(crate) delays: bool,
    /// Counts the configurations put in force since start, from 1.
    pub(crate) number: u64,
    /// When it was put in force, by the gate's clock.
    pub(crate) since: Tick,
}

/// What is known of one policy beside its words.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) series: Arc<PolicySeries>,
    pub(crate) keys: Arc<Keys>,
    /// The window of each of its quotas, found by the quota's address: quotas are shared and outlive this.
    windows: HashMap<usize, Window>,
}

/// The keys that one policy met at their limit. Survives reloads.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) denied: TopKeys,
    pub(crate) near: TopKeys,
}

/// How long a limit that is used up takes to be full again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Seconds(u64),
    /// The current period of a calendar; it is as long as the month is.
    Calendar,
    /// Time gives nothing back, as with places.
    Never,
}

impl Live {
    pub(crate) fn new(settings: &Settings, metrics: &Metrics, before: Option<&Self>, since: Tick) -> Self {
        let set = Arc::clone(&settings.policies);
        let policies = set.policies();
        let facts = policies.iter().map(|policy| {
            let before = before.and_then(|live| {
                let (at, _) = live.set.find(&policy.name)?;
                live.policies.get(at)
            });
            Facts::of(policy, metrics, before)
        });
        Self {
            policies: facts.collect(),
            headers: settings.headers,
            settles: policies.iter().any(settles),
            delays: policies.iter().any(|policy| policy.limits.iter().any(|limit| !limit.max_wait.is_zero())),
            proxy: Proxy::new(settings),
            number: before.map_or(0, |live| live.number) + 1,
            since,
            set,
        }
    }

    /// Returns the facts of a set, which is this one's but for the moment of a reload or a choice of policies.
    pub(crate) fn facts(&self, set: &Arc<PolicySet>, metrics: &Metrics) -> Arc<[Facts]> {
        if Arc::ptr_eq(set, &self.set) {
            return Arc::clone(&self.policies);
        }
        let of = |policy: &Policy| {
            let own = self.set.find(&policy.name).and_then(|(at, _)| self.policies.get(at));
            Facts::of(policy, metrics, own)
        };
        set.policies().iter().map(of).collect()
    }

    /// Says whether an attribute is part of any key.
    pub(crate) fn keys_by(&self, name: &str) -> bool {
        self.set.policies().iter().any(|policy| policy.by.iter().any(|by| by == name))
    }
}

/// Says whether a policy expects to be settled, so that a check that it charges answers a ticket unasked.
pub(crate) fn settles(policy: &Policy) -> bool {
    policy.settle.is_some()
        || policy.charges_failures()
        || policy.limits.iter().chain(&policy.shadow_limit).any(Limit::is_guard)
}

impl Facts {
    fn of(policy: &Policy, metrics: &Metrics, before: Option<&Self>) -> Self {
        let limits = policy.limits.iter().chain(&policy.shadow_limit);
        let quotas = limits.flat_map(Limit::all_terms).filter_map(|terms| terms.quota.as_ref());
        let most = policy.limits.iter().filter_map(|limit| limit.terms.quota.as_deref()).map(most_of).min();
        let windows = quotas.map(|quota| (address(quota), window(quota))).collect();
        Self {
            series: match before {
                Some(before) => {
                    metrics.limit(&policy.name, most);
                    Arc::clone(&before.series)
                }
                None => Arc::new(metrics.policy(&policy.name, most)),
            },
            keys: before.map_or_else(Arc::default, |before| Arc::clone(&before.keys)),
            windows,
        }
    }

    /// Returns the seconds in which a quota of this policy, used up, is full again.
    pub(crate) fn window(&self, quota: &Arc<Quota>, now: Tick) -> Option<u64> {
        match self.windows.get(&address(quota)).copied().unwrap_or(Window::Never) {
            Window::Seconds(seconds) => Some(seconds),
            Window::Calendar => calendar(quota, now),
            Window::Never => None,
        }
    }
}

fn address(quota: &Arc<Quota>) -> usize {
    Arc::as_ptr(quota).addr()
}

/// Returns the largest cost that a full limit of this quota grants.
pub(crate) fn most_of(quota: &Quota) -> u64 {
    quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit
}

/// Asks the quota itself, so that every algorithm answers alike: one used up now is full again after its window.
fn window(quota: &Quota) -> Window {
    if matches!(quota, Quota::FixedWindow(window) if window.calendar_parts().is_some()) {
        return Window::Calendar;
    }
    if quota.is_guard() {
        return Window::Never;
    }
    let now = Tick::from_secs(1 << 32);
    let fresh = quota.fresh(now);
    let Some(all) = Cost::new(quota.standing(&fresh, now).limit) else { return Window::Never };
    match quota.decide(&fresh, Ask::within(now, all, Duration::MAX)) {
        Transition::Allowed { next, .. } => {
            Window::Seconds(seconds_up(quota.standing(&next, now).reset_after).max(1))
        }
        Transition::Denied { .. } => Window::Never,
    }
}

fn calendar(quota: &Quota, now: Tick) -> Option<u64> {
    let Quota::FixedWindow(window) = quota else { return None };
    let (start, end) = window.window_at(now);
    Some(seconds_up(end.since(start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_time_from_used_up_to_full() {
        assert_eq!(window(&Quota::per_second(100).burst(200).gcra().unwrap()), Window::Seconds(2));
        assert_eq!(window(&Quota::per_second(3).burst(10).gcra().unwrap()), Window::Seconds(4));
        assert_eq!(window(&Quota::per_minute(60).fixed_window().unwrap()), Window::Seconds(60));
        assert_eq!(window(&Quota::per_hour(3).sliding_log().unwrap()), Window::Seconds(3600));
        assert_eq!(window(&Quota::concurrency(50, Duration::from_secs(30)).unwrap()), Window::Never);
        assert_eq!(most_of(&Quota::per_second(100).burst(200).gcra().unwrap()), 200);
    }
}

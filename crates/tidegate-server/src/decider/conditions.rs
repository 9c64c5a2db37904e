//! Which policies with conditions are in force, which switches are off, and the numbers that both depend on. Changes
//! are told in the log, to `/v1/events` and in metrics.
//!
//! A change is noticed where somebody looks: once a second, when a switch is turned, and before policies and
//! metrics are shown. Checks do none of this. What is remembered of the last look is one word for each policy with
//! conditions and each switch.

mod switches;
mod warnings;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::json;
use tidegate::clock::WallAhead;
use tidegate::gate::switches::{Standing, Switches};
use tidegate::policy::{Holding, Limit, Mode, Policy, PolicySet, SignalError, Source, SourceStanding};
use tidegate::priority::{Criticality, Priority};
use tidegate::{Tick, visible};

pub(super) use self::switches::make_switches;
pub(crate) use self::switches::{Setting, SwitchedBy};
use self::warnings::LastTold;
use super::Base;
use crate::active_config::{ActiveConfig, most_of};
use crate::metrics::protection::{self, FollowedRate};

/// How often a running server looks.
pub(crate) const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// The conditions, switches and signals of the policies in force.
#[derive(Debug)]
pub(crate) struct Conditions {
    base: Arc<Base>,
    /// The switches that the policies refer to.
    switches: Switches,
    /// What was in force when it was last looked at.
    seen: LastSeen,
    wall: WallAhead,
}

/// What was seen last. A policy that is absent was not in force; a switch, not set.
#[derive(Debug, Default)]
struct LastSeen {
    /// Policies in force, with the level below which they are.
    policies: Mutex<HashMap<String, Option<Criticality>>>,
    /// Policies out of force for a number that is not known.
    unknown: Mutex<HashMap<String, UnknownNumber>>,
    /// Policies whose cost could not be determined for some requests.
    costs: Mutex<HashMap<String, LastTold>>,
    /// Keys over their limit that the store has forgotten.
    forgotten: Mutex<Option<LastTold>>,
    /// Switches that something was set for.
    switches: Mutex<HashMap<String, Standing>>,
    /// How far the wall clock was ahead of the ticks, in nanoseconds.
    wall: AtomicI64,
}

/// A policy that is out of force because a number is not known.
#[derive(Clone, Copy, Debug)]
struct UnknownNumber {
    since: Tick,
    /// Whether the log has told.
    told: bool,
}

impl UnknownNumber {
    /// After how long the log tells: at the start, whoever reports a number needs a moment.
    const TOLD_AFTER: Duration = Duration::from_secs(30);
}

impl Conditions {
    /// `switches` are those that the gate of `base` has.
    pub(super) fn new(base: Arc<Base>, switches: Switches, wall: WallAhead) -> Self {
        let seen = LastSeen { wall: wall.nanos().into(), ..LastSeen::default() };
        Self { base, switches, seen, wall }
    }

    /// Takes readings if they are due, and tells what changed since the last call.
    pub(crate) fn tell(&self) {
        self.base.gate.signals().read();
        self.tell_policies(&self.base.live());
        self.tell_unknown(&self.base.live());
        self.tell_costs(&self.base.live());
        self.tell_switches();
        self.tell_unread(&self.base.live());
        self.tell_unended(&self.base.live());
        self.tell_forgotten();
        self.tell_wall();
    }

    /// Returns the policies that limit nothing because a number is not known any more. [`Conditions::unread_sources`]
    /// tells of those without any reading.
    pub(crate) fn out_of_date<'a>(&self, live: &'a ActiveConfig) -> Vec<&'a str> {
        let unread: Vec<Source> = self.unread(live).collect();
        let policies = live.set.policies().iter().enumerate();
        let unknown = policies.filter(|(at, policy)| {
            // A switch is always known; nothing has looked at it yet.
            let measured = policy.when.iter().any(|one| !matches!(one.source(), Source::Switch(_)));
            watched(policy)
                && measured
                && live.set.holding(*at) == Some(Holding::Unknown)
                && !waits(policy, &unread)
        });
        unknown.map(|(_, policy)| policy.name.as_str()).collect()
    }

    /// Logs once which policies limit nothing, until their numbers are known.
    fn tell_unknown(&self, live: &ActiveConfig) {
        let unread: Vec<Source> = self.unread(live).collect();
        let (now, mut seen) = (self.base.now(), self.seen.unknown.lock());
        seen.retain(|name, _| live.set.find(name).is_some());
        for (at, policy) in live.set.policies().iter().enumerate().filter(|(_, policy)| watched(policy)) {
            if waits(policy, &unread) {
                continue;
            }
            if live.set.holding(at) != Some(Holding::Unknown) {
                if seen.remove(&policy.name).is_some_and(|unknown| unknown.told) {
                    tracing::info!(
                        policy = policy.name,
                        "the numbers that the conditions of a policy need are known again"
                    );
                }
                continue;
            }
            let first = UnknownNumber { since: now, told: false };
            let unknown = seen.entry(policy.name.clone()).or_insert(first);
            if unknown.told || now.since(unknown.since) < UnknownNumber::TOLD_AFTER {
                continue;
            }
            unknown.told = true;
            let why = live.set.why_idle(at, Priority::of(Criticality::Sheddable)).unwrap_or_default();
            tracing::warn!(
                policy = policy.name,
                why = %visible::line(&why),
                "a policy limits nothing: a number that its conditions need is not known"
            );
        }
    }

    fn tell_policies(&self, live: &ActiveConfig) {
        let mut seen = self.seen.policies.lock();
        seen.retain(|name, _| live.set.find(name).is_some_and(|(_, policy)| watched(policy)));
        for (at, policy) in live.set.policies().iter().enumerate() {
            if !watched(policy) {
                continue;
            }
            let standing = live.set.holding(at);
            let before = seen.get(&policy.name).copied();
            let now = match standing {
                Some(Holding::Yes { below }) => Some(below),
                _ => None,
            };
            if before == now {
                continue;
            }
            let (policy, below) = (&policy.name, now.flatten().map(Criticality::as_str));
            let why = live.set.why_idle(at, Priority::of(Criticality::Sheddable)).unwrap_or_default();
            let why = visible::line(&why).to_string();
            match (before, now) {
                (None, Some(_)) => {
                    tracing::info!(policy, below, "a policy came into force: its conditions hold");
                }
                (Some(_), Some(_)) => {
                    tracing::info!(policy, below, "a policy is in force for other levels of priority now");
                }
                (_, None) => {
                    tracing::info!(
                        policy,
                        why,
                        "a policy is not in force any more: its conditions do not hold"
                    );
                }
            }
            match now {
                Some(level) => _ = seen.insert(policy.clone(), level),
                None => _ = seen.remove(policy),
            }
            let in_force = standing.and_then(known);
            self.base.events.publish(
                "condition",
                || json!({ "policy": policy, "in_force": in_force, "below": below, "why": why }),
            );
        }
    }

    pub(super) fn show(&self, live: &ActiveConfig, registry: &mut Registry) {
        let mut rates = Vec::new();
        for (at, policy) in live.set.policies().iter().enumerate() {
            if !policy.limits.iter().any(|limit| limit.follows.is_some()) {
                continue;
            }
            self.base.metrics.limit(&policy.name, most_in_force(&live.set, at));
            let limits = 0..policy.limits.len();
            let per_second = limits.filter_map(|limit| live.set.rate_in_force(at, limit)).map(per_second);
            if let Some(per_second) = per_second.reduce(f64::min) {
                rates.push(FollowedRate { policy: &policy.name, per_second });
            }
        }
        let conditions =
            live.set.policies().iter().enumerate().filter(|(_, policy)| policy.mode != Mode::Off);
        let conditions =
            conditions.filter_map(|(at, policy)| Some((policy.name.as_str(), live.set.holding(at)?)));
        protection::show_conditions(registry, conditions, &rates);
        let costs = live.set.policies().iter().enumerate().filter(|(_, policy)| policy.cost_may_be_unknown());
        protection::show_unknown_costs(
            registry,
            costs.map(|(at, policy)| (policy.name.as_str(), live.set.cost_errors(at))),
        );
    }

    /// Takes a reported value.
    ///
    /// # Errors
    /// [`SignalError`] if no policy uses the signal, or the value is not finite.
    pub(crate) fn report_signal(&self, name: &str, value: f64) -> Result<(), SignalError> {
        self.base.gate.signals().report(name, value)
    }

    /// Returns every number that policies depend on, with its last value.
    pub(crate) fn sources(&self) -> Vec<SourceStanding> {
        self.base.gate.signals().list()
    }
}

/// Reports whether a policy has conditions.
fn watched(policy: &Policy) -> bool {
    !policy.when.is_empty() && policy.mode != Mode::Off
}

fn waits(policy: &Policy, unread: &[Source]) -> bool {
    policy.when.iter().any(|condition| unread.contains(condition.source()))
}

/// Returns true or false, or `None` if it is not known.
pub(crate) fn known(holding: Holding) -> Option<bool> {
    match holding {
        Holding::Yes { .. } => Some(true),
        Holding::Unknown => None,
        _ => Some(false),
    }
}

/// Returns a rate in units a second.
pub(crate) fn per_second(rate: tidegate_core::Rate) -> f64 {
    rate.count() as f64 / rate.period().as_secs_f64()
}

/// Returns the most units that a policy grants one key at once now; `None` if unlimited.
fn most_in_force(set: &PolicySet, at: usize) -> Option<u64> {
    let policy = &set.policies()[at];
    // Breakers are left out, as in the gauge of limits that do not move.
    let counting = policy.limits.iter().enumerate().filter(|(_, limit)| !limit.is_breaker());
    let quota = |(index, limit): (usize, &Limit)| {
        let quota = set.limit_in_force(at, index).or(limit.terms.quota.as_ref())?;
        Some(most_of(quota))
    };
    counting.filter_map(quota).min()
}

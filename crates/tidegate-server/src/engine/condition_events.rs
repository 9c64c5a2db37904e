//! Tells which policies with conditions are in force and which switches are off, as that changes: in the log and to the
//! listeners of `/v1/events`; and shows it in metrics.
//!
//! A change is noticed where somebody looks: once a second while the server runs, when a switch is turned, and before
//! policies and metrics are shown. Checks do none of this.
//!
//! Also takes and shows the numbers that policies depend on, and the requests in flight and their limits.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::registry::Registry;
use serde_json::json;
use tidegate::gate::PlacesStanding;
use tidegate::policy::{Holding, Limit, Mode, Policy, SignalError, Source, SourceStanding};
use tidegate::switches::Off;
use tidegate::{Criticality, Priority, Tick, visible};

use super::Engine;
use super::last_told::{LastTold, Turned, UnknownNumber, known, most_in_force, per_second, set_back, turned};
use crate::active_config::{ActiveConfig, Unended};
use crate::metrics::SwitchedByLabel;
use crate::metrics::conditions::{self, FollowedRate};
use crate::time_text::moment;

/// The most numbers without a reading that are told.
const UNREAD: usize = 5;
/// How long a number may have no reading after a start or a reload before the log tells.
const UNREAD_FOR: Duration = Duration::from_secs(60);

impl Engine {
    /// Takes readings if they are due, and tells which policies came into force or went out of it since the last call,
    /// and which switches were turned.
    pub(crate) fn tell_conditions(&self) {
        self.base.gate.take_readings();
        self.tell_policies(&self.base.live());
        self.tell_unknown(&self.base.live());
        self.tell_costs(&self.base.live());
        self.tell_switches();
        self.tell_unread(&self.base.live());
        self.tell_unended(&self.base.live());
        self.tell_forgotten();
        self.tell_wall();
    }

    /// Describes the numbers that policies and switches depend on and of which there has been no reading: what waits for
    /// them does nothing. As sentences, at most [`UNREAD`].
    pub(crate) fn unread_sources(&self, live: &ActiveConfig) -> Vec<String> {
        self.unread(live).take(UNREAD).map(|source| unread_source(live, &source)).collect()
    }

    /// Describes the policies that depend on how calls end and of which none was ever reported as ended. As sentences, at
    /// most [`UNREAD`].
    pub(crate) fn unended(&self, live: &ActiveConfig) -> Vec<String> {
        live.unended(self.base.now()).take(UNREAD).map(|(policy, calls)| unended(policy, calls)).collect()
    }

    /// Returns the names of the policies that limit nothing because a number of their conditions is not known any more.
    /// Those that wait for one that there has been no reading of are told with it, by [`Engine::unread_sources`].
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

    fn unread<'a>(&'a self, live: &'a ActiveConfig) -> impl Iterator<Item = Source> + 'a {
        let is_told = |source: &Source| match source {
            Source::Signal(_) => true,
            // Without requests there is nothing to measure.
            Source::Latency | Source::InFlight => live.decided(&self.metrics) > 0,
            _ => false,
        };
        let sources = self.base.gate.sources().into_iter();
        sources.filter(move |one| one.last.is_none() && is_told(&one.source)).map(|one| one.source)
    }

    /// Logs once for each configuration which numbers there has been no reading of for a minute.
    fn tell_unread(&self, live: &ActiveConfig) {
        if self.base.now().since(live.since) < UNREAD_FOR || live.unread_is_told.swap(true, Ordering::Relaxed)
        {
            return;
        }
        for sentence in self.unread_sources(live) {
            tracing::warn!("{}", visible::line(&sentence));
        }
    }

    /// Logs once for each configuration of which policies no call was ever reported as ended.
    fn tell_unended(&self, live: &ActiveConfig) {
        if live.unended_is_told.load(Ordering::Relaxed) {
            return;
        }
        let unended = self.unended(live);
        if unended.is_empty() || live.unended_is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        for sentence in unended {
            tracing::warn!("{}", visible::line(&sentence));
        }
    }

    /// Logs that the wall clock was set back, once for each step.
    fn tell_wall(&self) {
        let now = self.wall.nanos();
        // Relaxed: of several looks, the swap alone decides which tells.
        let before = self.seen.wall.swap(now, Ordering::Relaxed);
        if let Some(sentence) = set_back(before, now) {
            tracing::warn!("{sentence}");
        }
    }

    /// Logs that keys over their limit were forgotten, at most once a minute.
    fn tell_forgotten(&self) {
        let forgotten = self.base.occupancy().evicted_over_limit;
        let (now, mut told) = (self.base.now(), self.seen.forgotten.lock());
        let is_due = told.is_none_or(|told| now.since(told.at) >= LastTold::EVERY);
        if forgotten > told.map_or(0, |told| told.all) && is_due {
            *told = Some(LastTold { all: forgotten, at: now });
            tracing::warn!(
                forgotten,
                "the store is full, and keys over their limit were forgotten, which may pass again: raise store.keys"
            );
        }
    }

    /// Logs which policies could not work out the cost of requests, at most once a minute for each.
    fn tell_costs(&self, live: &ActiveConfig) {
        let (now, mut told) = (self.base.now(), self.seen.costs.lock());
        told.retain(|name, _| live.set.find(name).is_some());
        for (at, policy) in live.set.policies().iter().enumerate() {
            let errors = live.set.cost_errors(at);
            let Some(why) = &errors.last else { continue };
            let all = errors.at_check.saturating_add(errors.at_settlement);
            let before = told.get(&policy.name);
            let is_due = before.is_none_or(|told| now.since(told.at) >= LastTold::EVERY);
            // A policy that was taken out and comes back counts from 0.
            if before.is_some_and(|told| told.all == all) || !is_due {
                continue;
            }
            told.insert(policy.name.clone(), LastTold { all, at: now });
            tracing::warn!(
                policy = policy.name,
                reason = %visible::line(&why.without_values()),
                checks = errors.at_check,
                settlements = errors.at_settlement,
                on_cost_error = policy.on_cost_error.word(),
                "the cost of requests cannot be worked out: on_cost_error decides checks, and settlements leave what was charged"
            );
        }
    }

    /// Logs which policies limit nothing because a number of their conditions is not known any more, once until it is.
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
            match now {
                Some(level) => {
                    match before {
                        None => {
                            tracing::info!(policy, below, "a policy came into force: its conditions hold");
                        }
                        Some(_) => {
                            tracing::info!(
                                policy,
                                below,
                                "a policy is in force for other levels of priority now"
                            );
                        }
                    }
                    seen.insert(policy.clone(), level);
                }
                None => {
                    tracing::info!(
                        policy,
                        why,
                        "a policy is not in force any more: its conditions do not hold"
                    );
                    seen.remove(policy);
                }
            }
            let in_force = standing.and_then(known);
            self.events.publish(
                "condition",
                || json!({ "policy": policy, "in_force": in_force, "below": below, "why": why }),
            );
        }
    }

    fn tell_switches(&self) {
        let now = self.base.now();
        let mut seen = self.seen.switches.lock();
        let standing = self.switches.standing();
        seen.retain(|name, _| standing.iter().any(|one| one.name == *name));
        for one in standing {
            let before = seen.get(&one.name);
            let hand = turned(before.and_then(|before| before.by_hand.as_ref()), one.by_hand.as_ref(), now);
            // A signal is repeated all the time, and moves its end with each repetition.
            let level = |part: &Option<(Off, Option<Tick>)>| part.as_ref().map(|(off, _)| off.on_from());
            let of_signal = before.and_then(|before| before.by_signal.as_ref());
            let signal = match before.map_or(level(&one.by_signal).is_none(), |before| {
                level(&before.by_signal) == level(&one.by_signal)
            }) {
                true => None,
                false => turned(of_signal, one.by_signal.as_ref(), now),
            };
            let is_off = one.off().is_some();
            self.metrics.switches.show(&one.name, is_off);
            let state = if is_off { "off" } else { "on" };
            let parts = [
                (SwitchedByLabel::hand, hand, &one.by_hand),
                (SwitchedByLabel::signal, signal, &one.by_signal),
            ];
            for (by, turned, part) in parts {
                let Some(turned) = turned else { continue };
                let by = if turned == Turned::Over { SwitchedByLabel::time } else { by };
                self.metrics.switches.changed(&one.name, by);
                if turned == Turned::Over {
                    tracing::info!(switch = one.name, state, "the time for which a switch was set is over");
                }
                let (off, until) = part.as_ref().map_or((None, None), |(off, until)| (Some(off), *until));
                let until = until.and_then(|until| moment(until, Duration::ZERO));
                self.events.publish("switch", || {
                    json!({
                        "switch": one.name,
                        "state": state,
                        "by": by.as_str(),
                        "below": below(off),
                        "until": until,
                        "reason": off.map(|off| visible::line(off.reason()).to_string()),
                    })
                });
            }
            if one.by_hand.is_some() || one.by_signal.is_some() {
                seen.insert(one.name.clone(), one);
            } else {
                seen.remove(&one.name);
            }
        }
    }

    /// Sets the gauges of limits whose rate moves, and registers those of conditions.
    pub(super) fn show_in_force(&self, live: &ActiveConfig, registry: &mut Registry) {
        let mut rates = Vec::new();
        for (at, policy) in live.set.policies().iter().enumerate() {
            if !policy.limits.iter().any(|limit| limit.follows.is_some()) {
                continue;
            }
            self.metrics.limit(&policy.name, most_in_force(&live.set, at));
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
        conditions::show(registry, conditions, &rates);
        let costs = live.set.policies().iter().enumerate().filter(|(_, policy)| policy.cost_may_be_unknown());
        conditions::show_unknown_costs(
            registry,
            costs.map(|(at, policy)| (policy.name.as_str(), live.set.cost_errors(at))),
        );
    }

    /// Returns the standing of places by policy name, for each policy that has a single key. If there are several
    /// limits, the smallest counts.
    pub(crate) fn places(&self, live: &ActiveConfig) -> HashMap<String, PlacesStanding> {
        let mut places: HashMap<String, PlacesStanding> = HashMap::new();
        for one in self.base.gate.places() {
            // The gate's set is this one, except for a moment during a reload.
            let Some(policy) = live.set.policies().get(one.policy) else { continue };
            let fewest = places.entry(policy.name.clone()).or_insert(one);
            if one.standing.limit < fewest.standing.limit {
                *fewest = one;
            }
        }
        places
    }

    /// Sets the gauges of places.
    pub(super) fn show_places(&self, live: &ActiveConfig) {
        let places = self.places(live);
        for policy in live.set.policies() {
            match places.get(&policy.name) {
                Some(one) => {
                    self.metrics.protection.show_places(&policy.name, one.standing.limit, one.in_use());
                }
                None => self.metrics.protection.forget_places(&policy.name),
            }
        }
    }

    /// Takes the value of a signal that a user reports.
    ///
    /// # Errors
    /// [`SignalError`] if no policy uses the signal, or the value is not finite.
    pub(crate) fn report_signal(&self, name: &str, value: f64) -> Result<(), SignalError> {
        self.base.gate.report_signal(name, value)
    }

    /// Returns every number that policies depend on, with its last value.
    pub(crate) fn sources(&self) -> Vec<SourceStanding> {
        self.base.gate.sources()
    }
}

/// Reports whether a policy has conditions.
fn watched(policy: &Policy) -> bool {
    !policy.when.is_empty() && policy.mode != Mode::Off
}

/// Reports whether a policy waits for a number of which there has been no reading.
fn waits(policy: &Policy, unread: &[Source]) -> bool {
    policy.when.iter().any(|condition| unread.contains(condition.source()))
}

/// Returns the level below which a switch is off; `None` for all levels and for none.
fn below(off: Option<&Off>) -> Option<&'static str> {
    off.filter(|off| !off.is_for_nobody()).and_then(Off::on_from).map(Criticality::as_str)
}

/// Says what follows for a policy if nobody reports that calls end, and how to report it.
fn unended(policy: &Policy, calls: Unended) -> String {
    let limits = || policy.limits.iter().chain(&policy.shadow_limit);
    let then = if limits().any(Limit::is_breaker) {
        "its breaker learns nothing"
    } else if limits().any(Limit::is_guard) {
        "its places return only after their time to live"
    } else if policy.charges_failures() {
        "calls that did not fail are charged too"
    } else {
        "what it charges stays an estimate"
    };
    let Unended { admitted, since } = calls;
    let since = moment(since, Duration::ZERO).unwrap_or_default();
    format!(
        "no call of policy {} was ever reported as ended here ({admitted} admitted since {since}): {then}; settle the ticket of each \
         with POST /v1/settle when its work ends (behind a proxy it is the header x-tidegate-ticket)",
        policy.name
    )
}

/// Says what waits for a number that there has been no reading of, and what makes one.
fn unread_source(live: &ActiveConfig, source: &Source) -> String {
    let enabled = || live.set.policies().iter().filter(|policy| policy.mode != Mode::Off);
    let conditioned = enabled()
        .filter(|policy| policy.when.iter().any(|condition| condition.source() == source))
        .map(|policy| format!("policy {} is not in force", policy.name));
    let follows = |limit: &Limit| limit.follows.as_ref().is_some_and(|follows| follows.source() == source);
    let moved = enabled()
        .filter(|policy| policy.limits.iter().chain(&policy.shadow_limit).any(follows))
        .map(|policy| format!("the rate of policy {} does not move", policy.name));
    let switched = live
        .set
        .triggers()
        .iter()
        .filter(|trigger| trigger.off_when().source() == source)
        .map(|trigger| format!("nothing turns off switch {}", trigger.switch()));
    let waiting: Vec<String> = conditioned.chain(moved).chain(switched).take(UNREAD).collect();
    let (what, then) = match source {
        Source::Signal(name) => {
            (format!("signal {name} was never reported"), format!("POST /v1/signals/{name}"))
        }
        other => (
            format!("{other} was never measured"),
            "it is measured by tickets: settle each with POST /v1/settle when its work ends".to_owned(),
        ),
    };
    format!("{what}; {}; {then}", waiting.join(", "))
}

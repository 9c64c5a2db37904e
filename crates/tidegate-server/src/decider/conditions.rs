//! Which policies with conditions are in force, which switches are off, and the numbers that both depend on. Changes
//! are told in the log, to `/v1/events` and in metrics.
//!
//! A change is noticed where somebody looks: once a second, when a switch is turned, and before policies and
//! metrics are shown. Checks do none of this. What is remembered of the last look is one word for each policy with
//! conditions and each switch.

mod warnings;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::json;
use tidegate::clock::{Clock, WallAhead};
use tidegate::gate::switches::{Off, Standing, Switches, UnknownSwitch};
use tidegate::policy::{Holding, Limit, Mode, Policy, PolicySet, SignalError, Source, SourceStanding};
use tidegate::priority::{Criticality, Priority};
use tidegate::{Tick, visible};

use self::warnings::LastTold;
use super::Base;
use crate::active_config::{ActiveConfig, most_of};
use crate::metrics::protection::{self, FollowedRate};
use crate::metrics::{Metrics, SwitchedByLabel};
use crate::text::moment;

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

// Degrade switches: turns and lists them, and tells when they are turned.

/// Who turns a switch. A switch that one has turned off is not turned on by the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SwitchedBy {
    /// An operator.
    Hand,
    /// A monitor that watches a number and reports it repeatedly.
    Signal,
}

/// What a switch is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Off.
    Off(Off),
    /// On for so long, whatever signals say, and why.
    KeptOn(Duration, String),
    /// On, unless the other of the two turned it off.
    On,
}

/// Makes all switches, turned on, and their series.
pub(super) fn make_switches(policies: &PolicySet, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Switches {
    policies.switches().for_each(|name| metrics.switches.add(name));
    Switches::of(policies).expect(FEW).with_clock(Arc::clone(clock))
}

impl Conditions {
    /// Returns the state of all switches, by name.
    pub(crate) fn switches(&self) -> Vec<Standing> {
        self.switches.standing()
    }

    /// Turns a switch. Policies follow at once. A signal cannot keep a switch on: that is `On`.
    ///
    /// # Errors
    /// [`UnknownSwitch`] if neither a policy nor the section `switches` has that name.
    pub(crate) fn turn_switch(
        &self,
        name: &str,
        by: SwitchedBy,
        setting: Setting,
    ) -> Result<(), UnknownSwitch> {
        match (by, setting) {
            (SwitchedBy::Hand, Setting::Off(off)) => self.switches.turn_off(name, off)?,
            (SwitchedBy::Hand, Setting::KeptOn(time, reason)) => {
                self.switches.keep_on(name, &reason, time)?;
            }
            (SwitchedBy::Hand, Setting::On) => self.switches.turn_on(name)?,
            (SwitchedBy::Signal, Setting::Off(off)) => self.switches.signal(name, Some(off))?,
            (SwitchedBy::Signal, Setting::KeptOn(..) | Setting::On) => self.switches.signal(name, None)?,
        }
        self.base.gate.signals().notice_switches();
        self.tell();
        Ok(())
    }

    /// Follows new policies before they are in force. Switches that remain keep their state.
    pub(crate) fn follow(&self, policies: &PolicySet) {
        // The lock keeps whoever tells of switches from making series of one that is gone.
        let _seen = self.seen.switches.lock();
        let before = self.switches.standing();
        self.switches.follow(policies).expect(FEW);
        let names: BTreeSet<&str> = policies.switches().collect();
        let gone = before.iter().filter(|one| !names.contains(&*one.name));
        gone.for_each(|one| self.base.metrics.switches.forget(&one.name));
        names.iter().for_each(|name| self.base.metrics.switches.add(name));
    }

    /// Tells which switches were turned since the last look.
    fn tell_switches(&self) {
        let now = self.base.now();
        let mut seen = self.seen.switches.lock();
        let standing = self.switches.standing();
        seen.retain(|name, _| standing.iter().any(|one| one.name == *name));
        for one in standing {
            let before = seen.get(&one.name);
            let hand = turned(before.and_then(|before| before.by_hand.as_ref()), one.by_hand.as_ref(), now);
            // A signal is repeated all the time, and moves its end each time.
            let level = |part: &Option<(Off, Option<Tick>)>| part.as_ref().map(|(off, _)| off.on_from());
            let of_signal = before.and_then(|before| before.by_signal.as_ref());
            let signal = match before.map_or(level(&one.by_signal).is_none(), |before| {
                level(&before.by_signal) == level(&one.by_signal)
            }) {
                true => None,
                false => turned(of_signal, one.by_signal.as_ref(), now),
            };
            let is_off = one.off().is_some();
            self.base.metrics.switches.show(&one.name, is_off);
            let state = if is_off { "off" } else { "on" };
            let parts = [
                (SwitchedByLabel::hand, hand, &one.by_hand),
                (SwitchedByLabel::signal, signal, &one.by_signal),
            ];
            for (by, turned, part) in parts {
                let Some(turned) = turned else { continue };
                let by = if turned == Turned::Over { SwitchedByLabel::time } else { by };
                self.base.metrics.switches.changed(&one.name, by);
                if turned == Turned::Over {
                    tracing::info!(switch = one.name, state, "the time for which a switch was set is over");
                }
                let (off, until) = part.as_ref().map_or((None, None), |(off, until)| (Some(off), *until));
                let until = until.and_then(|until| moment(until, Duration::ZERO));
                self.base.events.publish("switch", || {
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
}

/// Why a policy set of a file always makes switches.
const FEW: &str = "a set has fewer switches than there may be, and triggers of those alone";

/// How a part of a switch changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turned {
    /// Somebody turned it.
    By,
    /// Its time was over.
    Over,
}

/// Returns how a part of a switch changed between two looks; `None` if it did not.
fn turned(
    before: Option<&(Off, Option<Tick>)>,
    after: Option<&(Off, Option<Tick>)>,
    now: Tick,
) -> Option<Turned> {
    match (before, after) {
        (before, after) if before == after => None,
        (Some((_, Some(until))), None) if *until <= now => Some(Turned::Over),
        _ => Some(Turned::By),
    }
}

/// Returns the level below which a switch is off; `None` for all levels and for none.
fn below(off: Option<&Off>) -> Option<&'static str> {
    off.filter(|off| !off.is_for_nobody()).and_then(Off::on_from).map(Criticality::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_has_come_is_told_apart_from_a_hand() {
        let off = |until: Option<u64>| (Off::for_all("moved"), until.map(Tick::from_secs));
        let (now, ends, stays) = (Tick::from_secs(10), off(Some(10)), off(None));
        assert_eq!(turned(None, None, now), None);
        assert_eq!(turned(Some(&ends), Some(&ends), now), None);
        assert_eq!(turned(None, Some(&ends), now), Some(Turned::By));
        assert_eq!(turned(Some(&ends), None, now), Some(Turned::Over));
        assert_eq!(turned(Some(&ends), None, Tick::from_secs(9)), Some(Turned::By));
        assert_eq!(turned(Some(&stays), None, now), Some(Turned::By));
        assert_eq!(turned(Some(&stays), Some(&ends), now), Some(Turned::By));
    }
}

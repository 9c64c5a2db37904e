//! The figures of the guards in one run.
//!
//! A gate reports its decisions but not the state of its guards. So the breakers are simulated beside the gate: with
//! the same pure transitions, on the same entries and leaves, at the same ticks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate::gate::{Charged, GateDecision};
use tidegate::limiter::{Receipt, Retry};
use tidegate::policy::{Descriptor, PolicySet};
use tidegate::{Cost, Outcome as Ended, Quota, Tick};
use tidegate_core::breaker::{Cause, Change, CircuitBreaker, CircuitBreakerState, Condition, Totals};
use tidegate_core::{Ask, Guard as _};

use super::account::key_name;
use super::outcome::{BreakerChange, GuardOutcome, ServiceOutcome};
use crate::series::{Levels, Served};

const BINS: usize = 600;
/// The width of the bins at first. With [`BINS`] of them, a minute is drawn in steps of a tenth of a second.
const BIN_WIDTH: Duration = Duration::from_millis(100);
/// 8 bytes each.
const MOST_WAITING: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Guards {
    limits: Vec<GuardLimit>,
    /// Requests in any guard.
    pub(crate) in_flight: Levels,
    /// Requests that a limit delays.
    pub(crate) waiting: Levels,
    held_back: BinaryHeap<Reverse<Tick>>,
    /// How long requests took, by the time they left.
    pub(crate) served: Served,
    failed: u64,
}

#[derive(Debug)]
pub(crate) struct GuardLimit {
    pub(crate) policy: usize,
    pub(crate) limit: usize,
    pub(crate) label: String,
    kind: String,
    pub(crate) is_keyed: bool,
    /// Requests in the guard, over all keys.
    pub(crate) in_flight: Levels,
    /// How many requests of one key may be in flight.
    pub(crate) at_most: Levels,
    least_at_most: u64,
    refused: BreakerRefusals,
    /// The law that adjusts the limit, if any.
    law: Option<&'static str>,
    /// A breaker that sheds instead of opening.
    pub(crate) sheds: bool,
    /// The breakers of its keys; `None` unless it is a breaker.
    pub(crate) breakers: Option<Followed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BreakerRefusals {
    full: u64,
    open: u64,
    half_open: u64,
    shed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Entered(SmallVec<[EnteredOne; 1]>);

#[derive(Debug)]
struct EnteredOne {
    guard: usize,
    /// The position of the breaker that is followed, with the receipt to leave it.
    breaker: Option<(usize, Receipt)>,
}

impl Guards {
    pub(super) fn of(policies: &PolicySet, bins: usize, bin_width: Duration) -> Self {
        let level = || Levels::new(BINS, BIN_WIDTH);
        let all = policies.policies().iter().enumerate().flat_map(|(at, policy)| {
            let limits = policy.limits.iter().chain(&policy.shadow_limit).enumerate();
            limits.map(move |(place, limit)| (at, policy, place, limit))
        });
        let limits = all.filter_map(|(at, policy, place, limit)| {
            let quota = limit.terms.quota.as_ref().filter(|quota| quota.is_guard())?;
            Some(GuardLimit {
                policy: at,
                limit: place,
                label: limit.terms.label.clone(),
                kind: crate::trace::algorithm(quota),
                is_keyed: !policy.by.is_empty(),
                in_flight: level(),
                at_most: level(),
                least_at_most: u64::MAX,
                refused: BreakerRefusals::default(),
                law: match &**quota {
                    Quota::Adaptive(guard) => Some(guard.law().as_str()),
                    _ => None,
                },
                sheds: limit.sheds(),
                breakers: matches!(**quota, Quota::Breaker(_)).then(Followed::default),
            })
        });
        Self {
            limits: limits.collect(),
            in_flight: level(),
            waiting: level(),
            held_back: BinaryHeap::new(),
            served: Served::new(bins, bin_width),
            failed: 0,
        }
    }

    /// Returns the guards that the request entered: those whose places were charged.
    pub(super) fn note(
        &mut self,
        at: Tick,
        policies: &PolicySet,
        request: &Descriptor<'_>,
        decision: &GateDecision,
        places: &Charged,
        ipv6_prefix: u8,
    ) -> Entered {
        self.let_go(at);
        let mut entered = Entered::default();
        for line in &decision.limits {
            let found = |guard: &GuardLimit| (guard.policy, guard.limit) == (line.policy, line.limit);
            let Some(place) = self.limits.iter().position(found) else { continue };
            let guard = &mut self.limits[place];
            let policy = &policies.policies()[line.policy];
            if !line.decision.is_allowed() {
                match (&guard.breakers, line.decision.retry()) {
                    (None, _) => guard.refused.full += 1,
                    (Some(_), Retry::Unknown) if guard.sheds => guard.refused.shed += 1,
                    (Some(_), Retry::Unknown) => guard.refused.half_open += 1,
                    (Some(_), _) => guard.refused.open += 1,
                }
                if let Some(breakers) = &mut guard.breakers {
                    breakers.refuse(&key_name(policy, request, ipv6_prefix), at, line.cost);
                }
            }
            guard.at_most.set(at, line.decision.standing.limit);
            guard.least_at_most = guard.least_at_most.min(line.decision.standing.limit);
            if !places.lines().any(|charged| charged.policy == policy.name && charged.limit == line.limit) {
                continue;
            }
            let inside = guard.in_flight.now() + 1;
            guard.in_flight.set(at, inside);
            let quota = policy.limit(line.limit).and_then(|limit| limit.terms_for(request).quota.as_ref());
            let breaker = guard.breakers.as_mut().zip(quota).and_then(|(breakers, quota)| {
                breakers.enter(key_name(policy, request, ipv6_prefix), quota, at, line.cost)
            });
            entered.0.push(EnteredOne { guard: place, breaker });
        }
        if !entered.0.is_empty() {
            self.in_flight.set(at, self.in_flight.now() + 1);
            if !decision.wait.is_zero() && self.held_back.len() < MOST_WAITING {
                self.held_back.push(Reverse(at.after(decision.wait)));
                self.waiting.set(at, self.held_back.len() as u64);
            }
        }
        entered
    }

    /// Ends the delay of requests that waited until `at` or earlier.
    fn let_go(&mut self, at: Tick) {
        while self.held_back.peek().is_some_and(|Reverse(until)| *until <= at) {
            let Some(Reverse(until)) = self.held_back.pop() else { return };
            self.waiting.set(until, self.held_back.len() as u64);
        }
    }

    pub(super) fn leave(&mut self, at: Tick, entered: &Entered, took: Option<Duration>, outcome: Ended) {
        self.let_go(at);
        for one in &entered.0 {
            let guard = &mut self.limits[one.guard];
            let inside = guard.in_flight.now().saturating_sub(1);
            guard.in_flight.set(at, inside);
            if let Some((breakers, (key, receipt))) = guard.breakers.as_mut().zip(one.breaker.as_ref()) {
                breakers.leave(*key, at, receipt, outcome);
            }
        }
        self.in_flight.set(at, self.in_flight.now().saturating_sub(1));
        if let Some(took) = took {
            self.served.add(at, took);
        }
        self.failed += u64::from(matches!(outcome, Ended::Failure | Ended::Overloaded));
    }

    pub(crate) fn limits(&self) -> &[GuardLimit] {
        &self.limits
    }

    /// Returns the figures of a policy's guards or, with `shadow`, of its shadow limit.
    pub(super) fn outcomes(&self, policies: &PolicySet, policy: usize, shadow: bool) -> Vec<GuardOutcome> {
        let is_wanted = |guard: &&GuardLimit| {
            guard.policy == policy && policies.policies()[policy].is_shadow_limit(guard.limit) == shadow
        };
        self.limits.iter().filter(is_wanted).map(GuardLimit::outcome).collect()
    }

    pub(super) fn service(&self) -> ServiceOutcome {
        let times = self.served.all();
        ServiceOutcome {
            timed: times.count(),
            failed: self.failed,
            p50: times.percentile(50),
            p99: times.percentile(99),
            most_in_flight: self.in_flight.most(),
            most_waiting: self.waiting.most(),
        }
    }
}

impl GuardLimit {
    pub(super) const fn judges(&self) -> bool {
        self.breakers.is_some() || self.law.is_some()
    }

    /// Describes how many requests of one key may be in flight: `40`, or where it changed `4 to 34, moved by vegas`.
    pub(crate) fn at_most_words(&self) -> String {
        let (least, most) = (self.least_at_most, self.at_most.most());
        let range = if least < most { format!("{least} to {most}") } else { most.to_string() };
        self.law.map_or_else(|| range.clone(), |law| format!("{range}, moved by {law}"))
    }

    fn outcome(&self) -> GuardOutcome {
        let (changes, left_out) = self.breakers.as_ref().map(Followed::changes).unwrap_or_default();
        GuardOutcome {
            limit: self.label.clone(),
            kind: self.kind.clone(),
            most_in_flight: self.in_flight.most(),
            refused_full: self.refused.full,
            refused_open: self.refused.open,
            refused_half_open: self.refused.half_open,
            refused_shed: self.refused.shed,
            changes,
            changes_left_out: left_out,
        }
    }
}

/// The most keys whose breakers are followed, about 500 bytes each. Changes of later keys are not reported.
const MOST_KEYS: usize = 10_000;
const MOST_CHANGES: usize = 1_000;

/// The state of a breaker in a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    Closed,
    /// A share of the calls is refused.
    Shedding,
    HalfOpen,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerBand {
    pub(crate) state: BreakerState,
    pub(crate) from: Tick,
    pub(crate) until: Tick,
}

#[derive(Debug, Default)]
pub(crate) struct Followed {
    places: HashMap<String, usize, foldhash::fast::RandomState>,
    breakers: Vec<Breaker>,
    changes: Vec<(usize, Change)>,
    left_out: u64,
}

#[derive(Debug)]
struct Breaker {
    key: String,
    quota: Arc<Quota>,
    state: CircuitBreakerState,
}

impl Breaker {
    fn parts(&mut self) -> Option<(&CircuitBreaker, &mut CircuitBreakerState)> {
        match &*self.quota {
            Quota::Breaker(law) => Some((law, &mut self.state)),
            _ => None,
        }
    }
}

impl Followed {
    /// Enters the breaker of a key, as the gate did. Returns its position with a receipt; `None` if it is not followed.
    fn enter(&mut self, key: String, quota: &Arc<Quota>, at: Tick, cost: Cost) -> Option<(usize, Receipt)> {
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None => {
                let Quota::Breaker(law) = &**quota else { return None };
                if self.breakers.len() >= MOST_KEYS {
                    return None;
                }
                let state = law.fresh(at);
                self.breakers.push(Breaker { key: key.clone(), quota: Arc::clone(quota), state });
                self.places.insert(key, self.breakers.len() - 1);
                self.breakers.len() - 1
            }
        };
        let (changes, left_out) = (&mut self.changes, &mut self.left_out);
        let (law, state) = self.breakers[place].parts()?;
        let tell = &mut |change| keep(changes, left_out, place, change);
        law.enter_in_place(state, Ask::allow(at, cost), tell).ok().map(|receipt| (place, receipt))
    }

    /// Applies what time has changed in the breaker of a key that refused a request: a breaker that sheds may begin to
    /// when good calls leave its window.
    fn refuse(&mut self, key: &str, at: Tick, cost: Cost) {
        let Some(place) = self.places.get(key).copied() else { return };
        let (changes, left_out) = (&mut self.changes, &mut self.left_out);
        let Some((law, state)) = self.breakers[place].parts() else { return };
        let (mut next, mut told) = (state.clone(), Vec::new());
        if law.enter_in_place(&mut next, Ask::allow(at, cost), &mut |change| told.push(change)).is_err() {
            *state = next;
            told.into_iter().for_each(|change| keep(changes, left_out, place, change));
        }
    }

    fn leave(&mut self, place: usize, at: Tick, receipt: &Receipt, outcome: Ended) {
        let (changes, left_out) = (&mut self.changes, &mut self.left_out);
        let Some((law, state)) = self.breakers.get_mut(place).and_then(Breaker::parts) else { return };
        law.leave_in_place(state, at, receipt, None, outcome, &mut |change| {
            keep(changes, left_out, place, change);
        });
    }

    /// Returns the changes in order, and the number of changes left out.
    fn changes(&self) -> (Vec<BreakerChange>, u64) {
        let told = |(place, change): &(usize, Change)| BreakerChange {
            at: change.at,
            key: self.breakers[*place].key.clone(),
            from: change.from.as_str(),
            to: change.to.as_str(),
            at_most: match change.to {
                Condition::HalfOpen { at_most, .. } => Some(at_most),
                _ => None,
            },
            why: why(change, &self.breakers[*place].quota),
        };
        (self.changes.iter().map(told).collect(), self.left_out)
    }

    /// The breaker that changed its state first: its key, and its states, as far as changes were kept. If none changed,
    /// the first breaker.
    pub(crate) fn first(&self, from: Tick, until: Tick) -> Option<(&str, Vec<BreakerBand>)> {
        let place = self.changes.first().map_or(0, |(place, _)| *place);
        let key = &self.breakers.get(place)?.key;
        let mut bands = Vec::new();
        let (mut state, mut since) = (BreakerState::Closed, from);
        for (_, change) in self.changes.iter().filter(|(of, _)| *of == place) {
            let next = drawn(&change.to);
            if next != state {
                bands.push(BreakerBand { state, from: since, until: change.at });
                (state, since) = (next, change.at);
            }
        }
        bands.push(BreakerBand { state, from: since, until: until.max(since) });
        Some((key, bands))
    }

    pub(crate) fn changed_keys(&self) -> usize {
        let mut places: Vec<usize> = self.changes.iter().map(|(place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        places.len()
    }
}

fn keep(changes: &mut Vec<(usize, Change)>, left_out: &mut u64, place: usize, change: Change) {
    if changes.len() < MOST_CHANGES {
        changes.push((place, change));
    } else {
        *left_out += 1;
    }
}

fn drawn(condition: &Condition) -> BreakerState {
    match condition {
        Condition::Open { .. } => BreakerState::Open,
        Condition::HalfOpen { .. } => BreakerState::HalfOpen,
        Condition::Shedding { .. } => BreakerState::Shedding,
        // Breakers are never forced in a replay.
        _ => BreakerState::Closed,
    }
}

fn why(change: &Change, quota: &Quota) -> String {
    match &change.cause {
        Cause::Tripped(figure) | Cause::WouldTrip(figure) => figure.to_string(),
        Cause::Waited => "the open time was over".to_owned(),
        Cause::Recovered(Totals { calls, failures, slow }) if change.from.as_str() == "shedding" => {
            let slow = if *slow == 0 { String::new() } else { format!(", {slow} were slow") };
            let least = match quota {
                Quota::Breaker(law) => law.min_calls(),
                _ => 0,
            };
            let few = if *calls < least { ", too few to judge by" } else { "" };
            format!("{failures} of {calls} calls failed{slow}{few}")
        }
        Cause::Recovered(totals) => {
            format!("of {} probes {} failed and {} were slow", totals.calls, totals.failures, totals.slow)
        }
        Cause::Idle => "it was not used for so long that it starts again".to_owned(),
        _ => "by hand".to_owned(),
    }
}

#[cfg(test)]
mod tests;

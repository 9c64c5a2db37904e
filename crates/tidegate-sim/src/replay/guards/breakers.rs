//! Circuit breakers, simulated beside the gate that uses them.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::limiter::Receipt;
use tidegate::{Cost, Outcome as Ended, Quota, Tick};
use tidegate_core::breaker::{Cause, Change, CircuitBreaker, CircuitBreakerState, Condition, Totals};
use tidegate_core::{Ask, Guard as _};

use super::super::outcome::BreakerChange;

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
    pub(super) fn enter(
        &mut self,
        key: String,
        quota: &Arc<Quota>,
        at: Tick,
        cost: Cost,
    ) -> Option<(usize, Receipt)> {
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
    pub(super) fn refuse(&mut self, key: &str, at: Tick, cost: Cost) {
        let Some(place) = self.places.get(key).copied() else { return };
        let (changes, left_out) = (&mut self.changes, &mut self.left_out);
        let Some((law, state)) = self.breakers[place].parts() else { return };
        let (mut next, mut told) = (state.clone(), Vec::new());
        if law.enter_in_place(&mut next, Ask::allow(at, cost), &mut |change| told.push(change)).is_err() {
            *state = next;
            told.into_iter().for_each(|change| keep(changes, left_out, place, change));
        }
    }

    pub(super) fn leave(&mut self, place: usize, at: Tick, receipt: &Receipt, outcome: Ended) {
        let (changes, left_out) = (&mut self.changes, &mut self.left_out);
        let Some((law, state)) = self.breakers.get_mut(place).and_then(Breaker::parts) else { return };
        law.leave_in_place(state, at, receipt, None, outcome, &mut |change| {
            keep(changes, left_out, place, change);
        });
    }

    /// Returns the changes in order, and the number of changes left out.
    pub(super) fn changes(&self) -> (Vec<BreakerChange>, u64) {
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

//! The breakers that are not simply closed: which, since when, and why, for the list that people read, the log and the metrics.
//!
//! A store cannot be asked for all its keys, so what a check or a settlement finds is noted here. The state itself lies in the store; what is
//! noted is for people, and bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::breaker::{Condition, Force};
use tidegate::gate::KeyedView;
use tidegate::policy::{Limit, Policy, text_of_key};
use tidegate::{GateDecision, LimitDecision, Quota, Tick};

use crate::live::Live;

/// How many breakers are noted: those of a hundred services of ten policies. Beyond it the one that changed first is forgotten here, closed
/// ones before all others; its state in the store stays.
const NOTED: usize = 1024;

/// The longest key of a breaker that is noted, in bytes: callers choose keys, and all of them together are to stay within some MiB. The
/// breaker of a longer one works, and is shown to whoever names its key.
const LONGEST_KEY: usize = 2048;

/// What is known of breakers.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    noted: Mutex<HashMap<Box<[u8]>, Noted>>,
}

/// One breaker as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) seen: KeyedView,
    /// When it came into this state, as far as this process saw it.
    pub(crate) since: Tick,
}

/// What is new of a breaker since it was last seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    /// The state before, where that is another.
    pub(super) from: Option<&'static str>,
    /// How often it would have opened meanwhile, had it not been made to measure only.
    pub(super) would_open: u32,
}

fn would_open(seen: &KeyedView) -> u32 {
    seen.view.would_trip.map_or(0, |would| would.times)
}

/// A breaker of the list.
#[derive(Debug)]
pub(crate) struct ListedBreaker {
    pub(crate) policy: String,
    /// As people read it: `upstream.name=payments`, or `(all)`.
    pub(crate) key: String,
    /// How the limit reads in the file.
    pub(crate) limit: String,
    pub(crate) noted: Noted,
    /// Whether `since` is known.
    pub(crate) changed: bool,
}

/// What a person wants of a breaker.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// This state, for this time or until it is ended, for this reason.
    Forced { to: Force, lasts: Option<Duration>, reason: String },
    /// No forced state.
    Auto,
}

impl Breakers {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u8]>, Noted>> {
        // A panic elsewhere leaves notes behind that are whole, each by itself.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether a breaker of this key is noted.
    pub(super) fn knows(&self, charged: &[u8]) -> bool {
        self.lock().contains_key(charged)
    }

    /// Notes how a breaker stands; returns what is new of it.
    pub(super) fn note(&self, seen: KeyedView) -> News {
        let mut noted = self.lock();
        let is = seen.view.condition.as_str();
        let before = noted.get(&seen.key).map(|before| before.seen.view.condition.as_str());
        let told = noted.get(&seen.key).map_or(0, |before| would_open(&before.seen));
        // Below what was seen before where somebody forced it anew.
        let would_open = would_open(&seen).checked_sub(told).unwrap_or_else(|| would_open(&seen));
        match before {
            None if is == "closed" || seen.key.len() > LONGEST_KEY => return News::default(),
            Some(before) if before == is => {
                if let Some(noted) = noted.get_mut(&seen.key) {
                    noted.seen = seen;
                }
                return News { from: None, would_open };
            }
            _ => {}
        }
        if noted.len() >= NOTED && before.is_none() {
            let order = |noted: &Noted| (noted.seen.view.condition != Condition::Closed, noted.since);
            if let Some(key) = noted.iter().min_by_key(|(_, noted)| order(noted)).map(|(key, _)| key.clone())
            {
                noted.remove(&key);
            }
        }
        let since = seen.at;
        noted.insert(seen.key.clone(), Noted { seen, since });
        News { from: Some(before.unwrap_or("closed")), would_open }
    }

    /// Forgets the breakers of policies that are gone, or are breakers no more.
    pub(super) fn keep_those_of(&self, live: &Live) {
        self.lock().retain(|_, noted| breaker_of(live, &noted.seen.policy, noted.seen.limit).is_some());
    }
}

/// Returns the limit with least left of an allowed request: a closed breaker has one left, however many it lets through.
pub(super) fn least_left(decision: &GateDecision) -> Option<usize> {
    let policies = decision.policies.policies();
    let is_breaker =
        |line: &LimitDecision| policies[line.policy].limit(line.limit).is_some_and(Limit::is_breaker);
    let counting = decision.limits.iter().enumerate().filter(|(_, line)| line.binding && !is_breaker(line));
    counting.min_by_key(|(_, line)| line.remaining()).map(|(at, _)| at)
}

/// Returns the breakers among the limits of a policy, with their places.
pub(crate) fn breakers_of(policy: &Policy) -> impl Iterator<Item = (usize, &std::sync::Arc<Quota>)> {
    let limits = policy.limits.iter().chain(&policy.shadow_limit).enumerate();
    limits
        .filter(|(_, limit)| limit.is_breaker())
        .filter_map(|(at, limit)| Some((at, limit.terms.quota.as_ref()?)))
}

/// Finds the words and the quota of a breaker that was noted; `None` where they are gone.
pub(super) fn breaker_of<'l>(
    live: &'l Live,
    policy: &str,
    limit: usize,
) -> Option<(&'l Policy, &'l std::sync::Arc<Quota>)> {
    let (_, policy) = live.set.find(policy)?;
    let (_, quota) = breakers_of(policy).find(|(at, _)| *at == limit)?;
    Some((policy, quota))
}

/// Puts a breaker that was noted into the words of the list.
pub(super) fn listed_of(live: &Live, noted: Noted, changed: bool) -> Option<ListedBreaker> {
    let (_, policy) = live.set.find(&noted.seen.policy)?;
    Some(ListedBreaker {
        policy: policy.name.clone(),
        key: text_of_key(&noted.seen.key)?,
        limit: policy.limit(noted.seen.limit)?.terms.label.clone(),
        noted,
        changed,
    })
}

/// Says why a breaker is in its state: the figure that tripped it, or what a person said.
pub(crate) fn why(seen: &KeyedView) -> String {
    match (&seen.view.condition, &seen.view.forced) {
        (Condition::Forced { .. }, Some(forced)) => forced.reason().to_owned(),
        (Condition::Open { by: Some(figure), .. }, _) => figure.to_string(),
        (Condition::Open { by: None, .. }, _) => "what a person had forced has ended".to_owned(),
        _ => String::new(),
    }
}

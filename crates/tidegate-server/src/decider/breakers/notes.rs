//! Remembers the breakers that are not simply closed, for the list of operators, the log and the metrics: a store
//! cannot list its keys.
//!
//! A store cannot list its keys, so each breaker that a check or a settlement touches is noted here. The store
//! holds the state; these notes are for people, and bounded. A breaker that refuses has no note if another process
//! put it into its state, or if time alone did, as one that sheds may begin to when good calls leave its window. It
//! is noted after its first refusal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tidegate::breaker::{Condition, Force};
use tidegate::gate::KeyedView;
use tidegate::limiter::Replace;
use tidegate::policy::{Mode, Policy, text_of_key};
use tidegate::store::{BreakerView, Charge, ChargeRules};
use tidegate::{Cost, Quota, Tick};

use crate::active_config::ActiveConfig;

/// How many breakers are noted: a hundred services with ten policies each. Beyond that, closed ones are forgotten
/// first and forced ones last, among equals the one that changed first. Callers choose keys, and so can open any
/// number of breakers. The store keeps the state of a forgotten one.
const NOTED: usize = 1024;

/// The longest key of a noted breaker, in bytes: all notes stay within a few MiB, and callers choose keys. A
/// breaker with a longer key works, and is shown when a request names that key.
const LONGEST_KEY: usize = 2048;

/// The most breakers that wait to be read. Others wait for their next refusal.
const MOST_WAITING: usize = 64;

/// How long a breaker that refuses is not read again, and how many are read in one turn: an engine answers each.
const READ_AGAIN: Duration = Duration::from_secs(5);
const READ_AT_ONCE: usize = 32;

/// For how long after its last call a breaker is read whose thresholds are compared at intervals.
const MAY_OPEN_FOR: Duration = Duration::from_secs(600);

/// The notes about breakers, by key.
#[derive(Debug, Default)]
pub(super) struct BreakerNotes {
    noted: Mutex<HashMap<Box<[u8]>, Noted>>,
    pub(super) unnoted: UnnotedRefusers,
    pub(super) may_open: MayOpen,
}

/// Returns whether a breaker refuses calls, or all but its probes, without a person's doing.
pub(super) const fn refuses(condition: &Condition) -> bool {
    matches!(condition, Condition::Open { .. } | Condition::HalfOpen { .. })
}

/// The policy of each breaker and the index of its limit, by key.
type LimitsByKey = HashMap<Box<[u8]>, (String, usize)>;

/// Breakers that have refused a request and have no note.
#[derive(Debug, Default)]
pub(super) struct UnnotedRefusers(Mutex<LimitsByKey>);

impl UnnotedRefusers {
    /// Adds a breaker, unless it waits already or too many do.
    pub(super) fn add(&self, key: &[u8], policy: &str, limit: usize) {
        let mut waiting = self.0.lock();
        if waiting.len() < MOST_WAITING && !waiting.contains_key(key) {
            waiting.insert(key.into(), (policy.to_owned(), limit));
        }
    }

    /// Takes all of them.
    pub(super) fn take(&self) -> LimitsByKey {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Closed breakers that time alone may open: a call has ended, and their thresholds are compared at intervals.
#[derive(Debug, Default)]
pub(super) struct MayOpen(Mutex<HashMap<Box<[u8]>, ClosedBreaker>>);

/// A closed breaker, as it was when its last call ended.
#[derive(Clone, Debug)]
pub(super) struct ClosedBreaker {
    pub(super) policy: String,
    pub(super) limit: usize,
    at: Tick,
}

impl MayOpen {
    /// Adds a breaker, or learns that another call has ended. Unless too many wait.
    pub(super) fn add(&self, seen: &KeyedView) {
        let KeyedView { key, policy, limit, at, .. } = seen;
        let mut waiting = self.0.lock();
        if waiting.len() < MOST_WAITING || waiting.contains_key(key) {
            waiting.insert(key.clone(), ClosedBreaker { policy: policy.clone(), limit: *limit, at: *at });
        }
    }

    /// Returns all whose last call ended not long ago, and forgets the others.
    pub(super) fn recent(&self, now: Tick) -> Vec<(Box<[u8]>, ClosedBreaker)> {
        let mut waiting = self.0.lock();
        waiting.retain(|_, closed| now.since(closed.at) <= MAY_OPEN_FOR);
        waiting.iter().map(|(key, closed)| (key.clone(), closed.clone())).collect()
    }

    /// Forgets a breaker, unless another call has ended meanwhile.
    pub(super) fn forget(&self, key: &[u8], closed: &ClosedBreaker) {
        let mut waiting = self.0.lock();
        if waiting.get(key).is_some_and(|now| now.at == closed.at) {
            waiting.remove(key);
        }
    }
}

/// One breaker as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    pub(crate) seen: KeyedView,
    /// `None` if this process did not see it enter its state.
    pub(crate) since: Option<Tick>,
    /// How often it was seen to open since this process started, as long as it is noted.
    pub(crate) opened: u64,
}

/// The changes of a breaker since it was last seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BreakerChange {
    /// The state before, if it was a different one.
    pub(super) from: Option<&'static str>,
    /// How often a breaker that only measures would have opened since.
    pub(super) would_open: u32,
}

/// Facts about a breaker that has no note yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstSight {
    /// Whether it was in its state before this process started, so that it has not changed now.
    pub(super) same_before: bool,
    /// Whether it has entered its state just now.
    pub(super) entered_now: bool,
    /// Whether it would last have opened before this process started.
    pub(super) told_before: bool,
}

fn would_open(seen: &KeyedView) -> u32 {
    seen.view.would_trip.map_or(0, |would| would.times)
}

/// On which occasion a breaker is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// A check has entered it.
    Entered,
    /// The end of a call was reported to it.
    Left,
    /// Somebody looks at it.
    Looked,
    /// It has refused a request, and had no note.
    Refused,
    /// An operator has just put it into its state.
    Acted,
}

/// A breaker in the list for operators.
#[derive(Debug)]
pub(crate) struct ListedBreaker {
    pub(crate) policy: String,
    /// The key as text: `upstream.name=payments`, or `(all)`.
    pub(crate) key: String,
    /// The limit as the policy file has it.
    pub(crate) limit: String,
    pub(crate) noted: Noted,
    /// After which time a probe whose end nobody reports frees its place.
    pub(crate) lapses_after: Option<Duration>,
    /// How its policy treats a refusal by this breaker: off, shadow (also for a shadow limit) or enforce.
    pub(crate) mode: Mode,
}

/// The state that an operator wants a breaker to have.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// Force this state, for `lasts` or until it is released, for this reason.
    Forced { to: Force, lasts: Option<Duration>, reason: String },
    /// End a forced state.
    Auto,
}

impl BreakerNotes {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Noted>> {
        self.noted.lock()
    }

    /// Returns whether a breaker with this key is noted.
    pub(super) fn knows(&self, charged: &[u8]) -> bool {
        self.lock().contains_key(charged)
    }

    /// Returns whether a breaker needs no other note to be listed as refusing, or cannot be noted.
    pub(super) fn is_noted_as_refusing(&self, key: &[u8]) -> bool {
        let noted = self.lock();
        let refuses = |noted: &Noted| noted.seen.view.condition != Condition::Closed;
        key.len() > LONGEST_KEY || noted.get(key).is_some_and(refuses)
    }

    /// Returns breakers that refuse calls and were not read for some seconds, those first that were read longest ago.
    pub(super) fn due(&self, now: Tick) -> Vec<KeyedView> {
        let is_due = |seen: &&KeyedView| refuses(&seen.view.condition) && now.since(seen.at) >= READ_AGAIN;
        let mut due: Vec<KeyedView> =
            self.lock().values().map(|noted| &noted.seen).filter(is_due).cloned().collect();
        due.sort_by_key(|seen| seen.at);
        due.truncate(READ_AT_ONCE);
        due
    }

    /// Returns whether no breaker can be noted unless another is forgotten.
    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= NOTED
    }

    /// Notes a breaker, and returns what changed. `first` counts if it has no note yet.
    pub(super) fn note(&self, seen: KeyedView, first: FirstSight) -> BreakerChange {
        let mut noted = self.lock();
        let is = seen.view.condition.as_str();
        let before = noted.get(&seen.key).map(|before| before.seen.view.condition.as_str());
        let told = match noted.get(&seen.key) {
            Some(before) => would_open(&before.seen),
            // An earlier process may have told of all but the last.
            None if first.told_before => would_open(&seen),
            None => would_open(&seen).saturating_sub(1),
        };
        // A breaker that is forced anew counts from 0.
        let would_open = would_open(&seen).checked_sub(told).unwrap_or_else(|| would_open(&seen));
        match before {
            None if is == "closed" || seen.key.len() > LONGEST_KEY => return BreakerChange::default(),
            Some(before) if before == is => {
                if let Some(noted) = noted.get_mut(&seen.key) {
                    noted.seen = seen;
                }
                return BreakerChange { from: None, would_open };
            }
            _ => {}
        }
        if noted.len() >= NOTED && before.is_none() {
            let order = |noted: &Noted| {
                let rank = match noted.seen.view.condition {
                    Condition::Closed => 0,
                    Condition::Forced { .. } => 2,
                    _ => 1,
                };
                (rank, noted.since)
            };
            if let Some(key) = noted.iter().min_by_key(|(_, noted)| order(noted)).map(|(key, _)| key.clone())
            {
                noted.remove(&key);
            }
        }
        let since = match seen.view.condition {
            Condition::Open { since, .. } => Some(since),
            _ => (before.is_some() || first.entered_now).then_some(seen.at),
        };
        let opened = noted.get(&seen.key).map_or(0, |before| before.opened)
            + u64::from(matches!(seen.view.condition, Condition::Open { .. }));
        noted.insert(seen.key.clone(), Noted { seen, since, opened });
        let from = before.or(if first.same_before { None } else { Some("closed") });
        BreakerChange { from, would_open }
    }

    /// Forgets breakers of policies that are gone, are no longer breakers, or have other keys than before.
    pub(super) fn keep_those_of(&self, before: &ActiveConfig, live: &ActiveConfig) {
        self.lock().retain(|_, noted| {
            let KeyedView { policy, limit, .. } = &noted.seen;
            let Some((now, _)) = breaker_of(live, policy, *limit) else { return false };
            breaker_of(before, policy, *limit).is_none_or(|(was, _)| was.by == now.by)
        });
    }

    /// Returns the noted breakers that start anew with a change: same keys, and another limit with `replace: reset`
    /// or of another kind.
    pub(super) fn starting_anew(&self, before: &ActiveConfig, live: &ActiveConfig) -> Vec<KeyedView> {
        let noted = self.lock();
        let starts_anew = |seen: &&KeyedView| {
            let Some((was, old)) = breaker_of(before, &seen.policy, seen.limit) else { return false };
            let Some((_, now)) = live.set.find(&seen.policy) else { return false };
            let Some(quota) = only_quota(now, seen.limit) else { return false };
            let resets =
                !matches!(**quota, Quota::Breaker(_)) || rules_of(now, seen.limit).replace == Replace::Reset;
            was.by == now.by && old != quota && resets
        };
        noted.values().map(|noted| &noted.seen).filter(starts_anew).cloned().collect()
    }

    pub(super) fn last_seen(&self, charged: &[u8]) -> Option<BreakerView> {
        self.lock().get(charged).map(|noted| noted.seen.view.clone())
    }

    pub(super) fn forced_of(&self, policy: &str) -> usize {
        let noted = self.lock();
        let own = noted.values().filter(|noted| noted.seen.policy == policy);
        own.filter(|noted| matches!(noted.seen.view.condition, Condition::Forced { .. })).count()
    }
}

/// Returns the charge by which an operator reads or changes a key.
pub(crate) fn charge_of<'c>(
    policy: &Policy,
    limit: usize,
    key: &'c [u8],
    quota: &'c Arc<Quota>,
) -> Charge<'c> {
    Charge { rules: rules_of(policy, limit), ..Charge::new(key, quota, Cost::ONE) }
}

/// Returns the quota of a limit that is the same for all requests.
pub(super) fn only_quota(policy: &Policy, limit: usize) -> Option<&Arc<Quota>> {
    let limit = policy.limit(limit).filter(|limit| limit.tiers.is_none() && limit.overrides.is_empty())?;
    limit.terms.quota.as_ref()
}

/// The rules by which an operator reads or changes a key of a limit: the usual ones, except that a state is taken
/// over as the limit says.
fn rules_of(policy: &Policy, limit: usize) -> ChargeRules {
    // Names every rule: a new one does not compile until it is said where an operator's comes from.
    let ChargeRules { owner, replace: usual, on_error, durable, settled } = ChargeRules::new(0);
    let replace = policy.limit(limit).map_or(usual, |limit| limit.replace);
    ChargeRules { owner, replace, on_error, durable, settled }
}

pub(crate) fn breakers_of(policy: &Policy) -> impl Iterator<Item = (usize, &Arc<Quota>)> {
    let limits = policy.limits.iter().chain(&policy.shadow_limit).enumerate();
    limits
        .filter(|(_, limit)| limit.is_breaker())
        .filter_map(|(at, limit)| Some((at, limit.terms.quota.as_ref()?)))
}

/// Finds the policy and the quota of a breaker; `None` if it is no longer in force.
pub(super) fn breaker_of<'l>(
    live: &'l ActiveConfig,
    policy: &str,
    limit: usize,
) -> Option<(&'l Policy, &'l Arc<Quota>)> {
    let (_, policy) = live.set.find(policy)?;
    let (_, quota) = breakers_of(policy).find(|(at, _)| *at == limit)?;
    Some((policy, quota))
}

/// Makes the list entry of a noted breaker.
pub(super) fn listed_of(live: &ActiveConfig, noted: Noted) -> Option<ListedBreaker> {
    let (_, policy) = live.set.find(&noted.seen.policy)?;
    let limit = policy.limit(noted.seen.limit)?;
    let lapses_after = match limit.terms.quota.as_deref() {
        Some(Quota::Breaker(breaker)) => breaker.time_to_live(),
        _ => None,
    };
    let measures = policy.mode == Mode::Enforce && policy.is_shadow_limit(noted.seen.limit);
    Some(ListedBreaker {
        policy: policy.name.clone(),
        key: text_of_key(&noted.seen.key)?,
        limit: limit.terms.label.clone(),
        lapses_after,
        mode: if measures { Mode::Shadow } else { policy.mode },
        noted,
    })
}

pub(super) fn why_closed(from: &str, occasion: Occasion) -> &'static str {
    match (from, occasion) {
        ("half-open", Occasion::Left) => "its probes have shown that the service works again",
        // Another node may have seen the probes; a state that is reset or forgotten leaves no trace.
        ("half-open" | "open", _) => {
            "probes have shown that the service works again, or it was reset, or unused for so long that it began anew"
        }
        ("shedding", _) => "too few of its calls fail now to refuse any",
        _ => "its forced state has ended",
    }
}

/// Returns the figure that tripped a breaker, or the operator's reason. Empty if it is closed ([`why_closed`]).
pub(crate) fn why(seen: &KeyedView) -> String {
    match (&seen.view.condition, &seen.view.forced) {
        (Condition::Forced { .. }, Some(forced)) => forced.reason().to_owned(),
        (Condition::Open { by: Some(figure), .. }, _) => figure.to_string(),
        (Condition::Shedding { by, .. }, _) => by.to_string(),
        (Condition::Open { by: None, .. }, _) => "its forced state has ended".to_owned(),
        (Condition::HalfOpen { .. }, _) => "its open time is over, and probes try the service".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_refusers_wait_each_once_and_all_are_taken() {
        let waiting = UnnotedRefusers::default();
        for _ in 0..2 {
            for key in 0..=MOST_WAITING {
                waiting.add(&key.to_be_bytes(), "search", 0);
            }
        }
        assert_eq!(waiting.take().len(), MOST_WAITING);
        assert!(waiting.take().is_empty());
    }
}

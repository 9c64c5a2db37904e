//! The breakers that are not simply closed: which, since when, and why, for the list that people read, the log and the metrics.
//!
//! A store cannot be asked for all its keys, so what a check or a settlement finds is noted here. The state itself lies in the store; what is
//! noted is for people, and bounded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::breaker::{Condition, Force, Forced};
use tidegate::gate::KeyedView;
use tidegate::policy::{Descriptor, Limit, Policy, text_of_key};
use tidegate::store::{Charge, Handling, StoreError};
use tidegate::visible;
use tidegate::{Charged, Cost, GateDecision, LimitDecision, Quota, Tick};

use super::Engine;
use crate::live::Live;
use crate::metrics::BreakerIs;
use crate::redact::Redact;

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
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u8]>, Noted>> {
        // A panic elsewhere leaves notes behind that are whole, each by itself.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether a breaker of this key is noted.
    fn knows(&self, charged: &[u8]) -> bool {
        self.lock().contains_key(charged)
    }

    /// Notes how a breaker stands; returns the state before where that is another.
    fn note(&self, seen: KeyedView) -> Option<&'static str> {
        let mut noted = self.lock();
        let is = seen.view.condition.as_str();
        let before = noted.get(&seen.key).map(|before| before.seen.view.condition.as_str());
        match before {
            None if is == "closed" || seen.key.len() > LONGEST_KEY => return None,
            Some(before) if before == is => {
                if let Some(noted) = noted.get_mut(&seen.key) {
                    noted.seen = seen;
                }
                return None;
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
        Some(before.unwrap_or("closed"))
    }

    /// Forgets the breakers of policies that are gone, or are breakers no more.
    pub(super) fn keep_those_of(&self, live: &Live) {
        self.lock().retain(|_, noted| breaker_of(live, &noted.seen.policy, noted.seen.limit).is_some());
    }
}

impl Engine {
    /// Notes the breakers that a check has entered. Before they are noted they are closed, and to enter a closed one changes no state.
    pub(crate) async fn note_entered(&self, charged: &Charged) {
        if self.breakers.lock().is_empty() {
            return;
        }
        self.note_all(charged, true).await;
    }

    /// Notes the breakers that a settlement has left.
    pub(super) async fn note_left(&self, charged: &Charged) {
        self.note_all(charged, false).await;
    }

    async fn note_all(&self, charged: &Charged, only_known: bool) {
        // What could not be looked at is seen the next time.
        for seen in self.gate.view_breakers_async(charged).await.unwrap_or_default() {
            if !only_known || self.breakers.knows(&seen.key) {
                self.note(seen);
            }
        }
    }

    fn note(&self, seen: KeyedView) {
        let (policy, key) = (seen.policy.clone(), text_of_key(&seen.key).unwrap_or_default());
        let (to, why) = (seen.view.condition.as_str(), why(&seen));
        let Some(from) = self.breakers.note(seen) else { return };
        let key = self.redact.text(&key, false);
        tracing::info!(policy, key, from, to, why = %visible::line(&why), "a breaker changed its state");
        self.metrics.protection.breaker_changed(&policy, BreakerIs::of(to));
    }

    /// Looks at every breaker that is noted, and at that of each policy without a key; first those that are not closed. `only` is the index of
    /// a policy.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer.
    pub(crate) async fn breakers(
        &self,
        live: &Live,
        only: Option<usize>,
    ) -> Result<Vec<ListedBreaker>, StoreError> {
        let wanted = |policy: &str| {
            only.is_none_or(|at| live.set.policies().get(at).is_some_and(|only| only.name == policy))
        };
        let noted = self.breakers.lock().values().map(|noted| noted.seen.clone()).collect::<Vec<_>>();
        for KeyedView { key, policy, limit, .. } in noted.into_iter().filter(|seen| wanted(&seen.policy)) {
            let Some((words, quota)) = breaker_of(live, &policy, limit) else { continue };
            let charge = Charge::new(&key, quota, Cost::ONE);
            self.look(words, limit, &charge, Handling::Look).await?;
        }
        let mut listed: Vec<ListedBreaker> = Vec::new();
        for noted in self.breakers.lock().values().filter(|noted| wanted(&noted.seen.policy)) {
            listed.extend(listed_of(live, noted.clone(), true));
        }
        for (at, policy) in live.set.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty())
        {
            for (limit, quota) in breakers_of(policy) {
                let Some(key) = live.set.key(at, limit, &Descriptor::new()) else { continue };
                if !wanted(&policy.name) || self.breakers.knows(&key) {
                    continue;
                }
                let charge = Charge::new(&key, quota, Cost::ONE);
                if let Some(seen) = self.look(policy, limit, &charge, Handling::Look).await? {
                    let since = seen.at;
                    listed.extend(listed_of(live, Noted { seen, since }, false));
                }
            }
        }
        let order = |one: &ListedBreaker| {
            let is_closed = one.noted.seen.view.condition == Condition::Closed;
            (is_closed, one.policy.clone(), one.key.clone())
        };
        listed.sort_by_cached_key(order);
        Ok(listed)
    }

    /// Looks at the breakers of one key of a policy, or puts them in a state; `key` holds the attributes of the policy's `by`.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not answer; the breakers before it in the policy have changed then.
    pub(crate) async fn handle_breakers(
        &self,
        live: &Live,
        policy: usize,
        key: &Descriptor<'_>,
        wanted: Option<&Wanted>,
    ) -> Result<Vec<ListedBreaker>, StoreError> {
        let words = &live.set.policies()[policy];
        let forced = wanted.map(|wanted| match wanted {
            Wanted::Auto => None,
            Wanted::Forced { to, lasts, reason } => {
                let until = lasts.map(|lasts| self.now().after(lasts));
                Some(Forced::new(*to, until, reason))
            }
        });
        let handling = match &forced {
            None => Handling::Look,
            Some(None) => Handling::Release,
            Some(Some(forced)) => Handling::Force(forced),
        };
        let mut listed = Vec::new();
        for (limit, quota) in breakers_of(words) {
            let Some(bytes) = live.set.key(policy, limit, key) else { continue };
            let charge = Charge::new(&bytes, quota, Cost::ONE);
            if let Some(seen) = self.look(words, limit, &charge, handling).await? {
                let noted = self.breakers.lock().get(&seen.key).cloned();
                let changed = noted.is_some();
                let since = seen.at;
                listed.extend(listed_of(live, noted.unwrap_or(Noted { seen, since }), changed));
            }
        }
        Ok(listed)
    }

    async fn look(
        &self,
        policy: &Policy,
        limit: usize,
        charge: &Charge<'_>,
        handling: Handling<'_>,
    ) -> Result<Option<KeyedView>, StoreError> {
        let handled = self.gate.handle_breaker_async(policy.share, charge, handling).await;
        let (view, at) = handled.inspect_err(|_| self.metrics.store_error(self.store_kind))?;
        Ok(view.map(|view| {
            let seen = KeyedView::new(charge.key, &policy.name, limit, view, at);
            self.note(seen.clone());
            seen
        }))
    }

    /// Sets the gauges of all breakers, by what is noted of them.
    pub(super) fn show_breakers(&self, live: &Live) {
        let noted = self.breakers.lock();
        for policy in live.set.policies().iter().filter(|policy| breakers_of(policy).next().is_some()) {
            let mut counts = [0_i64; BreakerIs::ALL.len()];
            let own = noted.values().filter(|noted| noted.seen.policy == policy.name);
            for noted in own {
                counts[BreakerIs::of(noted.seen.view.condition.as_str()) as usize] += 1;
            }
            // A breaker that was never noted is closed.
            if policy.by.is_empty() && counts.iter().all(|count| *count == 0) {
                counts[BreakerIs::closed as usize] = 1;
            }
            self.metrics.protection.show_breakers(&policy.name, counts);
        }
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

fn breaker_of<'l>(
    live: &'l Live,
    policy: &str,
    limit: usize,
) -> Option<(&'l Policy, &'l std::sync::Arc<Quota>)> {
    let (_, policy) = live.set.find(policy)?;
    let (_, quota) = breakers_of(policy).find(|(at, _)| *at == limit)?;
    Some((policy, quota))
}

fn listed_of(live: &Live, noted: Noted, changed: bool) -> Option<ListedBreaker> {
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

impl Engine {
    /// Returns what hides keys.
    pub(crate) fn redact(&self) -> Redact {
        self.redact.clone()
    }
}

//! Notes the breakers that checks and settlements touch, lists them, forces and releases them for operators, and
//! carries them over to changed limits.

mod notes;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tidegate::Quota;
use tidegate::breaker::{Condition, Forced};
use tidegate::gate::{Charged, GateDecision, KeyedView};
use tidegate::policy::{Descriptor, Limit, Mode, Policy, text_of_key};
use tidegate::store::{BreakerView, Charge, DecidedBy, Handling, StoreError};
use tidegate::visible;

use self::notes::{
    BreakerChange, BreakerNotes, FirstSight, Noted, Occasion, breaker_of, listed_of, only_quota, refuses,
    why_closed,
};
pub(crate) use self::notes::{ListedBreaker, Wanted, breakers_of, charge_of, why};
use super::{Base, Conclusion};
use crate::active_config::ActiveConfig;
use crate::metrics::BreakerStateLabel;
use crate::sight::OpenBreaker;

/// How long a reload waits for a store that carries its breakers over.
const STARTED_WITHIN: Duration = Duration::from_secs(5);

/// The breakers of the policies in force.
#[derive(Debug)]
pub(crate) struct Breakers {
    base: Arc<Base>,
    notes: BreakerNotes,
    /// Whether states in this process's store outlive the process.
    survives: bool,
}

impl Breakers {
    pub(super) fn new(base: Arc<Base>, survives: bool) -> Self {
        Self { base, notes: BreakerNotes::default(), survives }
    }

    /// Follows a configuration before it is in force. Returns the breakers for [`Breakers::start_anew`].
    pub(super) fn follow(&self, before: &ActiveConfig, live: &ActiveConfig) -> Vec<KeyedView> {
        let anew = self.notes.starting_anew(before, live);
        self.notes.keep_those_of(before, live);
        anew
    }

    pub(crate) fn forced_of(&self, policy: &str) -> usize {
        self.notes.forced_of(policy)
    }

    /// Notes breakers that a check has entered. Those without a note are closed, and entering a closed breaker does
    /// not change its state.
    pub(crate) async fn note_entered(&self, charged: &Charged) {
        if self.notes.lock().is_empty() {
            return;
        }
        self.note_all(charged, Occasion::Entered).await;
    }

    /// Notes the breakers that a settlement has left.
    pub(super) async fn note_left(&self, charged: &Charged) {
        self.note_all(charged, Occasion::Left).await;
    }

    async fn note_all(&self, charged: &Charged, occasion: Occasion) {
        // Errors are ignored: a breaker that could not be read now is read the next time.
        for seen in self.base.gate.keys().view_breakers(charged).await.unwrap_or_default() {
            if occasion == Occasion::Left && self.may_open_by_time(&seen) {
                self.notes.may_open.add(&seen);
            }
            if occasion == Occasion::Left || self.notes.knows(&seen.key) {
                self.note(seen, occasion);
            }
        }
    }

    fn may_open_by_time(&self, seen: &KeyedView) -> bool {
        let live = self.base.live();
        let limit = breaker_of(&live, &seen.policy, seen.limit);
        let at_intervals = limit.is_some_and(|(_, quota)| match &**quota {
            Quota::Breaker(breaker) => breaker.evaluates_every().is_some(),
            _ => false,
        });
        at_intervals && seen.view.condition == Condition::Closed
    }

    fn first_sight(&self, seen: &KeyedView, occasion: Occasion) -> FirstSight {
        let acted = occasion == Occasion::Acted;
        let same_before = match seen.view.condition {
            // Its change may have been told before its note was forgotten: callers who keep more breakers open than are
            // noted would have the same told again and again.
            _ if occasion == Occasion::Refused && self.notes.is_full() => true,
            Condition::Open { since, .. } => since < self.base.started,
            // Other states do not say since when. In this process's store, only an earlier process can have left
            // them.
            _ => self.survives && !acted,
        };
        let told_before = seen.view.would_trip.is_some_and(|would| would.at < self.base.started);
        // In an engine, another node may have changed it at any time before.
        let entered_now = acted || !same_before && self.base.decides_at_once;
        FirstSight { same_before, entered_now, told_before }
    }

    fn note(&self, seen: KeyedView, occasion: Occasion) {
        let first = self.first_sight(&seen, occasion);
        let (policy, key) = (seen.policy.clone(), text_of_key(&seen.key).unwrap_or_default());
        let (to, why) = (seen.view.condition.as_str(), why(&seen));
        let would_trip = seen.view.would_trip;
        let BreakerChange { from, would_open } = self.notes.note(seen, first);
        let key = self.base.redact.text(&key, false);
        if let Some(would) = would_trip.filter(|_| would_open > 0) {
            tracing::info!(policy, key, by = %would.by, times = would.times, "a metrics-only breaker would have opened");
            self.base.metrics.protection.breaker_would_open(&policy, would_open);
        }
        let Some(from) = from else { return };
        let why = if to == "closed" { why_closed(from, occasion).to_owned() } else { why };
        tracing::info!(policy, key, from, to, why = %visible::line(&why), "a breaker changed its state");
        self.base.metrics.protection.breaker_changed(&policy, BreakerStateLabel::of(to));
        let why = visible::line(&why).to_string();
        let told = || json!({ "policy": policy, "key": key, "from": from, "to": to, "why": why });
        self.base.events.publish("breaker", told);
    }

    /// Reads every noted breaker, and those of each policy without a key (`only`: of one policy). Those that are not
    /// closed come first.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not answer.
    pub(crate) async fn list(
        &self,
        live: &ActiveConfig,
        only: Option<usize>,
    ) -> Result<Vec<ListedBreaker>, StoreError> {
        self.note_refusers().await;
        let wanted = |policy: &str| {
            only.is_none_or(|at| live.set.policies().get(at).is_some_and(|only| only.name == policy))
        };
        let noted = self.notes.lock().values().map(|noted| noted.seen.clone()).collect::<Vec<_>>();
        for KeyedView { key, policy, limit, .. } in noted.into_iter().filter(|seen| wanted(&seen.policy)) {
            let Some((words, quota)) = breaker_of(live, &policy, limit) else { continue };
            let charge = charge_of(words, limit, &key, quota);
            self.look(words, limit, &charge, Handling::Look).await?;
        }
        let mut listed: Vec<ListedBreaker> = Vec::new();
        for noted in self.notes.lock().values().filter(|noted| wanted(&noted.seen.policy)) {
            listed.extend(listed_of(live, noted.clone()));
        }
        for (at, policy) in live.set.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty())
        {
            for (limit, quota) in breakers_of(policy) {
                let Some(key) = live.set.key(at, limit, &Descriptor::new()) else { continue };
                if !wanted(&policy.name) || self.notes.knows(&key) {
                    continue;
                }
                let charge = charge_of(policy, limit, &key, quota);
                if let Some(seen) = self.look(policy, limit, &charge, Handling::Look).await? {
                    listed.extend(self.listed(live, seen));
                }
            }
        }
        let order = |one: &ListedBreaker| {
            let is_closed = one.noted.seen.view.condition == Condition::Closed;
            (is_closed, one.policy.clone(), one.key.clone(), one.noted.seen.limit)
        };
        listed.sort_by_cached_key(order);
        Ok(listed)
    }

    /// Reads the breakers of one key, or puts them into a state. `key` holds the attributes that the policy's `by`
    /// names.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not answer. The breakers of the policy that come before the failed one are
    /// changed already.
    pub(crate) async fn handle(
        &self,
        live: &ActiveConfig,
        policy: usize,
        key: &Descriptor<'_>,
        wanted: Option<&Wanted>,
    ) -> Result<Vec<ListedBreaker>, StoreError> {
        let words = &live.set.policies()[policy];
        let forced = wanted.map(|wanted| match wanted {
            Wanted::Auto => None,
            Wanted::Forced { to, lasts, reason } => {
                let until = lasts.map(|lasts| self.base.now().after(lasts));
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
            let charge = charge_of(words, limit, &bytes, quota);
            if let Some(seen) = self.look(words, limit, &charge, handling).await? {
                listed.extend(self.listed(live, seen));
            }
        }
        Ok(listed)
    }

    fn listed(&self, live: &ActiveConfig, seen: KeyedView) -> Option<ListedBreaker> {
        let noted = self.notes.lock().get(&seen.key).cloned();
        listed_of(live, noted.unwrap_or(Noted { seen, since: None, opened: 0 }))
    }

    async fn look(
        &self,
        policy: &Policy,
        limit: usize,
        charge: &Charge<'_>,
        handling: Handling<'_>,
    ) -> Result<Option<KeyedView>, StoreError> {
        let handled = self.base.gate.keys().handle_breaker(policy.share, charge, handling).await;
        let (view, at) = handled.inspect_err(|_| self.base.count_store_error())?;
        Ok(view.map(|view| {
            let seen = KeyedView::new(charge.key, &policy.name, limit, view, at);
            let looked = matches!(handling, Handling::Look);
            self.note(seen.clone(), if looked { Occasion::Looked } else { Occasion::Acted });
            seen
        }))
    }

    /// Returns the noted breakers that are open or half-open and refuse calls by themselves. Asks no store.
    pub(crate) fn standing_open(&self) -> Vec<OpenBreaker> {
        let noted: Vec<Noted> = {
            let noted = self.notes.lock();
            noted.values().filter(|noted| refuses(&noted.seen.view.condition)).cloned().collect()
        };
        if noted.is_empty() {
            return Vec::new();
        }
        let live = self.base.live();
        let listed = noted.into_iter().filter_map(|noted| listed_of(&live, noted));
        let open = listed.filter(|one| one.mode == Mode::Enforce).map(|one| OpenBreaker {
            key: self.base.redact.text(&one.key, false),
            since: one.noted.since,
            why: visible::line(&why(&one.noted.seen)).into_owned(),
            probes: matches!(one.noted.seen.view.condition, Condition::HalfOpen { .. }),
            policy: one.policy,
        });
        open.collect()
    }

    /// Sets the gauges of all breakers from the notes.
    pub(super) fn show(&self, live: &ActiveConfig) {
        let noted = self.notes.lock();
        for policy in live.set.policies().iter().filter(|policy| breakers_of(policy).next().is_some()) {
            let mut counts = [0_i64; BreakerStateLabel::ALL.len()];
            let own = noted.values().filter(|noted| noted.seen.policy == policy.name);
            for noted in own {
                counts[BreakerStateLabel::of(noted.seen.view.condition.as_str()) as usize] += 1;
            }
            // A breaker without a note is closed.
            if policy.by.is_empty() && counts.iter().all(|count| *count == 0) {
                counts[BreakerStateLabel::closed as usize] = 1;
            }
            self.base.metrics.protection.show_breakers(&policy.name, counts);
        }
    }

    /// Carries breakers over to their changed limits. Otherwise the store does so at the next use of each key, and a
    /// breaker that nobody uses before its limit is changed back would still be open.
    ///
    /// Returns how many were not carried over: the store did not answer, or not within five seconds for all of
    /// them. After an error it is not asked again, so that an engine that is gone does not hold up a reload.
    pub(crate) async fn start_anew(&self, breakers: &[KeyedView]) -> usize {
        let mut done = 0;
        let all = tokio::time::timeout(STARTED_WITHIN, self.carry_over(breakers, &mut done)).await;
        if matches!(all, Ok(Ok(()))) { 0 } else { breakers.len() - done }
    }

    /// Carries breakers over one after the other, and counts in `done` how many are.
    async fn carry_over(&self, breakers: &[KeyedView], done: &mut usize) -> Result<(), StoreError> {
        for KeyedView { key, policy, limit, .. } in breakers {
            let live = self.base.live();
            let found =
                live.set.find(policy).and_then(|(_, words)| Some((words, only_quota(words, *limit)?)));
            let Some((words, quota)) = found else {
                *done += 1;
                continue;
            };
            let charge = charge_of(words, *limit, key, quota);
            self.look(words, *limit, &charge, Handling::Adopt).await?;
            *done += 1;
        }
        Ok(())
    }

    /// Remembers the breakers that refuse a request without a note of it. Asks no store.
    pub(super) fn remember_refusers(&self, request: &Descriptor<'_>, decision: &GateDecision) {
        if decision.by == DecidedBy::Fallback {
            // The breakers of this node alone, which refuse until the engine is back, are not those of the list.
            return;
        }
        for line in decision.limits.iter().filter(|line| !line.decision.is_allowed()) {
            let policy = &decision.policies.policies()[line.policy];
            if !policy.limit(line.limit).is_some_and(Limit::is_breaker) {
                continue;
            }
            let Some(key) = decision.policies.key(line.policy, line.limit, request) else { continue };
            if !self.notes.is_noted_as_refusing(&key) {
                self.notes.unnoted.add(&key, &policy.name, line.limit);
            }
        }
    }

    /// Notes the breakers that have refused since the last call. After an error the others wait for their next
    /// refusal.
    pub(crate) async fn note_refusers(&self) {
        for (key, (policy, limit)) in self.notes.unnoted.take() {
            let live = self.base.live();
            let Some((words, quota)) = breaker_of(&live, &policy, limit) else { continue };
            let charge = charge_of(words, limit, &key, quota);
            let handled = self.base.gate.keys().handle_breaker(words.share, &charge, Handling::Look).await;
            let Ok((view, at)) = handled else { return };
            if let Some(view) = view {
                self.note(KeyedView::new(&key, &policy, limit, view, at), Occasion::Refused);
            }
        }
    }

    /// Reads breakers that may have changed although nobody calls: those that were noted as refusing, since one closes when
    /// it was idle for long, and other nodes close those of an engine; and those that time alone may open. After an error
    /// the others wait for the next turn.
    ///
    /// # Cancel safety
    /// What was read is noted; nothing else is changed.
    pub(crate) async fn look_again(&self) {
        let now = self.base.now();
        for KeyedView { key, policy, limit, .. } in self.notes.due(now) {
            if self.look_at(&key, &policy, limit).await.is_err() {
                return;
            }
        }
        for (key, closed) in self.notes.may_open.recent(now) {
            let Ok(view) = self.look_at(&key, &closed.policy, closed.limit).await else { return };
            if view.is_none_or(|view| view.condition != Condition::Closed || view.totals.calls == 0) {
                self.notes.may_open.forget(&key, &closed);
            }
        }
    }

    /// Reads and notes a breaker; `None` if there is none any longer.
    async fn look_at(
        &self,
        key: &[u8],
        policy: &str,
        limit: usize,
    ) -> Result<Option<BreakerView>, StoreError> {
        let live = self.base.live();
        let Some((words, quota)) = breaker_of(&live, policy, limit) else { return Ok(None) };
        let charge = charge_of(words, limit, key, quota);
        let (view, at) = self.base.gate.keys().handle_breaker(words.share, &charge, Handling::Look).await?;
        if let Some(view) = &view {
            self.note(KeyedView::new(key, policy, limit, view.clone(), at), Occasion::Looked);
        }
        Ok(view)
    }

    /// Returns the state of the breaker that refuses a request, if it is known: in this process's store the present
    /// one, otherwise the last seen, since a refusal costs no exchange with an engine.
    pub(crate) fn refusing(&self, request: &Descriptor<'_>, conclusion: &Conclusion) -> Option<BreakerView> {
        let Conclusion::Decided(decision) = conclusion else { return None };
        let bound = decision.binding.filter(|_| !decision.allowed).map(|at| &decision.limits[at])?;
        let policy = &decision.policies.policies()[bound.policy];
        policy.limit(bound.limit).filter(|limit| Limit::is_breaker(limit))?;
        let key = decision.policies.key(bound.policy, bound.limit, request)?;
        let charge = charge_of(policy, bound.limit, &key, only_quota(policy, bound.limit)?);
        match self.base.gate.keys().handle_breaker(policy.share, &charge, Handling::Look).now() {
            Ok((seen, _)) => seen,
            Err(_) => self.notes.last_seen(&key),
        }
    }
}

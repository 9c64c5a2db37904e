//! Guards canaries: stops one that refuses more than it may, and puts one in force for all keys that has held.
//!
//! Every ten seconds each canary is [compared](self::compare) with the other keys of its policy, beside what the policy's
//! [own limit](self::old_limit) would have decided. What was decided about a canary last, by the guard or by a person, is a
//! line of JSON in the history, so it holds after a restart, as does the time for which the canary has run; what was counted
//! ends with the process. Each second the share in force is made what was decided, since the server begins with that of the
//! file. Another text is another canary, of which nothing is known.
//!
//! Who sets a share has the last word on what the guard did; the guard goes on, but for a limit that a person has put in
//! force for all keys. Without data nothing is stopped, and nothing is put in force.

mod compare;
mod old_limit;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tidegate::{Tick, visible};
use tidegate_server::{Canary, WatchedServer};

use self::compare::{Comparison, Figures};
use self::old_limit::OldLimit;
use crate::alerts::{Done, RolledBack};
use crate::board::OTHERS;
use crate::feed::Event;
use crate::history::{History, MOST_CANARIES};

/// Canaries that are guarded at once: some 48 MiB. Others are counted, and told.
const MOST_GUARDED: usize = 32;

/// Events that are sorted at once, and handed over: 3 MiB.
const AT_ONCE: usize = 65_536;

/// How often a canary is judged, in seconds.
const JUDGED_EVERY: u64 = 10;

/// After how many seconds the requests of a comparison count: before, keys may have spent what is not known of.
const COUNTS_AFTER: u64 = 10;

/// The most seconds by which the time of a canary goes on at once: a clock that is set must not end it.
const LONGEST_STEP: u64 = 10;

/// How often the time of a canary is kept, in seconds.
const KEPT_EVERY: u64 = 60;

/// The longest reason, in bytes.
const LONGEST_REASON: usize = 255;

/// Shares that differ by less are the same.
const SAME_SHARE: f64 = 0.000_5;

/// The canaries of a server. Its lock is held for milliseconds while one is judged, and while the history takes a line.
#[derive(Debug)]
pub(crate) struct Canaries {
    history: Arc<History>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What is kept, by policy: at most [`MOST_CANARIES`].
    known: BTreeMap<String, Known>,
    /// The number of the next line.
    next: u64,
    /// Those in force, by the number of the policy: at most [`MOST_GUARDED`].
    running: HashMap<u16, Running, RandomState>,
    /// How many more are in force.
    unguarded: usize,
    /// The limits beside canaries in the configuration in force, by policy.
    old: BTreeMap<String, OldLimit>,
    second: u64,
}

#[derive(Debug)]
struct Known {
    number: u64,
    kept: Kept,
    /// When it was kept last.
    at: u64,
}

/// What is kept of a canary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    policy: String,
    /// A digest of its text.
    text: String,
    /// For how many seconds it has run.
    elapsed: u64,
    last: Option<Last>,
}

/// What was decided last. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Last {
    RolledBack { at: u64, why: String },
    Enforced { at: u64 },
    Set { at: u64, share: f64, who: String, reason: String },
}

impl Last {
    const fn share(&self) -> f64 {
        match self {
            Self::RolledBack { .. } => 0.0,
            Self::Enforced { .. } => 1.0,
            Self::Set { share, .. } => *share,
        }
    }
}

impl Kept {
    fn new(canary: &Canary) -> Self {
        Self { policy: canary.policy.clone(), text: digest(&canary.text), elapsed: 0, last: None }
    }

    fn json(&self) -> String {
        // Texts and numbers can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the guard judges it: neither stopped nor in force for all keys.
    fn is_open(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.share() > 0.0 && last.share() < 1.0)
    }

    fn is_over(&self, canary: &Canary) -> bool {
        self.elapsed >= canary.lasts.as_secs()
    }
}

/// A canary in force.
#[derive(Debug)]
struct Running {
    canary: Canary,
    compared: Comparison,
    /// When the comparison began.
    began: u64,
    /// When it is judged next, and when shares are judged by chance.
    judged_at: u64,
    looks_at: u64,
    figures: Figures,
}

impl Running {
    fn new(canary: &Canary, old: Option<OldLimit>, now: u64) -> Self {
        Self {
            compared: Comparison::new(old, canary.in_force),
            canary: canary.clone(),
            began: now,
            judged_at: now,
            looks_at: now,
            figures: Figures::default(),
        }
    }

    /// Begins to compare anew, since other keys are in the canary.
    fn restart(&mut self, now: u64) {
        self.compared.restart(self.canary.in_force);
        (self.began, self.judged_at, self.looks_at) = (now, now, now);
        self.figures = Figures::default();
    }

    /// Returns what is more than is allowed, if it is time to judge.
    fn judge(&mut self, now: u64) -> Option<String> {
        let age = now.saturating_sub(self.began);
        if age >= COUNTS_AFTER {
            self.compared.count();
        }
        // Also after the clock was set back.
        if now < self.judged_at && self.judged_at - now <= JUDGED_EVERY {
            return None;
        }
        self.judged_at = now.saturating_add(JUDGED_EVERY);
        let looks = now >= self.looks_at;
        if looks {
            self.looks_at = now.saturating_add((age / 10).max(JUDGED_EVERY));
        }
        self.figures = self.compared.figures(&self.canary);
        self.compared.breach(&self.canary, looks)
    }
}

/// What the server is asked to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    pub(crate) policy: String,
    pub(crate) text: String,
    pub(crate) share: f64,
    /// What the guard has decided, for the list of changes; `None`: it was decided before.
    pub(crate) change: Option<String>,
}

impl Canaries {
    /// Reads what the history has.
    pub(crate) fn new(history: Arc<History>) -> Self {
        let kept = history.canaries();
        let next = kept.first().map_or(1, |(number, _)| number.saturating_add(1));
        let mut known = BTreeMap::new();
        // The highest number last, so that of two lines of a policy that one stays.
        for (number, line) in kept.into_iter().rev() {
            if let Ok(kept) = serde_json::from_str::<Kept>(&line) {
                known.insert(kept.policy.clone(), Known { number, kept, at: 0 });
            }
        }
        Self { history, state: Mutex::new(State { known, next, ..State::default() }) }
    }

    /// Learns the policies of a configuration that comes into force.
    pub(crate) fn configured(&self, policies: &str) {
        let old = old_limit::read(policies);
        self.state.lock().old = old;
    }

    /// Returns the numbers of the policies whose events are wanted.
    pub(crate) fn guarded(&self) -> Vec<u16> {
        self.state.lock().running.keys().copied().collect()
    }

    /// Keeps an event of such a policy for [`Self::follow`], which is called when there are too many.
    pub(crate) fn keep(&self, events: &mut Vec<Event>, event: Event) {
        if events.len() >= AT_ONCE {
            self.follow(events);
        }
        events.push(event);
    }

    /// Follows events, which are in the order of each thread, and takes them out.
    pub(crate) fn follow(&self, events: &mut Vec<Event>) {
        if events.is_empty() {
            return;
        }
        // A limit decides about the requests of a key in their order; what ended was decided before.
        events.sort_by_key(|event| match event {
            Event::Seen(seen) => seen.at,
            Event::Ended(_) => Tick::MAX,
        });
        let mut state = self.state.lock();
        for event in events.drain(..) {
            let policy = match &event {
                Event::Seen(seen) => seen.policy,
                Event::Ended(ended) => ended.policy,
            };
            let Some(running) = state.running.get_mut(&policy) else { continue };
            match event {
                Event::Seen(seen) => running.compared.note(&seen),
                Event::Ended(ended) => running.compared.end(ended),
            }
        }
    }

    /// Judges the canaries in force, each with the number of its policy, at the end of a second. Returns what the server is
    /// to do.
    pub(crate) fn second(&self, now: u64, canaries: &[(u16, Canary)]) -> Vec<Order> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let before = mem::replace(&mut state.second, now);
        let step = if before == 0 { 0 } else { now.saturating_sub(before).min(LONGEST_STEP) };
        let guarded = canaries.iter().filter(|(policy, _)| *policy != OTHERS).take(MOST_GUARDED);
        let guarded: Vec<&(u16, Canary)> = guarded.collect();
        state.leave(&guarded);
        let unguarded = canaries.len() - guarded.len();
        if unguarded != mem::replace(&mut state.unguarded, unguarded) && unguarded > 0 {
            tracing::warn!(unguarded, "only {MOST_GUARDED} canaries are guarded, and there are more");
        }
        let mut orders = Vec::new();
        for (policy, canary) in guarded {
            orders.extend(self.guard(state, *policy, canary, now, step));
        }
        orders
    }

    fn guard(&self, state: &mut State, policy: u16, canary: &Canary, now: u64, step: u64) -> Option<Order> {
        state.enter(policy, canary, now);
        let running = state.running.get_mut(&policy)?;
        let known = state.known.get_mut(&canary.policy)?;
        let kept = &mut known.kept;
        let mut change = None;
        if kept.is_open() && canary.in_force > 0.0 {
            kept.elapsed = kept.elapsed.saturating_add(step);
            if let Some(why) = running.judge(now) {
                change = Some(format!("canary of {} rolled back: {why}", visible::name(&canary.policy)));
                kept.last = Some(Last::RolledBack { at: now, why });
            } else if canary.enforce && kept.is_over(canary) && running.figures.held {
                change = Some(format!("canary of {} enforced for all keys", visible::name(&canary.policy)));
                kept.last = Some(Last::Enforced { at: now });
            }
        }
        if change.is_some() || now.abs_diff(known.at) >= KEPT_EVERY {
            known.at = now;
            self.history.put_canary(known.number, &known.kept.json());
        }
        if let Some(change) = &change {
            tracing::warn!("{change}");
            self.history.write_soon();
        }
        let share = known.kept.last.as_ref()?.share();
        let differs = (share - canary.in_force).abs() >= SAME_SHARE;
        // None means none: no small rest may decide.
        let is_so = if share > 0.0 { !differs } else { canary.in_force <= 0.0 };
        let (policy, text) = (canary.policy.clone(), canary.text.clone());
        (!is_so || change.is_some()).then_some(Order { policy, text, share, change })
    }

    /// Returns the canaries in force that the guard has stopped.
    pub(crate) fn rolled_back(&self) -> Vec<RolledBack> {
        let state = self.state.lock();
        let stopped = state.running.values().filter_map(|running| {
            let policy = &running.canary.policy;
            match &state.known.get(policy)?.kept.last {
                Some(Last::RolledBack { at, why }) => {
                    Some(RolledBack { policy: policy.clone(), since: *at, why: why.clone() })
                }
                _ => None,
            }
        });
        stopped.collect()
    }

    /// Sets the share of a canary, as the body of a `POST` says. Returns what was done.
    ///
    /// # Errors
    /// The status, and what is wrong with the body; 404 if the policy has no canary, 409 if it has another one meanwhile.
    pub(crate) fn act(
        &self,
        policy: &str,
        body: &[u8],
        who: &str,
        now: u64,
        server: &dyn WatchedServer,
    ) -> Result<Done, (u16, String)> {
        let Asked { share, reason } = serde_json::from_slice(body).map_err(|error| -> (u16, String) {
            let error = visible::excerpt(&error.to_string());
            let such = "{\"share\": 0.05, \"reason\": \"once more\"}";
            (400, format!("the body is not one such as {such}: {error}"))
        })?;
        if !(0.0..=1.0).contains(&share) {
            return Err((400, "`share`: use the share of the keys, from 0 to 1".to_owned()));
        }
        let reason = visible::line(reason.as_deref().unwrap_or_default().trim()).into_owned();
        if reason.len() > LONGEST_REASON {
            return Err((400, format!("`reason`: say why in one line of at most {LONGEST_REASON} bytes")));
        }
        let text = {
            let state = self.state.lock();
            let running = state.running.values().find(|running| running.canary.policy == policy);
            running.map(|running| running.canary.text.clone())
        };
        let none = || -> (u16, String) {
            let name = visible::excerpt(policy);
            (404, format!("the policy `{name}` has no canary that is guarded"))
        };
        let text = text.ok_or_else(none)?;
        if !server.set_canary_share(policy, &text, share) {
            return Err((409, "the policy has another canary now, or none; look again".to_owned()));
        }
        let last = Last::Set { at: now, share, who: who.to_owned(), reason: reason.clone() };
        let mut state = self.state.lock();
        let State { known, running, .. } = &mut *state;
        let known =
            known.get_mut(policy).filter(|known| known.kept.text == digest(&text)).ok_or_else(none)?;
        // What was stopped begins anew.
        if !known.kept.is_open() {
            known.kept.elapsed = 0;
        }
        known.kept.last = Some(last);
        self.history.put_canary(known.number, &known.kept.json());
        self.history.write_soon();
        for running in running.values_mut().filter(|running| running.canary.policy == policy) {
            running.canary.in_force = share;
            running.restart(now);
        }
        let name = visible::name(policy);
        let text = if share <= 0.0 {
            format!("canary of {name} stopped")
        } else if share >= 1.0 {
            format!("canary of {name} enforced for all keys")
        } else {
            format!("canary of {name} decides for {} % of the keys", in_percent(share))
        };
        Ok(Done { reason, text })
    }

    /// Returns the canaries in force, by policy, and how many more there are.
    pub(crate) fn shown(&self) -> (Vec<Value>, usize) {
        let state = self.state.lock();
        let each = state.running.values().filter_map(|running| {
            let kept = &state.known.get(&running.canary.policy)?.kept;
            Some((running.canary.policy.as_str(), shown(running, kept, state.second)))
        });
        let by_policy: BTreeMap<&str, Value> = each.collect();
        (by_policy.into_values().collect(), state.unguarded)
    }
}

/// The body of a `POST`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    share: f64,
    reason: Option<String>,
}

impl State {
    /// Lets go of the canaries that are no longer in force.
    fn leave(&mut self, guarded: &[&(u16, Canary)]) {
        let policies: BTreeSet<u16> = guarded.iter().map(|(policy, _)| *policy).collect();
        self.running.retain(|policy, _| policies.contains(policy));
        // Of those that are gone the oldest goes, to make room for new ones.
        let names: BTreeSet<&str> = guarded.iter().map(|(_, canary)| canary.policy.as_str()).collect();
        let new = names.iter().filter(|name| !self.known.contains_key(**name)).count();
        while self.known.len() + new > MOST_CANARIES {
            let gone = self.known.iter().filter(|(name, _)| !names.contains(name.as_str()));
            let Some(oldest) = gone.min_by_key(|(_, known)| known.number).map(|(name, _)| name.clone())
            else {
                return;
            };
            self.known.remove(&oldest);
        }
    }

    /// Follows a canary in force.
    fn enter(&mut self, policy: u16, canary: &Canary, now: u64) {
        let State { known, next, running, old, .. } = self;
        let known = known.entry(canary.policy.clone()).or_insert_with(|| {
            let number = *next;
            *next = next.saturating_add(1);
            Known { number, kept: Kept::new(canary), at: 0 }
        });
        if known.kept.text != digest(&canary.text) {
            (known.kept, known.at) = (Kept::new(canary), 0);
            running.remove(&policy);
        }
        let old = old.get(&canary.policy);
        match running.get_mut(&policy).filter(|running| running.compared.old_limit() == old) {
            Some(running) => {
                let before = mem::replace(&mut running.canary, canary.clone()).in_force;
                // What was found stays to be seen when nothing is compared any more.
                let compares = canary.in_force > 0.0 && canary.in_force < 1.0;
                if compares && (before - canary.in_force).abs() >= SAME_SHARE {
                    running.restart(now);
                }
            }
            None => _ = running.insert(policy, Running::new(canary, old.cloned(), now)),
        }
    }
}

/// Shows a canary as JSON.
fn shown(running: &Running, kept: &Kept, now: u64) -> Value {
    let Running { canary, figures, .. } = running;
    let (level, state) = in_words(running, kept, now);
    let groups = |pair: [Value; 2]| {
        let [of_canary, of_others] = pair;
        json!({ "canary": of_canary, "others": of_others })
    };
    let shares = |shares: Option<[f64; 2]>, allowed: f64| {
        let shares = shares.map(|shares| shares.map(|share| (share * 1e5).round() / 1e5));
        let [canary, others] = shares.map_or([None; 2], |shares| shares.map(Some));
        json!({ "canary": canary, "others": others, "allowed_more": allowed })
    };
    json!({
        "policy": canary.policy,
        "limit": canary.limit,
        "share": canary.share,
        "in_force": canary.in_force,
        "elapsed_s": kept.elapsed,
        "for_s": canary.lasts.as_secs(),
        "then": if canary.enforce { "enforce" } else { "hold" },
        "state": state,
        "level": level,
        "compared_with": if figures.by_old_limit { "its own limit" } else { "other keys" },
        "requests": groups(figures.requests.map(Value::from)),
        "keys": groups(figures.keys.map(Value::from)),
        "share_of_keys": groups(figures.share_of_keys.map(Value::from)),
        "denied_share": shares(figures.denied, canary.denied),
        "failed_share": shares(figures.failures, canary.failures),
        "keys_refused": { "canary": figures.keys_refused, "allowed": canary.keys_refused },
    })
}

/// Says what state a canary is in: a word for its level, and words for people.
fn in_words(running: &Running, kept: &Kept, now: u64) -> (&'static str, String) {
    let Running { canary, figures, .. } = running;
    let by = |who: &str, reason: &str| {
        let who = if who.is_empty() { String::new() } else { format!(" by {who}") };
        if reason.is_empty() { who } else { format!("{who}: {reason}") }
    };
    match &kept.last {
        Some(Last::RolledBack { at, why }) => {
            return ("bad", format!("rolled back {}: {why}", time(*at, now)));
        }
        Some(Last::Enforced { at }) => return ("ok", format!("enforced for all keys {}", time(*at, now))),
        Some(Last::Set { at, share, who, reason }) if *share <= 0.0 => {
            return ("warn", format!("stopped {}{}", time(*at, now), by(who, reason)));
        }
        Some(Last::Set { at, share, who, reason }) if *share >= 1.0 => {
            return ("ok", format!("enforced for all keys {}{}", time(*at, now), by(who, reason)));
        }
        Some(Last::Set { .. }) | None => {}
    }
    let state = match (kept.is_over(canary), canary.enforce) {
        _ if canary.in_force <= 0.0 => ("warn", "decides for no key".to_owned()),
        _ if canary.in_force >= 1.0 => ("warn", "has no other keys to be compared with".to_owned()),
        _ if figures.requests[0] == 0 => ("quiet", "waits for data".to_owned()),
        (false, _) => ("ok", "runs".to_owned()),
        (true, false) => ("ok", "holds: its time is over".to_owned()),
        (true, true) if figures.is_enough => {
            ("warn", "holds: its time is over, and more is refused or fails than is allowed".to_owned())
        }
        (true, true) => ("quiet", "waits for data".to_owned()),
    };
    match &kept.last {
        Some(Last::Set { at, share, who, reason }) => {
            let set = format!("{} % of the keys since {}", in_percent(*share), time(*at, now));
            (state.0, format!("{}; {set}{}", state.1, by(who, reason)))
        }
        _ => state,
    }
}

/// A share in percent, with at most two digits after the point.
fn in_percent(share: f64) -> f64 {
    (share * 10_000.0).round() / 100.0
}

/// `03:12`, with the day if that is not today's.
fn time(at: u64, now: u64) -> String {
    let format = if at / 86_400 == now / 86_400 { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    at.map_or_else(String::new, |at| at.strftime(format).to_string())
}

/// The first half of the SHA-256 of a text, in hexadecimal.
fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

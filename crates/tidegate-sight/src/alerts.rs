//! Alerts: what is wrong, since when, and who is told.
//!
//! [`rules`] say what is wrong now; this keeps what they said. An alert that fires, and one that is resolved, is a line of
//! JSON in the history, so both survive a restart: alerts of the process before are given a few minutes in which their
//! rule may find them again, and are resolved if it does not. A [silence](Silence) keeps an alert from receivers, not from
//! the list. Silences, and when webhooks got messages, are a note in the history, which is on disk before whoever silenced
//! is answered.
//!
//! Times are of the wall clock, for people. When that makes a step, all of them move with it, so that what was to last for
//! two hours does.
//!
//! [`messages`] says when which receiver gets which text; [`delivery`] sends it.

mod delivery;
mod messages;
mod rules;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::visible;
use tidegate_server::{AlertMessages, Firing};

use self::delivery::Counts;
pub(crate) use self::delivery::Delivery;
use self::messages::{GROUP_INTERVAL, Outbox, Standing};
pub(crate) use self::rules::{
    Before, CUT_SLICES, Key, RolledBack, SLICE, Second, Slice, UnusualPolicy, refused_by,
};
use self::rules::{Found, Rule, Rules};
use crate::history::{History, NoteOf};

/// Alerts that are kept, and for how many seconds.
const MOST: usize = 1_000;
const KEPT_FOR: u64 = 7 * 86_400;

/// Alerts of a rule that fire at once, beside those about the server. Callers choose keys, and could keep one rule from telling
/// of others; of more, the list tells nothing new.
const MOST_OF_A_RULE: usize = 100;

/// After a start, how long alerts of the process before wait to be found again: longer than the slowest rule.
const FOUND_AGAIN_WITHIN: u64 = 6 * 60;

/// Silences at once, and the longest, in seconds.
const MOST_SILENCES: usize = 100;
const LONGEST_SILENCE: u64 = 86_400;

/// The longest reason, and the longest name of a policy in a silence, in bytes.
const LONGEST_REASON: usize = 255;
const LONGEST_POLICY: usize = 1_024;

/// The longest text of an alert, in bytes.
const LONGEST_TEXT: usize = 600;

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Alert {
    pub(crate) rule: Rule,
    pub(crate) policy: String,
    /// The digest of the key.
    pub(crate) key: String,
    /// Since when its condition holds, and since when it fires, in seconds since 1970.
    pub(crate) since: u64,
    pub(crate) fired: u64,
    pub(crate) resolved: Option<u64>,
    pub(crate) text: String,
    pub(crate) path: String,
}

/// Returns the words of the rules.
pub(crate) fn rule_words() -> [&'static str; Rule::ALL.len()] {
    Rule::ALL.map(Rule::word)
}

/// What an alert is about.
pub(crate) type Subject = (Rule, String, String);

impl Alert {
    fn of(found: &Found, now: u64) -> Self {
        let Found { rule, policy, key, since, text, path } = found.clone();
        let text = visible::line(&text[..text.floor_char_boundary(LONGEST_TEXT)]).into_owned();
        Self { rule, policy, key, since, fired: now, resolved: None, text, path }
    }

    pub(crate) fn subject(&self) -> Subject {
        (self.rule, self.policy.clone(), self.key.clone())
    }

    fn follow_step(&mut self, by: i64) {
        let times = [&mut self.since, &mut self.fired].into_iter().chain(&mut self.resolved);
        times.for_each(|at| shift(at, by));
    }

    fn json(&self) -> String {
        // Texts and whole numbers can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn shown(&self, number: u64, is_silenced: bool) -> Value {
        json!({
            "number": number,
            "rule": self.rule.word(),
            "severity": self.rule.severity(),
            "policy": self.policy,
            "key": self.key,
            "since": rfc3339(self.since),
            "fired": rfc3339(self.fired),
            "resolved": self.resolved.and_then(rfc3339),
            "silenced": is_silenced,
            "text": self.text,
            "path": self.path,
        })
    }
}

/// What is not told for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Silence {
    /// `None`: all rules, all policies.
    rule: Option<Rule>,
    policy: Option<String>,
    from: u64,
    until: u64,
    who: String,
    reason: String,
}

impl Silence {
    /// Returns a silence of the process before as it goes on at `now`, if it is not over. It has no more time left than it
    /// had then, although the clock was set back.
    fn going_on(self, now: u64) -> Option<Self> {
        let had = self.until.saturating_sub(self.from);
        let left = self.until.saturating_sub(now).min(had);
        (left > 0).then(|| Self { from: now, until: now.saturating_add(left), ..self })
    }

    fn is_same(&self, rule: Option<Rule>, policy: &Option<String>) -> bool {
        (self.rule, &self.policy) == (rule, policy)
    }

    fn is_about(&self, alert: &Alert) -> bool {
        self.rule.is_none_or(|rule| rule == alert.rule)
            && self.policy.as_ref().is_none_or(|policy| *policy == alert.policy)
    }

    fn shown(&self) -> Value {
        json!({
            "rule": self.rule.map(Rule::word),
            "policy": self.policy,
            "until": rfc3339(self.until),
            "who": self.who,
            "reason": self.reason,
        })
    }
}

/// What somebody did, for the list of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) reason: String,
    pub(crate) text: String,
}

/// The alerts of a server. Its lock is held for microseconds, and while the history takes a line.
#[derive(Debug)]
pub(crate) struct Alerts {
    history: Arc<History>,
    state: Mutex<State>,
    delivery: Delivery,
}

#[derive(Debug)]
struct State {
    rules: Rules,
    /// The number of the next alert.
    next: u64,
    /// By subject: the number, and the alert.
    firing: BTreeMap<Subject, (u64, Alert)>,
    /// Those of the process before, which fire until then without being found.
    carried: BTreeSet<Subject>,
    carried_until: u64,
    silences: VecDeque<Silence>,
    outbox: Outbox,
}

/// The note in the history, as it is read.
#[derive(Debug, Deserialize)]
struct Note {
    silences: Vec<Value>,
    /// When webhooks got messages: [`Outbox::sent`].
    sent: Vec<Vec<u64>>,
}

impl State {
    fn note(&self) -> String {
        json!({ "silences": self.silences, "sent": self.outbox.sent() }).to_string()
    }

    /// Learns what the process before had noted.
    fn learn(&mut self, note: &str, now: u64) {
        let Ok(Note { silences, sent }) = serde_json::from_str(note) else {
            tracing::warn!("the silences of alerts cannot be read");
            return;
        };
        for silence in silences {
            let Ok(silence) = serde_json::from_value::<Silence>(silence) else {
                tracing::warn!("a silence of alerts is of another version, and ends");
                continue;
            };
            let is_known = self.silences.iter().any(|known| known.is_same(silence.rule, &silence.policy));
            if let Some(silence) = silence.going_on(now).filter(|_| !is_known)
                && self.silences.len() < MOST_SILENCES
            {
                self.silences.push_back(silence);
            }
        }
        self.outbox.remember(&sent, now);
    }
}

impl Alerts {
    /// Reads what the history has. `now` is in seconds since 1970.
    pub(crate) fn new(history: Arc<History>, delivery: Delivery, now: u64) -> Self {
        let known = history.alerts(MOST);
        let next = known.first().map_or(1, |(number, _)| number.saturating_add(1));
        let mut rules = Rules::default();
        let mut firing = BTreeMap::new();
        for (number, text) in &known {
            let Some(mut alert) = read(text) else { continue };
            if alert.rule == Rule::CustomerCut {
                rules.knew_customer(&alert.policy, &alert.key, alert.resolved, now);
            }
            if alert.rule == Rule::TenantNear {
                rules.knew_near(&alert.policy, &alert.key, alert.resolved, now);
            }
            if alert.resolved.is_none() && firing.len() < MOST_OF_A_RULE * Rule::ALL.len() {
                // Not later than now, although the clock was set back.
                (alert.since, alert.fired) = (alert.since.min(now), alert.fired.min(now));
                // The newest comes first.
                firing.entry(alert.subject()).or_insert((*number, alert));
            }
        }
        let mut state = State {
            rules,
            next,
            carried: firing.keys().cloned().collect(),
            firing,
            carried_until: now.saturating_add(FOUND_AGAIN_WITHIN),
            silences: VecDeque::new(),
            outbox: Outbox::new(&delivery.kinds(), delivery.link()),
        };
        if let Some(note) = history.found_note(NoteOf::Alerts) {
            state.learn(&note, now);
            history.put_note(NoteOf::Alerts, &state.note());
        }
        Self { history, state: Mutex::new(state), delivery }
    }

    /// Begins to send, if there are receivers and a runtime.
    pub(crate) fn begin(&self) {
        self.delivery.begin();
    }

    /// Takes the messages that wait: [`Delivery::taken`].
    #[cfg(test)]
    pub(crate) fn taken(&self) -> Vec<messages::Message> {
        self.delivery.taken()
    }

    /// Judges the keys of a minute that began at `from`: [`Rules::minute`].
    pub(crate) fn minute(&self, from: u64, keys: &[Key], before: &dyn Fn(u16, u64) -> Before) {
        self.state.lock().rules.minute(from, keys, before);
    }

    /// Judges the keys that are refused for long at the end of a slice: [`Rules::slice`].
    pub(crate) fn slice(&self, now: u64, keys: &[Key], before: &dyn Fn(u16, u64) -> Before) {
        self.state.lock().rules.slice(now, keys, before);
    }

    /// Judges a second, keeps what began and what ended, and gives receivers what is due.
    pub(crate) fn second(&self, second: &Second<'_>) {
        let now = second.now;
        let mut state = self.state.lock();
        let state = &mut *state;
        // Of a file that was opened later than at the start.
        if let Some(note) = self.history.found_note(NoteOf::Alerts) {
            state.learn(&note, now);
            self.history.put_note(NoteOf::Alerts, &state.note());
        }
        let found = state.rules.second(second);
        self.follow(state, &found, now);
        state.silences.retain(|silence| silence.until > now);
        let (silences, carried) = (&state.silences, &state.carried);
        let told_before = state.carried_until.saturating_sub(FOUND_AGAIN_WITHIN + GROUP_INTERVAL);
        let standing = state.firing.iter().map(|(subject, (_, alert))| Standing {
            alert,
            is_silenced: silences.iter().any(|silence| silence.is_about(alert)),
            was_told: alert.fired <= told_before && carried.contains(subject),
        });
        let messages = state.outbox.second(now, &standing.collect::<Vec<_>>());
        if messages.iter().any(|message| !message.replaces) {
            // A server that crashes again and again must not tell of it more often than another.
            self.history.put_note(NoteOf::Alerts, &state.note());
            self.history.write_soon();
        }
        for message in messages {
            self.delivery.send(message);
        }
    }

    /// Moves all times with a step of the wall clock, in seconds.
    pub(crate) fn follow_step(&self, by: i64) {
        let mut state = self.state.lock();
        let State { rules, firing, carried_until, silences, outbox, .. } = &mut *state;
        rules.follow_step(by);
        firing.values_mut().for_each(|(_, alert)| alert.follow_step(by));
        shift(carried_until, by);
        for silence in silences {
            shift(&mut silence.from, by);
            shift(&mut silence.until, by);
        }
        outbox.follow_step(by);
        self.history.put_note(NoteOf::Alerts, &state.note());
    }

    fn follow(&self, state: &mut State, found: &[Found], now: u64) {
        let mut of_rules: BTreeMap<Rule, usize> = BTreeMap::new();
        for (rule, ..) in state.firing.keys() {
            *of_rules.entry(*rule).or_default() += 1;
        }
        for found in found {
            let subject = (found.rule, found.policy.clone(), found.key.clone());
            let of_rule = of_rules.entry(found.rule).or_default();
            // Those about the server are few, and tell most.
            let is_full = *of_rule >= MOST_OF_A_RULE && !found.policy.is_empty();
            if is_full || state.firing.contains_key(&subject) {
                continue;
            }
            *of_rule += 1;
            let alert = Alert::of(found, now);
            tracing::warn!(
                rule = alert.rule.word(),
                policy = alert.policy,
                key = alert.key,
                "{}",
                alert.text
            );
            // A file that could not be read at the start may have been found since, with higher numbers.
            let newest = self.history.alerts(1).first().map_or(0, |(number, _)| *number);
            let number = state.next.max(newest.saturating_add(1));
            state.next = number.saturating_add(1);
            self.history.put_alert(number, &alert.json());
            state.firing.insert(subject, (number, alert));
        }
        let subjects: BTreeSet<(Rule, &str, &str)> =
            found.iter().map(|found| (found.rule, &*found.policy, &*found.key)).collect();
        let State { firing, carried, carried_until, .. } = state;
        // Of the process before, until the rules have found them or have had the time.
        if now >= *carried_until {
            carried.clear();
        }
        carried.retain(|(rule, policy, key)| !subjects.contains(&(*rule, &**policy, &**key)));
        firing.retain(|subject, (number, alert)| {
            let (rule, policy, key) = subject;
            if subjects.contains(&(*rule, &**policy, &**key)) || carried.contains(subject) {
                return true;
            }
            alert.resolved = Some(now);
            tracing::info!(
                rule = alert.rule.word(),
                policy = alert.policy,
                key = alert.key,
                "an alert is over"
            );
            self.history.put_alert(*number, &alert.json());
            false
        });
    }

    /// Returns the alerts, those that fire first, then the newest first; silences; and how messages fare.
    pub(crate) fn read(&self, most: usize, now: u64) -> Value {
        let (mut firing, silences): (Vec<(u64, Alert)>, Vec<Silence>) = {
            let state = self.state.lock();
            (state.firing.values().cloned().collect(), state.silences.iter().cloned().collect())
        };
        firing.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        let known = self.history.alerts(MOST);
        let past = known.iter().filter_map(|(number, text)| Some((*number, read(text)?)));
        let past = past.filter(|(_, alert)| {
            alert.resolved.is_some_and(|resolved| now.saturating_sub(resolved) <= KEPT_FOR)
        });
        let is_silenced = |alert: &Alert| {
            alert.resolved.is_none()
                && silences.iter().any(|silence| silence.until > now && silence.is_about(alert))
        };
        let shown: Vec<Value> = firing
            .iter()
            .cloned()
            .chain(past)
            .take(most)
            .map(|(number, alert)| alert.shown(number, is_silenced(&alert)))
            .collect();
        json!({
            "firing": firing.len(),
            "alerts": shown,
            "silences": silences.iter().map(Silence::shown).collect::<Vec<Value>>(),
            "receivers": self.delivery.shown(),
        })
    }

    /// Returns how many alerts fire, by rule and policy; each rule also without a policy.
    pub(crate) fn firing(&self) -> Vec<Firing> {
        let mut counts: BTreeMap<(Rule, String), u64> =
            Rule::ALL.into_iter().map(|rule| ((rule, String::new()), 0)).collect();
        for (_, alert) in self.state.lock().firing.values() {
            *counts.entry((alert.rule, alert.policy.clone())).or_default() += 1;
        }
        let firing =
            |((rule, policy), alerts): ((Rule, String), u64)| Firing { rule: rule.word(), policy, alerts };
        counts.into_iter().map(firing).collect()
    }

    /// Returns how messages to receivers fared since the start, by kind of receiver.
    pub(crate) fn messages(&self) -> Vec<AlertMessages> {
        let left_out = self.state.lock().outbox.left_out();
        let mut all: BTreeMap<(&'static str, &'static str), u64> = BTreeMap::new();
        for (counts, left_out) in self.delivery.counts().into_iter().zip(left_out) {
            let Counts { kind, sent, failed, refused, dropped } = counts;
            let fates = [
                ("sent", sent),
                ("failed", failed),
                ("refused", refused),
                ("dropped", dropped),
                ("left_out", left_out),
            ];
            for (fate, count) in fates {
                *all.entry((kind.word(), fate)).or_default() += count;
            }
        }
        all.into_iter().map(|((receiver, fate), count)| AlertMessages { receiver, fate, count }).collect()
    }

    /// Puts the note on disk. Returns what to add to the answer if that is not possible.
    fn written(&self) -> &'static str {
        if self.history.write_now() { "" } else { "; it is not on disk yet, and a restart would undo it" }
    }

    /// Does what a body says. Returns what was done. Waits for the disk, five seconds at most.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(crate) fn act(&self, body: &[u8], who: &str, now: u64) -> Result<Done, String> {
        let asked: Asked = serde_json::from_slice(body).map_err(|error| {
            format!("the body is not one such as {{\"do\": \"silence\", \"rule\": \"tenant-near\", \"for\": \"2h\", \"reason\": \"the sale\"}}: {error}")
        })?;
        let rule = asked.rule.as_deref().filter(|word| !word.is_empty()).map(rule_named).transpose()?;
        let policy = asked.policy.clone().filter(|policy| !policy.is_empty());
        if policy.as_ref().is_some_and(|policy| policy.len() > LONGEST_POLICY) {
            return Err(format!("`policy`: no name of a policy has more than {LONGEST_POLICY} bytes here"));
        }
        let about = match (rule, &policy) {
            (None, None) => "all alerts".to_owned(),
            (Some(rule), None) => format!("alerts of {}", rule.word()),
            (rule, Some(policy)) => {
                format!(
                    "alerts of {}{}",
                    rule.map_or_else(String::new, |rule| rule.word().to_owned() + " "),
                    visible::name(policy)
                )
            }
        };
        match asked.action {
            Action::Silence => {
                let (lasts, reason) = (asked.lasts()?, asked.reason()?);
                {
                    let mut state = self.state.lock();
                    state.silences.retain(|silence| !silence.is_same(rule, &policy));
                    if state.silences.len() >= MOST_SILENCES {
                        return Err(format!("there are {MOST_SILENCES} silences already; end one"));
                    }
                    let (from, until) = (now, now.saturating_add(lasts));
                    let (who, reason) = (who.to_owned(), reason.clone());
                    state.silences.push_back(Silence { rule, policy, from, until, who, reason });
                    self.history.put_note(NoteOf::Alerts, &state.note());
                }
                let text = format!("{about} are silenced for {} min{}", lasts / 60, self.written());
                Ok(Done { reason, text })
            }
            Action::EndSilence => {
                {
                    let mut state = self.state.lock();
                    let before = state.silences.len();
                    state.silences.retain(|silence| !silence.is_same(rule, &policy));
                    if state.silences.len() == before {
                        return Err(format!("{about} are not silenced by themselves"));
                    }
                    self.history.put_note(NoteOf::Alerts, &state.note());
                }
                let text = format!("{about} are no longer silenced{}", self.written());
                Ok(Done { reason: String::new(), text })
            }
            Action::Test => {
                let messages = {
                    let mut state = self.state.lock();
                    if state.outbox.is_empty() {
                        let why = "there is no receiver; name some in server.sight of the policy file";
                        return Err(why.to_owned());
                    }
                    let messages = state.outbox.test(now);
                    self.history.put_note(NoteOf::Alerts, &state.note());
                    messages
                };
                if messages.is_empty() {
                    return Err("each webhook had its messages of this hour; test it later".to_owned());
                }
                let sent = messages.len();
                messages.into_iter().for_each(|message| self.delivery.send(message));
                Ok(Done { reason: String::new(), text: format!("a test message goes to {sent} receivers") })
            }
        }
    }
}

/// The body of a `POST`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(rename = "do")]
    action: Action,
    rule: Option<String>,
    policy: Option<String>,
    #[serde(rename = "for")]
    lasts: Option<String>,
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Silence,
    EndSilence,
    Test,
}

impl Asked {
    /// Returns for how many seconds, a minute at least.
    fn lasts(&self) -> Result<u64, String> {
        let text = self.lasts.as_deref().unwrap_or("1h");
        let span = tidegate::policy::span(text).ok().map(|span| span.as_secs());
        span.filter(|span| (60..=LONGEST_SILENCE).contains(span)).ok_or_else(|| {
            format!("`for`: `{}` cannot be used; use 1min to 24h, such as 2h", visible::excerpt(text))
        })
    }

    fn reason(&self) -> Result<String, String> {
        let reason = self.reason.as_deref().unwrap_or_default().trim();
        if reason.is_empty() || reason.len() > LONGEST_REASON {
            return Err(format!("`reason`: say why in one line of at most {LONGEST_REASON} bytes"));
        }
        Ok(visible::line(reason).into_owned())
    }
}

fn rule_named(word: &str) -> Result<Rule, String> {
    Rule::ALL.into_iter().find(|rule| rule.word() == word).ok_or_else(|| {
        let known = rule_words().join(", ");
        format!("`rule`: there is no rule `{}`; use {known}", visible::excerpt(word))
    })
}

/// Reads a line of the history; `None` if it is of a version that is not known.
fn read(text: &str) -> Option<Alert> {
    serde_json::from_str(text).ok()
}

/// Moves a time, in seconds since 1970.
fn shift(at: &mut u64, by: i64) {
    *at = at.saturating_add_signed(by);
}

/// Formats seconds since 1970. `None` after the year 9999.
fn rfc3339(seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok()?;
    jiff::Timestamp::from_second(seconds).ok().map(|at| at.to_string())
}

#[cfg(test)]
mod tests;

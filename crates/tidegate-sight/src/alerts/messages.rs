//! Which receiver gets which text, and when. Nothing here waits or sends; time is an argument.
//!
//! *Alertmanager* groups by itself. So it gets all alerts that fire, each minute and at each change, with an end in four
//! minutes: if this process is gone, its alerts end by themselves.
//!
//! *A webhook* gets messages as Alertmanager would send them, grouped by rule and policy: ten seconds after a group began,
//! which is how often keys are judged, five minutes after its last message if there is news, four hours after it if there is
//! none. *News* is that an alert begins, or that all are over. Whoever has had two messages of a group looks at the page: after
//! that, an alert that begins is news an hour after the last message, unless four times as many fire or all are over. At most
//! twelve messages an hour, also over restarts: two of them are for what is critical, and six more for warnings, since callers
//! choose keys, and how near to their rates these are. What is left out is tried again five minutes later, and the next message
//! tells how many were.
//!
//! A message has digests of keys, and never their names.
//!
//! # Source
//! Alertmanager's API version 2 (`/api/v2/alerts`), and version 4 of its webhook's JSON.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::rules::Rule;
use super::{Alert, Subject, rfc3339, shift};

/// How long Alertmanager may believe an alert that is not repeated, and how often it is.
const ENDS_AFTER: u64 = 240;
const RESENT_EACH: u64 = 60;

/// The least time between two lists for Alertmanager.
const LEAST_PAUSE: u64 = 5;

/// For how long Alertmanager is told that an alert is over.
const OVER_FOR: u64 = 300;

/// The times of a group of a webhook.
const GROUP_WAIT: u64 = 10;
pub(crate) const GROUP_INTERVAL: u64 = 300;
const MORE_EACH: u64 = 3_600;
const REPEAT_EACH: u64 = 4 * 3_600;

/// The most alerts of a group that are over and wait to be told.
const MOST_OVER: usize = 1_000;

/// Messages of a webhook in an hour, and how many of them are kept for what is critical, and for what is that or a warning.
const MOST_AN_HOUR: usize = 12;
const FOR_CRITICAL: usize = 2;
const FOR_WARNINGS: usize = 8;
const HOUR: u64 = 3_600;

/// Alerts of one message: a person reads it.
const MOST_IN_MESSAGE: usize = 3;

/// What a receiver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Alertmanager,
    Webhook,
}

impl Kind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Alertmanager => "alertmanager",
            Self::Webhook => "webhook",
        }
    }
}

/// An alert that fires.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing<'a> {
    pub(crate) alert: &'a Alert,
    pub(crate) is_silenced: bool,
    /// Whether the process before had the time to tell webhooks: a restart is no news.
    pub(crate) was_told: bool,
}

/// A text for a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The place of the receiver in the list.
    pub(crate) receiver: usize,
    pub(crate) body: String,
    /// It tells all that an earlier one of the same receiver tells, if that one still waits.
    pub(crate) replaces: bool,
}

/// What all receivers were told.
#[derive(Debug)]
pub(crate) struct Outbox {
    receivers: Vec<Receiver>,
    /// What paths of pages are appended to; `None`: messages have no links.
    link: Option<Arc<str>>,
}

#[derive(Debug)]
enum Receiver {
    Alertmanager(Manager),
    Webhook(Hook),
}

impl Outbox {
    pub(crate) fn new(kinds: &[Kind], link: Option<Arc<str>>) -> Self {
        let receiver = |kind: &Kind| match kind {
            Kind::Alertmanager => Receiver::Alertmanager(Manager::default()),
            Kind::Webhook => Receiver::Webhook(Hook::default()),
        };
        Self { receivers: kinds.iter().map(receiver).collect(), link }
    }

    /// Returns what is due at the end of a second.
    pub(crate) fn second(&mut self, now: u64, standing: &[Standing<'_>]) -> Vec<Message> {
        let link = self.link.as_deref();
        let mut messages = Vec::new();
        for (at, receiver) in self.receivers.iter_mut().enumerate() {
            match receiver {
                Receiver::Alertmanager(manager) => {
                    let body = manager.second(now, standing, link);
                    messages.extend(body.map(|body| Message { receiver: at, body, replaces: true }));
                }
                Receiver::Webhook(hook) => {
                    let bodies = hook.second(now, standing, link);
                    let message = |body| Message { receiver: at, body, replaces: false };
                    messages.extend(bodies.into_iter().map(message));
                }
            }
        }
        messages
    }

    /// Returns a test message for each receiver, but for webhooks that have had their messages of this hour.
    pub(crate) fn test(&mut self, now: u64) -> Vec<Message> {
        let link = self.link.as_deref();
        let mut alert = json!({
            "labels": { "alertname": "TidegateTest", "severity": "info" },
            "annotations": { "summary": "a test, sent by hand: nothing is wrong" },
            "startsAt": rfc3339(now),
            "endsAt": rfc3339(now.saturating_add(RESENT_EACH)),
        });
        if let Some(link) = link {
            alert["generatorURL"] = format!("{link}/ui/alerts").into();
        }
        let mut one = alert.clone();
        one["status"] = "firing".into();
        let labels = alert["labels"].clone();
        let of = Group4 { key: "{}:{alertname=\"TidegateTest\"}".to_owned(), group: &labels, link };
        let of_webhook = webhook(&of, &[one], 0, 0);
        let of_manager = json!([alert]).to_string();
        let body = |receiver: &mut Receiver| match receiver {
            Receiver::Alertmanager(_) => Some(of_manager.clone()),
            Receiver::Webhook(hook) => hook.takes_room(now, FOR_CRITICAL).then(|| of_webhook.clone()),
        };
        let bodies = self.receivers.iter_mut().map(body).enumerate();
        bodies
            .filter_map(|(receiver, body)| Some(Message { receiver, body: body?, replaces: false }))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.receivers.is_empty()
    }

    /// Returns how many messages were left out since the start, by receiver.
    pub(crate) fn left_out(&self) -> Vec<u64> {
        let left_out = |receiver: &Receiver| match receiver {
            Receiver::Alertmanager(_) => 0,
            Receiver::Webhook(hook) => hook.left_out_in_all,
        };
        self.receivers.iter().map(left_out).collect()
    }

    /// Returns when messages of the last hour were sent, by receiver, for [`Outbox::remember`].
    pub(crate) fn sent(&self) -> Vec<Vec<u64>> {
        let sent = |receiver: &Receiver| match receiver {
            Receiver::Alertmanager(_) => Vec::new(),
            Receiver::Webhook(hook) => hook.sent.iter().copied().collect(),
        };
        self.receivers.iter().map(sent).collect()
    }

    /// Learns when the process before sent messages: one that is started again and again sends no more than another.
    pub(crate) fn remember(&mut self, sent: &[Vec<u64>], now: u64) {
        for (receiver, sent) in self.receivers.iter_mut().zip(sent) {
            if let Receiver::Webhook(hook) = receiver {
                // Later ones are of a clock that was ahead.
                let recent = sent.iter().map(|at| (*at).min(now)).filter(|at| now - at < HOUR);
                hook.sent.extend(recent.take(MOST_AN_HOUR));
                hook.sent.make_contiguous().sort_unstable();
            }
        }
    }

    /// Moves all times with a step of the clock.
    pub(crate) fn follow_step(&mut self, by: i64) {
        for receiver in &mut self.receivers {
            match receiver {
                Receiver::Alertmanager(Manager { last, firing, over, .. }) => {
                    last.iter_mut().for_each(|at| shift(at, by));
                    firing.values_mut().chain(over.values_mut()).for_each(|alert| alert.follow_step(by));
                }
                Receiver::Webhook(Hook { groups, sent, .. }) => {
                    sent.iter_mut().for_each(|at| shift(at, by));
                    groups.values_mut().for_each(|group| group.follow_step(by));
                }
            }
        }
    }
}

/// What an Alertmanager was told.
#[derive(Debug, Default)]
struct Manager {
    last: Option<u64>,
    firing: BTreeMap<Subject, Alert>,
    /// With the time at which each ended.
    over: BTreeMap<Subject, Alert>,
    is_news: bool,
}

impl Manager {
    fn second(&mut self, now: u64, standing: &[Standing<'_>], link: Option<&str>) -> Option<String> {
        let told = standing.iter().filter(|one| !one.is_silenced).map(|one| one.alert);
        let firing: BTreeMap<Subject, Alert> = told.map(|alert| (alert.subject(), alert.clone())).collect();
        let before = std::mem::take(&mut self.firing);
        self.is_news |= firing.keys().any(|subject| !before.contains_key(subject));
        for (subject, alert) in before {
            // One that is silenced is not over, and ends there by itself.
            if !standing.iter().any(|one| is_of(one.alert, &subject)) {
                self.over.insert(subject, Alert { resolved: Some(now), ..alert });
                self.is_news = true;
            }
        }
        self.firing = firing;
        self.over.retain(|subject, alert| {
            let since = alert.resolved.unwrap_or(0);
            !self.firing.contains_key(subject) && now.saturating_sub(since) <= OVER_FOR
        });
        let pause = self.last.map_or(u64::MAX, |last| now.abs_diff(last));
        let is_due = if self.is_news { pause >= LEAST_PAUSE } else { pause >= RESENT_EACH };
        if !is_due || (self.firing.is_empty() && self.over.is_empty()) {
            return None;
        }
        (self.last, self.is_news) = (Some(now), false);
        let ends = now.saturating_add(ENDS_AFTER);
        let all = self.firing.values().chain(self.over.values());
        let list: Vec<Value> = all.map(|alert| shown(alert, alert.resolved.unwrap_or(ends), link)).collect();
        Some(Value::from(list).to_string())
    }
}

/// What a webhook was told.
#[derive(Debug, Default)]
struct Hook {
    groups: BTreeMap<(Rule, String), Group>,
    /// When messages of the last hour were sent.
    sent: VecDeque<u64>,
    /// Messages that were left out since the last one, and since the start.
    left_out: u64,
    left_out_in_all: u64,
}

#[derive(Debug)]
struct Group {
    began: u64,
    /// The last message, or the last one that was left out.
    sent: Option<u64>,
    /// Messages since nothing fired, and how many alerts fired by the last of them.
    messages: u32,
    told: usize,
    members: BTreeMap<Subject, Member>,
}

#[derive(Debug)]
struct Member {
    alert: Alert,
    is_silenced: bool,
    /// Whether the webhook was told last that it is over; `None`: it was told nothing.
    told_over: Option<bool>,
}

impl Member {
    fn is_news(&self) -> bool {
        let is_over = self.alert.resolved.is_some();
        self.told_over != Some(is_over) && (is_over || !self.is_silenced)
    }

    fn is_told(&self) -> bool {
        self.alert.resolved.is_some() || !self.is_silenced
    }
}

impl Hook {
    fn second(&mut self, now: u64, standing: &[Standing<'_>], link: Option<&str>) -> Vec<String> {
        self.follow(now, standing);
        let mut bodies = Vec::new();
        let mut groups = std::mem::take(&mut self.groups);
        for (of, group) in &mut groups {
            if !group.is_due(now) {
                continue;
            }
            group.sent = Some(now);
            let kept = match of.0.severity() {
                "critical" => 0,
                "info" => FOR_WARNINGS,
                _ => FOR_CRITICAL,
            };
            if !self.takes_room(now, kept) {
                self.left_out += 1;
                self.left_out_in_all += 1;
                continue;
            }
            bodies.push(group.message(of, std::mem::take(&mut self.left_out), link));
        }
        self.groups = groups;
        // A group without alerts still keeps the pause after its last message.
        self.groups.retain(|_, group| {
            let pauses = group.sent.is_some_and(|sent| now.abs_diff(sent) < GROUP_INTERVAL);
            !group.members.is_empty() || pauses
        });
        bodies
    }

    /// Takes one of the messages of this hour, of which `kept` are for others. Returns whether there was one.
    fn takes_room(&mut self, now: u64, kept: usize) -> bool {
        while self.sent.front().is_some_and(|at| now.abs_diff(*at) >= HOUR) {
            self.sent.pop_front();
        }
        let has_room = self.sent.len() < MOST_AN_HOUR - kept;
        if has_room {
            self.sent.push_back(now);
        }
        has_room
    }

    fn follow(&mut self, now: u64, standing: &[Standing<'_>]) {
        for one in standing {
            let (alert, subject) = (one.alert, one.alert.subject());
            let of = (alert.rule, alert.policy.clone());
            if one.is_silenced
                && !self.groups.get(&of).is_some_and(|group| group.members.contains_key(&subject))
            {
                continue;
            }
            let group = self.groups.entry(of).or_insert_with(|| Group {
                began: now,
                sent: one.was_told.then_some(now),
                messages: u32::from(one.was_told),
                told: usize::from(one.was_told),
                members: BTreeMap::new(),
            });
            let member = group.members.entry(subject).or_insert_with(|| Member {
                alert: alert.clone(),
                is_silenced: one.is_silenced,
                told_over: one.was_told.then_some(false),
            });
            member.is_silenced = one.is_silenced;
            if member.alert.resolved.is_some() {
                member.alert = alert.clone();
            }
        }
        for group in self.groups.values_mut() {
            group.members.retain(|subject, member| {
                if member.alert.resolved.is_none() && !standing.iter().any(|one| is_of(one.alert, subject)) {
                    member.alert.resolved = Some(now);
                }
                // What began and ended without a word needs none.
                member.alert.resolved.is_none() || member.told_over == Some(false)
            });
            // Those that are over wait for the next message, for hours at most. It names few of them, and counts the others.
            let mut over = 0;
            group.members.retain(|_, member| {
                over += usize::from(member.alert.resolved.is_some());
                member.alert.resolved.is_none() || over <= MOST_OVER
            });
        }
    }
}

fn is_of(alert: &Alert, subject: &Subject) -> bool {
    (alert.rule, &alert.policy, &alert.key) == (subject.0, &subject.1, &subject.2)
}

impl Group {
    fn follow_step(&mut self, by: i64) {
        shift(&mut self.began, by);
        self.sent.iter_mut().for_each(|at| shift(at, by));
        self.members.values_mut().for_each(|member| member.alert.follow_step(by));
    }

    fn is_due(&self, now: u64) -> bool {
        let Some(sent) = self.sent else {
            return self.members.values().any(Member::is_news) && now.abs_diff(self.began) >= GROUP_WAIT;
        };
        let (pause, firing) = (now.abs_diff(sent), self.firing());
        // That one of several is over is told with the next message.
        let is_news = |member: &Member| member.is_news() && (firing == 0 || member.alert.resolved.is_none());
        if self.members.values().any(is_news) {
            let is_more = firing == 0 || firing >= 4 * self.told;
            return pause >= if is_more || self.messages < 2 { GROUP_INTERVAL } else { MORE_EACH };
        }
        firing > 0 && pause >= REPEAT_EACH
    }

    /// Returns how many alerts fire that are told of.
    fn firing(&self) -> usize {
        self.members.values().filter(|member| member.alert.resolved.is_none() && !member.is_silenced).count()
    }

    /// Returns the message, and notes what is told by it.
    fn message(&mut self, of: &(Rule, String), left_out: u64, link: Option<&str>) -> String {
        self.told = self.firing();
        self.messages = if self.told > 0 { self.messages.saturating_add(1) } else { 0 };
        let mut told: Vec<&Alert> = Vec::new();
        for member in self.members.values_mut().filter(|member| member.is_told()) {
            member.told_over = Some(member.alert.resolved.is_some());
            told.push(&member.alert);
        }
        told.sort_by_key(|alert| (alert.resolved.is_some(), alert.fired));
        let more = told.len().saturating_sub(MOST_IN_MESSAGE);
        let alerts = told.iter().take(MOST_IN_MESSAGE).map(|alert| {
            let mut one = shown(alert, alert.resolved.unwrap_or(0), link);
            one["status"] = status(alert.resolved.is_some()).into();
            if alert.resolved.is_none() {
                // As Alertmanager says that there is no end yet.
                one["endsAt"] = "0001-01-01T00:00:00Z".into();
            }
            one["fingerprint"] = fingerprint(&one["labels"]).into();
            one
        });
        let alerts: Vec<Value> = alerts.collect();
        let (rule, policy) = of;
        let mut group = json!({ "rule": rule.word() });
        let mut key = format!("{{}}:{{rule=\"{}\"", rule.word());
        if !policy.is_empty() {
            group["policy"] = policy.as_str().into();
            key.push_str(&format!(", policy={policy:?}"));
        }
        key.push('}');
        let body = webhook(&Group4 { key, group: &group, link }, &alerts, more, left_out);
        self.members.retain(|_, member| member.alert.resolved.is_none());
        body
    }
}

/// What a webhook's message is about.
#[derive(Clone, Debug)]
struct Group4<'g> {
    key: String,
    /// The labels that all its alerts have.
    group: &'g Value,
    link: Option<&'g str>,
}

/// A message of version 4. `more`: alerts that are not in it; `left_out`: messages that were left out before it.
fn webhook(of: &Group4<'_>, alerts: &[Value], more: usize, left_out: u64) -> String {
    let is_over = alerts.iter().all(|alert| alert["status"] == "resolved");
    // Labels, and the sentence if there is only one, that all have.
    let common = |field: &str| -> Value {
        let first = alerts.first().and_then(|first| first[field].as_object());
        let in_all =
            |name: &String, value: &Value| alerts.iter().all(|one| one[field].get(name) == Some(value));
        let pairs = first.into_iter().flatten().filter(|&(name, value)| in_all(name, value));
        pairs.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<String, Value>>().into()
    };
    let (labels, mut annotations) = (common("labels"), common("annotations"));
    if left_out > 0 {
        annotations["left_out"] = format!("+{left_out} left out").into();
    }
    json!({
        "version": "4",
        "groupKey": of.key,
        "truncatedAlerts": more,
        "status": status(is_over),
        "receiver": "tidegate",
        "groupLabels": of.group,
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": of.link.unwrap_or_default(),
        "alerts": alerts,
    })
    .to_string()
}

const fn status(is_over: bool) -> &'static str {
    if is_over { "resolved" } else { "firing" }
}

/// An alert as both receivers know it.
fn shown(alert: &Alert, ends: u64, link: Option<&str>) -> Value {
    let mut labels = json!({
        "alertname": name_of(alert.rule),
        "rule": alert.rule.word(),
        "severity": alert.rule.severity(),
    });
    for (label, value) in [("policy", &alert.policy), ("key", &alert.key)] {
        if !value.is_empty() {
            labels[label] = value.as_str().into();
        }
    }
    let mut shown = json!({
        "labels": labels,
        "annotations": { "summary": alert.text },
        "startsAt": rfc3339(alert.since),
        "endsAt": rfc3339(ends),
    });
    if let Some(link) = link {
        shown["generatorURL"] = format!("{link}{}", alert.path).into();
    }
    shown
}

/// `TidegateCustomerCut`: as the rules of Prometheus are named.
fn name_of(rule: Rule) -> String {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    rule.word().split('-').map(capital).fold("Tidegate".to_owned(), |name, word| name + &word)
}

/// The same for the same labels (FNV-1a).
fn fingerprint(labels: &Value) -> String {
    let hash = labels.to_string().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests;

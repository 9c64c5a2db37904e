//! Plays the traffic of a server to a watch: the past by the minute, calm days in steps of ten seconds, and the minutes
//! about the beginning of an incident by the second.
//!
//! *By the second* all is real but the clock: each decision is told as a door tells it, and the watch takes its turns.
//! In *steps of ten seconds* the same state is fed and judged by the same functions as at the end of a second, but
//! counts come in sums, once in ten seconds; keys are counted if they come again, and what is usual is worked out once
//! an hour instead of twelve times, which is the same where it is of the same hour of other days. A month of seconds
//! would take minutes, two hundred of them half a day. *By the minute* counts go into the history alone, and the keys
//! of the last day into their lists.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, mpsc};

use serde_json::Value;
use tempfile::NamedTempFile;
use tidegate::Tick;
use tidegate::config::{AlertReceiver, AlertSettings};
use tidegate_server::{Seen, Sight as _, Verdict, WatchedServer as _};

use super::incidents::{Incident, LEAD, What};
use super::traffic::{Batch, HOUR, MINUTE, Shop};
use crate::alerts::{Alerts, Delivery};
use crate::busiest::Named;
use crate::changes::Changes;
use crate::history::{DAY, History};
use crate::numbers::{Counts, Series, ServerSeries, Span};
use crate::usual::{self, Usual};
use crate::watch::tests::MadeUp;
use crate::watch::{State, Watch};

/// The step of calm days, in seconds.
const STEP: u64 = 10;

/// For how long a restart answers nobody.
const DOWN: u64 = 20;

/// How long the beginning of an incident is played by the second, at least.
const BY_SECONDS: u64 = 5 * MINUTE;

/// For how long messages of an incident are waited for after its end: until all rules have ended, and all groups are
/// told.
const AFTER: u64 = 15 * MINUTE;

/// Events that are appended before they are read: half of a ring.
const UNREAD: u64 = 4_096;

/// The receiver that is a webhook; the other is an Alertmanager.
const HOOK: usize = 1;

/// What a receiver was told first, or what a webhook was told.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) at: u64,
    pub(super) is_hook: bool,
    pub(super) is_over: bool,
    pub(super) rule: String,
    pub(super) policy: String,
}

/// What was told of an incident.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) what: What,
    /// The seconds until an Alertmanager was told, and until a webhook was.
    pub(super) manager: Option<u64>,
    pub(super) hook: Option<u64>,
    /// The webhook's messages that something is wrong, and all, with those that it is over.
    pub(super) alarms: usize,
    pub(super) messages: usize,
}

/// A watch, and the server that it watches.
pub(super) struct Play {
    pub(super) shop: Shop,
    /// In seconds since 1970.
    pub(super) now: u64,
    /// What receivers were told since the beginning.
    pub(super) told: Vec<Told>,
    /// The policies whose refusals began to be called unusual, each time; `None` is the server.
    pub(super) unusual: Vec<Option<u16>>,
    is_unusual: HashSet<Option<u16>>,
    watch: Watch,
    server: Arc<MadeUp>,
    history: Arc<History>,
    settings: AlertSettings,
    /// The secret of the webhook.
    _secret: NamedTempFile,
    incident: Option<Incident>,
    batches: Vec<Batch>,
    /// What was counted in steps of this minute.
    minute: Vec<Span>,
    /// What is usual in an hour, counted from 1970.
    usual: HashMap<Option<u16>, Usual>,
    hour: u64,
    /// What fires at the Alertmanager: rules, policies and keys.
    known: BTreeSet<[String; 3]>,
}

impl Play {
    /// Begins at a whole hour, with an empty history.
    pub(super) fn new(seed: u64, begin: u64) -> Self {
        let secret = NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "0123456789abcdef0123").unwrap();
        let mut settings = AlertSettings::default();
        let url = "http://127.0.0.1:9".to_owned();
        let hook =
            AlertReceiver::Webhook { url: format!("{url}/hook"), secret_file: secret.path().to_owned() };
        settings.to = vec![AlertReceiver::Alertmanager { url }, hook];
        let (shop, history) = (Shop::new(seed, begin), Arc::new(History::open(None, begin).0));
        let server = Arc::new(MadeUp::default());
        server.0.lock().store = "redis";
        let watch = begun(&shop, &server, &history, &settings, begin);
        Self {
            shop,
            now: begin,
            told: Vec::new(),
            unusual: Vec::new(),
            is_unusual: HashSet::new(),
            watch,
            server,
            history,
            settings,
            _secret: secret,
            incident: None,
            batches: Vec::new(),
            minute: Vec::new(),
            usual: HashMap::new(),
            hour: 0,
            known: BTreeSet::new(),
        }
    }

    /// Plays until a time, by the minute. Nothing is judged.
    pub(super) fn learn(&mut self, until: u64) {
        let keys_from = until.saturating_sub(DAY + HOUR);
        while self.now < until {
            self.restart_if_due(0);
            self.ask(MINUTE);
            let span = self.span(MINUTE);
            self.now += MINUTE;
            if self.now > keys_from {
                let mut state = self.watch.state.lock();
                state.second = self.now;
                note_keys(&mut state, &self.batches);
                learn_names(&mut state, self.now);
                end_minute_of_regulars(&mut state);
            }
            self.push(&span);
            self.end_hour();
        }
    }

    /// Plays until a time, in steps of ten seconds.
    pub(super) fn calm(&mut self, until: u64) {
        while self.now < until {
            self.restart_if_due(DOWN);
            self.step();
        }
    }

    /// Plays an incident that begins soon, and what follows. Returns what was told of it.
    pub(super) fn plant(&mut self, incident: Incident) -> Outcome {
        let first = self.told.len();
        let by_seconds = (incident.begins + BY_SECONDS).next_multiple_of(MINUTE);
        let end = (incident.ends + AFTER).next_multiple_of(MINUTE);
        self.incident = Some(incident);
        while self.now < by_seconds {
            self.second();
        }
        while self.now < end {
            self.step();
        }
        self.incident = None;
        self.set_server();
        incident.is_over(&mut self.shop);
        let told: Vec<&Told> = self.told[first..]
            .iter()
            .filter(|told| told.at >= incident.begins)
            .filter(|told| incident.is_told_by(&told.rule, &told.policy, &self.shop))
            .collect();
        let after = |is_hook: bool| {
            let first = told.iter().find(|told| told.is_hook == is_hook && !told.is_over)?;
            Some(first.at - incident.begins)
        };
        let of_hook = || told.iter().filter(|told| told.is_hook);
        Outcome {
            what: incident.what,
            manager: after(false),
            hook: after(true),
            alarms: of_hook().filter(|told| !told.is_over).count(),
            messages: of_hook().count(),
        }
    }

    /// Waits for a time at which such an incident can happen, and plays it. `None`: there was none for two days.
    pub(super) fn plant_one(&mut self, what: What) -> Option<Outcome> {
        for _ in 0..48 {
            if let Some(incident) = Incident::draw(what, &mut self.shop, self.now) {
                return Some(self.plant(incident));
            }
            self.calm(self.now + HOUR);
        }
        None
    }

    /// Plays an incident in steps of ten seconds only, as if it were calm. Returns when the Alertmanager was told.
    pub(super) fn plant_in_steps(&mut self, incident: Incident) -> Option<u64> {
        let first = self.told.len();
        self.incident = Some(incident);
        self.calm((incident.begins + BY_SECONDS + LEAD).next_multiple_of(MINUTE));
        self.incident = None;
        let told = self.told[first..].iter().find(|told| {
            !told.is_hook && incident.is_told_by(&told.rule, &told.policy, &self.shop) && !told.is_over
        })?;
        told.at.checked_sub(incident.begins)
    }

    /// Draws what is asked in some seconds.
    fn ask(&mut self, seconds: u64) {
        self.batches.clear();
        self.shop.step(self.now, seconds, &mut self.batches);
        if let Some(incident) = self.incident {
            incident.alter(self.now, seconds, &mut self.shop.random, &mut self.batches);
            self.batches.sort_by_key(|batch| batch.policy);
        }
    }

    /// Returns the counts of what was asked.
    fn span(&self, seconds: u64) -> Span {
        let mut span = Span { at: self.now, ..Span::default() };
        span.server.0[ServerSeries::Up as usize] = seconds;
        for batch in &self.batches {
            let (series, of_server, admits) = match batch.verdict {
                Verdict::Allowed => (Series::Allowed, Some(ServerSeries::Allowed), true),
                Verdict::Delayed => (Series::Delayed, Some(ServerSeries::Delayed), true),
                Verdict::Over => (Series::Over, Some(ServerSeries::Allowed), true),
                Verdict::Denied => (Series::Denied, Some(ServerSeries::Denied), false),
                Verdict::Error => (Series::Errors, Some(ServerSeries::Failed), false),
                Verdict::WouldDeny => (Series::WouldDeny, None, false),
                Verdict::WouldAllow => (Series::WouldAllow, None, false),
            };
            if span.policies.last().is_none_or(|(policy, _)| *policy != batch.policy) {
                span.policies.push((batch.policy, Counts::default()));
            }
            let Some((_, counts)) = span.policies.last_mut() else { continue };
            counts.0[series as usize] += batch.count;
            if let Some(of_server) = of_server {
                span.server.0[of_server as usize] += batch.count;
                counts.0[Series::AskedUnits as usize] += batch.count;
            }
            if admits {
                counts.0[Series::AdmittedUnits as usize] += batch.count;
            }
        }
        span
    }

    /// Gives a span to the history.
    fn push(&self, span: &Span) {
        let policies = &self.shop.policies;
        let name_of = |number: u16| policies.get(usize::from(number)).map(|policy| Arc::clone(&policy.name));
        self.history.push(span, &name_of);
    }

    /// Plays ten seconds.
    fn step(&mut self) {
        self.ask(STEP);
        let (at, span) = (self.now, self.span(STEP));
        self.now += STEP;
        self.set_server();
        let is_minute = self.now.is_multiple_of(MINUTE);
        {
            let mut state = self.watch.state.lock();
            state.second = self.now;
            note_keys(&mut state, &self.batches);
            state.recent.push(&span);
            (1..STEP).for_each(|second| state.recent.push(&Span { at: at + second, ..Span::default() }));
            if is_minute {
                learn_names(&mut state, self.now);
            }
        }
        self.minute.push(span);
        if is_minute {
            let minute = sum(&std::mem::take(&mut self.minute), self.now - MINUTE);
            self.push(&minute);
        }
        self.judge();
        let vitals = self.server.vitals();
        self.watch.judge_alerts(self.now, &vitals, self.server.open_breakers(), 0);
        self.hear();
        self.end_hour();
    }

    /// Does what the end of a second does about what is usual.
    fn judge(&mut self) {
        if self.hour != self.now / HOUR {
            self.hour = self.now / HOUR;
            self.usual.clear();
        }
        loop {
            // Some at a time, which a second later are others.
            let due = self.watch.state.lock().judge(self.now);
            if due.is_empty() {
                break;
            }
            for (policy, name) in due {
                let known = self.usual.get(&policy).copied();
                let usual = known.or_else(|| usual::usual(&self.history, name.as_deref(), self.now));
                if let Some(of_hour) = usual.filter(|usual| !usual.from_last_day) {
                    self.usual.insert(policy, of_hour);
                }
                self.watch.state.lock().judged.entry(policy).or_default().usual = usual;
            }
        }
        let state = self.watch.state.lock();
        let is_unusual: HashSet<Option<u16>> =
            state.judged.keys().copied().filter(|policy| state.unusual_since(*policy).is_some()).collect();
        self.unusual.extend(is_unusual.difference(&self.is_unusual));
        self.is_unusual = is_unusual;
    }

    /// Plays a second, as doors and the thread do.
    fn second(&mut self) {
        self.ask(1);
        let (at, mut unread) = (self.now, 0_u64);
        let counts = self.span(1).server;
        for batch in &self.batches {
            for _ in 0..batch.count {
                let key = batch.key.unwrap_or_else(|| self.shop.random.key());
                let (policy, verdict) = (batch.policy, batch.verdict);
                let seen = Seen {
                    policy,
                    verdict,
                    near: false,
                    canary: false,
                    key,
                    cost: 1,
                    at: Tick::from_secs(at),
                };
                if self.watch.saw(seen) {
                    let named = named(key);
                    self.watch.named(policy, key, &named.name, &named.digest);
                }
                unread += 1;
                if unread.is_multiple_of(UNREAD) {
                    self.watch.turn(at * 1_000 + 500);
                }
            }
        }
        {
            let requests = &mut self.server.0.lock().requests;
            requests[0] += counts.of(ServerSeries::Allowed);
            requests[2] += counts.of(ServerSeries::Denied);
            requests[4] += counts.of(ServerSeries::Failed);
        }
        self.now += 1;
        self.set_server();
        self.watch.turn(self.now * 1_000);
        self.hear();
        self.end_hour();
    }

    /// Says how the store and the breakers are.
    fn set_server(&self) {
        let (at, incident) = (self.now, self.incident.as_ref());
        self.server.0.lock().store_away = incident.and_then(|incident| incident.store_away(at));
        let of_incident = incident.and_then(|incident| incident.open_breaker(at, &self.shop));
        *self.server.1.lock() = of_incident.or_else(|| self.shop.open_breaker(at)).into_iter().collect();
    }

    /// Takes what receivers are told.
    fn hear(&mut self) {
        for message in self.watch.alerts.taken() {
            let body: Value = serde_json::from_str(&message.body).unwrap();
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if message.receiver == HOOK {
                let labels = &body["groupLabels"];
                let is_over = body["status"] == "resolved";
                let (rule, policy) = (word(&labels["rule"]), word(&labels["policy"]));
                self.told.push(Told { at: self.now, is_hook: true, is_over, rule, policy });
                continue;
            }
            let now = stamp(self.now);
            for alert in body.as_array().unwrap() {
                let labels = &alert["labels"];
                let [rule, policy, key] = ["rule", "policy", "key"].map(|label| word(&labels[label]));
                let known = [rule.clone(), policy.clone(), key];
                if word(&alert["endsAt"]) <= now {
                    self.known.remove(&known);
                } else if self.known.insert(known) {
                    self.told.push(Told { at: self.now, is_hook: false, is_over: false, rule, policy });
                }
            }
        }
    }

    /// At the end of an hour, writes the history, as the thread does each minute.
    fn end_hour(&mut self) {
        if self.now.is_multiple_of(HOUR) {
            self.history.flush();
        }
    }

    /// Restarts the server if it is time; it answers nobody for so many seconds. What it knows is then what is in its
    /// files.
    fn restart_if_due(&mut self, down: u64) {
        let now = self.now;
        if !now.is_multiple_of(MINUTE) || self.shop.restarts.first().is_none_or(|at| *at > now) {
            return;
        }
        self.shop.restarts.retain(|at| *at > now);
        self.now += down;
        self.watch = begun(&self.shop, &self.server, &self.history, &self.settings, self.now);
    }
}

/// Makes a watch over a history, and begins.
fn begun(
    shop: &Shop,
    server: &Arc<MadeUp>,
    history: &Arc<History>,
    settings: &AlertSettings,
    now: u64,
) -> Watch {
    let nobody = Delivery::new(&AlertSettings::default()).unwrap();
    let mut watch = Watch::new(None, nobody, now, mpsc::sync_channel(1).0);
    watch.changes = Changes::new(Arc::clone(history));
    watch.alerts = Alerts::new(Arc::clone(history), Delivery::new(settings).unwrap(), now);
    watch.history = Arc::clone(history);
    for (number, policy) in (0_u16..).zip(&shop.policies) {
        assert_eq!(watch.policy(&policy.name, policy.limit), number);
    }
    watch.begin(Arc::<MadeUp>::clone(server));
    watch
}

fn named(key: u64) -> Named {
    Named::new(&format!("key={key}"), &format!("#{key:016x}"))
}

/// Counts keys, as the end of a turn does.
fn note_keys(state: &mut State, batches: &[Batch]) {
    for batch in batches {
        let Some(key) = batch.key else { continue };
        let (policy, verdict) = (batch.policy, batch.verdict);
        let mut note = |cost: u64| {
            let cost = u32::try_from(cost).unwrap();
            state.busiest.note(&Seen {
                policy,
                verdict,
                near: false,
                canary: false,
                key,
                cost,
                at: Tick::EPOCH,
            });
        };
        if matches!(verdict, Verdict::Allowed | Verdict::Denied) {
            let count = u32::try_from(batch.count).unwrap();
            state.regulars.add(policy, key, verdict == Verdict::Allowed, count);
        }
        match verdict {
            // One that takes as much as all.
            Verdict::Allowed => note(batch.count),
            Verdict::Denied => (0..batch.count).for_each(|_| note(1)),
            _ => {}
        }
    }
}

/// Ends the minute of the keys, and tells the names that are wanted.
fn learn_names(state: &mut State, now: u64) {
    for (policy, key) in state.busiest.end_second(now) {
        state.busiest.learn(policy, key, named(key));
    }
}

/// Ends the minute of the keys that pass often, and tells the names that are wanted.
fn end_minute_of_regulars(state: &mut State) {
    for (policy, key) in state.end_minute_of_regulars() {
        state.busiest.learn(policy, key, named(key));
    }
}

/// Returns the sum of some spans, as a span that begins at `at`.
fn sum(spans: &[Span], at: u64) -> Span {
    let (mut all, mut by_policy) = (Span { at, ..Span::default() }, HashMap::<u16, Counts>::new());
    for span in spans {
        all.server.absorb(&span.server);
        for (policy, counts) in &span.policies {
            by_policy.entry(*policy).or_default().absorb(counts);
        }
    }
    all.policies = by_policy.into_iter().collect();
    all.policies.sort_unstable_by_key(|(policy, _)| *policy);
    all
}

/// Returns a time as messages say it, which sorts as the time does.
fn stamp(seconds: u64) -> String {
    jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap().to_string()
}

//! Watches a server: takes its events, and answers what they mean.
//!
//! One thread, `sight`, reads the rings ten times a second and ends each second: counts go into the history, keys into
//! their lists, and one JSON text to all listeners. It holds the watch weakly, so it ends with it. Readers and the thread
//! share one lock, which no door ever takes for a decision.
//!
//! Locks are taken in this order: that of a trial, the history's, then the state's, then those of the alerts and of the
//! canaries. So nothing asks the history while it holds the state, and a limit is tried while others go on; alerts and
//! canaries ask the history alone.

mod facts;
mod live;
mod query;

use std::array;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tidegate::Tick;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::AlertSettings;
use tidegate_server::{
    AlertMessages, Changed, Firing, OpenBreaker, Recalled, RefusalRecord, Seen, Sight, Trial, Vitals,
    WatchedServer,
};
use tokio::sync::watch;

use self::query::{DEFAULT_WINDOW, LONGEST_WINDOW, Pairs, Wrong, unknown_policy};
use crate::alerts::{Alerts, Delivery};
use crate::board::{Board, LastMinute, OTHERS};
use crate::busiest::{Busiest, Named};
use crate::canary::Canaries;
use crate::changes::Changes;
use crate::feed::{EVENTS, Ended, Event, Feed};
use crate::history::{History, MOST_ALERTS, MOST_CHANGES};
use crate::lab::{self, Limit, NotTried};
use crate::numbers::{Counts, Series, ServerCounts, ServerSeries, Span};
use crate::pages::Pages;
use crate::record::Record;
use crate::traffic::Traffic;
use crate::usual::{self, Usual};

/// How often rings are read.
const PAUSE: Duration = Duration::from_millis(100);

/// How often rings are read while one of them fills faster than four times in [`PAUSE`]: enough for a million events a
/// second of one thread.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// The largest step of the wall clock, in seconds, that changes nothing. After one back a second is merely longer.
const STEP_BACK: u64 = 10;

/// Names that wait for the thread. They are few: doors tell a name only if it is wanted.
const TOLD: usize = 1_024;

/// After how many seconds what is usual is worked out again. It belongs to an hour of the day, so it changes slowly.
const USUAL_EVERY: u64 = 300;

/// For how many policies what is usual is worked out in a second.
const USUAL_AT_ONCE: usize = 4;

/// For how many seconds a share must be unusual until it is said: one window longer than the one that it is taken from.
/// What is [clearly](usual::is_clear) unusual is said at once.
const UNUSUAL_FOR: u64 = 60;

/// The longest trial of a limit.
const LONGEST_TRIAL: Duration = Duration::from_secs(2);

/// Why a watch cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system starts no thread.
    #[error("cannot start the thread that counts decisions")]
    Thread(#[source] io::Error),
    /// A receiver of alerts cannot be used; the text says which, and why.
    #[error("{0}")]
    Receiver(String),
}

/// Sees the decisions of a server, and answers its pages.
///
/// Its memory is bounded: 192 KiB for each thread that decides (at most 256), 8 MiB for names of keys, 4 MiB for refusals
/// that wait to be recorded, 36 MiB for the requests of the last hour, 2.5 MB for the keys that pass often, 48 MiB for
/// canaries if there are 32, and what the busiest keys and the history take.
/// Trying a limit takes as much again as those requests. What happens faster than it can be counted is dropped, and the
/// number dropped is shown.
pub struct Watch {
    pub(crate) feed: Feed,
    told: Mutex<Vec<Told>>,
    pub(crate) state: Mutex<State>,
    pub(crate) history: Arc<History>,
    /// `None`: nothing is kept on disk.
    record: Option<Record>,
    pub(crate) lines: Mutex<live::Lines>,
    changes: Changes,
    alerts: Alerts,
    pub(crate) canaries: Canaries,
    pages: Pages,
    /// Held while a limit is tried.
    trial: Mutex<()>,
    live: watch::Sender<Arc<str>>,
    server: OnceLock<Arc<dyn WatchedServer>>,
    /// Wakes the thread when the watch begins; its end ends the thread.
    begun: mpsc::SyncSender<()>,
}

/// A name that a door told.
struct Told {
    policy: u16,
    key: u64,
    named: Named,
}

/// What the thread and readers share.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) board: Board,
    pub(crate) busiest: Busiest,
    traffic: Traffic,
    pub(crate) recent: LastMinute,
    /// As read at the end of the last second.
    pub(crate) vitals: Vitals,
    /// The durations of the last ten seconds' ends and of the one before.
    durations: VecDeque<Vec<(u64, u64)>>,
    dropped: u64,
    /// The current second and the first, from 1970.
    pub(crate) second: u64,
    pub(crate) started: u64,
    /// By policy; `None` is the server.
    judged: HashMap<Option<u16>, Judged, RandomState>,
    regulars: facts::Regulars,
    /// By how many milliseconds the wall clock was ahead of the steady one when they were compared last.
    ahead: Option<i64>,
}

/// What is usual of a policy or the server, and whether it is so now.
#[derive(Debug, Default)]
struct Judged {
    usual: Option<Usual>,
    /// When `usual` was worked out, in seconds since 1970; `None`: never.
    asked: Option<u64>,
    /// Since which second the share has been unusual without a break.
    above_since: Option<u64>,
    /// It is so for long enough, or so clearly, that it is said.
    is_said: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens the history, and starts the thread, which waits until the server begins ([`Sight::begin`]).
    ///
    /// The files of the history and of the record of refusals are in `folder`, which is created; without one the history
    /// ends with the process, and no refusal is recorded. A file that cannot be used is a warning in the log; the history is
    /// then kept in memory.
    ///
    /// # Errors
    /// [`OpenError`]: there is no thread, or a receiver of alerts cannot be used.
    pub fn open(folder: Option<&Path>, alerts: &AlertSettings) -> Result<Arc<Self>, OpenError> {
        let delivery = Delivery::new(alerts).map_err(|error| OpenError::Receiver(error.to_string()))?;
        let (begun, begins) = mpsc::sync_channel(1);
        let watch = Arc::new(Self::new(folder, delivery, now_ms() / 1_000, begun));
        let weak = Arc::downgrade(&watch);
        let thread = thread::Builder::new().name("sight".to_owned());
        thread.spawn(move || run(&weak, &begins)).map_err(OpenError::Thread)?;
        Ok(watch)
    }

    /// Writes what is not in the files of the history and the record yet: for the end of the server. What comes later is
    /// not written. Dropping the watch does the same.
    pub fn close(&self) {
        self.keep_keys();
        if let Some(record) = &self.record {
            record.close();
        }
        self.history.close();
    }

    fn new(folder: Option<&Path>, delivery: Delivery, now: u64, begun: mpsc::SyncSender<()>) -> Self {
        let (history, unusable) = History::open(folder, now);
        if let Some(why) = unusable {
            tracing::warn!("{why}; it is kept in memory, and ends with the process");
        }
        let history = Arc::new(history);
        let record = folder.map(|folder| {
            let (record, unusable) = Record::open(folder, now_ms());
            if let Some(why) = unusable {
                tracing::warn!("{why}");
            }
            record
        });
        let watch = Self {
            record,
            feed: Feed::new(),
            told: Mutex::default(),
            state: Mutex::new(State::new(now)),
            changes: Changes::new(Arc::clone(&history)),
            alerts: Alerts::new(Arc::clone(&history), delivery, now),
            canaries: Canaries::new(Arc::clone(&history)),
            history,
            lines: Mutex::default(),
            pages: Pages::new(),
            trial: Mutex::default(),
            live: watch::Sender::new("{}".into()),
            server: OnceLock::new(),
            begun,
        };
        watch.find_keys();
        watch
    }

    /// Counts what has happened, and ends the second if its time is over. `now_ms` is in milliseconds since 1970,
    /// `steady_ms` in milliseconds of a clock that makes no steps. Returns how long to wait until the next turn.
    fn turn_at(&self, now_ms: u64, steady_ms: u64) -> Duration {
        let Some(server) = self.server.get() else { return PAUSE };
        let step = self.state.lock().step(now_ms, steady_ms);
        if let Some(by) = step {
            self.alerts.follow_step(by);
        }
        let (guarded, mut of_canaries) = (self.canaries.guarded(), Vec::new());
        let (fullest, ended) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            // Bound first, so that doors do not wait for the loop.
            let told = std::mem::take(&mut *self.told.lock());
            for Told { policy, key, named } in told {
                state.busiest.learn(policy, key, named);
            }
            let fullest = self.feed.drain(|event| {
                let policy = match &event {
                    Event::Seen(seen) => {
                        state.board.note(seen);
                        state.busiest.note(seen);
                        state.traffic.note(seen);
                        state.regulars.note(seen);
                        seen.policy
                    }
                    Event::Ended(ended) => ended.policy,
                };
                if guarded.contains(&policy) {
                    self.canaries.keep(&mut of_canaries, event);
                }
            });
            (fullest, state.begin_second(now_ms / 1_000))
        };
        self.canaries.follow(&mut of_canaries);
        if let Some(ended) = ended {
            self.guard_canaries(&**server);
            self.end_second(ended, &server.vitals(), server.open_breakers());
        }
        if fullest > EVENTS as u64 / 4 { SHORT_PAUSE } else { PAUSE }
    }

    /// Takes a turn at a time of a clock that makes no steps.
    #[cfg(test)]
    fn turn(&self, now_ms: u64) -> Duration {
        self.turn_at(now_ms, now_ms)
    }

    /// Takes a turn. A panic costs that turn, and not all further ones: nobody else counts. The log has it.
    fn turn_at_any_rate(&self, now_ms: u64, steady_ms: u64) -> Duration {
        catch_unwind(AssertUnwindSafe(|| self.turn_at(now_ms, steady_ms))).unwrap_or(PAUSE)
    }

    /// Has the canaries judged, and the server do what follows.
    fn guard_canaries(&self, server: &dyn WatchedServer) {
        let canaries = server.canaries();
        let (now, configuration, canaries) = {
            let state = self.state.lock();
            let numbered = canaries.into_iter().map(|canary| {
                let policy = state.board.number_of(&canary.policy);
                (policy.unwrap_or(OTHERS), canary)
            });
            (state.second, state.vitals.configuration.0, numbered.collect::<Vec<_>>())
        };
        for order in self.canaries.second(now, &canaries) {
            let is_done = server.set_canary_share(&order.policy, &order.text, order.share);
            if let Some(text) = order.change.filter(|_| is_done) {
                self.changes.note(Changed {
                    at: SystemClock::new().now(),
                    what: "canary",
                    who: "guard".to_owned(),
                    reason: String::new(),
                    text,
                    configuration,
                });
            }
        }
    }

    /// Ends the second that began at `at`.
    fn end_second(&self, at: u64, vitals: &Vitals, breakers: Vec<OpenBreaker>) {
        let (span, wanted, now) = {
            let mut state = self.state.lock();
            let (span, wanted) = state.end_second(at, vitals, self.feed.dropped());
            (span, wanted, state.second)
        };
        // The first are wanted most, and a later one may take an earlier one's place.
        for (policy, key) in wanted.into_iter().rev() {
            self.feed.want(policy, key);
        }
        self.history.push(&span, &|policy: u16| self.state.lock().board.name_of(policy));
        let due = self.state.lock().judge(now);
        for (policy, name) in due {
            let usual = usual::usual(&self.history, name.as_deref(), now);
            self.state.lock().judged.entry(policy).or_default().usual = usual;
        }
        // Also of a file that was opened later than at the start.
        if self.find_keys() || now / 60 != at / 60 {
            self.keep_keys();
        }
        self.judge_alerts(now, vitals, breakers, span.server.of(ServerSeries::Dropped));
        if now / 60 != at / 60 {
            let policies: Vec<Arc<str>> = {
                let state = self.state.lock();
                let numbers = state.board.policies().map(|(policy, _)| policy);
                numbers.filter_map(|policy| state.board.name_of(policy)).collect()
            };
            self.changes.work_out_effects(now, &policies);
        }
        if self.live.receiver_count() > 0 {
            self.live.send_replace(self.live_text());
        }
    }

    fn live_text(&self) -> Arc<str> {
        let text = live::overview(self, DEFAULT_WINDOW, false, false).to_string();
        // Listeners may be terminals.
        Arc::from(&*tidegate::visible::json(&text))
    }

    /// Tries a limit, if no other is being tried. Keys whose names are not known are asked for.
    fn tried(&self, trial: &Trial) -> Result<Value, Wrong> {
        let Some(_turn) = self.trial.try_lock() else {
            let detail =
                "another limit is being tried, which takes two seconds at most; one is tried at a time";
            return Err((429, detail.to_owned()));
        };
        let server = self.server.get();
        let server = server.ok_or_else(|| -> Wrong { (503, "the server has not begun yet".to_owned()) })?;
        let to = server.vitals().now.as_nanos() / 1_000_000;
        let (policy, recorded) = {
            let state = self.state.lock();
            let policy = state.board.number_of(&trial.policy).ok_or_else(unknown_policy)?;
            (policy, state.traffic.of(policy))
        };
        let from = to.saturating_sub(u64::try_from(trial.window.as_millis()).unwrap_or(u64::MAX));
        let (clock, stretch) = (SystemClock::new(), recorded.between(from, to));
        let began = clock.now();
        if let Some(wall) = clock.wall() {
            trial.quota.follow_wall(&wall);
        }
        let limit = Limit { quota: &trial.quota, max_wait: trial.max_wait, per_second: trial.per_second };
        // Relaxed: it may be seen a round later.
        let is_wanted = || !trial.cancelled.load(Ordering::Relaxed);
        let goes_on = || is_wanted() && clock.now().since(began) < LONGEST_TRIAL;
        let tried = lab::try_limit(&stretch, limit, goes_on).map_err(|none| -> Wrong {
            match none {
                NotTried::TooMany => {
                    let most = lab::MOST_REQUESTS;
                    (422, format!("the policy saw more than {most} requests in that time; use a shorter `w`"))
                }
                NotTried::Stopped if is_wanted() => {
                    (503, "trying the limit took longer than two seconds; use a shorter `w`".to_owned())
                }
                NotTried::Stopped => (503, "nobody waits for the answer".to_owned()),
            }
        })?;
        let named: Vec<_> = {
            let state = self.state.lock();
            tried.newly.iter().map(|denied| (denied, state.busiest.name_of(policy, denied.key))).collect()
        };
        let newly: Vec<Value> = named
            .into_iter()
            .map(|(denied, name)| {
                if name.is_none() {
                    self.feed.want(policy, denied.key);
                }
                json!({
                    "key": live::shown_key(name.as_ref(), denied.key, trial.reveal),
                    "denied": denied.denied,
                    "requests": denied.requests,
                    "signed_in": name.map(|name| names_a_user(&name.name)),
                })
            })
            .collect();
        Ok(json!({
            "policy": trial.policy,
            "limit": trial.limit,
            "at_once": trial.quota.capacity(),
            "window_s": trial.window.as_secs(),
            "seconds": live::rounded(tried.seconds),
            "share_of_keys": tried.share_of_keys,
            "requests": tried.requests,
            "denied_then": tried.denied_then,
            "denied_now": tried.denied_now,
            "keys": tried.keys,
            "keys_denied_then": tried.keys_denied_then,
            "keys_denied_now": tried.keys_denied_now,
            "newly_keys": tried.newly_keys,
            "newly": newly,
            "no_longer_keys": tried.no_longer,
            "peaks": tried.peaks.iter().map(|(rank, peak)| json!([rank, live::rounded(*peak)])).collect::<Vec<_>>(),
        }))
    }
}

/// Returns whether the name of a key is that of a user who signed in.
fn names_a_user(name: &str) -> bool {
    name.split(", ").any(|part| part.starts_with("user.id="))
}

/// Takes turns until the watch is gone.
fn run(watch: &Weak<Watch>, begins: &mpsc::Receiver<()>) {
    if begins.recv().is_err() {
        return;
    }
    let mut pause = PAUSE;
    loop {
        if begins.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let Some(watch) = watch.upgrade() else { return };
        let now = SystemClock::new().now();
        let ms = |at: Tick| at.as_nanos() / 1_000_000;
        pause = watch.turn_at_any_rate(ms(SystemClock::wall_time(now)), ms(now));
    }
}

/// Returns the wall clock's milliseconds since 1970.
fn now_ms() -> u64 {
    SystemClock::wall_time(SystemClock::new().now()).as_nanos() / 1_000_000
}

impl Sight for Watch {
    fn begin(&self, server: Arc<dyn WatchedServer>) {
        let first = server.vitals();
        self.state.lock().read_first(first);
        self.alerts.begin();
        // The first server is watched, if there are several.
        _ = self.server.set(server);
        // The thread is there as long as the watch.
        _ = self.begun.send(());
    }

    fn policy(&self, name: &str, per_second: Option<f64>) -> u16 {
        self.state.lock().board.policy(name, per_second)
    }

    fn saw(&self, seen: Seen) -> bool {
        self.feed.append(seen)
    }

    fn ended(&self, policy: u16, key: u64, canary: bool, failed: bool) {
        self.feed.append_ended(Ended { policy, key, canary, failed });
    }

    fn named(&self, policy: u16, key: u64, name: &str, digest: &str) {
        let told = Told { policy, key, named: Named::new(name, digest) };
        let mut waiting = self.told.lock();
        // If there are too many, the name stays wanted.
        if waiting.len() < TOLD {
            waiting.push(told);
            self.feed.named(policy, key);
        }
    }

    fn changed(&self, changed: Changed) {
        self.changes.note(changed);
    }

    fn configured(&self, number: u64, policies: &str) {
        self.canaries.configured(policies);
        if let Some(record) = &self.record {
            record.configured(number, policies);
        }
    }

    fn wants_refusal(&self, policy: Option<u16>, key: u64, at: Tick) -> bool {
        // The same key under two policies is two keys.
        let number = policy.map_or(0, |policy| u64::from(policy) + 1);
        let key = key ^ number.wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.record.as_ref().is_some_and(|record| record.wants(key, at.as_nanos()))
    }

    fn refused(&self, record: RefusalRecord) {
        if let Some(own) = &self.record {
            own.push(record);
        }
    }

    fn recall(&self, id: u128, key: Option<&str>) -> Option<Recalled> {
        self.record.as_ref().map(|record| record.recall(id, key))
    }

    fn live(&self) -> watch::Receiver<Arc<str>> {
        // Without listeners no text is made, so the last one is old.
        if self.live.receiver_count() == 0 {
            self.live.send_replace(self.live_text());
        }
        self.live.subscribe()
    }

    fn read(&self, path: &str, query: &str, reveal: bool) -> Result<String, (u16, String)> {
        let query = Pairs::of(query);
        let answer = match path {
            "/v1/overview" => {
                let window = query.window(LONGEST_WINDOW, "use 1m, 15m, 24h or another time up to 90d")?;
                live::overview(self, window, reveal, true)
            }
            "/v1/history" => query::history(self, &query)?,
            "/v1/busiest" => query::busiest(self, &query, reveal)?,
            "/v1/changes" => self.changes.read(query.limit(50, MOST_CHANGES)?),
            "/v1/alerts" => {
                let now = self.state.lock().second;
                self.alerts.read(query.limit(200, MOST_ALERTS)?, now)
            }
            _ => return Err((404, "there is nothing at this path".to_owned())),
        };
        Ok(answer.to_string())
    }

    fn try_limit(&self, trial: &Trial) -> Result<String, (u16, String)> {
        Ok(self.tried(trial)?.to_string())
    }

    fn firing(&self) -> Vec<Firing> {
        self.alerts.firing()
    }

    fn history_written(&self) -> Option<bool> {
        self.history.is_written()
    }

    fn alert_messages(&self) -> Vec<AlertMessages> {
        self.alerts.messages()
    }

    fn act(&self, path: &str, body: &[u8], who: &str) -> Result<String, (u16, String)> {
        let (now, configuration) = {
            let state = self.state.lock();
            (state.second, state.vitals.configuration.0)
        };
        let (what, done) = if path == "/v1/alerts" {
            ("alert", self.alerts.act(body, who, now).map_err(query::bad)?)
        } else {
            let policy = path.strip_prefix("/v1/canaries/").map(percent_decode_str);
            let policy = policy.and_then(|policy| policy.decode_utf8().ok());
            let nothing = || -> Wrong { (404, "there is nothing at this path".to_owned()) };
            let policy = policy.ok_or_else(nothing)?;
            let not_begun = || -> Wrong { (503, "the server has not begun yet".to_owned()) };
            let server = self.server.get().ok_or_else(not_begun)?;
            ("canary", self.canaries.act(&policy, body, who, now, &**server)?)
        };
        let answer = json!({ "done": done.text }).to_string();
        self.changes.note(Changed {
            at: SystemClock::new().now(),
            what,
            who: who.to_owned(),
            reason: done.reason,
            text: done.text,
            configuration,
        });
        Ok(answer)
    }

    fn page(
        &self,
        request: Request<Bytes>,
        tokens: bool,
        encrypted: bool,
    ) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>> {
        Box::pin(async move {
            if let Some(server) = self.server.get() {
                return self.pages.answer(request, &**server, tokens, encrypted).await;
            }
            let mut response = Response::new(Bytes::from_static(b"the server has not begun yet\n"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn new(now: u64) -> Self {
        Self {
            board: Board::new(now),
            busiest: Busiest::new(now),
            traffic: Traffic::default(),
            recent: LastMinute::default(),
            vitals: Vitals::default(),
            durations: VecDeque::new(),
            dropped: 0,
            second: now,
            started: now,
            judged: HashMap::default(),
            regulars: facts::Regulars::default(),
            ahead: None,
        }
    }

    /// Reads the counts from which the first second begins.
    fn read_first(&mut self, vitals: Vitals) {
        self.durations.push_back(vitals.durations.clone());
        self.vitals = vitals;
    }

    /// Returns by how many seconds the wall clock has made a step, if it is a large one. What lasts goes on to last.
    fn step(&mut self, now_ms: u64, steady_ms: u64) -> Option<i64> {
        let ahead = now_ms.checked_signed_diff(steady_ms)?;
        let by = ahead.saturating_sub(*self.ahead.get_or_insert(ahead)) / 1_000;
        if by.unsigned_abs() <= STEP_BACK {
            return None;
        }
        self.ahead = Some(ahead);
        for since in self.judged.values_mut().filter_map(|judged| judged.above_since.as_mut()) {
            *since = since.saturating_add_signed(by);
        }
        Some(by)
    }

    /// Begins the second of `now`, if it is another, and returns the one that ended. After a small step back of the clock
    /// the second goes on until the clock has caught up; after a larger one the clock is believed.
    fn begin_second(&mut self, now: u64) -> Option<u64> {
        let at = self.second;
        if now <= at && at - now <= STEP_BACK {
            return None;
        }
        self.second = now;
        Some(at)
    }

    /// Returns the counts of the second that began at `at`, and keys whose names are wanted.
    fn end_second(&mut self, at: u64, vitals: &Vitals, dropped: u64) -> (Span, Vec<(u16, u64)>) {
        let server = self.server_counts(vitals, dropped);
        let mut span = self.board.end_second(at, server);
        let wanted = self.busiest.end_second(self.second);
        for (policy, counts) in &mut span.policies {
            let hottest = self.busiest.hottest(*policy);
            if let Some(share) = hottest.and_then(|(_, units)| self.board.share_of_rate(*policy, units)) {
                // Saturates.
                counts.0[Series::HottestShare as usize] = (share * 1_000.0).round() as u64;
            }
        }
        self.recent.push(&span);
        (span, wanted)
    }

    fn server_counts(&mut self, vitals: &Vitals, dropped: u64) -> ServerCounts {
        let before = &self.vitals;
        let [allowed, delayed, denied, unmatched, failed_open, failed_closed, invalid]: [u64; 7] =
            array::from_fn(|at| vitals.requests[at].saturating_sub(before.requests[at]));
        let took = more_durations(&vitals.durations, &before.durations);
        let counts = [
            (ServerSeries::Allowed, allowed),
            (ServerSeries::Delayed, delayed),
            (ServerSeries::Denied, denied),
            (ServerSeries::Unmatched, unmatched),
            (ServerSeries::Failed, failed_open.saturating_add(failed_closed).saturating_add(invalid)),
            (ServerSeries::P50, quantile(&took, 0.5).unwrap_or(0)),
            (ServerSeries::P99, quantile(&took, 0.99).unwrap_or(0)),
            (ServerSeries::InFlight, vitals.in_flight),
            (ServerSeries::StoreErrors, vitals.store_errors.saturating_sub(before.store_errors)),
            (ServerSeries::Dropped, dropped.saturating_sub(self.dropped)),
            (ServerSeries::Up, 1),
        ];
        let mut server = ServerCounts::default();
        for (series, count) in counts {
            server.0[series as usize] = count;
        }
        if self.durations.len() > 10 {
            self.durations.pop_front();
        }
        self.durations.push_back(vitals.durations.clone());
        self.vitals = vitals.clone();
        self.dropped = dropped;
        server
    }

    /// Returns a quantile of the durations of the last ten seconds' decisions, in nanoseconds; `None`: there was none.
    pub(crate) fn took(&self, share: f64) -> Option<u64> {
        let (first, last) = (self.durations.front()?, self.durations.back()?);
        quantile(&more_durations(last, first), share)
    }

    /// Returns what is usual of a policy, or of the server; `None`: that is not known.
    pub(crate) fn usual(&self, policy: Option<u16>) -> Option<&Usual> {
        self.judged.get(&policy)?.usual.as_ref()
    }

    /// Returns since when the share refused is unusual, if that is to be said.
    pub(crate) fn unusual_since(&self, policy: Option<u16>) -> Option<u64> {
        self.judged.get(&policy).filter(|judged| judged.is_said)?.above_since
    }

    /// Compares the last minute with what is usual, and the last ten seconds, so that a clear rise is said in them. What was
    /// said holds as long as the minute is unusual. Returns the policies, and the server, for which what is usual is worked
    /// out again.
    fn judge(&mut self, now: u64) -> Vec<(Option<u16>, Option<Arc<str>>)> {
        let (minute, ten) = (self.recent.minute(), self.recent.ten_seconds());
        for (policy, judged) in &mut self.judged {
            if policy.is_some_and(|policy| !minute.policies.contains_key(&policy)) {
                (judged.above_since, judged.is_said) = (None, false);
            }
        }
        let server = (None, minute.server.refused(), ten.server.refused());
        let policies = minute.policies.iter().map(|(policy, counts)| {
            let now = ten.policies.get(policy).map(Counts::refused).unwrap_or_default();
            (Some(*policy), counts.refused(), now)
        });
        let mut due = Vec::new();
        for (policy, refused, last) in [server].into_iter().chain(policies) {
            let judged = self.judged.entry(policy).or_default();
            let usual = judged.usual.as_ref();
            let is_above = usual.is_some_and(|usual| usual::is_unusual(refused, minute.seconds, usual));
            let is_clear = usual.is_some_and(|usual| usual::is_clear(last, ten.seconds, usual));
            judged.above_since = if is_above { judged.above_since.or(Some(now)) } else { None };
            let lasts = judged.above_since.is_some_and(|since| now.saturating_sub(since) >= UNUSUAL_FOR);
            judged.is_said = is_above && (judged.is_said || lasts || is_clear);
            // Also if the clock was set back.
            let is_due = judged.asked.is_none_or(|asked| now.abs_diff(asked) >= USUAL_EVERY);
            if is_due && due.len() < USUAL_AT_ONCE {
                judged.asked = Some(now);
                due.push(policy);
            }
        }
        let name = |policy: u16| self.board.name_of(policy);
        due.into_iter().map(|policy| (policy, policy.and_then(name))).collect()
    }
}

/// Returns by how much each count of a histogram grew. All of it if its bounds have changed.
fn more_durations(now: &[(u64, u64)], before: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let same = now.len() == before.len() && now.iter().zip(before).all(|(now, before)| now.0 == before.0);
    let had = |at: usize| if same { before[at].1 } else { 0 };
    now.iter().enumerate().map(|(at, (bound, count))| (*bound, count.saturating_sub(had(at)))).collect()
}

/// Returns a quantile of a histogram, as if the values between two bounds were spread evenly. Values above the last bound
/// count as that bound. `None`: the histogram is empty.
fn quantile(counts: &[(u64, u64)], share: f64) -> Option<u64> {
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    if all == 0 {
        return None;
    }
    let (mut left, mut lower) = (share * all as f64, 0_u64);
    for (bound, count) in counts {
        let count = *count as f64;
        if *bound == u64::MAX {
            break;
        }
        if count > 0.0 && left <= count {
            return Some(lower + ((*bound - lower) as f64 * left / count).round() as u64);
        }
        left -= count;
        lower = *bound;
    }
    Some(lower)
}

#[cfg(test)]
mod tests;

//! Watches a server: takes its events, and answers what they mean.
//!
//! One thread, `sight`, reads the rings ten times a second and ends each second: counts go into the history, keys into
//! their lists, and one JSON text to all listeners. It holds the watch weakly, so it ends with it. Readers and the thread
//! share one lock, which no door ever takes for a decision.
//!
//! Locks are taken in this order: the history's, then the state's, then that of the alerts. So nothing asks the history while
//! it holds the state; the alerts ask it alone.

mod facts;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;
use http::{Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::config::AlertSettings;
use tidegate_server::{Changed, Firing, Inside, OpenBreaker, Pulse, Seen, Sight, Vitals};
use tokio::sync::watch;

use crate::alerts::{Alerts, Delivery};
use crate::board::{Board, Recent};
use crate::busiest::{Busiest, By, Named};
use crate::changes::Changes;
use crate::feed::{EVENTS, Feed};
use crate::history::{History, Step};
use crate::live;
use crate::numbers::{Counts, Series, ServerCounts, ServerSeries, Span};
use crate::pages::Pages;
use crate::usual::{self, Usual};

/// How often rings are read.
const PAUSE: Duration = Duration::from_millis(100);

/// How often rings are read while one of them fills faster than four times in [`PAUSE`]: enough for a million events a
/// second of one thread.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// The largest step back of the wall clock, in seconds, for which a second is merely longer.
const STEP_BACK: u64 = 10;

/// Names that wait for the thread. They are few: doors tell a name only if it is wanted.
const TOLD: usize = 1_024;

/// After how many seconds what is usual is worked out again. It belongs to an hour of the day, so it changes slowly.
const USUAL_EVERY: u64 = 300;

/// For how many policies what is usual is worked out in a second.
const USUAL_AT_ONCE: usize = 4;

/// For how many seconds a share must be unusual: one window longer than the one that it is taken from.
const UNUSUAL_FOR: u64 = 60;

/// How a watch keeps what it sees.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SightOptions {
    /// The folder of the history's file, which is created. `None`: the history is kept in memory, and ends with the
    /// process.
    pub folder: Option<PathBuf>,
    /// Whom alerts are sent to.
    pub alerts: AlertSettings,
}

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
/// Its memory is bounded: 192 KiB for each thread that decides (at most 256), 8 MiB for names of keys, and what the
/// busiest keys and the history take. What happens faster than it can be counted is dropped, and the number dropped is
/// shown.
pub struct Watch {
    pub(crate) feed: Feed,
    told: Mutex<Vec<Told>>,
    pub(crate) state: Mutex<State>,
    pub(crate) history: Arc<History>,
    pub(crate) lines: Mutex<live::Lines>,
    changes: Changes,
    alerts: Alerts,
    pages: Pages,
    live: watch::Sender<Arc<str>>,
    server: OnceLock<ServerParts>,
    /// Wakes the thread when the watch begins; its end ends the thread.
    begun: mpsc::Sender<()>,
}

/// What the watch asks the server.
struct ServerParts {
    pulse: Arc<dyn Pulse>,
    inside: Arc<dyn Inside>,
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
    pub(crate) recent: Recent,
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
    /// By policy: the units that a pass takes on average, as seen in the last minute with passes.
    units_a_pass: HashMap<u16, f64, RandomState>,
}

/// What is usual of a policy or the server, and whether it is so now.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) usual: Option<Usual>,
    /// When `usual` was worked out, in seconds since 1970; `None`: never.
    asked: Option<u64>,
    /// Since which second the share has been unusual without a break.
    above_since: Option<u64>,
}

impl Judged {
    /// Returns since when the share is unusual, if it is for long enough to say so.
    pub(crate) fn unusual_since(&self, now: u64) -> Option<u64> {
        self.above_since.filter(|since| now.saturating_sub(*since) >= UNUSUAL_FOR)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens the history, and starts the thread, which waits until the server begins ([`Sight::begin`]).
    ///
    /// A history file that cannot be used is a warning in the log; the history is then kept in memory.
    ///
    /// # Errors
    /// [`OpenError`]: there is no thread, or a receiver of alerts cannot be used.
    pub fn open(options: SightOptions) -> Result<Arc<Self>, OpenError> {
        let SightOptions { folder, alerts } = options;
        let delivery = Delivery::new(&alerts).map_err(|error| OpenError::Receiver(error.to_string()))?;
        let (begun, begins) = mpsc::channel();
        let watch = Arc::new(Self::new(folder.as_deref(), delivery, now_ms() / 1_000, begun));
        let weak = Arc::downgrade(&watch);
        let thread = thread::Builder::new().name("sight".to_owned());
        thread.spawn(move || run(&weak, &begins)).map_err(OpenError::Thread)?;
        Ok(watch)
    }

    /// Writes what is not in the history's file yet: for the end of the server. Later seconds are not written. Dropping
    /// the watch does the same.
    pub fn close(&self) {
        self.history.close();
    }

    fn new(folder: Option<&Path>, delivery: Delivery, now: u64, begun: mpsc::Sender<()>) -> Self {
        let (history, unusable) = History::open(folder, now);
        if let Some(why) = unusable {
            tracing::warn!("{why}; it is kept in memory, and ends with the process");
        }
        let history = Arc::new(history);
        Self {
            feed: Feed::new(),
            told: Mutex::default(),
            state: Mutex::new(State::new(now)),
            changes: Changes::new(Arc::clone(&history)),
            alerts: Alerts::new(Arc::clone(&history), delivery, now),
            history,
            lines: Mutex::default(),
            pages: Pages::new(),
            live: watch::Sender::new("{}".into()),
            server: OnceLock::new(),
            begun,
        }
    }

    /// Counts what has happened, and ends the second if its time is over. `now_ms` is in milliseconds since 1970. Returns
    /// how long to wait until the next turn.
    fn turn(&self, now_ms: u64) -> Duration {
        let Some(server) = self.server.get() else { return PAUSE };
        let (fullest, ended) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            // Bound first, so that doors do not wait for the loop.
            let told = std::mem::take(&mut *self.told.lock());
            for Told { policy, key, named } in told {
                state.busiest.learn(policy, key, named);
            }
            let fullest = self.feed.drain(|seen| {
                state.board.note(&seen);
                state.busiest.note(&seen);
            });
            (fullest, state.begin_second(now_ms / 1_000))
        };
        if let Some(ended) = ended {
            self.end_second(ended, &server.pulse.vitals(), server.pulse.open_breakers());
        }
        if fullest > EVENTS as u64 / 4 { SHORT_PAUSE } else { PAUSE }
    }

    /// Ends the second that began at `at`.
    fn end_second(&self, at: u64, vitals: &Vitals, breakers: Vec<OpenBreaker>) {
        let (span, wanted, now) = {
            let mut state = self.state.lock();
            let (span, wanted) = state.end_second(at, vitals, self.feed.dropped());
            (span, wanted, state.second)
        };
        for (policy, key) in wanted {
            self.feed.want(policy, key);
        }
        self.history.push(&span, &|policy: u16| self.state.lock().board.name_of(policy));
        let due = self.state.lock().judge(now);
        for (policy, name) in due {
            let usual = usual::usual(&self.history, name.as_deref(), now);
            self.state.lock().judged.entry(policy).or_default().usual = usual;
        }
        self.judge_alerts(now, vitals, breakers, span.server.of(ServerSeries::Dropped));
        if now / 60 != at / 60 {
            let policies: Vec<Arc<str>> = {
                let state = self.state.lock();
                let numbers = state.board.policies().map(|(policy, _)| policy);
                numbers.filter_map(|policy| state.board.name_of(policy)).collect()
            };
            self.changes.settle(now, &policies);
        }
        if self.live.receiver_count() > 0 {
            self.live.send_replace(self.live_text());
        }
    }

    fn live_text(&self) -> Arc<str> {
        live::overview(self, DEFAULT_WINDOW, false, false).to_string().into()
    }

    fn history_of(&self, query: &Pairs<'_>) -> Result<Value, Wrong> {
        let now = self.state.lock().second;
        let number = |name: &'static str, or: u64| -> Result<u64, Wrong> {
            let Some(text) = query.value(name) else { return Ok(or) };
            text.parse().map_err(|_| query.wrong(name, "use seconds since 1970, such as 1767225600"))
        };
        let to = number("to", now)?;
        let from = number("from", to.saturating_sub(DEFAULT_WINDOW.as_secs()))?;
        if from >= to {
            return Err(bad(format!("`from` is {from}, which is not before `to`, {to}")));
        }
        let step = match query.value("step") {
            Some("1s") => Step::Second,
            Some("1m") => Step::Minute,
            Some("1h") => Step::Hour,
            Some(_) => return Err(query.wrong("step", "use 1s, 1m or 1h")),
            None => step_for(now.saturating_sub(from)),
        };
        let words: Vec<&str> = query.value("series").unwrap_or("allowed,denied").split(',').collect();
        // What lies before that is not kept, and nothing lies after now.
        let (from, to) = (from.max(now.saturating_sub(LONGEST_WINDOW)), to.min(now.saturating_add(1)));
        let to = to.max(from);
        let mut series = serde_json::Map::new();
        if let Some(policy) = query.value("policy") {
            let points = self.history.policy(policy, step, from, to);
            if points.is_empty() && self.state.lock().board.number_of(policy).is_none() {
                return Err(unknown_policy());
            }
            for word in words {
                let Some(one) = Series::ALL.into_iter().find(|one| one.word() == word) else {
                    return Err(bad(unknown_series(word, &Series::ALL.map(Series::word))));
                };
                let points: Vec<(u64, u64)> =
                    points.iter().map(|(at, counts)| (*at, counts.of(one))).collect();
                series.insert(word.to_owned(), json!(points));
            }
        } else {
            let points = self.history.server(step, from, to);
            for word in words {
                let Some(one) = ServerSeries::ALL.into_iter().find(|one| one.word() == word) else {
                    return Err(bad(unknown_series(word, &ServerSeries::ALL.map(ServerSeries::word))));
                };
                let points: Vec<(u64, u64)> =
                    points.iter().map(|(at, counts)| (*at, counts.of(one))).collect();
                series.insert(word.to_owned(), json!(points));
            }
        }
        Ok(json!({ "step": step.seconds(), "series": series }))
    }

    fn busiest_of(&self, query: &Pairs<'_>, reveal: bool) -> Result<Value, Wrong> {
        let by = match query.value("by") {
            None => By::Denied,
            Some(word) => By::ALL
                .into_iter()
                .find(|by| by.word() == word)
                .ok_or_else(|| query.wrong("by", "use denied, near or rate"))?,
        };
        let window = query.window(86_400, "use 1m, 15m or 24h")?;
        let limit = query.limit(20, 500)?;
        let state = self.state.lock();
        let policy = match query.value("policy") {
            None => None,
            Some(name) => Some(state.board.number_of(name).ok_or_else(unknown_policy)?),
        };
        let keys: Vec<Value> = state
            .busiest
            .read(by, window, policy, limit)
            .into_iter()
            .map(|busy| {
                json!({
                    "policy": state.board.name_of(busy.policy).as_deref(),
                    "key": live::shown_key(busy.name.as_ref(), busy.key, reveal),
                    "count": busy.count,
                    "error": busy.error,
                    "per_second": live::rounded(busy.per_second),
                })
            })
            .collect();
        Ok(json!({ "by": by.word(), "window_s": window.as_secs(), "keys": keys }))
    }
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
        pause = watch.turn(now_ms());
    }
}

/// Returns the wall clock's milliseconds since 1970.
fn now_ms() -> u64 {
    SystemClock::wall_time(SystemClock::new().now()).as_nanos() / 1_000_000
}

impl Sight for Watch {
    fn begin(&self, pulse: Arc<dyn Pulse>, inside: Arc<dyn Inside>) {
        let vitals = pulse.vitals();
        self.state.lock().read_first(vitals);
        self.alerts.begin();
        // The first server is watched, if there are several.
        _ = self.server.set(ServerParts { pulse, inside });
        // The thread is there as long as the watch.
        _ = self.begun.send(());
    }

    fn policy(&self, name: &str, per_second: Option<f64>) -> u16 {
        self.state.lock().board.policy(name, per_second)
    }

    fn saw(&self, seen: Seen) -> bool {
        self.feed.append(seen)
    }

    fn named(&self, policy: u16, key: u64, name: &str, digest: &str) {
        let told = Told { policy, key, named: Named { name: name.into(), digest: digest.into() } };
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
                query.only(&["w", "reveal"])?;
                let window = query.window(LONGEST_WINDOW, "use 1m, 15m, 24h or another time up to 90d")?;
                live::overview(self, window, query.reveal(reveal)?, true)
            }
            "/v1/history" => {
                query.only(&["policy", "series", "from", "to", "step"])?;
                self.history_of(&query)?
            }
            "/v1/busiest" => {
                query.only(&["policy", "by", "w", "limit", "reveal"])?;
                self.busiest_of(&query, query.reveal(reveal)?)?
            }
            "/v1/changes" => {
                query.only(&["limit"])?;
                self.changes.read(query.limit(50, 200)?)
            }
            "/v1/alerts" => {
                query.only(&["limit"])?;
                let now = self.state.lock().second;
                self.alerts.read(query.limit(200, 1_000)?, now)
            }
            _ => return Err((404, "there is nothing at this path".to_owned())),
        };
        Ok(answer.to_string())
    }

    fn firing(&self) -> Vec<Firing> {
        self.alerts.firing()
    }

    fn act(&self, path: &str, body: &[u8], who: &str) -> Result<String, (u16, String)> {
        if path != "/v1/alerts" {
            return Err((404, "there is nothing at this path".to_owned()));
        }
        let (now, configuration) = {
            let state = self.state.lock();
            (state.second, state.vitals.configuration.0)
        };
        let done = self.alerts.act(body, who, now).map_err(bad)?;
        let answer = json!({ "done": done.text }).to_string();
        self.changes.note(Changed {
            at: SystemClock::new().now(),
            what: "alert",
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
                return self.pages.answer(request, &*server.inside, tokens, encrypted).await;
            }
            let mut response = Response::new(Bytes::from_static(b"the server has not begun yet\n"));
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        })
    }
}

impl State {
    fn new(now: u64) -> Self {
        Self {
            board: Board::new(now),
            busiest: Busiest::new(now),
            recent: Recent::default(),
            vitals: Vitals::default(),
            durations: VecDeque::new(),
            dropped: 0,
            second: now,
            started: now,
            judged: HashMap::default(),
            units_a_pass: HashMap::default(),
        }
    }

    /// Reads the counts from which the first second begins.
    fn read_first(&mut self, vitals: Vitals) {
        self.durations.push_back(vitals.durations.clone());
        self.vitals = vitals;
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
        let mut span = self.board.second(at, server);
        let wanted = self.busiest.second(self.second);
        for (policy, counts) in &mut span.policies {
            let rate = self.board.per_second(*policy);
            if let (Some(rate), Some((_, units))) = (rate, self.busiest.hottest(*policy)) {
                // Saturates.
                counts.0[Series::HottestShare as usize] = (units / rate * 1_000.0).round() as u64;
            }
        }
        self.recent.push(&span);
        (span, wanted)
    }

    fn server_counts(&mut self, vitals: &Vitals, dropped: u64) -> ServerCounts {
        let before = &self.vitals;
        let more = |at: usize| vitals.requests[at].saturating_sub(before.requests[at]);
        let took = more_durations(&vitals.durations, &before.durations);
        let counts = [
            (ServerSeries::Allowed, more(0)),
            (ServerSeries::Delayed, more(1)),
            (ServerSeries::Denied, more(2)),
            (ServerSeries::Unmatched, more(3)),
            (ServerSeries::Failed, more(4).saturating_add(more(5)).saturating_add(more(6))),
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

    pub(crate) fn judged(&self, policy: Option<u16>) -> Option<&Judged> {
        self.judged.get(&policy)
    }

    /// Compares the last minute with what is usual. Returns for whom that has to be worked out again.
    fn judge(&mut self, now: u64) -> Vec<(Option<u16>, Option<Arc<str>>)> {
        let minute = self.recent.minute();
        for (policy, judged) in &mut self.judged {
            if policy.is_some_and(|policy| !minute.policies.contains_key(&policy)) {
                judged.above_since = None;
            }
        }
        let server = (None, live::refused_of_server(&minute.server), minute.server.of(ServerSeries::Denied));
        let policies = minute.policies.iter();
        let policies =
            policies.map(|(policy, counts)| (Some(*policy), live::refused(counts), denied(counts)));
        let mut due = Vec::new();
        for (policy, refused, denied) in [server].into_iter().chain(policies) {
            let judged = self.judged.entry(policy).or_default();
            let is_above = match (&judged.usual, refused.share()) {
                (Some(usual), Some(share)) => {
                    usual::is_unusual(share, minute.rate(denied), refused.requests, usual)
                }
                _ => false,
            };
            judged.above_since = if is_above { judged.above_since.or(Some(now)) } else { None };
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

fn denied(counts: &Counts) -> u64 {
    counts.of(Series::Denied)
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

// Queries.

/// The window if none is named.
pub(crate) const DEFAULT_WINDOW: Duration = Duration::from_secs(15 * 60);

/// The longest history, in seconds.
const LONGEST_WINDOW: u64 = 90 * 86_400;

/// Returns the finest step that reaches back for so many seconds.
pub(crate) fn step_for(seconds: u64) -> Step {
    match seconds {
        ..=900 => Step::Second,
        901..=86_400 => Step::Minute,
        _ => Step::Hour,
    }
}

/// A status and what is wrong with a query.
type Wrong = (u16, String);

fn bad(detail: String) -> Wrong {
    (400, detail)
}

fn unknown_policy() -> Wrong {
    let detail = "parameter `policy`: no policy of this name was seen; /v1/policies lists those in force";
    (404, detail.to_owned())
}

fn unknown_series(word: &str, known: &[&str]) -> String {
    let word = tidegate::visible::excerpt(word);
    format!("parameter `series`: `{word}` is not counted; use {}", known.join(", "))
}

/// The parameters of a query.
struct Pairs<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Pairs<'q> {
    fn of(query: &'q str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    /// Returns the first value of a parameter; `None` if it is empty.
    fn value(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(have, _)| have == name);
        pair.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    fn wrong(&self, name: &str, use_this: &str) -> Wrong {
        let value = tidegate::visible::excerpt(self.value(name).unwrap_or_default());
        bad(format!("parameter `{name}`: `{value}` cannot be used; {use_this}"))
    }

    fn only(&self, names: &[&str]) -> Result<(), Wrong> {
        let unknown = self.0.iter().find(|(name, _)| !names.contains(&&**name));
        unknown.map_or(Ok(()), |(name, _)| {
            let name = tidegate::visible::excerpt(name);
            Err(bad(format!("there is no parameter `{name}`; use {}", names.join(", "))))
        })
    }

    /// Returns the window: at least a minute, and at most so many seconds.
    fn window(&self, longest: u64, use_this: &str) -> Result<Duration, Wrong> {
        let Some(text) = self.value("w") else { return Ok(DEFAULT_WINDOW) };
        let seconds = seconds_of(text).filter(|seconds| (60..=longest).contains(seconds));
        seconds.map(Duration::from_secs).ok_or_else(|| self.wrong("w", use_this))
    }

    fn limit(&self, or: usize, most: usize) -> Result<usize, Wrong> {
        let Some(text) = self.value("limit") else { return Ok(or) };
        let limit = text.parse::<usize>().ok().filter(|limit| (1..=most).contains(limit));
        limit.ok_or_else(|| self.wrong("limit", &format!("use 1 to {most}")))
    }

    /// Returns whether names of keys are asked for, by a caller who may see them.
    fn reveal(&self, may: bool) -> Result<bool, Wrong> {
        match self.value("reveal") {
            None | Some("false") => Ok(false),
            Some("true") if may => Ok(true),
            Some("true") => Err((403, "names of keys (`reveal=true`) need the scope `keys`".to_owned())),
            Some(_) => Err(self.wrong("reveal", "use true or false")),
        }
    }
}

/// Reads a time such as `15m`.
fn seconds_of(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests;

//! What a crate beside the server sees of its decisions, and which pages it answers.
//!
//! The server knows only [`Sight`]. Whoever starts the server joins the two ([`crate::ServerOptions::sight`]). Without one,
//! decisions are told to nobody, and its paths answer 404 with the reason.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Bytes;
use tidegate::{Quota, Tick};
use tokio::sync::watch;

/// How a policy decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// It may pass.
    Allowed,
    /// It may pass after a wait.
    Delayed,
    /// It is refused.
    Denied,
    /// It passes although it is over the limit (`over`).
    Over,
    /// It is decided without the store.
    Error,
    /// A policy in shadow mode, or a shadow limit, would refuse it.
    WouldDeny,
    /// A policy in shadow mode, or a shadow limit, would let it pass.
    WouldAllow,
}

/// The number of a policy that is no longer in force, or not yet.
pub(crate) const OF_OTHERS: u16 = u16::MAX;

/// One decision of one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number that [`Sight::policy`] gave; `u16::MAX` during a reload, of a policy that is no longer in force or not
    /// yet.
    pub policy: u16,
    /// How it decided.
    pub verdict: Verdict,
    /// Whether it passed with little left of the limit (`near_limit`).
    pub near: bool,
    /// Whether the canary's limit decided: the key is in the canary's share.
    pub canary: bool,
    /// The fingerprint of the key: the same key has the same one as long as the process runs.
    pub key: u64,
    /// Units asked for; more than `u32::MAX` count as that. 0 if none are: a list or a block refuses the request, or this
    /// policy lets it pass and another one refuses it.
    pub cost: u32,
    /// When, by the gate's clock.
    pub at: Tick,
}

/// What happens to policies, keys and switches, and who did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// When, by the gate's clock.
    pub at: Tick,
    /// What: `policies`, `refused` (a configuration that was not put in force), `key`, `breaker`, `switch`, `signal`,
    /// `alert` (a silence or a test message), or `canary`.
    pub what: &'static str,
    /// The name of the caller's token, `file`, `signal`, `cluster`, or empty if nobody is known.
    pub who: String,
    /// The reason that was given; empty if none.
    pub reason: String,
    /// What changed, in one line for people.
    pub text: String,
    /// The number of the configuration in force after it.
    pub configuration: u64,
}

/// A limit to try on the requests that a policy saw.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The policy whose requests it is tried on, in the place of all its limits.
    pub policy: String,
    /// The limit: a rate, the same for each key.
    pub quota: Arc<Quota>,
    /// The same in the words of the file.
    pub limit: String,
    /// The longest delay with which a request passes.
    pub max_wait: Duration,
    /// Its rate, in units a second; `None`: not one that can be told.
    pub per_second: Option<f64>,
    /// How far back.
    pub window: Duration,
    /// Whether the names of keys are asked for by a caller who may see them.
    pub reveal: bool,
    /// Set when nobody waits for the result any more.
    pub cancelled: Arc<AtomicBool>,
}

/// A refusal, for a record that outlives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalRecord {
    /// The id of the decision. Its first 48 bits are the time, in milliseconds since 1970.
    pub id: u128,
    /// The digest of the refused key, as in the log; empty if no key was refused.
    pub key: String,
    /// The number of the configuration that refused it ([`Sight::configured`]).
    pub configuration: u64,
    /// All that is known of it, in a form that the server reads back. It has names of keys.
    pub text: String,
}

/// What a record has of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recalled {
    /// It has it.
    Found {
        /// The text of [`RefusalRecord`].
        text: String,
        /// The policies of the configuration that refused it ([`Sight::configured`]), if they are still kept.
        policies: Option<String>,
    },
    /// It has it not.
    Missing {
        /// Which bound left it out, in a sentence without a full stop.
        why: String,
        /// The refusal of the same key that is kept and nearest in time.
        nearest: Option<u128>,
    },
}

/// Counts of the whole server since its start, and its state.
#[derive(Clone, Debug, Default)]
pub struct Vitals {
    /// Requests by outcome, over all doors: allowed, delayed, denied, unmatched, failed open, failed closed, invalid.
    pub requests: [u64; 7],
    /// Requests being answered.
    pub in_flight: u64,
    /// How many decisions took how long, in nanoseconds: upper bounds, and the counts above the bound before. The last
    /// has no bound (`u64::MAX`).
    pub durations: Vec<(u64, u64)>,
    /// The kind of the store, as in the file.
    pub store: &'static str,
    /// Why the store cannot be asked; `None`: it can.
    pub store_away: Option<String>,
    /// What nodes that share the store have of it, and what may pass beyond a limit without it, in words; empty if none
    /// share it.
    pub fleet: String,
    /// Steps that the store could not execute.
    pub store_errors: u64,
    /// Why the newest configuration is not in force: what is wrong with it first. `None`: it is.
    pub refused: Option<String>,
    /// The number of the configuration in force, and since when.
    pub configuration: (u64, Tick),
    /// Now, by the gate's clock.
    pub now: Tick,
}

/// A breaker that refuses calls, as this server last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    /// The name of its policy.
    pub policy: String,
    /// The digest of its key, or `(all)`.
    pub key: String,
    /// When it opened, by the gate's clock: another time is another opening. `None` if this server did not see it open.
    pub since: Option<Tick>,
    /// The figure that tripped it; empty if nobody knows it any longer.
    pub why: String,
    /// Whether probes try the service (half-open).
    pub probes: bool,
}

/// A canary of the policies in force: another limit, which decides for a share of a policy's keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// The name of its policy.
    pub policy: String,
    /// The canary as it was written, in one line. Another text is another canary.
    pub text: String,
    /// Its limit, in the words of the file.
    pub limit: String,
    /// The share of the keys that the file asks for, 0 to 1.
    pub share: f64,
    /// The share of the keys for which its limit decides now, 0 to 1.
    pub in_force: f64,
    /// How long it is tried.
    pub lasts: Duration,
    /// By how much more of its requests may be refused than of other keys', 0 to 1.
    pub denied: f64,
    /// How many of its keys may be refused that the policy's own limit would not refuse.
    pub keys_refused: u64,
    /// By how much more of its requests may fail than of other keys', 0 to 1.
    pub failures: f64,
    /// Whether its limit is put in force for all keys when its time is over and nothing spoke against it. Otherwise its
    /// share stays as it is.
    pub enforce: bool,
}

/// How many alerts of a rule fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// The word of the rule.
    pub rule: &'static str,
    /// The name of the policy; empty: they are about the server.
    pub policy: String,
    /// How many.
    pub alerts: u64,
}

/// How many messages to receivers of alerts had a fate, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertMessages {
    /// The kind of receiver: `alertmanager` or `webhook`.
    pub receiver: &'static str,
    /// `sent`; `failed`: an attempt, which is repeated; `refused`: the receiver did not want it; `dropped`: too many waited;
    /// `left_out`: too many were sent in an hour.
    pub fate: &'static str,
    /// How many.
    pub count: u64,
}

/// What a sight asks the server.
pub trait WatchedServer: fmt::Debug + Send + Sync {
    /// Reads the counts. Takes some microseconds.
    fn vitals(&self) -> Vitals;

    /// Returns the breakers that are open or half-open and refuse calls by themselves: no person forced them. At most
    /// 1,024. Asks no store; takes some microseconds if there is none.
    fn open_breakers(&self) -> Vec<OpenBreaker> {
        Vec::new()
    }

    /// Returns the canaries of the policies in force. Called once a second.
    fn canaries(&self) -> Vec<Canary> {
        Vec::new()
    }

    /// Sets the share of the keys for which a canary's limit decides, 0 to 1, from the next request on. Returns whether the
    /// policy has a canary of this text; otherwise nothing is changed.
    fn set_canary_share(&self, policy: &str, text: &str, share: f64) -> bool {
        _ = (policy, text, share);
        false
    }

    /// Answers as the address for operators would, without a connection, to a caller with the request's headers. A stream
    /// (`/v1/events`, `/v1/live`) is answered with 406.
    fn ask(&self, request: Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>>;
}

/// Sees decisions, and answers pages and questions about them.
pub trait Sight: fmt::Debug + Send + Sync {
    /// Begins: called once, before the first decision. Policies may have their numbers already.
    fn begin(&self, server: Arc<dyn WatchedServer>);

    /// Returns the number of a policy: the same for the same name as long as the process runs. `per_second` is the rate
    /// of its first limit with one rate for all keys, in units.
    fn policy(&self, name: &str, per_second: Option<f64>) -> u16;

    /// Sees a decision. Never waits, and takes some nanoseconds. Returns whether [`Sight::named`] should follow.
    fn saw(&self, seen: Seen) -> bool;

    /// Learns that a call ended which a canary policy let pass: whether it failed, and whether the canary's limit had
    /// decided it. Never waits.
    fn ended(&self, policy: u16, key: u64, canary: bool, failed: bool) {
        _ = (policy, key, canary, failed);
    }

    /// Learns the name of a key, in the form `client.ip=203.0.113.9`, and the digest that stands for it where names are
    /// hidden.
    fn named(&self, policy: u16, key: u64, name: &str, digest: &str);

    /// Learns of a change.
    fn changed(&self, changed: Changed);

    /// Learns that a configuration comes into force: its number, and its policies as text. Called before the first
    /// decision under it.
    fn configured(&self, number: u64, policies: &str) {
        let _ = (number, policies);
    }

    /// Returns whether the record of a refusal is wanted, before anything is copied for it. `policy` and `key` as in
    /// [`Seen`]; without a policy, `key` stands for what refused. Never waits, and takes some nanoseconds.
    fn wants_refusal(&self, policy: Option<u16>, key: u64, at: Tick) -> bool {
        let _ = (policy, key, at);
        false
    }

    /// Takes the record of a refusal that it wants. Never waits for the disk.
    fn refused(&self, record: RefusalRecord) {
        let _ = record;
    }

    /// Returns what is recorded of a refusal; `None`: nothing is recorded here. `key`: the digest of its key, if it is
    /// known, to find others of the same key. May read the disk.
    fn recall(&self, id: u128, key: Option<&str>) -> Option<Recalled> {
        let _ = (id, key);
        None
    }

    /// Returns what `/v1/live` sends: one JSON object a second, the same text for all listeners.
    fn live(&self) -> watch::Receiver<Arc<str>>;

    /// Answers an authorized `GET` of `/v1/overview`, `/v1/history`, `/v1/changes`, `/v1/busiest` or `/v1/alerts` with JSON.
    /// The query has only parameters of its path. `reveal`: the caller asks for the names of keys, and may see them.
    ///
    /// # Errors
    /// The status and the detail of a problem.
    fn read(&self, path: &str, query: &str, reveal: bool) -> Result<String, (u16, String)>;

    /// Tries a limit on the requests of the last hour, and answers with JSON. Takes up to two seconds of a processor, so it
    /// is called where a thread may be blocked.
    ///
    /// # Errors
    /// The status and the detail of a problem; 429 while another limit is tried.
    fn try_limit(&self, trial: &Trial) -> Result<String, (u16, String)>;

    /// Returns how many alerts fire, by rule and policy: each rule also without a policy, 0 if there is none, so that metrics
    /// have it before its first alert.
    fn firing(&self) -> Vec<Firing> {
        Vec::new()
    }

    /// Returns how messages to receivers of alerts fared: each fate of each kind of receiver that there is.
    fn alert_messages(&self) -> Vec<AlertMessages> {
        Vec::new()
    }

    /// Returns whether the last write of the history to its file succeeded; `None`: it has no file, and ends with the
    /// process.
    fn history_written(&self) -> Option<bool> {
        None
    }

    /// Does what the body of an authorized `POST` to `/v1/alerts` or `/v1/canaries/NAME` says, and answers with JSON.
    /// `path` is as it was sent, escaped. `who`: the name of the caller's token, or empty.
    ///
    /// # Errors
    /// The status and the detail of a problem.
    fn act(&self, path: &str, body: &[u8], who: &str) -> Result<String, (u16, String)> {
        _ = (path, body, who);
        Err((404, "there is nothing at this path".to_owned()))
    }

    /// Answers a request below `/ui/`, with a form of at most 64 KiB. It authorizes callers itself, by sessions. `tokens`:
    /// whether the server needs tokens; without them, it has refused other origins and foreign host names already.
    /// `encrypted`: whether the connection is. The address of the caller ([`std::net::SocketAddr`]), behind trusted proxies
    /// the one that they report, is an extension of the request. Slow work must not block the thread.
    fn page(
        &self,
        request: Request<Bytes>,
        tokens: bool,
        encrypted: bool,
    ) -> Pin<Box<dyn Future<Output = Response<Bytes>> + Send + '_>>;
}

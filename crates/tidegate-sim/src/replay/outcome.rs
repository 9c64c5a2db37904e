//! The results of a replay, for tables and for `-o json`; and whether its log was read well enough for them to be
//! trusted.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tidegate::Tick;
use tidegate::policy::Unit;

use crate::log::Tally;
use crate::peaks::{Distinct, KeyPeak};
use crate::units::{self, grouped, percent};

/// The results of one policy set over all requests.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The name of the set: `policies`, or the algorithm compared.
    pub name: String,
    /// Requests checked.
    pub requests: u64,
    /// Requests allowed, including delayed ones.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
    /// How many of these were denied by a deny-list.
    pub denied_by_list: u64,
    /// Requests allowed after a delay.
    pub delayed: u64,
    /// Requests that a policy in shadow mode, or a shadow limit, would have denied.
    pub shadow_denied: u64,
    /// Requests over a limit with `over: mark` that passed; `None` if no policy has such a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Requests over a limit with `over: demote` that passed with a lower priority; `None` if no policy has such a
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demoted: Option<u64>,
    /// Requests that could not be decided.
    pub errors: u64,
    /// Requests whose places were returned early because a million others were inside. If any, denials may be too few.
    pub left_early: u64,
    /// Live keys that the store evicted for lack of room. If any, denials may be too few.
    pub evicted: u64,
    /// The time of the first request.
    #[serde(rename = "first_at", serialize_with = "units::maybe_time")]
    pub first: Option<Tick>,
    /// The time of the last request.
    #[serde(rename = "last_at", serialize_with = "units::maybe_time")]
    pub last: Option<Tick>,
    /// The figures of requests that entered a guard, if a policy has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOutcome>,
    /// One entry per policy that is not off, each followed by its shadow limit, if it has one.
    pub policies: Vec<PolicyOutcome>,
}

impl Outcome {
    /// Returns how many keys had denied requests, summed over the policies without their shadow limits.
    #[must_use]
    pub fn keys_hit(&self) -> u64 {
        let real = self.policies.iter().filter(|policy| policy.shadow_limit_of.is_none());
        real.map(|policy| policy.keys_hit).sum()
    }
}

/// The results of one policy or of its shadow limit.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOutcome {
    /// The name of the policy; for a shadow limit, followed by ` (shadow_limit)`.
    pub name: String,
    /// The policy whose shadow limit this is; `None` for a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_limit_of: Option<String>,
    /// `enforce` or `shadow`.
    pub mode: &'static str,
    /// The labels of its limits.
    pub limits: Vec<String>,
    /// The attributes that its keys are made of.
    pub by: Vec<String>,
    /// Requests that it applies to.
    pub matched: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it delayed.
    pub delayed: u64,
    #[serde(skip)]
    pub(super) can_delay: bool,
    /// Requests that it would have denied, in shadow mode.
    pub shadow_denied: u64,
    /// Requests over its limit that it marked; `None` unless it marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Requests over its limit whose priority it lowered; `None` unless it demotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demoted: Option<u64>,
    /// The number of distinct keys.
    #[serde(flatten)]
    pub keys: Distinct,
    /// Keys that it denied at least once, or would have denied, or let pass over its limit.
    pub keys_hit: u64,
    /// How many of those keys belong to a user who signed in and was served: check them before enforcing.
    pub keys_hit_signed_in: u64,
    /// The key with the most denied requests, or the fastest if none was denied.
    pub worst: Option<KeyPeak>,
    /// The peak of that key, over the period of the policy's first limit.
    pub peak: Option<PeakRate>,
    /// The most places of one key in use at once, if the policy limits what is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_in_use: Option<u64>,
    /// The figures of each of its guards, in the order of its limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardOutcome>,
    /// When it first denied a request or, if it only measures, would have denied one.
    #[serde(rename = "first_denied_at", serialize_with = "units::maybe_time")]
    pub first_denied: Option<Tick>,
}

/// The suffix of a shadow limit's name, after the name of its policy.
pub(super) const SHADOW_LIMIT: &str = " (shadow_limit)";

/// Returns the name of the row of a policy's shadow limit, in outcomes and in thresholds.
///
/// # Examples
/// ```
/// assert_eq!(tidegate_sim::replay::shadow_limit_name("per-ip"), "per-ip (shadow_limit)");
/// ```
#[must_use]
pub fn shadow_limit_name(policy: &str) -> String {
    format!("{policy}{SHADOW_LIMIT}")
}

impl PolicyOutcome {
    /// Returns how many requests exceeded its limits, whatever happened to them.
    pub(crate) fn over_limit(&self) -> u64 {
        let told = self.marked.or(self.demoted).unwrap_or(0);
        self.denied.max(self.shadow_denied).max(told)
    }
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// An amount within one window; displayed as `412/s`, `31/h`, `90/10min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeakRate {
    /// The amount, in cost units.
    pub count: u64,
    /// The window.
    #[serde(rename = "window_ms", serialize_with = "units::span")]
    pub window: Duration,
}

impl PeakRate {
    /// Formats it for tables: as displayed, with a comma at each thousand.
    ///
    /// # Examples
    /// ```
    /// let peak = tidegate_sim::replay::PeakRate { count: 12_000, window: std::time::Duration::from_secs(60) };
    /// assert_eq!((peak.grouped(), peak.to_string()), ("12,000/min".to_owned(), "12000/min".to_owned()));
    /// ```
    #[must_use]
    pub fn grouped(&self) -> String {
        let written = self.to_string();
        let per = written.find('/').map_or("", |at| &written[at..]);
        format!("{}{per}", grouped(self.count))
    }
}

impl fmt::Display for PeakRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [Unit; 8] = [
            Unit::Week,
            Unit::Day,
            Unit::Hour,
            Unit::Minute,
            Unit::Second,
            Unit::Millisecond,
            Unit::Microsecond,
            Unit::Nanosecond,
        ];
        let window = self.window.as_nanos().max(1);
        let fits = |unit: &Unit| window.is_multiple_of(unit.length().as_nanos());
        let unit = UNITS.into_iter().find(fits).unwrap_or(Unit::Nanosecond);
        match window / unit.length().as_nanos() {
            1 => write!(f, "{}/{}", self.count, unit.name()),
            times => write!(f, "{}/{times}{}", self.count, unit.name()),
        }
    }
}

/// The figures of one guard of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardOutcome {
    /// The label of the limit.
    pub limit: String,
    /// Its algorithm: `concurrency`, `adaptive`, `breaker`.
    pub kind: String,
    /// The most requests in the guard at once, over all keys.
    pub most_in_flight: u64,
    /// Requests refused, also in shadow mode, because all places were taken.
    pub refused_full: u64,
    /// Requests refused, also in shadow mode, because the breaker was open.
    pub refused_open: u64,
    /// Requests refused, also in shadow mode, because the breaker was half-open and had all its probes in flight.
    pub refused_half_open: u64,
    /// Requests refused, also in shadow mode, by a breaker that was shedding.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_shed: u64,
    /// The state changes of a breaker in order, at most a thousand.
    pub changes: Vec<BreakerChange>,
    /// The number of further changes.
    pub changes_left_out: u64,
}

impl GuardOutcome {
    /// Returns how many requests it refused, also in shadow mode, for any cause.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused_full + self.refused_open + self.refused_half_open + self.refused_shed
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A change of a breaker's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakerChange {
    /// The time of the change.
    #[serde(rename = "changed_at", serialize_with = "units::time")]
    pub at: Tick,
    /// The key of the breaker; `(all)` if there is a single one for all requests.
    pub key: String,
    /// The state before: `closed`, `shedding`, `open` or `half-open`.
    pub from: &'static str,
    /// The state after.
    pub to: &'static str,
    /// How many calls may be in flight in the half-open state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
    /// The cause, in words: `12 of 20 calls failed`.
    pub why: String,
}

/// The figures of the requests that entered any guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceOutcome {
    /// Requests that left, with known durations.
    pub timed: u64,
    /// Requests that left with a failure or an overload.
    pub failed: u64,
    /// The median duration, to three significant digits.
    #[serde(rename = "p50_ms", serialize_with = "units::maybe_span")]
    pub p50: Option<Duration>,
    /// The 99th percentile of the durations.
    #[serde(rename = "p99_ms", serialize_with = "units::maybe_span")]
    pub p99: Option<Duration>,
    /// The most requests in guards at once.
    pub most_in_flight: u64,
    /// The most requests that limits delayed at once.
    pub most_waiting: u64,
}

pub(crate) const OFFERED: usize = 0;
pub(crate) const ADMITTED: usize = 1;
pub(crate) const DENIED: usize = 2;
/// Admitted requests that a policy in shadow mode, or a shadow limit, would have denied.
pub(crate) const WOULD_DENY: usize = 3;
pub(crate) const LANES: usize = 4;

/// How much of a log may be faulty before its replay is not trusted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trust {
    /// The largest share of malformed lines, 0 to 1.
    pub max_malformed: f64,
    /// The largest share of late requests, 0 to 1: those given the latest time seen.
    pub max_late: f64,
}

impl Default for Trust {
    /// 5 % malformed, 1 % late. A line left out hides at most its own denial; a late request is moved next to others
    /// and causes false denials.
    fn default() -> Self {
        Self { max_malformed: 0.05, max_late: 0.01 }
    }
}

/// A reason not to trust a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Doubt {
    /// Too many lines are malformed.
    Malformed {
        /// The number of malformed lines.
        lines: u64,
        /// The number of all lines counted.
        of: u64,
        /// The allowed share.
        most: f64,
    },
    /// Too many requests came too late to be sorted.
    Late {
        /// The number of late requests.
        requests: u64,
        /// The number of all requests.
        of: u64,
        /// The allowed share.
        most: f64,
    },
}

impl Trust {
    /// Returns the reasons not to trust a log: none if its shares are within bounds, or it has no lines.
    ///
    /// # Examples
    /// ```
    /// use tidegate_sim::log::Tally;
    /// use tidegate_sim::replay::Trust;
    ///
    /// let mut log = Tally { records: 95, malformed: 5, ..Tally::default() };
    /// assert!(Trust::default().doubts(&log).is_empty());
    /// log.malformed = 6;
    /// let doubts = Trust::default().doubts(&log);
    /// assert_eq!(doubts[0].to_string(), "6 of 101 lines (5.94 %) are malformed, more than 5.00 %: the number of denials may be too low");
    /// ```
    #[must_use]
    pub fn doubts(&self, log: &Tally) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let (lines, of) = malformed(log);
        if share(lines, of) > self.max_malformed {
            doubts.push(Doubt::Malformed { lines, of, most: self.max_malformed });
        }
        let (requests, of) = late(log);
        if share(requests, of) > self.max_late {
            doubts.push(Doubt::Late { requests, of, most: self.max_late });
        }
        doubts
    }
}

impl Doubt {
    /// Returns the measured share, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        match *self {
            Self::Malformed { lines, of, .. } => share(lines, of),
            Self::Late { requests, of, .. } => share(requests, of),
        }
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = percent(self.share());
        match self {
            Self::Malformed { lines, of, most } => write!(
                f,
                "{} of {} lines ({found}) are malformed, more than {}: the number of denials may be too low",
                grouped(*lines),
                grouped(*of),
                percent(*most)
            ),
            Self::Late { requests, of, most } => write!(
                f,
                "{} of {} requests ({found}) came too late to be put in order, more than {}: denials may not be real",
                grouped(*requests),
                grouped(*of),
                percent(*most)
            ),
        }
    }
}

/// Returns the number of malformed lines, and that of malformed lines and requests together.
pub(super) fn malformed(log: &Tally) -> (u64, u64) {
    (log.malformed, log.malformed + log.records + log.unmatched)
}

/// Returns the number of requests that were given the latest time seen, and that of all requests, including unmatched
/// ones.
pub(super) fn late(log: &Tally) -> (u64, u64) {
    (log.order.clamped, log.records + log.unmatched)
}

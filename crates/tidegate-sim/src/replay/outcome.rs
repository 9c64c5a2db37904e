//! What became of a replay, for tables and for `-o json`.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tidegate::Tick;
use tidegate::policy::Unit;

use super::guards::{GuardOutcome, ServiceOutcome};
use crate::json_units;
use crate::peaks::{Distinct, KeyPeak};
use crate::thousands::grouped;

/// What one policy set did to all requests.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The name of the set: `policies`, or the algorithm compared.
    pub name: String,
    /// Requests asked about.
    pub requests: u64,
    /// Requests let pass, delayed ones included.
    pub allowed: u64,
    /// Requests refused.
    pub denied: u64,
    /// Of these, by a deny-list.
    pub denied_by_list: u64,
    /// Requests let pass after a delay.
    pub delayed: u64,
    /// Requests that a policy in shadow, or a shadow limit, would have refused.
    pub shadow_denied: u64,
    /// Requests that passed over a limit with `over: mark`; `None` where no policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Requests that passed over a limit with `over: demote`, with a lower priority; `None` where no policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demoted: Option<u64>,
    /// Requests that could not be decided.
    pub errors: u64,
    /// Requests whose places were returned before their time, because a million others were inside: above zero, denials may be too few.
    pub left_early: u64,
    /// Live keys that the store gave up for lack of room: above zero, denials may be too few.
    pub evicted: u64,
    /// The first request.
    #[serde(rename = "first_at", serialize_with = "json_units::maybe_time")]
    pub first: Option<Tick>,
    /// The last request.
    #[serde(rename = "last_at", serialize_with = "json_units::maybe_time")]
    pub last: Option<Tick>,
    /// How requests went that entered a guard, where a policy has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceOutcome>,
    /// One per policy that is not switched off, each followed by its shadow limit, if it has one.
    pub policies: Vec<PolicyOutcome>,
}

impl Outcome {
    /// Returns how many keys were refused anything, summed over the policies, shadow limits left out.
    #[must_use]
    pub fn keys_hit(&self) -> u64 {
        let real = self.policies.iter().filter(|policy| policy.shadow_limit_of.is_none());
        real.map(|policy| policy.keys_hit).sum()
    }
}

/// What one policy did, or its shadow limit.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOutcome {
    /// The name of the policy; of a shadow limit, with ` (shadow_limit)` behind it.
    pub name: String,
    /// The policy whose shadow limit this is; `None` for the policy itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shadow_limit_of: Option<String>,
    /// `enforce` or `shadow`.
    pub mode: &'static str,
    /// Its limits in words.
    pub limits: Vec<String>,
    /// What its keys are made of.
    pub by: Vec<String>,
    /// Requests it spoke of.
    pub matched: u64,
    /// Requests it refused.
    pub denied: u64,
    /// Requests it delayed.
    pub delayed: u64,
    /// Requests it would have refused, in shadow.
    pub shadow_denied: u64,
    /// Requests over its limit that it marked and let pass, those included that another policy refused; `None` unless it marks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<u64>,
    /// Requests over its limit whose priority it lowered, those included that another policy refused; `None` unless it demotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demoted: Option<u64>,
    /// How many different keys it saw.
    #[serde(flatten)]
    pub keys: Distinct,
    /// How many of them it refused, or would have, or let pass over its limit, at least once.
    pub keys_hit: u64,
    /// How many of those belong to somebody who signed in and was served: look at them before enforcing.
    pub keys_hit_signed_in: u64,
    /// The key refused most, or the fastest if none was.
    pub worst: Option<KeyPeak>,
    /// The peak of its fastest key, over the period of the policy's first limit.
    pub peak: Option<PeakRate>,
    /// The most places of one key that were in use at once, where the policy counts what is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_in_use: Option<u64>,
    /// What each of its guards did, in the order of its limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardOutcome>,
    /// When it first refused anything or, where it is only measured, would have.
    #[serde(rename = "first_denied_at", serialize_with = "json_units::maybe_time")]
    pub first_denied: Option<Tick>,
}

/// What a shadow limit is called, behind the name of its policy.
pub(super) const SHADOW_LIMIT: &str = " (shadow_limit)";

/// Returns what the row of a policy's shadow limit is named, in outcomes and in thresholds.
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
    /// Returns how many requests were over its limits, whatever became of them.
    pub(crate) fn over_limit(&self) -> u64 {
        let told = self.marked.or(self.demoted).unwrap_or(0);
        self.denied.max(self.shadow_denied).max(told)
    }

    /// Returns the share of matched requests that it refused, 0 to 1.
    #[must_use]
    pub fn denied_share(&self) -> f64 {
        share(self.denied, self.matched)
    }
}

pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// So much within one window; prints as `412/s`, `31/h`, `90/10min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeakRate {
    /// Cost units.
    pub count: u64,
    /// The window.
    #[serde(rename = "window_ms", serialize_with = "json_units::span")]
    pub window: Duration,
}

impl PeakRate {
    /// Returns it for people who read a table: as it prints, with a comma at each thousand.
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

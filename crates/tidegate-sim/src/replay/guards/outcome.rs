//! The figures of guards, for tables and for `-o json`.

use std::time::Duration;

use serde::Serialize;
use tidegate::Tick;

use crate::json_units;

/// The figures of one guard of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardOutcome {
    /// The label of the limit.
    pub limit: String,
    /// Its algorithm: `concurrency`, `adaptive`, `breaker`.
    pub kind: String,
    /// The most requests in the guard at once, over all keys.
    pub most_in_flight: u64,
    /// Requests refused, or in shadow mode counted as such, because all places were taken.
    pub refused_full: u64,
    /// Requests refused, or in shadow mode counted as such, because the breaker was open.
    pub refused_open: u64,
    /// Requests refused, or in shadow mode counted as such, because the breaker was half-open and had as many probes
    /// in flight as allowed.
    pub refused_half_open: u64,
    /// Requests refused, or in shadow mode counted as such, by a breaker that was shedding.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused_shed: u64,
    /// The state changes of a breaker in order, at most a thousand.
    pub changes: Vec<BreakerChange>,
    /// The number of further changes.
    pub changes_left_out: u64,
}

impl GuardOutcome {
    /// Returns how many requests it refused, or in shadow mode would have refused, for any cause.
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
    #[serde(rename = "changed_at", serialize_with = "json_units::time")]
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
    #[serde(rename = "p50_ms", serialize_with = "maybe_span")]
    pub p50: Option<Duration>,
    /// The 99th percentile of the durations.
    #[serde(rename = "p99_ms", serialize_with = "maybe_span")]
    pub p99: Option<Duration>,
    /// The most requests in guards at once.
    pub most_in_flight: u64,
    /// The most requests that limits delayed at once.
    pub most_waiting: u64,
}

fn maybe_span<S: serde::Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    span.map(json_units::millis).serialize(to)
}

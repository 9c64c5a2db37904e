//! What became of guards, for tables and for `-o json`.

use std::time::Duration;

use serde::Serialize;
use tidegate::Tick;

use crate::json_units;

/// What one guard of a policy did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuardOutcome {
    /// The limit in words.
    pub limit: String,
    /// Its algorithm: `concurrency`, `adaptive`, `breaker`.
    pub kind: String,
    /// The most requests that were in it at once, of all keys.
    pub most_in_flight: u64,
    /// Requests it refused, or would have in shadow, because all places were taken.
    pub refused_full: u64,
    /// The same, because it was open.
    pub refused_open: u64,
    /// The same, because it was half-open and as many probes as may be were in flight.
    pub refused_half_open: u64,
    /// When a breaker changed its state, a thousand times at most, in order.
    pub changes: Vec<BreakerChange>,
    /// How many more changes there were.
    pub changes_left_out: u64,
}

impl GuardOutcome {
    /// Returns how many requests it refused, or would have in shadow, whatever the cause.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused_full + self.refused_open + self.refused_half_open
    }
}

/// A change of a breaker's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakerChange {
    /// When.
    #[serde(rename = "changed_at", serialize_with = "json_units::time")]
    pub at: Tick,
    /// The key whose breaker it was; `(all)` where one is for everyone.
    pub key: String,
    /// What it was: `closed`, `open` or `half-open`.
    pub from: &'static str,
    /// What it is.
    pub to: &'static str,
    /// How many calls may be in flight, where it is half-open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
    /// Why, in words: `12 of 20 calls failed`.
    pub why: String,
}

/// How the requests went that entered any guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceOutcome {
    /// Requests that left again and of which it is known how long they took.
    pub timed: u64,
    /// Requests that left again and had failed, or met an overload.
    pub failed: u64,
    /// The time that half of them did not exceed, to three significant digits.
    #[serde(rename = "p50_ms", serialize_with = "maybe_span")]
    pub p50: Option<Duration>,
    /// The time that 99 of 100 did not exceed.
    #[serde(rename = "p99_ms", serialize_with = "maybe_span")]
    pub p99: Option<Duration>,
    /// The most that were in guards at once.
    pub most_in_flight: u64,
    /// The most that a limit held back at once.
    pub most_waiting: u64,
}

fn maybe_span<S: serde::Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    span.map(json_units::millis).serialize(to)
}

//! The figures of one key.

use serde::Serialize;
use tidegate::Tick;

use super::frequent::PathCount;
use crate::json_units;

/// The peak of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyPeak {
    /// The key.
    pub key: String,
    /// The units that it asked for.
    pub total: u64,
    /// By how many units `total` may be too low; zero while all keys had room.
    pub missed: u64,
    /// How many of its requests were denied.
    pub denied: u64,
    /// The units that those requests asked for.
    pub denied_units: u64,
    /// When it was first denied.
    #[serde(rename = "first_denied_at", serialize_with = "json_units::maybe_time")]
    pub first_denied: Option<Tick>,
    /// The most that it asked for in one window, in cost units.
    pub peak: u64,
    /// When that window ended.
    #[serde(serialize_with = "json_units::time")]
    pub peak_at: Tick,
}

/// A key in the ranking of all keys by their peaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankedKey<'p> {
    /// The key's bytes.
    pub key: &'p [u8],
    /// The most that it asked for in one window, in cost units.
    pub peak: u64,
    /// How many of its requests were denied.
    pub denied: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
}

/// All that is known of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDetail {
    /// Its peak and its denials.
    pub peak: KeyPeak,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
    /// The number of its requests; `None` if details are not kept.
    pub requests: Option<u64>,
    /// Its most requested paths, at most three; empty if details are not kept or requests have no path.
    pub paths: Vec<PathCount>,
}

impl KeyDetail {
    /// Says whether its numbers are only lower bounds, because the key was forgotten for a while for lack of room.
    #[must_use]
    pub fn is_floor(&self) -> bool {
        self.peak.missed > 0
    }
}

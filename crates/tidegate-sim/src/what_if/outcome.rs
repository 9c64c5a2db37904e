//! The results of candidates: the counts, and the names of the keys hit most.

use serde::Serialize;

use super::candidate::Candidate;
use super::key_table::Key;

/// The requests and keys that one limit would have denied.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfOutcome {
    /// The limit.
    pub candidate: Candidate,
    /// Requests it would have denied.
    pub denied: u64,
    /// Their share of the requests that the policy matched, 0 to 1.
    pub denied_share: f64,
    /// Keys with at least one denied request.
    pub keys_hit: u64,
    /// Their share of all keys, 0 to 1.
    pub keys_hit_share: f64,
    /// How many of them belong to a user who signed in and was served.
    pub keys_hit_signed_in: u64,
    /// The keys hit, most denied first, ties by name; at most [`WhatIfOptions::named`](super::WhatIfOptions::named).
    pub hit: Vec<KeyHit>,
}

/// A key that a limit would have hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyHit {
    /// The key, as replays show it.
    pub key: String,
    /// How many of its requests would have been denied.
    pub denied: u64,
    /// How many requests it made.
    pub requests: u64,
    /// The most it asked for within one window, in cost units.
    pub peak: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
}

/// A key that a limit would have hit, without its other figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitName<'w> {
    /// The key, as replays show it.
    pub key: &'w str,
    /// How many of its requests would have been denied.
    pub denied: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
}

impl WhatIfOutcome {
    /// Makes the outcome of a candidate from the keys hit, each with its denied requests, and from the totals of
    /// requests and keys.
    pub(super) fn new(
        candidate: Candidate,
        denied: u64,
        mut hit: Vec<(u64, &Key)>,
        requests: u64,
        keys: u64,
        named: usize,
    ) -> Self {
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
        let keys_hit = hit.len() as u64;
        let keys_hit_signed_in = hit.iter().filter(|(_, key)| key.signed_in).count() as u64;
        hit.sort_unstable_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
        hit.truncate(named);
        let name = |(denied, key): &(u64, &Key)| KeyHit {
            key: key.name.to_string(),
            denied: *denied,
            requests: key.requests,
            peak: key.peak.peak(),
            signed_in: key.signed_in,
        };
        Self {
            candidate,
            denied,
            denied_share: share(denied, requests),
            keys_hit,
            keys_hit_share: share(keys_hit, keys),
            keys_hit_signed_in,
            hit: hit.iter().map(name).collect(),
        }
    }
}

//! What candidates would have done: the counts, and the names of those hit first.

use serde::Serialize;

use super::key_table::Key;
use super::{Candidate, WhatIf};

/// What one limit would have done.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfOutcome {
    /// The limit.
    pub candidate: Candidate,
    /// Requests it would have denied.
    pub denied: u64,
    /// Their share of the requests that the policy spoke of, 0 to 1.
    pub denied_share: f64,
    /// Keys it would have denied anything.
    pub keys_hit: u64,
    /// Their share of all keys, 0 to 1.
    pub keys_hit_share: f64,
    /// How many of them belong to somebody who signed in and was served.
    pub keys_hit_signed_in: u64,
    /// The keys hit, those denied most first, ties by name; at most as many as [`WhatIfOptions::named`](super::WhatIfOptions::named).
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
    /// The most it asked within one window, in cost units.
    pub peak: u64,
    /// Whether somebody signed in with it and was served.
    pub signed_in: bool,
}

/// A key that a limit would have hit, where only who it is matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitName<'w> {
    /// The key, as replays show it.
    pub key: &'w str,
    /// How many of its requests would have been denied.
    pub denied: u64,
    /// Whether somebody signed in with it and was served.
    pub signed_in: bool,
}

impl WhatIf {
    /// Returns all keys that a candidate would have hit, by its place in the list that was given; in no order. Walks all keys.
    pub fn hit_by(&self, candidate: usize) -> impl Iterator<Item = HitName<'_>> {
        let ordered = self.ordered.iter().position(|ordered| ordered.given == candidate);
        let hit = move |key: &'_ Key| {
            let wanted = ordered?;
            let place = key.states.binary_search_by_key(&wanted, |state| state.candidate).ok()?;
            Some(key.states[place].denied)
        };
        let named = move |key| hit(key).map(|denied| (key, denied));
        let named = self.keys.iter().filter_map(named);
        named.map(|(key, denied)| HitName { key: &key.name, denied, signed_in: key.signed_in })
    }
}

pub(super) fn outcomes(what_if: &WhatIf) -> Vec<WhatIfOutcome> {
    let (all, keys) = (what_if.requests, what_if.keys().about());
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let mut hit: Vec<Vec<(u64, &Key)>> = vec![Vec::new(); what_if.ordered.len()];
    for key in what_if.keys.iter() {
        for state in &key.states {
            hit[state.candidate].push((state.denied, key));
        }
    }
    let mut outcomes: Vec<_> = what_if
        .candidates
        .iter()
        .map(|candidate| WhatIfOutcome {
            candidate: *candidate,
            denied: 0,
            denied_share: 0.0,
            keys_hit: 0,
            keys_hit_share: 0.0,
            keys_hit_signed_in: 0,
            hit: Vec::new(),
        })
        .collect();
    for ((ordered, denied), mut hit) in what_if.ordered.iter().zip(&what_if.denied).zip(hit) {
        let outcome = &mut outcomes[ordered.given];
        outcome.denied = *denied;
        outcome.denied_share = share(*denied, all);
        outcome.keys_hit = hit.len() as u64;
        outcome.keys_hit_share = share(outcome.keys_hit, keys).min(1.0);
        outcome.keys_hit_signed_in = hit.iter().filter(|(_, key)| key.signed_in).count() as u64;
        hit.sort_unstable_by(|(a, one), (b, other)| b.cmp(a).then_with(|| one.name.cmp(&other.name)));
        hit.truncate(what_if.options.named);
        let named = |(denied, key): &(u64, &Key)| KeyHit {
            key: key.name.to_string(),
            denied: *denied,
            requests: key.requests,
            peak: key.peak.peak(),
            signed_in: key.signed_in,
        };
        outcome.hit = hit.iter().map(named).collect();
    }
    outcomes
}

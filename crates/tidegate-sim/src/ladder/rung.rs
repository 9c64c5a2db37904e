//! What each rung would have done, beside what the limit that was replayed did.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate::Quota;

use crate::log::text;
use crate::peaks::{KeyDetail, Peaks};
use crate::replay::PeakRate;
use crate::what_if::{Candidate, WhatIf};

/// The most rungs shown: a line moves along them, and a table lists them.
const MOST_SHOWN: usize = 40;
/// How many of the keys that are newly hit are named.
const NAMED: usize = 10;

/// One limit of a ladder, and what it would have done.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// The rate.
    pub rate: PeakRate,
    /// The burst, in cost units.
    pub burst: u64,
    /// The most that it grants to a key in the window of the peaks, in cost units.
    pub granted: u64,
    /// Requests denied.
    pub denied: u64,
    /// Their share of the requests that the policy spoke of, 0 to 1.
    pub denied_share: f64,
    /// Keys denied anything.
    pub keys_hit: u64,
    /// How many of them belong to somebody who signed in and was served.
    pub keys_hit_signed_in: u64,
    /// How many keys it would have hit that the limit replayed did not hit.
    pub newly_hit: u64,
    /// How many of those belong to somebody who signed in and was served.
    pub newly_hit_signed_in: u64,
    /// How many keys the limit replayed hit and it would not have.
    pub spared: u64,
    /// Of the keys that are newly hit those denied most, ten at most.
    pub newly: Vec<NewlyHit>,
    /// Which keys it would have hit, by their places in [`Peaks::ranking`](crate::peaks::Peaks::ranking).
    pub(crate) hit: Vec<bool>,
}

/// A key that another limit would hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewlyHit {
    /// The key, as replays show it.
    pub key: String,
    /// How many of its requests that limit would have denied.
    pub denied: u64,
    /// Whether somebody signed in with it and was served.
    pub signed_in: bool,
    /// What the replay knows of it; `None` where it was forgotten for lack of room.
    pub detail: Option<KeyDetail>,
}

impl Rung {
    /// Returns the limit as a policy file writes it, in one line.
    #[must_use]
    pub fn limit(&self) -> String {
        format!("gcra {} burst {}", self.rate, self.burst)
    }

    /// Returns a policy with this limit, to paste below `policies:`; in shadow, so that it denies nobody yet.
    #[must_use]
    pub fn yaml(&self, name: &str, by: &[String]) -> String {
        format!(
            "  - name: {}\n    mode: shadow\n    by: [{}]\n    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            quoted(name),
            by.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "),
            self.rate,
            self.burst,
        )
    }
}

/// Writes a text as a scalar of YAML: plain where that is safe, else as JSON, which YAML reads.
fn quoted(text: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    if text.starts_with(|char: char| char.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off"
        )
    {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string()
}

/// Writes a rate with the period of the limit where that is a whole number of it.
fn written(candidate: &Candidate, window: Duration) -> PeakRate {
    let rate = candidate.rate;
    let times = rate.period().as_nanos() / window.as_nanos().max(1);
    match u64::try_from(times) {
        Ok(times) if times > 1 && rate.count().is_multiple_of(times) => {
            PeakRate { count: rate.count() / times, window }
        }
        _ => PeakRate { count: rate.count(), window: rate.period() },
    }
}

/// The limits that were tried, and which of them was replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried<'a> {
    pub(super) trial: &'a WhatIf,
    /// As the trial was given them, lowest first.
    pub(super) candidates: &'a [Candidate],
    pub(super) replayed: usize,
    pub(super) window: Duration,
}

/// Returns the rungs worth showing, and the place among them of the limit that was replayed; `peaks` are those of its replay.
pub(super) fn shown(tried: Tried<'_>, peaks: &Peaks) -> (Vec<Rung>, usize) {
    let outcomes = tried.trial.outcomes();
    let ranking = peaks.ranking();
    let names: Vec<_> = ranking.iter().map(|ranked| text(ranked.key)).collect();
    let places: HashMap<&str, usize, RandomState> =
        names.iter().enumerate().map(|(place, name)| (&**name, place)).collect();
    let replayed: HashSet<&str, RandomState> =
        ranking.iter().zip(&names).filter(|(key, _)| key.denied > 0).map(|(_, name)| &**name).collect();
    let (from, to) =
        worth_showing(&outcomes.iter().map(|outcome| outcome.denied).collect::<Vec<_>>(), tried.replayed);
    let rung = |place: usize| {
        let (outcome, candidate) = (&outcomes[place], &tried.candidates[place]);
        let mut hit = vec![false; ranking.len()];
        let (mut newly, mut newly_signed_in, mut still) = (Vec::new(), 0, 0);
        for name in tried.trial.hit_by(place) {
            if let Some(place) = places.get(name.key) {
                hit[*place] = true;
            }
            if replayed.contains(name.key) {
                still += 1;
            } else {
                newly_signed_in += u64::from(name.signed_in);
                newly.push(name);
            }
        }
        newly.sort_unstable_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.key.cmp(b.key)));
        let newly_hit = newly.len() as u64;
        let named = newly.iter().take(NAMED).map(|name| NewlyHit {
            key: name.key.to_owned(),
            denied: name.denied,
            signed_in: name.signed_in,
            detail: places.get(name.key).and_then(|place| peaks.about(ranking[*place].key)),
        });
        let quota = Quota::per(candidate.rate.count(), candidate.rate.period()).burst(candidate.burst).gcra();
        Rung {
            rate: written(candidate, tried.window),
            burst: candidate.burst,
            granted: quota
                .ok()
                .and_then(|quota| quota.granted_within(tried.window))
                .unwrap_or(candidate.burst),
            denied: outcome.denied,
            denied_share: outcome.denied_share,
            keys_hit: outcome.keys_hit,
            keys_hit_signed_in: outcome.keys_hit_signed_in,
            newly_hit,
            newly_hit_signed_in: newly_signed_in,
            spared: replayed.len() as u64 - still,
            newly: named.collect(),
            hit,
        }
    };
    ((from..to).map(rung).collect(), tried.replayed - from)
}

/// Returns the range of rungs to show: from one that denies nearly all, to the first that denies nothing and one more; always with
/// the limit that was replayed.
fn worth_showing(denied: &[u64], replayed: usize) -> (usize, usize) {
    let most = denied.first().copied().unwrap_or(0);
    // Below, a limit denies all but a tenth of what the lowest rung does: nobody wants to go there.
    let from = denied.partition_point(|denied| *denied > most - most / 10).saturating_sub(1).min(replayed);
    let nothing = denied.iter().position(|denied| *denied == 0).unwrap_or(denied.len());
    let to = (nothing + 2).max(replayed + 1).min(denied.len());
    if to - from <= MOST_SHOWN {
        return (from, to);
    }
    // Too many: those at the far end from the limit are left out.
    if replayed < from + MOST_SHOWN { (from, from + MOST_SHOWN) } else { (to - MOST_SHOWN, to) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rungs_shown_hold_the_limit_and_both_ends() {
        let denied = [1_000, 990, 950, 700, 300, 20, 0, 0, 0, 0];
        assert_eq!(worth_showing(&denied, 4), (2, 8));
        assert_eq!(worth_showing(&denied, 9), (2, 10));
        assert_eq!(worth_showing(&denied, 0), (0, 8));
        assert_eq!(worth_showing(&[0; 100], 50), (11, 51));
        assert_eq!(worth_showing(&[5; 100], 99), (60, 100));
        let (from, to) = worth_showing(&(0..100).rev().map(|n| n * 10).collect::<Vec<_>>(), 90);
        assert!(to - from <= MOST_SHOWN && (from..to).contains(&90), "{from} {to}");
    }

    #[test]
    fn names_are_quoted_where_yaml_would_read_them_otherwise() {
        let words = ["per-ip", "client.ip", "no", "a: b", "1", "x\n  - y", "", "- a"].map(quoted);
        assert_eq!(
            words,
            ["per-ip", "client.ip", "\"no\"", "\"a: b\"", "\"1\"", "\"x\\n  - y\"", "\"\"", "\"- a\""]
        );
    }

    #[test]
    fn rates_are_written_by_their_own_period_where_they_can_be() {
        let candidate = |count, secs| Candidate {
            rate: tidegate::Rate::new(count, Duration::from_secs(secs)).unwrap(),
            burst: 1,
        };
        let second = Duration::from_secs(1);
        assert_eq!(written(&candidate(120, 60), second).to_string(), "2/s");
        assert_eq!(written(&candidate(100, 60), second).to_string(), "100/min");
        assert_eq!(written(&candidate(5, 1), second).to_string(), "5/s");
    }
}

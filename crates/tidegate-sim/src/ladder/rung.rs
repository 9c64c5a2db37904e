//! The results of each rung, compared with the replayed limit.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate::Quota;

use crate::log::text;
use crate::peaks::{KeyDetail, Peaks};
use crate::replay::PeakRate;
use crate::what_if::{Candidate, WhatIf};

/// The most rungs shown: the limit line moves along them, and a table lists them.
const MOST_SHOWN: usize = 40;
/// How many of the newly hit keys are named.
const NAMED: usize = 10;

/// One limit of a ladder, and what it would have done.
#[derive(Clone, Debug, PartialEq)]
pub struct Rung {
    /// The rate.
    pub rate: PeakRate,
    /// The burst, in cost units.
    pub burst: u64,
    /// The most that the limit grants to a key in the window of the peaks, in cost units.
    pub granted: u64,
    /// Requests denied.
    pub denied: u64,
    /// Their share of the requests that the policy applies to, 0 to 1.
    pub denied_share: f64,
    /// Keys with at least one denied request.
    pub keys_hit: u64,
    /// How many of these keys belong to a user who signed in and was served.
    pub keys_hit_signed_in: u64,
    /// How many keys this limit would have hit that the replayed limit did not hit.
    pub newly_hit: u64,
    /// How many of the newly hit keys belong to a user who signed in and was served.
    pub newly_hit_signed_in: u64,
    /// How many keys the replayed limit hit that this limit would not have hit.
    pub spared: u64,
    /// The newly hit keys with the most denied requests, at most ten.
    pub newly: Vec<NewlyHit>,
    /// Which keys this limit would have hit, in the order of [`Peaks::ranking`](crate::peaks::Peaks::ranking).
    pub(crate) hit: Vec<bool>,
}

/// A key that another limit would hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewlyHit {
    /// The key, as replays show it.
    pub key: String,
    /// How many of its requests that limit would have denied.
    pub denied: u64,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
    /// The replay's details of the key; `None` if they were dropped for lack of room.
    pub detail: Option<KeyDetail>,
}

impl Rung {
    /// Returns the limit in the one-line form of a policy file.
    #[must_use]
    pub fn limit(&self) -> String {
        format!("gcra {} burst {}", self.rate, self.burst)
    }
}

/// Expresses a rate in the period of the limit, if that gives a whole number.
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

/// The limits that were tried, and the position of the replayed one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried<'a> {
    pub(super) trial: &'a WhatIf,
    /// In the order of the trial, lowest first.
    pub(super) candidates: &'a [Candidate],
    pub(super) replayed: usize,
    pub(super) window: Duration,
}

/// Returns the rungs worth showing, and the position of the replayed limit among them; `peaks` are those of its
/// replay.
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

/// Returns the range of rungs to show: from one that denies almost as much as the lowest rung, to one above the
/// first that denies nothing. The range always includes the replayed limit.
fn worth_showing(denied: &[u64], replayed: usize) -> (usize, usize) {
    let most = denied.first().copied().unwrap_or(0);
    // Rungs below this one deny over nine tenths of the requests that the lowest rung denies, and are not a practical
    // choice.
    let from = denied.partition_point(|denied| *denied > most - most / 10).saturating_sub(1).min(replayed);
    let nothing = denied.iter().position(|denied| *denied == 0).unwrap_or(denied.len());
    let to = (nothing + 2).max(replayed + 1).min(denied.len());
    if to - from <= MOST_SHOWN {
        return (from, to);
    }
    // Too many: leave out rungs at the end that is further from the replayed limit.
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

//! Ladders of limits around the replayed ones, tried during the same reading of the log.
//!
//! The limit line in the report moves along a ladder. A rung is the policy's limit made smaller or larger, with its
//! burst in proportion, decided as `gcra` on its own. Its numbers are those that a replay would print: the peaks alone
//! do not tell what a key had spent before.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate::limiter::Rate;
use tidegate::policy::{Descriptor, Match, Mode, Policy, PolicySet, WrittenRate};
use tidegate::{Quota, Tick};
use tidegate_core::Algorithm as _;

use crate::log::{Record, text};
use crate::peaks::{KeyDetail, Peaks};
use crate::policy_yaml::{plain_or_quoted, scope};
use crate::replay::{PeakRate, Replay, ReplayOptions, written_rate};
use crate::what_if::{Candidate, WhatIf, WhatIfOptions};

/// Each ladder remembers every key, and more charts would overload the page.
const MOST_LADDERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Ladder {
    /// The position of the policy in [`Outcome::policies`](crate::replay::Outcome::policies).
    row: usize,
    /// The rungs, lowest first. The rung at `replayed` is the replayed limit.
    candidates: Vec<Candidate>,
    replayed: usize,
    /// The limit as written, if it is not a `gcra`: the nearest `gcra` stands in for it.
    stands_in_for: Option<String>,
    /// The period of the limit, in which peaks are measured.
    window: Duration,
    trial: WhatIf,
    policy: Policy,
    /// The lines of a policy that counts the requests that were tried, or why none does.
    scope: Result<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoLadder {
    pub(crate) row: usize,
    /// A sentence without full stop.
    pub(crate) why: String,
}

/// The ladders of a policy set: at most four, with about 700 bytes for each key.
#[derive(Debug, Default)]
pub struct Ladders {
    ladders: Vec<Ladder>,
    without: Vec<NoLadder>,
}

impl Ladders {
    /// Makes ladders for the policies of a set that have keys; `options` are those of its replay.
    #[must_use]
    pub fn new(policies: &PolicySet, options: &ReplayOptions) -> Self {
        let mut all = Self::default();
        let mut row = 0;
        for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            if !policy.by.is_empty() {
                match Ladder::of(row, policy, options) {
                    Ok(ladder) if all.ladders.len() < MOST_LADDERS => all.ladders.push(ladder),
                    Ok(_) => {
                        let why = format!(
                            "other limits are tried only for the first {MOST_LADDERS} policies with keys"
                        );
                        all.without.push(NoLadder { row, why });
                    }
                    Err(why) => all.without.push(NoLadder { row, why }),
                }
            }
            // A shadow limit has a row of its own.
            row += 1 + usize::from(policy.shadow_limit.is_some());
        }
        all
    }

    /// States that only these requests of a log are tried, so that the policies of the rungs say so too.
    #[must_use]
    pub fn of_requests(mut self, matching: &Match) -> Self {
        for ladder in &mut self.ladders {
            ladder.scope = scope(&ladder.policy, matching, None);
        }
        self
    }

    /// Tries a request of a log on every rung.
    pub fn feed(&mut self, record: &Record<'_>) {
        if self.ladders.is_empty() {
            return;
        }
        self.ask(record.time, &record.describe(), record.is_signed_in());
    }

    fn ask(&mut self, at: Tick, request: &Descriptor<'_>, signed_in: bool) {
        for ladder in &mut self.ladders {
            ladder.trial.ask(at, request, None, signed_in);
        }
    }

    #[must_use]
    pub(crate) fn of_row(&self, row: usize) -> Option<&Ladder> {
        self.ladders.iter().find(|ladder| ladder.row == row)
    }

    /// Returns why a policy with keys has no ladder; `None` for other policies.
    #[must_use]
    pub(crate) fn why_not(&self, row: usize) -> Option<&str> {
        self.without.iter().find(|without| without.row == row).map(|without| without.why.as_str())
    }
}

impl Ladder {
    fn of(row: usize, policy: &Policy, options: &ReplayOptions) -> Result<Self, String> {
        let no_rate = || "its first limit is not a rate, and only rates are tried".to_owned();
        let limit = policy.limits.first().ok_or_else(no_rate)?;
        let written = written_rate(&limit.terms.label).ok_or_else(no_rate)?;
        let (WrittenRate::Per { count, .. }, Some(window)) = (written, written.period()) else {
            return Err(no_rate());
        };
        let quota = limit.terms.quota.as_ref().ok_or_else(no_rate)?;
        // The burst, or the count of a window.
        let burst = quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit;
        let rate = Rate::new(count, window).map_err(|error| error.to_string())?;
        let (candidates, replayed) = steps(rate, burst);
        let what_if =
            WhatIfOptions { keys: options.peak_keys, window, named: 0, ipv6_prefix: options.ipv6_prefix };
        let trial = WhatIf::new(policy, &candidates, what_if).map_err(|error| error.to_string())?;
        let label = &limit.terms.label;
        let is_gcra = label.split_whitespace().next() == Some("gcra");
        let stands_in_for = (!is_gcra).then(|| label.clone());
        let scope = scope(policy, &Match::any(), None);
        Ok(Self { row, candidates, replayed, stands_in_for, window, trial, policy: policy.clone(), scope })
    }

    /// Returns the rungs worth showing, lowest limit first, and the position of the replayed limit. `replay` must have
    /// read the same requests. Walks all keys once for each rung.
    #[must_use]
    pub(crate) fn rungs(&self, replay: &Replay) -> (Vec<Rung>, usize) {
        let Self { row, candidates, replayed, window, trial, .. } = self;
        let Some(peaks) = replay.policy_peaks(0, *row) else { return (Vec::new(), 0) };
        shown(Tried { trial, candidates, replayed: *replayed, window: *window }, peaks)
    }

    /// A policy with the limit of a rung, to paste below `policies:`. It is in shadow mode, so that it denies nothing
    /// yet.
    ///
    /// # Errors
    /// The reason, as a sentence without full stop.
    pub(crate) fn yaml(&self, rung: &Rung) -> Result<String, &str> {
        let scope = self.scope.as_deref().map_err(String::as_str)?;
        Ok(format!(
            "  - name: {}\n    mode: shadow\n{scope}    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            plain_or_quoted(&self.policy.name),
            rung.rate,
            rung.burst,
        ))
    }

    /// The limit as written, if it is not a `gcra`. Its rung has the same rate and grants as much at once, but denies
    /// other requests.
    #[must_use]
    pub(crate) fn stands_in_for(&self) -> Option<&str> {
        self.stands_in_for.as_deref()
    }

    /// Says whether there was room for all keys. If not, the counts of keys hit may be too low.
    #[must_use]
    pub(crate) fn is_exact(&self) -> bool {
        self.trial.evicted() == 0 && !self.trial.has_forgotten()
    }
}

/// Ten round steps per power of ten, in tenths; each is about a quarter more than the one before.
const TENTHS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];

/// A limit further off than this factor was not meant for this log.
const FAR: u64 = 1_000;

/// Below this count the steps would be coarse, and a longer period is used.
const FINE: u64 = 50;

/// Returns the limits of a ladder, lowest first, and the position of the limit that it is built around.
fn steps(rate: Rate, burst: u64) -> (Vec<Candidate>, usize) {
    let (count, period) = longer(rate);
    let around = |to: u64| Candidate {
        rate: Rate::new(to, period).unwrap_or(rate),
        burst: u64::try_from((u128::from(burst) * u128::from(to)).div_ceil(u128::from(count)))
            .unwrap_or(Rate::MAX_COUNT)
            .clamp(1, Rate::MAX_COUNT),
    };
    let (least, most) = ((count / FAR).max(1), count.saturating_mul(FAR).min(Rate::MAX_COUNT));
    let mut counts: Vec<u64> = (0..=most.ilog10())
        .flat_map(|power| TENTHS.map(|tenth| u128::from(tenth) * 10u128.pow(power)))
        .filter(|tenths| tenths.is_multiple_of(10))
        .filter_map(|tenths| u64::try_from(tenths / 10).ok())
        .filter(|to| (least..=most).contains(to) && *to != count)
        .collect();
    let place = counts.partition_point(|to| *to < count);
    counts.insert(place, count);
    let mut rungs: Vec<Candidate> = counts.into_iter().map(around).collect();
    rungs[place] = Candidate { rate, burst };
    (rungs, place)
}

/// The same rate as a count per longer period, of at most a day, if the count is small.
fn longer(rate: Rate) -> (u64, Duration) {
    let (mut count, mut period) = (rate.count(), rate.period());
    for times in [60u32, 60, 24] {
        let longer = period.saturating_mul(times);
        if count >= FINE || longer > Duration::from_secs(86_400) {
            break;
        }
        (count, period) = (count * u64::from(times), longer);
    }
    (count, period)
}

/// The limit line moves along them, and a table lists them.
const MOST_SHOWN: usize = 40;
const NAMED: usize = 10;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rung {
    pub(crate) rate: PeakRate,
    /// The burst, in cost units.
    pub(crate) burst: u64,
    /// The most that the limit grants to a key in the window of the peaks, in cost units.
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// Their share of the requests that the policy applies to, 0 to 1.
    pub(crate) denied_share: f64,
    pub(crate) keys_hit: u64,
    /// How many of these keys belong to a user who signed in and was served.
    pub(crate) keys_hit_signed_in: u64,
    /// Keys that the replayed limit did not hit.
    pub(crate) newly_hit: u64,
    /// How many of the newly hit keys belong to a user who signed in and was served.
    pub(crate) newly_hit_signed_in: u64,
    /// Keys that the replayed limit hit and this limit would not.
    pub(crate) spared: u64,
    /// The newly hit keys with the most denied requests, at most ten.
    pub(crate) newly: Vec<NewlyHit>,
    /// Which keys this limit would have hit, in the order of [`Peaks::ranking`].
    pub(crate) hit: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewlyHit {
    pub(crate) key: String,
    pub(crate) denied: u64,
    pub(crate) signed_in: bool,
    /// The replay's details of the key; `None` if they were dropped for lack of room.
    pub(crate) detail: Option<KeyDetail>,
}

impl Rung {
    /// Returns the limit in the one-line form of a policy file.
    #[must_use]
    pub(crate) fn limit(&self) -> String {
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

#[derive(Clone, Copy, Debug)]
struct Tried<'a> {
    trial: &'a WhatIf,
    candidates: &'a [Candidate],
    replayed: usize,
    window: Duration,
}

fn shown(tried: Tried<'_>, peaks: &Peaks) -> (Vec<Rung>, usize) {
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

/// Returns the range of rungs to show: from one that denies almost as much as the lowest rung, to one above the first
/// that denies nothing. The range always includes the replayed limit.
fn worth_showing(denied: &[u64], replayed: usize) -> (usize, usize) {
    let most = denied.first().copied().unwrap_or(0);
    // Rungs below deny over nine tenths of what the lowest denies, and are not a practical choice.
    let from = denied.partition_point(|denied| *denied > most - most / 10).saturating_sub(1).min(replayed);
    let nothing = denied.iter().position(|denied| *denied == 0).unwrap_or(denied.len());
    let to = (nothing + 2).max(replayed + 1).min(denied.len());
    if to - from <= MOST_SHOWN {
        return (from, to);
    }
    // Too many: leave out rungs at the end further from the replayed limit.
    if replayed < from + MOST_SHOWN { (from, from + MOST_SHOWN) } else { (to - MOST_SHOWN, to) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate::config::{Config, Format};

    use super::*;
    use crate::peaks::PathCount;

    fn set(limit: &str) -> Arc<PolicySet> {
        let text =
            format!("version: 1\npolicies:\n  - {{ name: per-ip, by: [client.ip], limit: {limit} }}\n");
        match Config::parse(&text, "test.yaml", Format::Yaml) {
            Ok((config, _)) => config.policies,
            Err(mistakes) => panic!("{mistakes:#?}"),
        }
    }

    /// Twenty clients, each faster than the one before, a scraper that has signed in, and one client that comes again and
    /// again.
    fn requests() -> Vec<(u64, String, String, bool)> {
        let mut all = Vec::new();
        for client in 1..=20u64 {
            all.extend(
                (0..client * 3).map(|n| {
                    (n * 60_000 / (client * 3), format!("client-{client:02}"), "/".to_owned(), false)
                }),
            );
        }
        all.extend((0..900).map(|n| (n * 40, "scraper".to_owned(), format!("/items/{n}"), true)));
        all.sort();
        all
    }

    fn replayed(limit: &str) -> (Replay, Ladders) {
        let policies = set(limit);
        let options = ReplayOptions { details: true, ..ReplayOptions::default() };
        let mut ladders = Ladders::new(&policies, &options);
        let mut replay = Replay::new(vec![("policies".to_owned(), policies)], options).unwrap();
        for (at, client, path, signed_in) in requests() {
            let at = Tick::from_secs(1_000).after(Duration::from_millis(at));
            let request = Descriptor::new().with("request.path", &*path).with("client.ip", &*client);
            replay.feed_request(at, &request, None);
            ladders.ask(at, &request, signed_in);
        }
        (replay, ladders)
    }

    #[test]
    fn each_rung_is_what_a_replay_of_it_prints() {
        let (replay, ladders) = replayed("{ rate: 60/min, burst: 20 }");
        let ladder = ladders.of_row(0).unwrap();
        let (rungs, at) = ladder.rungs(&replay);
        assert!(rungs.len() > 5 && ladder.is_exact());
        assert_eq!((rungs[at].limit().as_str(), rungs[at].granted), ("gcra 60/min burst 20", 80));
        assert_eq!((rungs[at].newly_hit, rungs[at].spared), (0, 0), "the limit itself hits whom it hits");
        for rung in &rungs {
            let limit = format!("{{ rate: {}, burst: {} }}", rung.rate, rung.burst);
            let (again, _) = replayed(&limit);
            let outcome = &again.outcomes()[0].policies[0];
            assert_eq!((rung.denied, rung.keys_hit), (outcome.denied, outcome.keys_hit), "{limit}");
            let drawn = rung.hit.iter().filter(|hit| **hit).count() as u64;
            assert_eq!(drawn, rung.keys_hit, "{limit}");
            let granted = again.granted(0, 0).unwrap();
            assert_eq!((granted.units, &granted.limit), (rung.granted, &rung.limit()));
        }
        // The limit hits only the scraper, so every other key is newly hit.
        let lowest = &rungs[0];
        assert_eq!((rungs[at].keys_hit, lowest.newly_hit), (1, lowest.keys_hit - 1));
        assert_eq!((lowest.newly.len(), lowest.newly_hit_signed_in, lowest.keys_hit_signed_in), (10, 0, 1));
        assert_eq!((rungs.last().unwrap().denied, rungs.last().unwrap().spared), (0, 1));
    }

    #[test]
    fn keys_newly_hit_are_known_by_their_paths() {
        let (replay, ladders) = replayed("{ rate: 2000/min, burst: 2000 }");
        let (rungs, at) = ladders.of_row(0).unwrap().rungs(&replay);
        assert_eq!(rungs[at].keys_hit, 0);
        let first = rungs.iter().rev().find(|rung| rung.newly_hit == 1).unwrap();
        let [newly] = &first.newly[..] else { panic!("{first:?}") };
        assert_eq!((newly.key.as_str(), newly.signed_in, newly.denied), ("scraper", true, first.denied));
        let path = PathCount { path: "/items/*".to_owned(), requests: 900, is_exact: true };
        assert_eq!(newly.detail.as_ref().unwrap().paths, [path]);
        assert_eq!(
            ladders.of_row(0).unwrap().yaml(first).unwrap(),
            format!(
                "  - name: per-ip\n    mode: shadow\n    by: [client.ip]\n    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
                first.rate, first.burst
            )
        );
    }

    #[test]
    fn what_is_no_rate_has_no_ladder_and_says_so() {
        let ladders = Ladders::new(&set("{ algorithm: concurrency, max: 5 }"), &ReplayOptions::default());
        assert!(ladders.of_row(0).is_none());
        assert!(ladders.why_not(0).unwrap().contains("only rates are tried"), "{:?}", ladders.why_not(0));
        let windows =
            Ladders::new(&set("{ algorithm: fixed-window, rate: 60/min }"), &ReplayOptions::default());
        assert_eq!(windows.of_row(0).unwrap().stands_in_for(), Some("fixed-window 60/min"));
        let gcra = Ladders::new(&set("{ rate: 60/min, burst: 20 }"), &ReplayOptions::default());
        assert_eq!(gcra.of_row(0).unwrap().stands_in_for(), None);
    }

    fn shown(count: u64, secs: u64, burst: u64) -> (Vec<(u64, u64, u64)>, usize) {
        let (rungs, place) = steps(Rate::new(count, Duration::from_secs(secs)).unwrap(), burst);
        let each = rungs.iter().map(|rung| (rung.rate.count(), rung.rate.period().as_secs(), rung.burst));
        (each.collect(), place)
    }

    #[test]
    fn the_limit_itself_is_a_rung_and_the_others_keep_its_proportions() {
        let (rungs, place) = shown(2, 1, 20);
        assert_eq!(rungs[place], (2, 1, 20));
        assert_eq!((rungs[0], rungs[place + 1]), ((1, 60, 1), (150, 60, 25)));
        assert_eq!(rungs[place - 1], (100, 60, 17), "the burst is rounded up");
        assert_eq!(rungs.last(), Some(&(120_000, 60, 20_000)));
        assert!(rungs.len() < 60, "{}", rungs.len());
        let (rungs, place) = shown(60, 60, 20);
        assert_eq!(
            (rungs[place - 1], rungs[place], rungs[place + 1]),
            ((50, 60, 17), (60, 60, 20), (80, 60, 27))
        );
    }

    #[test]
    fn any_limit_has_a_ladder() {
        for (count, secs, burst) in
            [(1, 1, 1), (1, 86_400, 1), (Rate::MAX_COUNT, 1, Rate::MAX_COUNT), (7, 4_000_000_000, 9)]
        {
            let (rungs, place) = shown(count, secs, burst);
            assert_eq!(rungs[place], (count, secs, burst));
            assert!(rungs.len() < 120 && rungs.iter().all(|(count, _, burst)| *count >= 1 && *burst >= 1));
        }
    }

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
        let candidate =
            |count, secs| Candidate { rate: Rate::new(count, Duration::from_secs(secs)).unwrap(), burst: 1 };
        let second = Duration::from_secs(1);
        assert_eq!(written(&candidate(120, 60), second).to_string(), "2/s");
        assert_eq!(written(&candidate(100, 60), second).to_string(), "100/min");
        assert_eq!(written(&candidate(5, 1), second).to_string(), "5/s");
    }
}

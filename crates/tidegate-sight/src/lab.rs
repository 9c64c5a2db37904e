//! Tries another limit on the requests of the last hour: how many it would have refused, and of whom.
//!
//! Each key's requests are decided anew in their order, by the arithmetic that enforces limits
//! ([`tidegate_core::Algorithm::decide`]), from a full limit on. Requests that only other policies refused took nothing, and
//! are left out; costs are those of the check, whatever was settled later.
//!
//! A trial is bounded: by [`MOST_REQUESTS`], by [`MOST_KEYS`], beyond which further keys are left out whole, and by
//! whoever wants it to go on.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_core::{Algorithm as _, Ask, Cost, Quota, State, Tick, Transition};
use tidegate_server::Verdict;

use crate::traffic::{Kept, Stretch};

/// The most requests that are decided. Most algorithms take about 100 ns each, so a second.
pub(crate) const MOST_REQUESTS: u64 = 10_000_000;

/// The most keys that are decided at once, some 30 MiB.
const MOST_KEYS: usize = 131_072;

/// After how many requests a trial asks whether to go on: less than a millisecond.
const ROUND: u64 = 4_096;

/// How much later than others a request may be told, in milliseconds: rings are read ten times a second.
const LATE: u64 = 1_000;

/// Keys that are listed.
const LISTED: usize = 100;

/// The limit that is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'q> {
    pub(crate) quota: &'q Quota,
    /// The longest delay with which a request passes.
    pub(crate) max_wait: Duration,
    /// The rate, in units a second; `None`: not one that can be told.
    pub(crate) per_second: Option<f64>,
}

/// What a limit would have done.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tried {
    pub(crate) requests: u64,
    /// Requests that the limit would have refused, and those over the limit of then; also if that only measured, or let
    /// them pass.
    pub(crate) denied_now: u64,
    pub(crate) denied_then: u64,
    pub(crate) keys: u64,
    /// Keys with such requests.
    pub(crate) keys_denied_now: u64,
    pub(crate) keys_denied_then: u64,
    /// Keys that would be refused and were not, and how many there are: those with the most refusals first, 100 at most.
    pub(crate) newly: Vec<DeniedKey>,
    pub(crate) newly_keys: u64,
    /// Keys that were refused and would not be.
    pub(crate) no_longer: u64,
    /// The share of the policy's keys that were decided, from 0 to 1. The busiest are among them at any share.
    pub(crate) share_of_keys: f64,
    /// The time that the requests are of.
    pub(crate) seconds: f64,
    /// By rank, the burst that a key would need at this rate to be refused nothing: the largest first. Not all ranks, but
    /// the first and the last, and about four for each doubling.
    pub(crate) peaks: Vec<(u64, f64)>,
}

/// A key that would be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeniedKey {
    pub(crate) key: u64,
    pub(crate) denied: u64,
    pub(crate) requests: u64,
}

/// Why a trial has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTried {
    /// There are more requests than [`MOST_REQUESTS`].
    TooMany,
    /// Nobody waits for it any more, or it took too long.
    Stopped,
}

/// Tries a limit on the requests of a policy. `goes_on` is asked every few thousand requests.
///
/// # Errors
/// [`NotTried`].
pub(crate) fn try_limit(
    stretch: &Stretch<'_>,
    limit: Limit<'_>,
    mut goes_on: impl FnMut() -> bool,
) -> Result<Tried, NotTried> {
    let mut trial = Deciding { stretch, limit, level: stretch.level, keys: HashMap::default(), decided: 0 };
    let mut waiting: Vec<Kept> = Vec::new();
    for block in 0..stretch.blocks() {
        if !goes_on() {
            return Err(NotTried::Stopped);
        }
        stretch.read(block, &mut waiting);
        // Stable, so requests of one millisecond stay in the order in which they were told.
        waiting.sort_by_key(|kept| kept.at);
        let until = match waiting.last() {
            Some(last) if block + 1 < stretch.blocks() => last.at.saturating_sub(LATE),
            _ => u64::MAX,
        };
        let ready = waiting.partition_point(|kept| kept.at <= until);
        for kept in waiting.drain(..ready) {
            trial.decide(&kept);
            trial.decided += 1;
            if trial.decided > MOST_REQUESTS {
                return Err(NotTried::TooMany);
            }
            if trial.decided.is_multiple_of(ROUND) && !goes_on() {
                return Err(NotTried::Stopped);
            }
        }
    }
    Ok(trial.result())
}

/// A trial under way.
struct Deciding<'t, 's> {
    stretch: &'t Stretch<'s>,
    limit: Limit<'t>,
    /// The share of keys that are decided, as a power of two.
    level: u8,
    keys: HashMap<u64, Key, RandomState>,
    decided: u64,
}

/// A key's state, and what happened to its requests.
struct Key {
    state: State,
    /// The time of its last request, in milliseconds.
    at: u64,
    requests: u64,
    now: u64,
    then: u64,
    /// The units asked for beyond the rate, and the most there were of them.
    filled: f64,
    peak: f64,
}

impl Deciding<'_, '_> {
    fn decide(&mut self, kept: &Kept) {
        let Some(cost) = Cost::new(u64::from(kept.cost)) else { return };
        if self.level > self.stretch.level && !self.stretch.has_whole(kept.key, self.level) {
            return;
        }
        let quota = self.limit.quota;
        let at = Tick::from_nanos(kept.at.saturating_mul(1_000_000));
        let key = self.keys.entry(kept.key).or_insert_with(|| Key {
            state: quota.fresh(at),
            at: kept.at,
            requests: 0,
            now: 0,
            then: 0,
            filled: 0.0,
            peak: 0.0,
        });
        key.requests += 1;
        key.then += u64::from(is_over(kept.verdict));
        // As the gate does where the clock was set back.
        if let Some(state) = quota.set_back(&key.state, at) {
            key.state = state;
        }
        match quota.decide(&key.state, Ask::within(at, cost, self.limit.max_wait)) {
            Transition::Allowed { next, .. } => key.state = next,
            Transition::Denied { .. } => key.now += 1,
        }
        if let Some(rate) = self.limit.per_second {
            let passed = kept.at.saturating_sub(key.at) as f64 / 1_000.0;
            key.filled = (key.filled - passed * rate).max(0.0) + f64::from(kept.cost);
            key.peak = key.peak.max(key.filled);
        }
        key.at = kept.at;
        while self.keys.len() > MOST_KEYS {
            self.level += 1;
            let (stretch, level) = (self.stretch, self.level);
            self.keys.retain(|key, _| stretch.has_whole(*key, level));
        }
    }

    fn result(self) -> Tried {
        let Self { stretch, limit, level, keys, .. } = self;
        let mut tried = Tried {
            keys: keys.len() as u64,
            share_of_keys: 0.5_f64.powi(i32::from(level)),
            seconds: stretch.seconds(),
            ..Tried::default()
        };
        let mut peaks = Vec::with_capacity(keys.len());
        for (key, Key { requests, now, then, peak, .. }) in keys {
            tried.requests += requests;
            tried.denied_now += now;
            tried.denied_then += then;
            tried.keys_denied_now += u64::from(now > 0);
            tried.keys_denied_then += u64::from(then > 0);
            tried.no_longer += u64::from(then > 0 && now == 0);
            if now > 0 && then == 0 {
                tried.newly.push(DeniedKey { key, denied: now, requests });
            }
            peaks.push(peak);
        }
        tried.newly_keys = tried.newly.len() as u64;
        tried.newly.sort_unstable_by(|a, b| b.denied.cmp(&a.denied).then(a.key.cmp(&b.key)));
        tried.newly.truncate(LISTED);
        if limit.per_second.is_some() {
            tried.peaks = by_rank(peaks);
        }
        tried
    }
}

/// Whether the limit of then was exceeded.
const fn is_over(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Denied | Verdict::Over | Verdict::WouldDeny)
}

/// Returns some ranks, from 1, with their peaks, the largest first.
fn by_rank(mut peaks: Vec<f64>) -> Vec<(u64, f64)> {
    peaks.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut points = Vec::new();
    let mut rank = 1;
    while rank <= peaks.len() {
        points.push((rank as u64, peaks[rank - 1]));
        // A fifth more, and the last.
        let next = (rank + rank / 5).max(rank + 1);
        rank = if rank < peaks.len() { next.min(peaks.len()) } else { next };
    }
    points
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate::config::{Config, Format};
    use tidegate::policy::{Descriptor, PolicySet};
    use tidegate_server::Seen;
    use tidegate_sim::replay::{Replay, ReplayOptions};

    use super::*;
    use crate::board::mixed;
    use crate::traffic::{BYTES, Traffic};

    const MS: u64 = 1_000_000;

    fn policies(limit: &str) -> Arc<PolicySet> {
        let text =
            format!("version: 1\npolicies:\n  - {{ name: per-ip, by: [client.ip], limit: {{ {limit} }} }}\n");
        Config::parse(&text, "f", Format::Yaml).unwrap().0.policies
    }

    fn quota(limit: &str) -> Arc<Quota> {
        Arc::clone(policies(limit).policies()[0].limits[0].terms.quota.as_ref().unwrap())
    }

    fn seen(key: u64, at: u64, cost: u32, verdict: Verdict) -> Seen {
        Seen { policy: 1, verdict, near: false, canary: false, key, cost, at: Tick::from_nanos(at * MS) }
    }

    fn tried(traffic: &Traffic, quota: &Quota, from: u64, to: u64) -> Tried {
        let limit = Limit { quota, max_wait: Duration::ZERO, per_second: Some(1.0) };
        try_limit(&traffic.of(1).between(from, to), limit, || true).unwrap()
    }

    /// A replay and the lab decide by the same arithmetic, so no request may come out otherwise.
    #[test]
    fn with_whole_keys_no_request_is_decided_otherwise_than_by_a_replay() {
        let mut requests: Vec<(u64, u64, u32)> = (0..20_000_u64)
            .map(|number| {
                let random = mixed(number);
                let key = (random % 30) * (random / 30 % 30) / 30;
                // In bursts, of which some are in one millisecond.
                let at = 3_600_000 + number / 500 * 40_000 + random / 900 % 3_000;
                (at, key, 1 + (random >> 40) as u32 % 3)
            })
            .collect();
        requests.sort_unstable();
        let mut traffic = Traffic::default();
        for (at, key, cost) in &requests {
            traffic.note(&seen(*key, *at, *cost, Verdict::Allowed));
        }
        let (from, to) = (requests[0].0, requests[requests.len() - 1].0);
        for limit in [
            "rate: 6/s, burst: 12",
            "algorithm: token-bucket, rate: 2/s, burst: 40",
            "algorithm: leaky-bucket, rate: 10/s, burst: 5",
            "algorithm: fixed-window, rate: 90/min",
            "algorithm: sliding-window, rate: 90/min",
            "algorithm: sliding-counter, rate: 90/min",
            "algorithm: sliding-log, rate: 90/min",
        ] {
            let set = policies(limit);
            let lab = tried(&traffic, &quota(limit), from, to);
            assert_eq!((lab.requests, lab.share_of_keys), (20_000, 1.0), "{limit}");
            let replayed = |only: Option<u64>| {
                let options = ReplayOptions { store_keys: 10_000, ..ReplayOptions::default() };
                let mut replay = Replay::new(vec![("f".to_owned(), Arc::clone(&set))], options).unwrap();
                for (at, key, cost) in &requests {
                    if only.is_none_or(|only| only == *key) {
                        let ip = format!("10.0.0.{key}");
                        let request = Descriptor::new().with("client.ip", &*ip);
                        replay.feed_request(Tick::from_nanos(at * MS), &request, Cost::new((*cost).into()));
                    }
                }
                replay.outcomes()[0].denied
            };
            assert!(lab.denied_now > 1_000, "{limit}: {}", lab.denied_now);
            assert_eq!(lab.denied_now, replayed(None), "{limit}");
            // Nothing was refused then, so all keys that are refused are new.
            assert_eq!(lab.newly.len() as u64, lab.keys_denied_now);
            for denied in lab.newly.iter().take(5) {
                assert_eq!(denied.denied, replayed(Some(denied.key)), "{limit}: key {}", denied.key);
            }
        }
    }

    #[test]
    fn keys_are_told_that_are_refused_now_or_no_longer() {
        let mut traffic = Traffic::default();
        for number in 0..30 {
            // One asks for 30 at once, one is refused although it asks for one a minute, and one stays as it is.
            traffic.note(&seen(1, 1_000, 1, Verdict::Allowed));
            traffic.note(&seen(2, number * 60_000, 1, Verdict::Denied));
            traffic.note(&seen(3, number * 60_000, 1, Verdict::Allowed));
        }
        let tried = tried(&traffic, &quota("rate: 1/s, burst: 10"), 0, 29 * 60_000);
        assert_eq!((tried.requests, tried.denied_then, tried.denied_now), (90, 30, 20));
        assert_eq!((tried.keys, tried.keys_denied_then, tried.keys_denied_now), (3, 1, 1));
        assert_eq!(tried.newly, [DeniedKey { key: 1, denied: 20, requests: 30 }]);
        assert_eq!((tried.newly_keys, tried.no_longer), (1, 1));
        assert_eq!((tried.share_of_keys, tried.seconds), (1.0, 1_740.0));
        assert_eq!(tried.peaks, [(1, 30.0), (2, 1.0), (3, 1.0)]);
    }

    #[test]
    fn nothing_is_tried_on_nothing() {
        let traffic = Traffic::default();
        let nothing = tried(&traffic, &quota("rate: 1/s"), 0, 60_000);
        assert_eq!(nothing, Tried { share_of_keys: 1.0, ..Tried::default() });
    }

    /// Threads are told one after the other, so requests of a tenth of a second come late.
    #[test]
    fn requests_that_are_told_late_are_decided_in_their_order() {
        let (mut early, mut late) = (Traffic::default(), Traffic::new(BYTES, 100));
        let times: Vec<u64> = (0..4_000).map(|number| 10_000 + number * 7).collect();
        times.iter().for_each(|at| early.note(&seen(1, *at, 1, Verdict::Allowed)));
        for turn in times.chunks(14) {
            for odd in [1, 0] {
                let of_thread = turn.iter().filter(|at| **at % 2 == odd);
                of_thread.for_each(|at| late.note(&seen(1, *at, 1, Verdict::Allowed)));
            }
        }
        let quota = quota("rate: 20/s, burst: 3");
        assert_eq!(tried(&early, &quota, 0, 100_000), tried(&late, &quota, 0, 100_000));
    }

    #[test]
    fn a_trial_ends_when_nobody_waits() {
        let mut traffic = Traffic::default();
        (0..50_000).for_each(|number| traffic.note(&seen(number % 9, number, 1, Verdict::Allowed)));
        let quota = quota("rate: 1/s");
        let limit = Limit { quota: &quota, max_wait: Duration::ZERO, per_second: None };
        let (recorded, mut asked) = (traffic.of(1), 0);
        let stopped = try_limit(&recorded.between(0, 50_000), limit, || {
            asked += 1;
            asked < 4
        });
        assert_eq!((stopped, asked), (Err(NotTried::Stopped), 4));
    }

    /// Strangers choose how many keys there are.
    #[test]
    fn beyond_so_many_keys_whole_keys_are_left_out() {
        let mut traffic = Traffic::default();
        for round in 0..2 {
            for key in 0..200_000 {
                traffic.note(&seen(key, round * 1_500_000 + key * 5, 1, Verdict::Allowed));
            }
        }
        let tried = tried(&traffic, &quota("rate: 1/h, burst: 1"), 0, 3_000_000);
        assert_eq!(tried.share_of_keys, 0.5);
        assert!((90_000..110_000).contains(&tried.keys), "{}", tried.keys);
        assert_eq!((tried.requests, tried.denied_now), (2 * tried.keys, tried.keys));
        assert!(tried.newly.len() == LISTED && tried.newly_keys == tried.keys && tried.peaks.len() < 100);
    }
}

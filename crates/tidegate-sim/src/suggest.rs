//! Proposes a limit from what happened, with the evidence.
//!
//! First the peak of every key is measured over the window of the limit. The peaks say where to look; they do not decide:
//! candidates are replayed through real gates over the same log, and the smallest that leaves enough keys, or requests,
//! untouched is proposed. Its burst is its count, so that a key which never exceeded the count in a window is never refused. Half
//! and double are replayed too, because whoever sets a limit wants to know how near the edge it lies.

mod suggestion;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tidegate::policy::{Limit, Policy, PolicySet};
use tidegate::{Quota, Rate};

use crate::log::{Log, LogError, LogOptions, Watch};
use crate::replay::{PeakRate, Replay, ReplayOptions};
use crate::source::Input;

pub(crate) use self::suggestion::percent;
pub use self::suggestion::{Evidence, Suggestion};

/// What must be left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepOf {
    /// Keys: a key counts as kept when none of its requests is refused.
    #[default]
    Keys,
    /// Requests.
    Requests,
}

/// What to propose.
#[derive(Clone, Debug, PartialEq)]
pub struct SuggestOptions {
    /// The attributes that make the key: `client.ip`.
    pub by: Vec<String>,
    /// The window of the limit.
    pub per: Duration,
    /// The share to keep, 0 to 1.
    pub keep: f64,
    /// Of what.
    pub of: KeepOf,
    /// How much is remembered in replays.
    pub replay: ReplayOptions,
}

impl Default for SuggestOptions {
    /// Per client and minute, keeping 99.9 % of the clients.
    fn default() -> Self {
        Self {
            by: vec!["client.ip".to_owned()],
            per: Duration::from_secs(60),
            keep: 0.999,
            of: KeepOf::Keys,
            replay: ReplayOptions { bins: 2, ..ReplayOptions::default() },
        }
    }
}

/// Why nothing can be proposed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuggestError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Standard input can be read once only.
    #[error("the log is read several times, and standard input only once: write it to a file first")]
    OnlyOnce,
    /// No request has the key.
    #[error("none of {requests} requests has {by}; the log has {has}")]
    NoKey {
        /// Requests read.
        requests: u64,
        /// The attributes wanted.
        by: String,
        /// The attributes of the first request.
        has: String,
    },
    /// The key names one attribute twice.
    #[error("{attribute} is named twice in the key; once is enough")]
    Repeated {
        /// The attribute.
        attribute: String,
    },
    /// The key has an attribute without a name, or none at all.
    #[error("the key has an attribute without a name; write client.ip, or client.ip and user.id")]
    Unnamed,
    /// The numbers are no limit.
    #[error(transparent)]
    Quota(#[from] tidegate::QuotaError),
    /// The share to keep is no share.
    #[error("cannot keep {percent}%; use above 0 to 100")]
    Keep {
        /// What was asked, in percent.
        percent: f64,
    },
}

/// Percentiles shown.
const PERCENTILES: [f64; 6] = [50.0, 90.0, 95.0, 99.0, 99.9, 100.0];
/// Candidates replayed side by side between one that refuses too much and one that does not.
const REFINE: u64 = 6;

/// Proposes a limit for a log, reading it four times; `watch` is told of each reading.
///
/// # Errors
/// [`SuggestError`].
pub fn suggest(
    inputs: &[Input],
    log: &LogOptions,
    options: &SuggestOptions,
    mut watch: impl FnMut(Watch),
) -> Result<Suggestion, SuggestError> {
    if inputs.contains(&Input::Stdin) {
        return Err(SuggestError::OnlyOnce);
    }
    if !(options.keep > 0.0 && options.keep <= 1.0) {
        return Err(SuggestError::Keep { percent: options.keep * 100.0 });
    }
    key_can_be(&options.by)?;
    // A limit so high that it refuses nobody: this reading only measures.
    let (measured, has) = replay(inputs, log, options, &[Rate::MAX_COUNT], &mut watch)?;
    let outcome = &measured.outcomes()[0];
    let policy = &outcome.policies[0];
    let peaks = measured.policy_peaks(0, 0).map(crate::peaks::Peaks::falling).unwrap_or_default();
    if policy.matched == 0 {
        let by = options.by.join(", ");
        return Err(SuggestError::NoKey { requests: outcome.requests, by, has });
    }
    let (requests, keys) = (policy.matched, policy.keys);
    // Many gates run side by side from here: each gets room for the keys there are, not for the most there could be.
    let mut fitted = options.clone();
    fitted.replay.store_keys =
        options.replay.store_keys.min(keys.about().saturating_mul(2).max(1_024) as usize);
    let mut read = |counts: &[u64]| replay(inputs, log, &fitted, counts, &mut watch);
    let at = |percent: f64| quantile(&peaks, percent / 100.0);
    let percentiles: Vec<_> = PERCENTILES.into_iter().map(|percent| (percent, at(percent))).collect();

    let guess = quantile(&peaks, options.keep);
    let mut ladder: Vec<u64> = percentiles.iter().map(|(_, peak)| round_up(*peak)).collect();
    ladder.extend([round_up(guess), round_up(guess.saturating_add(guess / 8 + 1))]);
    let keeps = |evidence: &Evidence| {
        let lost = if options.of == KeepOf::Keys { evidence.keys_hit_share } else { evidence.denied_share };
        1.0 - lost >= options.keep
    };
    let (replayed, _) = read(&sorted(ladder))?;
    let tried = evidence(&replayed);
    let enough = tried.iter().position(keeps);
    let proposed = match enough {
        Some(0) => tried[0],
        Some(place) => {
            let (low, high) = (tried[place - 1].count, tried[place].count);
            let between = (1..REFINE).map(|step| round_up(low + (high - low) * step / REFINE));
            let (replayed, _) = read(&sorted(between.filter(|count| (low..high).contains(count)).collect()))?;
            evidence(&replayed).into_iter().find(keeps).unwrap_or(tried[place])
        }
        None => {
            tried.last().copied().map_or_else(|| Evidence::nothing(1), |last| Evidence::nothing(last.count))
        }
    };
    let (half, double) = ((proposed.count / 2).max(1), proposed.count.saturating_mul(2));
    let (replayed, _) = read(&[half, proposed.count, double])?;
    let [half, proposed, double] = evidence(&replayed)[..] else {
        unreachable!("three limits were replayed");
    };
    Ok(Suggestion {
        by: options.by.clone(),
        rate: PeakRate { count: proposed.count, window: options.per },
        requests,
        keys,
        percentiles,
        keeps: keeps(&proposed),
        proposed,
        half,
        double,
    })
}

fn key_can_be(by: &[String]) -> Result<(), SuggestError> {
    if by.is_empty() || by.iter().any(|name| name.trim().is_empty()) {
        return Err(SuggestError::Unnamed);
    }
    match by.iter().enumerate().find(|(at, name)| by[..*at].contains(name)) {
        Some((_, name)) => Err(SuggestError::Repeated { attribute: name.clone() }),
        None => Ok(()),
    }
}

/// Replays the log under one limit per count; returns the attributes of the first request, too.
fn replay(
    inputs: &[Input],
    log: &LogOptions,
    options: &SuggestOptions,
    counts: &[u64],
    watch: &mut impl FnMut(Watch),
) -> Result<(Replay, String), SuggestError> {
    let mut sets = Vec::with_capacity(counts.len());
    for count in counts {
        let quota = Quota::per(*count, options.per).burst(*count).gcra()?;
        let label = format!("gcra {} burst {count}", PeakRate { count: *count, window: options.per });
        let mut policy = Policy::new("suggested", Limit::new(quota, label));
        policy.by.clone_from(&options.by);
        let set = PolicySet::new(vec![policy])
            .expect("one policy with a name, a limit, and a key that was looked at");
        sets.push((count.to_string(), Arc::new(set)));
    }
    let mut replay = Replay::new(sets, options.replay);
    let mut log = Log::open(inputs.to_vec(), log.clone())?;
    watch(log.watch());
    let mut has = None;
    log.read(|record| {
        if has.is_none() {
            has = Some(
                record.describe().pairs().map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(", "),
            );
        }
        replay.feed(record);
        ControlFlow::Continue(())
    })?;
    Ok((replay, has.unwrap_or_else(|| "no requests".to_owned())))
}

fn evidence(replay: &Replay) -> Vec<Evidence> {
    replay
        .outcomes()
        .iter()
        .map(|outcome| {
            let policy = &outcome.policies[0];
            let keys = policy.keys.about();
            Evidence {
                count: outcome.name.parse().unwrap_or(0),
                denied: policy.denied,
                denied_share: policy.denied_share(),
                keys_hit: policy.keys_hit,
                keys_hit_share: if keys == 0 { 0.0 } else { policy.keys_hit as f64 / keys as f64 },
            }
        })
        .collect()
}

/// Returns the peak that a share of the keys never went above; `falling` is sorted, highest first.
fn quantile(falling: &[u64], share: f64) -> u64 {
    let above = (falling.len() as f64 * (1.0 - share) + 1e-9).floor() as usize;
    falling.get(above.min(falling.len().saturating_sub(1))).copied().unwrap_or(1)
}

/// Rounds up to two digits: a limit of 1,300 is remembered, one of 1,287 is not.
fn round_up(count: u64) -> u64 {
    let digits = count.max(1).ilog10();
    let unit = 10u64.pow(digits.saturating_sub(1));
    count.max(1).div_ceil(unit).saturating_mul(unit).min(Rate::MAX_COUNT / 2)
}

fn sorted(mut counts: Vec<u64>) -> Vec<u64> {
    counts.sort_unstable();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use tidegate::config::{Config, Format};

    use super::*;
    use crate::peaks::Distinct;

    fn with_log(lines: &str, options: &SuggestOptions) -> Result<Suggestion, SuggestError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        suggest(&[Input::File(file.path().to_owned())], &LogOptions::default(), options, |_| {})
    }

    /// 99 calm clients of 5 a minute, one of 300.
    fn lines() -> String {
        let mut all = Vec::new();
        for client in 0..100u64 {
            let count = if client == 99 { 300 } else { 5 };
            all.extend((0..count).map(|n| (n * 60_000 / count, client)));
        }
        all.sort_unstable();
        let line = |(ms, client): (u64, u64)| format!("{},{client}\n", 1_431_857_103_000 + ms);
        format!("ts,client\n{}", all.into_iter().map(line).collect::<String>())
    }

    #[test]
    fn the_smallest_limit_that_keeps_enough_keys() {
        let options = SuggestOptions { keep: 0.99, ..SuggestOptions::default() };
        let found = with_log(&lines(), &options).unwrap();
        assert_eq!(found.rate.to_string(), "5/min");
        assert_eq!((found.requests, found.keys, found.keeps), (795, Distinct::Exactly(100), true));
        assert_eq!(found.percentiles.first(), Some(&(50.0, 5)));
        assert_eq!((found.proposed.keys_hit, found.double.keys_hit), (1, 1));
        assert!(found.half.keys_hit == 100 && found.double.denied < found.proposed.denied);
        let text = format!("version: 1\npolicies:\n{}", found.yaml("per-ip"));
        let (config, _) = Config::parse(&text, "suggested", Format::Yaml).unwrap();
        assert_eq!(config.policies.policies()[0].limits[0].terms.label, "gcra 5/min burst 5");
    }

    /// Such keys reached the policy that is made of them, which expected them to be sound and panicked.
    #[test]
    fn a_key_that_cannot_be_is_a_mistake_not_a_panic() {
        let by = |names: &[&str]| {
            let by = names.iter().map(|name| (*name).to_owned()).collect();
            with_log(&lines(), &SuggestOptions { by, ..SuggestOptions::default() })
        };
        assert!(matches!(by(&["client.ip", "client.ip"]), Err(SuggestError::Repeated { .. })));
        assert!(matches!(by(&["client.ip", ""]), Err(SuggestError::Unnamed)));
        assert!(matches!(by(&[]), Err(SuggestError::Unnamed)));
    }

    #[test]
    fn keeping_requests_weighs_the_heavy_keys() {
        let options = SuggestOptions { keep: 0.9, of: KeepOf::Requests, ..SuggestOptions::default() };
        let found = with_log(&lines(), &options).unwrap();
        assert!(found.keeps && found.proposed.denied_share <= 0.1, "{found:?}");
        assert!(found.half.denied_share > 0.1, "{found:?}");
        assert_eq!(found.proposed.keys_hit, 1);
    }

    #[test]
    fn a_key_that_the_log_lacks_is_told_with_what_it_has() {
        let options = SuggestOptions { by: vec!["user.id".into()], ..SuggestOptions::default() };
        let error = with_log(&lines(), &options).unwrap_err().to_string();
        assert_eq!(error, "none of 795 requests has user.id; the log has client.ip");
    }

    #[test]
    fn too_few_keys_for_the_share_are_told() {
        let found = with_log(&lines(), &SuggestOptions::default()).unwrap();
        assert_eq!(
            found.caution(0.999).unwrap(),
            "99.9 % of 100 keys is all of them, the worst included; keep 99.0 % or less to leave one out"
        );
        assert_eq!(found.caution(0.99), None);
    }

    #[test]
    fn numbers() {
        assert_eq!([1, 9, 47, 123, 1_287, 0].map(round_up), [1, 9, 47, 130, 1_300, 1]);
        let falling = [300, 5, 5, 5, 5, 5, 5, 5, 5, 1];
        assert_eq!([0.5, 0.9, 0.95, 1.0].map(|share| quantile(&falling, share)), [5, 5, 300, 300]);
        assert_eq!([0.0, 0.00001, 0.0032, 0.325].map(percent), ["0 %", "< 0.01 %", "0.32 %", "32.5 %"]);
    }
}

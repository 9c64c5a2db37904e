//! A suggestion: the proposed limits with their price, or the reason why there are none; and cautions about it.

use std::fmt;
use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use tidegate::policy::Match;
use tidegate::visible;

use super::candidates::Purpose;
use super::group_policies::Narrower;
use super::outliers::StandsOut;
use crate::peaks::Distinct;
use crate::policy_yaml::{in_words, match_value};
use crate::replay::PeakRate;
use crate::units::{grouped, millis, percent};
use crate::what_if::KeyHit;

/// What a log shows about where a limit could be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// Some keys stand out from the crowd: a limit can cut them and spare the others.
    Gap,
    /// The keys that stand out have all signed in.
    SignedIn,
    /// The keys that stand out look like offices, jobs on a timer, or other programs at a modest pace.
    Ordinary,
    /// The keys that stand out come in bursts, and over time ask for no more than others.
    Bursts,
    /// The log has too little evidence of what the keys that stand out are.
    Unclear,
    /// Some keys look like crawlers, or are refused most of the time, but ask no faster than others that should be
    /// spared.
    NoFaster,
    /// The keys that look like crawlers, or are refused most of the time, are shared with people.
    Shared,
    /// Cutting the keys that stand out would save too little to be worth a limit.
    NotWorthIt {
        /// The share of requests that it would save, 0 to 1.
        denied_share: f64,
    },
    /// The needs of keys fall smoothly: no limit separates any of them.
    Smooth,
    /// There are too few keys to know what is usual.
    FewKeys,
    /// There is only one key, and nothing to compare it with.
    OneKey,
    /// The log is too short for the period: nothing is proposed.
    TooShort,
}

impl Finding {
    pub(super) const fn is_answer(self) -> bool {
        matches!(self, Self::Gap)
    }
}

/// The requests and keys of the log that one limit would have denied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayResult {
    /// Requests denied.
    pub denied: u64,
    /// Their share of all requests, 0 to 1.
    pub denied_share: f64,
    /// Keys denied at least once.
    pub keys_hit: u64,
    /// Their share of all keys, 0 to 1.
    pub keys_hit_share: f64,
    /// How many of those keys belong to a user who signed in and was served.
    pub keys_hit_signed_in: u64,
}

/// A key that a smaller limit would hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spared {
    /// The key.
    pub key: String,
    /// Whether a user signed in with this key and was served.
    pub signed_in: bool,
}

/// The least limit that spares some keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeastLimit {
    /// The rate.
    #[serde(rename = "least_rate", serialize_with = "in_words")]
    pub rate: PeakRate,
    /// The burst.
    #[serde(rename = "least_burst")]
    pub burst: u64,
    /// A key that a burst of one less would also hit; `None` if the burst is 1, or as small as forgotten keys allow
    /// ([`Caution::Forgotten`]).
    #[serde(rename = "least_burst_for")]
    pub burst_for: Option<Spared>,
    /// A key that a rate of one less would also hit; `None` if its count is 1.
    #[serde(rename = "least_rate_for")]
    pub rate_for: Option<Spared>,
}

/// A proposed limit, replayed on the whole log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// Its purpose.
    pub purpose: Purpose,
    /// The rate.
    #[serde(serialize_with = "in_words")]
    pub rate: PeakRate,
    /// The burst.
    pub burst: u64,
    /// The result of its replay.
    #[serde(flatten)]
    pub evidence: ReplayResult,
    /// The keys it would have hit, most denied first; at most ten.
    pub hit: Vec<KeyHit>,
    /// Each key that it spares may ask for this many times as much.
    pub room: f64,
    /// The keys that should be spared and that a limit found on the first half of the log alone hits in the second
    /// half; at most one that is twice as strict. `None` if that was not tried.
    pub hit_on_another_half: Option<u64>,
    /// The least limit that spares the same keys: this limit, if there is no room.
    #[serde(flatten)]
    pub least: LeastLimit,
    /// The result of twice the rate and twice the burst.
    pub doubled: ReplayResult,
}

/// A narrower question, and the limit that answers it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instead {
    /// The key that this suggestion spares, and that limit cuts.
    pub key: String,
    /// What the requests must match: `path`, `user.id`.
    pub name: String,
    /// The pattern; `false` for requests without it.
    pub pattern: String,
    /// The limit for these requests.
    pub proposal: Proposal,
}

/// A share of the keys, and the peak that none of them exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KeysPeak {
    /// The share, 0 to 1.
    pub keys_share: f64,
    /// The most that any of them asked for in one period of the rate.
    pub peak: u64,
}

/// The result of a suggestion.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The attributes of the key.
    pub by: Vec<String>,
    /// The requests that were read, if not all: [`LogOptions::matching`](crate::log::LogOptions::matching).
    pub matching: Match,
    /// The period of the rates.
    pub per: Duration,
    /// Requests that have a key.
    pub requests: u64,
    /// The cost of a request as it was written; `None` for 1 each.
    pub cost: Option<String>,
    /// Their total cost, if a cost was given.
    pub units: Option<u64>,
    /// The number of distinct keys.
    pub keys: Distinct,
    /// How many of them signed in and were served.
    pub keys_signed_in: u64,
    /// The time from the first request to the last.
    pub span: Duration,
    /// The peaks of the keys.
    pub peaks: Vec<KeysPeak>,
    /// The finding.
    pub finding: Finding,
    /// The proposals, the recommended limit first; at most three.
    pub proposals: Vec<Proposal>,
    /// The keys that stand out, with their evidence; at most five of each fate.
    pub stand_out: Vec<StandsOut>,
    /// Policies for traffic that no limit by this key catches; at most three.
    pub narrower: Vec<Narrower>,
    /// Narrower questions, each with a limit that cuts a key that is not cut here; at most two.
    pub instead: Vec<Instead>,
    /// Cautions about the suggestion.
    pub cautions: Vec<Caution>,
    /// The lines of a policy that counts the same requests; `None` if there are none, which a caution explains.
    pub(super) scope: Option<String>,
}

impl Serialize for Suggestion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Suggestion", 17)?;
        fields.serialize_field("by", &self.by)?;
        fields.serialize_field("match", &match_value(&self.matching))?;
        fields.serialize_field("per_ms", &millis(self.per))?;
        fields.serialize_field("requests", &self.requests)?;
        fields.serialize_field("cost", &self.cost)?;
        fields.serialize_field("units", &self.units)?;
        fields.serialize_field("keys", &self.keys.about())?;
        fields.serialize_field("keys_estimated", &matches!(self.keys, Distinct::About(_)))?;
        fields.serialize_field("keys_signed_in", &self.keys_signed_in)?;
        fields.serialize_field("span_ms", &millis(self.span))?;
        fields.serialize_field("peaks", &self.peaks)?;
        fields.serialize_field("finding", &self.finding)?;
        fields.serialize_field("proposals", &self.proposals)?;
        fields.serialize_field("stand_out", &self.stand_out)?;
        fields.serialize_field("narrower", &self.narrower)?;
        fields.serialize_field("instead", &self.instead)?;
        fields.serialize_field("cautions", &self.cautions)?;
        fields.end()
    }
}

impl Suggestion {
    /// Returns the recommended limit: the one at the gap, or the one that keeps the requested share. `None` if there is
    /// neither.
    #[must_use]
    pub fn recommended(&self) -> Option<&Proposal> {
        self.proposals.first().filter(|first| self.finding.is_answer() || first.purpose == Purpose::Kept)
    }

    /// Returns a proposal as a policy in YAML, in shadow mode. It counts the requests that were read and no others.
    /// `None` if no policy can do that ([`Caution::Unwritten`]).
    #[must_use]
    pub fn yaml(&self, proposal: &Proposal, name: &str) -> Option<String> {
        let ReplayResult { denied, denied_share, keys_hit, keys_hit_signed_in, .. } = proposal.evidence;
        let signed_in = if self.cautions.contains(&Caution::NoUsers) {
            String::new()
        } else {
            format!(", signed in {}", grouped(keys_hit_signed_in))
        };
        let scope = self.scope.as_deref()?;
        Some(format!(
            "  - name: {name}\n    # Replayed on {} requests: denies {} ({}); keys hit {} of {}{signed_in}.\n    mode: shadow\n\
             {scope}    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            grouped(self.requests),
            grouped(denied),
            percent(denied_share),
            grouped(keys_hit),
            self.keys,
            proposal.rate,
            proposal.burst,
        ))
    }
}

/// A caution about the numbers of a suggestion.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Caution {
    /// The share of keys to keep amounts to every key.
    EveryKey {
        /// The requested share, 0 to 1.
        keep: f64,
        /// The number of keys.
        keys: u64,
    },
    /// The log names no users.
    NoUsers,
    /// The log lacks the fields that tell crawlers from offices.
    NoEvidence {
        /// Whether the log has paths.
        paths: bool,
        /// Whether the log has user agents.
        agents: bool,
    },
    /// Some keys that the recommended limit cuts look like jobs on a timer, or other programs.
    CutPrograms {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// Some keys that the recommended limit cuts are crawlers whose agent names them, such as a backup or a search
    /// engine.
    CutCrawlers {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// An agent is sent both by people and by a crawler that uses many keys.
    BorrowedAgent {
        /// The agent.
        agent: String,
        /// The number of keys that send it.
        keys: u64,
        /// The number of requests with it.
        requests: u64,
    },
    /// Some keys that the recommended limit cuts sent several agents, as several people behind one address do.
    CutSeveral {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// The recommended limit cuts keys that signed in, because nearly all keys did.
    CutSignedIn {
        /// The one with the most requests.
        key: String,
        /// The number of such keys.
        keys: u64,
    },
    /// The cost of some requests could not be determined.
    CostsUnknown {
        /// The number of such requests.
        requests: u64,
    },
    /// There were more keys than could be remembered.
    Forgotten {
        /// The most burst that a forgotten key needed.
        most: u64,
    },
    /// No policy counts the requests that were read, so none is written.
    Unwritten {
        /// The reason.
        why: String,
    },
    /// Keys were forgotten while a proposal was replayed.
    Evicted {
        /// The number of such keys.
        keys: u64,
    },
}

impl fmt::Display for Caution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EveryKey { keep, keys } => {
                let fewer = percent(1.0 - 1.0 / (*keys).max(2) as f64);
                write!(
                    f,
                    "{} of {keys} keys is every key, including the worst; keep {fewer} or less to leave one out",
                    percent(*keep)
                )
            }
            Self::NoUsers => {
                f.write_str("the log names no users, so it does not show which keys signed in: look at the names of the keys hit")
            }
            Self::NoEvidence { paths, agents } => {
                let lacks = match (paths, agents) {
                    (false, false) => "paths and no agents",
                    (false, true) => "paths",
                    _ => "agents",
                };
                write!(
                    f,
                    "the log has no {lacks}, which would distinguish a crawler from an office or an app that polls: only keys that are five times as \
                     fast as all others are cut"
                )
            }
            Self::CutPrograms { key, keys } => {
                let looks = ["looks like a job on a timer or a program", "look like jobs on a timer or programs"];
                let (they, them) = if *keys == 1 { ("it", "it") } else { ("they", "them") };
                write!(
                    f,
                    "{}: {they} may belong to a partner or to you; find out before you enforce the limit, or put {them} on an `allow` list",
                    of_those_cut(key, *keys, looks)
                )
            }
            Self::CutCrawlers { key, keys } => {
                let reads = ["reads page after page under a name of its own", "read page after page under names of their own"];
                let them = if *keys == 1 { "it" } else { "them" };
                write!(
                    f,
                    "{}, as a scraper does, but also a backup, a mirror or a search engine: the log does not show which, so if you know {them}, \
                     put {them} on an `allow` list",
                    of_those_cut(key, *keys, reads)
                )
            }
            Self::BorrowedAgent { agent, keys, requests } => write!(
                f,
                "{} requests of {} keys have the agent {} and load hardly any images or scripts, although people send this agent too: a crawler that \
                 changes its address may be among them; no limit can separate the two, so none is proposed for it",
                grouped(*requests),
                grouped(*keys),
                visible::name(agent)
            ),
            Self::CutSeveral { key, keys } => write!(
                f,
                "{}: if several people share an address, the limit cuts them all",
                of_those_cut(key, *keys, ["sent several agents"; 2])
            ),
            Self::CutSignedIn { key, keys } => write!(
                f,
                "{}: nearly all keys did, so no key is spared for it; find out who this is before you enforce the limit",
                of_those_cut(key, *keys, ["signed in"; 2])
            ),
            Self::CostsUnknown { requests } => {
                write!(f, "the cost of {} requests could not be computed: they are left out", grouped(*requests))
            }
            Self::Forgotten { most } => write!(
                f,
                "more keys than can be remembered: the keys with the fewest requests, which all need a burst of {most} or less, were left out of the search, so \
                 no burst below that is proposed; the denials of the proposals were counted with all keys"
            ),
            Self::Unwritten { why } => {
                write!(f, "no policy is written, since none would count the requests that were read: {}", visible::line(why))
            }
            Self::Evicted { keys } => {
                write!(f, "{keys} keys were forgotten while they were in use, so the number of denials may be too low")
            }
        }
    }
}

impl Serialize for Caution {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Begins a caution about keys that the recommended limit cuts. `does` completes the sentence for one key, `several_do`
/// for several.
fn of_those_cut(key: &str, keys: u64, [does, several_do]: [&str; 2]) -> String {
    let key = visible::name(key);
    match keys {
        1 => format!("{key}, which the recommended limit cuts, {does}"),
        keys => format!(
            "{} of the keys that the recommended limit cuts, {key} first, {several_do}",
            grouped(keys)
        ),
    }
}

//! A suggestion: the proposed limits with their price, or the reason why there are none.

use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use tidegate::policy::Match;

use super::candidates::Purpose;
use super::caution::Caution;
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

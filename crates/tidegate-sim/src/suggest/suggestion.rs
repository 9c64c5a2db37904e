//! What is proposed, with its price, or why nothing can be.

use std::time::Duration;

use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::caution::Caution;
use super::cut::Purpose;
use super::narrower::Narrower;
use super::stand_out::StandsOut;
use super::written::{cost_line, in_words, plain_or_quoted};
use crate::json_units::millis;
use crate::peaks::Distinct;
use crate::percent::percent;
use crate::replay::PeakRate;
use crate::thousands::grouped;
use crate::what_if::KeyHit;

/// What a log says about where to draw the line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// Some keys stand out from the crowd: a limit can cut them and spare the others.
    Gap,
    /// Those who stand out have all signed in.
    SignedIn,
    /// Those who stand out look like offices, jobs on a timer, apps that poll, or other programs at a modest pace.
    Ordinary,
    /// Those who stand out come in bursts, and ask no more than others over time.
    Bursts,
    /// Those who stand out may be anybody: what the log shows of them does not tell.
    Unclear,
    /// Some look like crawlers, or are refused most of the time, and ask no faster than others who are to be spared.
    NoFaster,
    /// Those who look like crawlers, or are refused most of the time, share their keys with people, whom a limit would cut, too.
    Shared,
    /// Some stand out, and to cut them would save too little to be worth a limit.
    NotWorthIt {
        /// The share of the requests that it would save, 0 to 1.
        denied_share: f64,
    },
    /// What keys need falls smoothly from the first to the last: no limit separates anybody.
    Smooth,
    /// Too few keys to say what is usual.
    FewKeys,
    /// One key only: there is nobody to compare it with.
    OneKey,
    /// The log is too short for the period: nothing is proposed.
    TooShort,
}

impl Finding {
    pub(super) const fn is_answer(self) -> bool {
        matches!(self, Self::Gap)
    }
}

/// What one limit would have done to the log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Requests denied.
    pub denied: u64,
    /// Their share, 0 to 1.
    pub denied_share: f64,
    /// Keys denied at least once.
    pub keys_hit: u64,
    /// Their share, 0 to 1.
    pub keys_hit_share: f64,
    /// How many of those keys belong to somebody who signed in and was served.
    pub keys_hit_signed_in: u64,
}

/// A key that a smaller limit would hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spared {
    /// The key.
    pub key: String,
    /// Whether somebody signed in with it and was served.
    pub signed_in: bool,
}

/// A limit that is proposed, replayed on the whole log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposal {
    /// What it is for.
    pub purpose: Purpose,
    /// The rate.
    #[serde(serialize_with = "in_words")]
    pub rate: PeakRate,
    /// The burst.
    pub burst: u64,
    /// What it would have done.
    #[serde(flatten)]
    pub evidence: Evidence,
    /// The keys it would have hit, those denied most first; ten at most.
    pub hit: Vec<KeyHit>,
    /// Whom a burst of one less would hit, too; `None` where the burst is 1, or as small as forgotten keys allow
    /// ([`Caution::Forgotten`]).
    pub least_burst_for: Option<Spared>,
    /// Whom a rate of one less would hit, too; `None` where its count is 1.
    pub least_rate_for: Option<Spared>,
    /// The burst that the mildest of the keys hit would need at this rate: how far the line can be moved up. `None` where none is hit.
    pub mildest_hit_needs: Option<u64>,
    /// What twice the rate and twice the burst would have done.
    pub doubled: Evidence,
}

/// A share of the keys and the peak that none of them went above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KeysPeak {
    /// The share, 0 to 1.
    pub keys_share: f64,
    /// The most that any of them asked in one period of the rate.
    pub peak: u64,
}

/// What is proposed, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The attributes of the key.
    pub by: Vec<String>,
    /// The period of the rates.
    pub per: Duration,
    /// Requests that have a key.
    pub requests: u64,
    /// What a request costs, as it was written; `None` for 1 each.
    pub cost: Option<String>,
    /// What they cost together, where costs were asked for.
    pub units: Option<u64>,
    /// Different keys.
    pub keys: Distinct,
    /// How many of them signed in and were served.
    pub keys_signed_in: u64,
    /// From the first request to the last.
    pub span: Duration,
    /// The peaks of the keys.
    pub peaks: Vec<KeysPeak>,
    /// What the log says.
    pub finding: Finding,
    /// What is proposed: the recommended limit first, three at most.
    pub proposals: Vec<Proposal>,
    /// Those who stand out, with the evidence: those the recommended limit cuts, those no limit by this key catches, those who are
    /// spared; five of each at most.
    pub stand_out: Vec<StandsOut>,
    /// Policies for those that no limit by this key catches, three at most.
    pub narrower: Vec<Narrower>,
    /// What to know before believing it.
    pub cautions: Vec<Caution>,
}

impl Serialize for Suggestion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Suggestion", 15)?;
        fields.serialize_field("by", &self.by)?;
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
        fields.serialize_field("cautions", &self.cautions)?;
        fields.end()
    }
}

impl Suggestion {
    /// Returns the limit to take: the one at the gap, or the one that keeps the share asked for; `None` where the log says neither.
    #[must_use]
    pub fn recommended(&self) -> Option<&Proposal> {
        self.proposals.first().filter(|first| self.finding.is_answer() || first.purpose == Purpose::Kept)
    }

    /// Returns a proposal as a policy, to paste into a file: in shadow first.
    #[must_use]
    pub fn yaml(&self, proposal: &Proposal, name: &str) -> String {
        let Evidence { denied, denied_share, keys_hit, keys_hit_signed_in, .. } = proposal.evidence;
        let by: Vec<String> = self.by.iter().map(|name| plain_or_quoted(name)).collect();
        let signed_in = if self.cautions.contains(&Caution::NoUsers) {
            String::new()
        } else {
            format!(", signed in {}", grouped(keys_hit_signed_in))
        };
        let cost = self.cost.as_deref().map(cost_line).unwrap_or_default();
        format!(
            "  - name: {name}\n    # Replayed on {} requests: denies {} ({}); keys hit {} of {}{signed_in}.\n    mode: shadow\n    \
             by: [{}]\n{cost}    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            grouped(self.requests),
            grouped(denied),
            percent(denied_share),
            grouped(keys_hit),
            self.keys,
            by.join(", "),
            proposal.rate,
            proposal.burst,
        )
    }
}

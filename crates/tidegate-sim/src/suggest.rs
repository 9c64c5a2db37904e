//! Proposes limits from a log: where the crowd of keys ends, what a limit there costs, and when the log cannot tell.
//!
//! The log is read four to fifteen times. The first reading measures how much burst each key needs at each of about
//! thirty rates (`bursts`). The second looks at the requests of the keys that stand out (`watch`, `signs`). Then a gap
//! is sought that separates the most traffic at the cost of the fewest keys (`candidates`, `cuts`). Further readings
//! minimise rate and burst, and leave room between the spared keys and those that are cut (`limits`). The last reading
//! replays the proposals, exactly as gates decide.
//!
//! Memory is bounded by [`SuggestOptions::keys`]. With more keys, the lightest are left out of the search.

mod bursts;
mod candidates;
mod cuts;
mod group_policies;
mod limits;
mod measure;
mod outliers;
mod signs;
mod suggestion;
mod watch;

use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::Quota;
use tidegate::limiter::Rate;
use tidegate::policy::{CostError, CostRule, Limit, Match, Policy};

use self::measure::Measured;
use crate::log::{Log, LogError, LogOptions, Record, Tally, Watch};
use crate::policy_yaml::both;
use crate::replay::{Doubt, Trust};
use crate::source::Input;
use crate::what_if::WhatIfError;

pub use self::candidates::Purpose;
pub use self::group_policies::Narrower;
pub use self::outliers::{Fate, StandsOut};
pub use self::signs::{ClientKind, Signs};
pub use self::suggestion::{
    Caution, Finding, Instead, KeysPeak, LeastLimit, Proposal, ReplayResult, Spared, Suggestion,
};

/// Proposes limits for a log, reading it four to fifteen times, and as often again for each of at most two narrower
/// questions ([`Instead`]) if it does not cut all keys that stand out; `watch` is told about each reading and each request.
///
/// # Errors
/// [`SuggestError`] if the log cannot be read, is standard input, or does not suffice for a proposal; or if the key,
/// the period or the share to keep is not valid.
///
/// # Examples
/// ```
/// use std::fmt::Write as _;
/// use tidegate_sim::log::LogOptions;
/// use tidegate_sim::log::Input;
/// use tidegate_sim::suggest::{Finding, SuggestOptions, suggest};
///
/// // Forty clients of about twenty requests an hour each, and one of 600 in ten minutes.
/// let mut requests: Vec<(u64, u64)> = (0..40).flat_map(|c| (0..20).map(move |n| (n * 177 + c * (n % 5), c))).collect();
/// requests.extend((0..600).map(|second| (1_000 + second, 99)));
/// requests.sort_unstable();
/// let mut text = "ts,client\n".to_owned();
/// for (second, client) in requests {
///     writeln!(text, "{},192.0.2.{client}", 1_772_442_000 + second)?;
/// }
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), text)?;
///
/// let input = Input::File(file.path().to_owned());
/// let found = suggest(&[input], &LogOptions::default(), &SuggestOptions::default(), |_| {})?;
/// assert_eq!(found.finding, Finding::Gap);
/// let proposal = &found.proposals[0];
/// assert_eq!((proposal.evidence.keys_hit, proposal.hit[0].key.as_str()), (1, "192.0.2.99"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn suggest(
    inputs: &[Input],
    log: &LogOptions,
    options: &SuggestOptions,
    mut watch: impl FnMut(Step),
) -> Result<Suggestion, SuggestError> {
    if inputs.contains(&Input::Stdin) {
        return Err(SuggestError::OnlyOnce);
    }
    if let Some(keep) = options.keep.filter(|keep| !(*keep > 0.0 && *keep <= 1.0)) {
        return Err(SuggestError::Keep { percent: keep * 100.0 });
    }
    // Reject periods that a rate cannot have.
    Rate::new(1, options.per)?;
    let mut policy = policy(&options.by)?;
    policy.cost = options.cost.as_ref().map(|cost| cost.rule.clone());
    let mut ask = |log: &LogOptions, options: &SuggestOptions| {
        Measured::new(Readings::new(inputs, log, &mut watch), options, &policy)?.suggestion()
    };
    let mut found = ask(log, options)?;
    let of_all = SuggestOptions { keep: None, ..options.clone() };
    for question in cuts::questions(&found) {
        let matching = question.matching().ok().and_then(|narrower| both(&log.matching, &narrower));
        let Some(matching) = matching else { continue };
        let Ok(answer) = ask(&LogOptions { matching, ..log.clone() }, &of_all) else { continue };
        found.instead.extend(question.answered(&answer));
    }
    Ok(found)
}

/// The policy whose limit is sought.
fn policy(by: &[String]) -> Result<Policy, SuggestError> {
    if by.is_empty() || by.iter().any(|name| name.trim().is_empty()) {
        return Err(SuggestError::Unnamed);
    }
    if let Some((_, name)) = by.iter().enumerate().find(|(at, name)| by[..*at].contains(name)) {
        return Err(SuggestError::Repeated { attribute: name.clone() });
    }
    let mut policy = Policy::new("suggested", Limit::new(Quota::per_second(1).gcra()?, "sought"));
    policy.by = by.to_vec();
    Ok(policy)
}

/// The cost of a request, and its form in a policy file.
#[derive(Clone, Debug)]
pub struct WrittenCost {
    /// The rule that computes it.
    pub rule: CostRule,
    /// Its form in a policy file: a number, an attribute, an expression.
    pub written: String,
}

/// The options of a suggestion.
#[derive(Clone, Debug)]
pub struct SuggestOptions {
    /// The attributes that make the key: `client.ip`.
    pub by: Vec<String>,
    /// The period of the rate, above zero. Of the limits that spare the same keys, the one that grants least within it
    /// is chosen.
    pub per: Duration,
    /// The share of keys that must not be denied anything, above 0 and up to 1; `None` leaves that to the gap.
    pub keep: Option<f64>,
    /// The cost of a request; `None` for 1 each. Rates, bursts and peaks are in these units.
    pub cost: Option<WrittenCost>,
    /// How much of the log may be faulty.
    pub trust: Trust,
    /// The most keys remembered at once, about 700 bytes each.
    pub keys: usize,
    /// The IPv6 prefix by which clients are keyed, 1 to 128.
    pub ipv6_prefix: u8,
}

impl Default for SuggestOptions {
    /// Per client and minute, at the gap, with up to a hundred thousand keys.
    fn default() -> Self {
        Self {
            by: vec!["client.ip".to_owned()],
            per: Duration::from_secs(60),
            keep: None,
            cost: None,
            trust: Trust::default(),
            keys: 100_000,
            ipv6_prefix: 64,
        }
    }
}

/// Why a suggestion cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuggestError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Standard input can be read once only.
    #[error("the log is read several times, and standard input only once: write it to a file first")]
    OnlyOnce,
    /// No request has all attributes of the key.
    #[error("none of {requests} requests has {by}; the log has {has}")]
    NoKey {
        /// Requests read.
        requests: u64,
        /// The attributes of the key.
        by: String,
        /// The attributes that any request has, at most 32.
        has: String,
    },
    /// No request has a cost that can be determined.
    #[error("none of {requests} requests has a cost: {why}")]
    NoCost {
        /// Requests read.
        requests: u64,
        /// Why the last of them has none.
        why: CostError,
    },
    /// Too much of the log could not be read or sorted.
    #[error("nothing can be proposed from this log: {}", .doubts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Doubtful {
        /// The faults.
        doubts: Vec<Doubt>,
        /// The counts of what was read.
        tally: Box<Tally>,
    },
    /// The key names one attribute twice.
    #[error("{attribute} is named twice in the key; once is enough")]
    Repeated {
        /// The attribute.
        attribute: String,
    },
    /// The key has an attribute without a name, or none at all.
    #[error(
        "the key has no name: clients are compared by it; name what tells them apart in the log, such as client.ip or user.id"
    )]
    Unnamed,
    /// The numbers do not form a limit.
    #[error(transparent)]
    Quota(#[from] tidegate::QuotaError),
    /// The replay of the proposals is impossible.
    #[error(transparent)]
    WhatIf(#[from] WhatIfError),
    /// The share to keep is out of range.
    #[error("cannot keep {percent}%; use above 0 to 100")]
    Keep {
        /// The given share, in percent.
        percent: f64,
    },
}

/// A report of the progress.
#[derive(Clone, Debug)]
pub enum Step {
    /// A reading of the log begins.
    Begins {
        /// The number of the reading, from 1.
        reading: u32,
        /// Its purpose, in a word or two.
        purpose: &'static str,
        /// A handle for the progress of the reading.
        watch: Watch,
    },
    /// A request was read.
    Request,
    /// The reading has ended.
    Ends,
}

struct Readings<'l, W> {
    inputs: &'l [Input],
    log: &'l LogOptions,
    watch: W,
    done: u32,
}

impl<'l, W> Readings<'l, W> {
    const fn matching(&self) -> &'l Match {
        &self.log.matching
    }

    const fn new(inputs: &'l [Input], log: &'l LogOptions, watch: W) -> Self {
        Self { inputs, log, watch, done: 0 }
    }
}

impl<W: FnMut(Step)> Readings<'_, W> {
    fn read(
        &mut self,
        purpose: &'static str,
        mut each: impl FnMut(&Record<'_>),
    ) -> Result<Tally, SuggestError> {
        let mut log = Log::open(self.inputs.to_vec(), self.log.clone())?;
        self.done += 1;
        (self.watch)(Step::Begins { reading: self.done, purpose, watch: log.watch() });
        let outcome = log.read_together(|records| {
            for record in records {
                (self.watch)(Step::Request);
                each(record);
            }
            ControlFlow::Continue(())
        });
        (self.watch)(Step::Ends);
        Ok(outcome?.clone())
    }
}

#[cfg(test)]
mod tests;

//! Proposes limits from what happened: where the crowd ends, what a limit there costs, and when the log cannot say.
//!
//! The log is read some four times. The first reading measures how much burst each key needs at each of some thirty rates
//! ([`needs`]). In that the gap is sought that separates most traffic at the cost of fewest keys ([`cut`], [`gap`]); keys that somebody
//! signed in with are spared whatever they need. Rate and burst are then chosen apart, on the curve of what the spared keys need
//! ([`curve`]), and made least in further readings: one less of either would hit a key that is to be spared. The last reading
//! replays what is proposed, exactly as gates decide.
//!
//! Memory is bounded by [`SuggestOptions::keys`]. With more keys the lightest are left out of the search, and the last reading forgets
//! only keys whose limits are full again, which changes no decision.

mod curve;
mod cut;
mod gap;
mod measure;
mod needs;
mod suggestion;

use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::policy::{Limit, Policy};
use tidegate::{Quota, Rate};

pub use self::cut::Purpose;
use self::measure::Measured;
pub(crate) use self::suggestion::percent;
pub use self::suggestion::{Caution, Evidence, Finding, KeysPeak, Proposal, Spared, Suggestion};
use crate::log::{Log, LogError, LogOptions, Record, Tally, Watch};
use crate::replay::{Doubt, Trust};
use crate::source::Input;

/// What to propose.
#[derive(Clone, Debug, PartialEq)]
pub struct SuggestOptions {
    /// The attributes that make the key: `client.ip`.
    pub by: Vec<String>,
    /// The period of the rate, above zero. Of the limits that spare the same keys, the one is chosen that grants least within it.
    pub per: Duration,
    /// The share of keys that must not be denied anything, above 0 to 1; `None` leaves it to the gap.
    pub keep: Option<f64>,
    /// How much of the log may be amiss.
    pub trust: Trust,
    /// Keys remembered at once, some 700 bytes each.
    pub keys: usize,
    /// IPv6 prefix by which clients are keyed.
    pub ipv6_prefix: u8,
}

impl Default for SuggestOptions {
    /// Per client and minute, at the gap, with a hundred thousand keys.
    fn default() -> Self {
        Self {
            by: vec!["client.ip".to_owned()],
            per: Duration::from_secs(60),
            keep: None,
            trust: Trust::default(),
            keys: 100_000,
            ipv6_prefix: 64,
        }
    }
}

/// Why nothing can be said.
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
    /// Too much of the log could not be read or put in order.
    #[error("nothing can be proposed from this log: {}", .doubts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Doubtful {
        /// What is amiss.
        doubts: Vec<Doubt>,
        /// What was read.
        tally: Box<Tally>,
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
    /// What was to be replayed is no limit.
    #[error(transparent)]
    WhatIf(#[from] crate::what_if::WhatIfError),
    /// The share to keep is no share.
    #[error("cannot keep {percent}%; use above 0 to 100")]
    Keep {
        /// What was asked, in percent.
        percent: f64,
    },
}

/// How far it is, told to whoever watches.
#[derive(Clone, Debug)]
pub enum Step {
    /// A reading of the log begins.
    Begins {
        /// Which, from 1.
        reading: u32,
        /// What it is for, in a word or two.
        purpose: &'static str,
        /// To look how far it is.
        watch: Watch,
    },
    /// A request was read.
    Request,
    /// The reading has ended.
    Ends,
}

/// Proposes limits for a log, reading it some four times; `watch` is told of each reading and each request.
///
/// # Errors
/// [`SuggestError`].
///
/// # Examples
/// ```
/// use std::fmt::Write as _;
/// use tidegate_sim::log::LogOptions;
/// use tidegate_sim::source::Input;
/// use tidegate_sim::suggest::{Finding, SuggestOptions, suggest};
///
/// // Forty clients of some twenty requests an hour each, and one of 600 in ten minutes.
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
    watch: impl FnMut(Step),
) -> Result<Suggestion, SuggestError> {
    if inputs.contains(&Input::Stdin) {
        return Err(SuggestError::OnlyOnce);
    }
    if let Some(keep) = options.keep.filter(|keep| !(*keep > 0.0 && *keep <= 1.0)) {
        return Err(SuggestError::Keep { percent: keep * 100.0 });
    }
    // Refuses a period that no rate can have.
    Rate::new(1, options.per)?;
    let policy = policy(&options.by)?;
    let readings = Readings { inputs, log, watch, done: 0 };
    Measured::new(readings, options, &policy)?.suggestion()
}

/// Makes the policy whose limit is sought.
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

/// Reads the log again and again.
struct Readings<'l, W> {
    inputs: &'l [Input],
    log: &'l LogOptions,
    watch: W,
    done: u32,
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
        let outcome = log.read(|record| {
            (self.watch)(Step::Request);
            each(record);
            ControlFlow::Continue(())
        });
        (self.watch)(Step::Ends);
        Ok(outcome?.clone())
    }
}

#[cfg(test)]
mod tests;

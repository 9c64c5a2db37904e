//! The options of a suggestion, and its errors.

use std::ops::ControlFlow;
use std::time::Duration;

use tidegate::policy::{CostError, CostRule, Match};

use crate::log::{Log, LogError, LogOptions, Record, Tally, Watch};
use crate::replay::{Doubt, Trust};
use crate::source::Input;
use crate::what_if::WhatIfError;

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

pub(super) struct Readings<'l, W> {
    inputs: &'l [Input],
    log: &'l LogOptions,
    watch: W,
    done: u32,
}

impl<'l, W> Readings<'l, W> {
    pub(super) const fn matching(&self) -> &'l Match {
        &self.log.matching
    }

    pub(super) const fn new(inputs: &'l [Input], log: &'l LogOptions, watch: W) -> Self {
        Self { inputs, log, watch, done: 0 }
    }
}

impl<W: FnMut(Step)> Readings<'_, W> {
    pub(super) fn read(
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

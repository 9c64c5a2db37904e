//! What to propose, and why nothing can be said.

use std::time::Duration;

use tidegate::policy::CostRule;

use crate::log::{LogError, Tally};
use crate::replay::{Doubt, Trust};
use crate::what_if::WhatIfError;

/// What a request costs, and how a policy file says so.
#[derive(Clone, Debug)]
pub struct WrittenCost {
    /// How it is found.
    pub rule: CostRule,
    /// As a policy file has it: a number, an attribute, an expression.
    pub written: String,
}

/// What to propose.
#[derive(Clone, Debug)]
pub struct SuggestOptions {
    /// The attributes that make the key: `client.ip`.
    pub by: Vec<String>,
    /// The period of the rate, above zero. Of the limits that spare the same keys, the one is chosen that grants least within it.
    pub per: Duration,
    /// The share of keys that must not be denied anything, above 0 to 1; `None` leaves it to the gap.
    pub keep: Option<f64>,
    /// What a request costs; `None` for 1 each. Rates, bursts and peaks are then in these units.
    pub cost: Option<WrittenCost>,
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
            cost: None,
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
    WhatIf(#[from] WhatIfError),
    /// The share to keep is no share.
    #[error("cannot keep {percent}%; use above 0 to 100")]
    Keep {
        /// What was asked, in percent.
        percent: f64,
    },
}

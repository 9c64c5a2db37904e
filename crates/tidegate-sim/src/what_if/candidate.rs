//! The limits to try, and the errors of trying them.

use std::time::Duration;

use tidegate::policy::PolicySetError;
use tidegate::{QuotaError, Rate};

/// A limit to try: `gcra` with this rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How fast capacity returns.
    pub rate: Rate,
    /// The largest cost granted at once, in cost units, 1 or more.
    pub burst: u64,
}

/// The most candidates tried at once: enough for a curve, and a bound on the memory per key.
pub const MAX_CANDIDATES: usize = 1_024;

/// Why candidates cannot be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// More candidates than [`MAX_CANDIDATES`].
    #[error("{count} limits are too many to try at once; use at most {MAX_CANDIDATES}")]
    TooMany {
        /// The number of candidates.
        count: usize,
    },
    /// The rate or the burst is out of range.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A limit that takes about 292 years or more to refill: its levels would not be exact.
    #[error("a burst of {burst} at {count} per {period:?} takes too long to return; use a smaller burst")]
    TooSlow {
        /// The burst.
        burst: u64,
        /// The count of the rate.
        count: u64,
        /// The period of the rate.
        period: Duration,
    },
    /// The policy charges by the outcome of requests, or charges refused ones too.
    #[error(
        "policy \"{policy}\" has charge: on-failure or always; the effect of other limits on it needs a replay of its own"
    )]
    ChargesOtherwise {
        /// The name of the policy.
        policy: String,
    },
    /// The policy is invalid in a set.
    #[error(transparent)]
    Policy(#[from] PolicySetError),
}

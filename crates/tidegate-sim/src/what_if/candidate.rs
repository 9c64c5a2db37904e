//! A limit to try, and why it cannot be.

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

/// Candidates that can be tried at once: enough for a curve, and a bound on the memory per key.
pub const MAX_CANDIDATES: usize = 1_024;

/// Why candidates cannot be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// More candidates than [`MAX_CANDIDATES`].
    #[error("{count} limits are too many to try at once; use at most {MAX_CANDIDATES}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A burst that is no burst.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A limit that takes more than 292 years to fill, or nearly: its levels would not be exact.
    #[error(
        "a burst of {burst} at {count} per {period:?} takes too long to come back to be tried; use a smaller burst"
    )]
    TooSlow {
        /// The burst.
        burst: u64,
        /// The count of the rate.
        count: u64,
        /// The period of the rate.
        period: Duration,
    },
    /// A policy that charges by how requests ended.
    #[error(
        "policy \"{policy}\" charges failures only; what other limits would have done to it takes a replay"
    )]
    ChargesFailures {
        /// Its name.
        policy: String,
    },
    /// A policy that no set would take.
    #[error(transparent)]
    Policy(#[from] PolicySetError),
}

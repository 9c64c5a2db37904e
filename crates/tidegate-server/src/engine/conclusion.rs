//! What a request to decide asks for, and how it was decided.

use std::borrow::Cow;

use tidegate::GateDecision;
use tidegate::store::StoreError;

use crate::active_config::{ActiveConfig, Facts};
use crate::metrics::Metrics;

/// Whether a decision changes the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Charges the request and counts the decision.
    Take,
    /// Only looks: charges and counts nothing.
    Peek,
}

/// How a request was decided.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one, and it never leaves the stack")]
pub(crate) enum Conclusion {
    /// The policies decided.
    Decided(GateDecision),
    /// The store could not decide; `on_store_error` of the policies applies.
    Unsettled {
        /// Whether the request may pass.
        allowed: bool,
        /// The name of the first policy that refuses because its store is away.
        policy: Option<String>,
        /// The error of the store.
        error: StoreError,
    },
}

impl Conclusion {
    /// Returns how many limits were asked.
    pub(crate) fn met(&self) -> usize {
        match self {
            Self::Decided(decision) => decision.limits.len(),
            Self::Unsettled { .. } => 1,
        }
    }

    /// Returns whether the request may pass.
    pub(crate) fn allowed(&self) -> bool {
        match self {
            Self::Decided(decision) => decision.allowed,
            Self::Unsettled { allowed, .. } => *allowed,
        }
    }

    /// Returns the facts of the policies that it was made under.
    pub(crate) fn facts<'l>(&self, live: &'l ActiveConfig, metrics: &Metrics) -> Cow<'l, [Facts]> {
        match self {
            Self::Decided(decision) => live.facts(&decision.policies, metrics),
            Self::Unsettled { .. } => Cow::Borrowed(&live.policies),
        }
    }
}

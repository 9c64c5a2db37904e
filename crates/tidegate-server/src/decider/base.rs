//! What all parts of the decider stand on: the gate, the configuration in force, and where they tell what they do.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tidegate::gate::GateDecision;
use tidegate::store::{Store, StoreError};
use tidegate::{Gate, Tick};

use crate::active_config::{ActiveConfig, Facts};
use crate::events::Events;
use crate::metrics::Metrics;
use crate::sight::Sight;
use crate::text::Redact;

#[derive(Debug)]
pub(super) struct Base {
    pub(super) gate: Gate,
    pub(super) live: ArcSwap<ActiveConfig>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: Arc<Events>,
    /// Sees each decision, if there is one.
    pub(super) sight: Option<Arc<dyn Sight>>,
    /// Hides keys in what is told.
    pub(super) redact: Redact,
    /// The store beneath the gate.
    pub(super) store: Arc<dyn Store>,
    pub(super) store_kind: &'static str,
    /// Whether a decision never waits: the only store is in memory.
    pub(super) decides_at_once: bool,
    /// When this process started, by the gate's clock.
    pub(super) started: Tick,
}

impl Base {
    /// As [`super::Decider::live`].
    pub(super) fn live(&self) -> Guard<Arc<ActiveConfig>> {
        self.live.load()
    }

    /// Returns the present tick of the gate's clock.
    pub(super) fn now(&self) -> Tick {
        self.gate.now()
    }

    /// Counts a step that the store could not execute.
    pub(super) fn count_store_error(&self) {
        self.metrics.store_error(self.store_kind);
    }
}

// What a request to decide asks for, and how it was decided.

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
        /// The first policy that refuses because its store is away.
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

    pub(crate) fn facts<'l>(&self, live: &'l ActiveConfig, metrics: &Metrics) -> Cow<'l, [Facts]> {
        match self {
            Self::Decided(decision) => live.facts(&decision.policies, metrics),
            Self::Unsettled { .. } => Cow::Borrowed(&live.policies),
        }
    }
}

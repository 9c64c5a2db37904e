//! The settings of a gate layer.

use std::sync::Arc;

use tidegate::Gate;
use tidegate::http_answer::over;

use crate::answers::Problems;
use crate::classify::ByStatus;
use crate::name::Name;

/// What happens to requests that cannot be decided because a store does not answer and has no fallback. Requests that run
/// out of their own time first are refused with 504 in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenUndecided {
    /// They are refused with 503. The default, because a limit that fails together with its store protects nothing.
    #[default]
    Refuse,
    /// They pass and are not charged.
    Pass,
}

/// The settings of a gate layer.
#[derive(Clone, Debug)]
pub(super) struct GateRules<D, C, A> {
    pub(super) gate: Arc<Gate>,
    pub(super) describe: D,
    pub(super) name: Name,
    pub(super) classify: C,
    pub(super) answers: A,
    pub(super) settling: bool,
    pub(super) undecided: WhenUndecided,
    pub(super) over: over::Headers,
}

impl<D> GateRules<D, ByStatus, Problems> {
    pub(super) fn new(gate: Arc<Gate>, describe: D) -> Self {
        Self {
            gate,
            describe,
            name: Name::new("gate"),
            classify: ByStatus,
            answers: Problems,
            settling: false,
            undecided: WhenUndecided::default(),
            over: over::Headers::default(),
        }
    }
}

impl<D, C, A> GateRules<D, C, A> {
    pub(super) fn answering<N>(self, answers: N) -> GateRules<D, C, N> {
        let Self { gate, describe, name, classify, settling, undecided, over, .. } = self;
        GateRules { gate, describe, name, classify, answers, settling, undecided, over }
    }

    pub(super) fn judging<N>(self, classify: N) -> GateRules<D, N, A> {
        let Self { gate, describe, name, answers, settling, undecided, over, .. } = self;
        GateRules { gate, describe, name, classify, answers, settling, undecided, over }
    }
}

//! The settings of a gate layer, and how it is told of requests.

use std::sync::Arc;

use tidegate::http_answer::over;
use tidegate::{Cost, Descriptor, Gate, Priority, priority};

use crate::answers::Problems;
use crate::classify::ByStatus;
use crate::name::Name;

/// Describes requests to a gate. Implemented for functions that return a descriptor.
///
/// Do not trust what a stranger sends: take a client's address from the connection or from a known proxy, and its
/// account from the component that has authenticated it.
pub trait Describe<Req> {
    /// Returns the attributes that policies match and count by: see [`Descriptor`] for their names. How long the caller
    /// waits need not be among them behind a [`DeadlineLayer`](crate::DeadlineLayer). Without one, policies with a
    /// deadline and queues read `request.header.grpc-timeout` and `request.header.x-envoy-expected-rq-timeout-ms`, if
    /// they are there.
    fn describe(&self, request: &Req) -> Descriptor<'static>;

    /// Returns what the request costs, or its estimated cost. `None`, the default, leaves the cost to the policies.
    fn cost(&self, request: &Req) -> Option<Cost> {
        let _ = request;
        None
    }

    /// Returns how much the request matters. Unless overridden, that is the priority that the task
    /// [carries](tidegate::priority::carried), else [`Criticality::Critical`](tidegate::Criticality::Critical). The
    /// priority decides who is refused first, so do not let strangers choose it.
    fn priority(&self, request: &Req) -> Priority {
        let _ = request;
        priority::carried().unwrap_or_default()
    }
}

impl<Req, F: Fn(&Req) -> Descriptor<'static>> Describe<Req> for F {
    fn describe(&self, request: &Req) -> Descriptor<'static> {
        self(request)
    }
}

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

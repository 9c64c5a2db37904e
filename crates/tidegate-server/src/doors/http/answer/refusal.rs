//! The body of a refusal to an API caller: a problem document that contains the full decision.

use http::StatusCode;
use serde::Serialize;
use tidegate::http_answer::server_parts::{Refusal, RefusalProblem};

use super::decision_body::DecisionBody;

/// A refusal as JSON.
#[derive(Debug, Serialize)]
pub(super) struct RefusalBody<'a> {
    #[serde(flatten)]
    problem: RefusalProblem<'a>,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

impl<'a> RefusalBody<'a> {
    /// Makes the body of a refusal with this status.
    pub(super) fn of(refusal: Refusal<'a>, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        Self { problem: refusal.problem(status, decision.decision_id.as_deref()), decision }
    }
}

//! The body of a refusal to a caller of the API: a problem, and the whole decision inside.

use http::StatusCode;
use serde::Serialize;
use tidegate::http_answer::server_parts::{Refusal, RefusalProblem};

use super::decision_body::DecisionBody;

/// A refusal as its body shows it.
#[derive(Debug, Serialize)]
pub(super) struct RefusalBody<'a> {
    #[serde(flatten)]
    problem: RefusalProblem<'a>,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

impl<'a> RefusalBody<'a> {
    /// Writes down what refuses, under the status that is answered.
    pub(super) fn of(refusal: Refusal<'a>, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        Self { problem: refusal.problem(status, decision.decision_id.as_deref()), decision }
    }
}

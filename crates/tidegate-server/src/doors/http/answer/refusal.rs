//! The body of a refusal to a caller of the API: a problem, and the whole decision inside.

use http::StatusCode;
use serde::Serialize;
use tidegate::http_answer::Refusal;

use super::decision_body::DecisionBody;

/// A refusal as its body shows it.
#[derive(Debug, Serialize)]
pub(super) struct RefusalBody<'a> {
    r#type: &'a str,
    title: String,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated: Vec<&'a str>,
    #[serde(rename = "tidegate-decision-id", skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

impl<'a> RefusalBody<'a> {
    /// Writes down what refuses, under the status that is answered.
    pub(super) fn of(refusal: &Refusal<'a>, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        Self {
            r#type: refusal.problem_type(),
            title: refusal.title(status),
            status: status.as_u16(),
            detail: refusal.detail(),
            violated: refusal.policies(),
            id: decision.decision_id.as_deref(),
            decision,
        }
    }
}

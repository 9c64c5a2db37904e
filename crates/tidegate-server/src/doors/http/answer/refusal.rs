//! How a refusal is answered: its status, and a problem that says what refused and what would help.

use http::StatusCode;
use serde::Serialize;
use tidegate::GateDecision;
use tidegate::policy::Deny;
use tidegate_core::{Cost, Retry};

use super::decision_body::DecisionBody;
use crate::engine::Conclusion;
use crate::span::millis_up;

/// The type of a problem of which the status says all (RFC 9457, section 4.2.1).
const NO_TYPE: &str = "about:blank";
/// What is told of a refusal without a decision.
pub(super) const NOT_LOOKED_UP: &str =
    "the limits could not be looked up, and a policy refuses requests meanwhile";

/// A refusal as its body shows it: a problem, and the decision inside.
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
    /// Writes down a conclusion that refuses, under the status that is answered.
    pub(super) fn of(conclusion: &'a Conclusion, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        let (mut violated, detail);
        let kind = kind(conclusion);
        match conclusion {
            Conclusion::Decided(decided) => {
                let policies = decided.policies.policies();
                violated =
                    decided.refusing().map(|limit| policies[limit.policy].name.as_str()).collect::<Vec<_>>();
                violated.dedup();
                detail = match &decided.denied_by_list {
                    Some(refusal) => {
                        violated.extend(refusal.policy.map(|at| policies[at].name.as_str()));
                        format!("{} is on a deny-list", refusal.entry)
                    }
                    None => detail_of(decided),
                };
            }
            Conclusion::Unsettled { policy, .. } => {
                violated = policy.as_deref().into_iter().collect();
                detail = NOT_LOOKED_UP.to_owned();
            }
        }
        let id = decision.decision_id.as_deref();
        Self {
            r#type: kind,
            title: title(kind, status),
            status: status.as_u16(),
            detail,
            violated,
            id,
            decision,
        }
    }
}

/// Returns the status of a refusal: 429 unless the policy that binds has another, 503 where the store could not decide.
pub(super) fn status(conclusion: &Conclusion) -> StatusCode {
    let status = match conclusion {
        Conclusion::Decided(decision) => match &decision.denied_by_list {
            Some(listed) => listed.status,
            None => refusal_of(decision).map_or(429, |deny| deny.status),
        },
        Conclusion::Unsettled { .. } => 503,
    };
    // Configured statuses are checked when the file is read; a set made by hand may hold anything.
    StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
}

/// Returns the type of the problem that a refusal is answered with.
pub(super) fn kind(conclusion: &Conclusion) -> &str {
    match conclusion {
        Conclusion::Decided(GateDecision { denied_by_list: Some(_), .. }) => NO_TYPE,
        Conclusion::Decided(decision) => refusal_of(decision).map_or(NO_TYPE, |deny| &*deny.problem),
        Conclusion::Unsettled { .. } => our_shortage(),
    }
}

fn our_shortage() -> &'static str {
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
}

/// Returns how the policy that binds answers a refusal by the limit that binds.
fn refusal_of(decision: &GateDecision) -> Option<&Deny> {
    let bound = &decision.limits[decision.binding?];
    Some(decision.policies.policies().get(bound.policy)?.refusal(bound.limit))
}

fn detail_of(decision: &GateDecision) -> String {
    let Some(bound) = decision.binding.map(|at| &decision.limits[at]) else {
        return "refused by a policy".to_owned();
    };
    let name = &decision.policies.policies()[bound.policy].name;
    let (cost, standing): (Cost, _) = (bound.cost, bound.decision.standing);
    let kept = match bound.kept_back {
        0 => String::new(),
        units => format!(", {units} kept for higher priority"),
    };
    match decision.retry() {
        Retry::After(wait) => format!(
            "policy {name:?} has {} of {} left{kept}{} and {cost} asked for; try again in {} ms",
            standing.remaining,
            standing.limit,
            if kept.is_empty() { "" } else { "," },
            millis_up(wait)
        ),
        Retry::Unknown => {
            format!(
                "policy {name:?} has no room for {cost} now{kept}, and nobody can say when; try again later"
            )
        }
        Retry::Never => format!(
            "policy {name:?} never grants a cost of {cost}: its limit is {}{kept}; ask for less at a time",
            standing.limit
        ),
    }
}

/// Makes the title of a problem type: its name in words.
pub(super) fn title(kind: &str, status: StatusCode) -> String {
    let name = kind.rsplit(['#', '/']).next().unwrap_or_default();
    if kind == NO_TYPE || name.is_empty() {
        return status.canonical_reason().unwrap_or("Denied").to_owned();
    }
    let words = name.replace('-', " ");
    let mut chars = words.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_the_types_in_words() {
        let kind = our_shortage();
        assert_eq!(title(kind, StatusCode::SERVICE_UNAVAILABLE), "Temporary reduced capacity");
        assert_eq!(title("about:blank", StatusCode::FORBIDDEN), "Forbidden");
        assert!(kind.starts_with(Deny::TYPES));
    }
}

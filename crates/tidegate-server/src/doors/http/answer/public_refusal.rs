//! A refusal that strangers may read: what refused, for how long, and nothing else.
//!
//! Caddy and Traefik hand the answer of forward-auth to their client. The whole decision would tell him of experiments in shadow, of all
//! other policies, of what is left of limits that others share, and of what went wrong with the store. Operators find it by the id:
//! `/v1/explain?id=`.

use http::StatusCode;
use serde::Serialize;
use tidegate_core::Retry;
use ulid::Ulid;

use super::refusal::{NOT_LOOKED_UP, kind, title};
use crate::engine::Conclusion;
use crate::span::millis_up;

/// A problem with few members, which mean what they mean in the body of a check.
#[derive(Debug, Serialize)]
pub(super) struct PublicRefusal<'a> {
    r#type: &'a str,
    title: String,
    status: u16,
    detail: String,
    /// The policy that binds; none of a deny-list for all policies.
    #[serde(rename = "violated-policies")]
    violated: Vec<&'a str>,
    #[serde(rename = "tidegate-decision-id", skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    retry: &'static str,
    retry_after_ms: Option<u64>,
}

impl<'a> PublicRefusal<'a> {
    /// Writes down a conclusion that refuses, under the status that is answered.
    pub(super) fn of(conclusion: &'a Conclusion, id: Option<Ulid>, status: StatusCode) -> Self {
        let (policy, retry, detail) = match conclusion {
            Conclusion::Decided(decision) => {
                let policy = decision.policy().map(|at| decision.policies.policies()[at].name.as_str());
                let detail = match (&decision.denied_by_list, policy) {
                    (None, Some(policy)) => detail(policy, decision.retry()),
                    (None, None) => "a policy refuses this request".to_owned(),
                    // Not the entry: a list may name others.
                    (Some(_), _) => "a deny-list refuses this request".to_owned(),
                };
                (policy, decision.retry(), detail)
            }
            Conclusion::Unsettled { policy, .. } => {
                (policy.as_deref(), Retry::Unknown, NOT_LOOKED_UP.to_owned())
            }
        };
        let kind = kind(conclusion);
        Self {
            r#type: kind,
            title: title(kind, status),
            status: status.as_u16(),
            detail,
            violated: policy.into_iter().collect(),
            id: id.map(|id| id.to_string()),
            retry: retry.as_str(),
            retry_after_ms: retry.after().map(millis_up),
        }
    }

    /// Returns the policy that binds.
    pub(super) fn policy(&self) -> Option<&'a str> {
        self.violated.first().copied()
    }
}

fn detail(policy: &str, retry: Retry) -> String {
    match retry {
        Retry::After(wait) => {
            format!("policy {policy:?} refuses this request; try again in {} ms", millis_up(wait))
        }
        Retry::Unknown => format!("policy {policy:?} refuses this request; try again later"),
        Retry::Never => format!("policy {policy:?} never allows a request of this cost"),
    }
}

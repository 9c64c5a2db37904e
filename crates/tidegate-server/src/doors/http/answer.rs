//! Turns a conclusion into an answer: status, headers, body.
//!
//! An allowed request is 200. A denied one has the status of the policy that binds, 429 for a caller over a quota and 503
//! when the server is short itself; its body is the same decision inside `application/problem+json` ([`refusal`]). Behind a proxy it is
//! short ([`public_refusal`]), since the proxy may hand it to anybody.

mod decision_body;
mod public_refusal;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use tidegate::config::HeaderForm;
use tidegate::policy::{Descriptor, Policy};
use tidegate::{GateDecision, LimitDecision, Quota, Tick};
use tidegate_core::Retry;
use ulid::Ulid;

use self::decision_body::DecisionBody;
pub(crate) use self::decision_body::mode;
use self::public_refusal::PublicRefusal;
use self::refusal::RefusalBody;
use super::response_headers::{self, Picture, ShownLimit};
use crate::engine::{Conclusion, TicketAnswer, Want};
use crate::json::{self, JSON};
use crate::live::Facts;
use crate::problem::PROBLEM_JSON;
use crate::span::seconds_up;

/// How long to wait before asking again when the store could not decide: long enough not to add to its trouble.
const STORE_RETRY: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct InBatch<'a> {
    status: u16,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

/// What the answer to one check is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<'a, 'd> {
    pub(crate) request: &'a Descriptor<'d>,
    pub(crate) conclusion: &'a Conclusion,
    pub(crate) facts: &'a [Facts],
    pub(crate) want: Want,
    pub(crate) id: Option<Ulid>,
    pub(crate) ticket: Option<&'a TicketAnswer>,
}

impl<'a> Reply<'a, '_> {
    /// Returns the response for a caller of the API: the whole decision.
    pub(crate) fn response(self, form: HeaderForm) -> Response {
        let decision = self.decision_body();
        let status = self.status();
        let (body, kind) = if self.allowed() {
            (json::bytes(&decision), JSON)
        } else {
            (json::bytes(&RefusalBody::of(self.conclusion, &decision, status)), PROBLEM_JSON)
        };
        let mut response = (status, body).into_response();
        response.headers_mut().insert(CONTENT_TYPE, kind);
        self.headers(form, response.headers_mut());
        response
    }

    /// Returns the response for a proxy, which may hand a refusal to anybody: a short body then, and none otherwise, for proxies read nothing
    /// but status and headers. `denied` is the status of all refusals where the proxy accepts no other.
    pub(crate) fn to_proxy(self, form: HeaderForm, denied: Option<StatusCode>) -> Response {
        let mut response = if self.allowed() {
            StatusCode::OK.into_response()
        } else {
            let status = denied.unwrap_or_else(|| self.status());
            let refusal = PublicRefusal::of(self.conclusion, self.id, status);
            let mut response =
                (status, [(CONTENT_TYPE, PROBLEM_JSON)], json::bytes(&refusal)).into_response();
            if let Some(policy) = refusal.policy() {
                response_headers::write_refusing_policy(policy, response.headers_mut());
            }
            response
        };
        self.headers(form, response.headers_mut());
        response
    }

    /// Returns the body of one check in a batch, its status included.
    pub(crate) fn in_batch(self) -> serde_json::Value {
        let decision = self.decision_body();
        serde_json::to_value(InBatch { status: self.status().as_u16(), decision: &decision })
            .unwrap_or_default()
    }

    /// Returns the decision alone, as a question's answer has it.
    pub(crate) fn value(self) -> serde_json::Value {
        serde_json::to_value(self.decision_body()).unwrap_or_default()
    }

    pub(crate) fn allowed(&self) -> bool {
        match self.conclusion {
            Conclusion::Decided(decision) => decision.allowed,
            Conclusion::Unsettled { allowed, .. } => *allowed,
        }
    }

    /// Returns how long the work is to be held back.
    pub(crate) fn wait(&self) -> Duration {
        match self.conclusion {
            Conclusion::Decided(decision) => decision.wait,
            Conclusion::Unsettled { .. } => Duration::ZERO,
        }
    }

    /// Writes the rate-limit headers, and that no cache may keep the answer.
    fn headers(&self, form: HeaderForm, out: &mut HeaderMap) {
        out.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.conclusion {
            Conclusion::Decided(decision) => {
                response_headers::write_limits(form, &self.picture(decision), out);
            }
            Conclusion::Unsettled { allowed, .. } => {
                let refused = (!allowed).then_some(Retry::After(STORE_RETRY));
                response_headers::write_limits(form, &Picture { refused, ..Picture::default() }, out);
            }
        }
    }

    fn status(&self) -> StatusCode {
        if self.allowed() { StatusCode::OK } else { refusal::status(self.conclusion) }
    }

    fn decision_body(&self) -> DecisionBody<'a> {
        DecisionBody::of(self.conclusion, self.want, self.id, self.ticket)
    }

    /// Chooses what headers show: of each policy that can refuse, its tightest limit.
    fn picture(&self, decision: &'a GateDecision) -> Picture<'a> {
        let mut picture =
            Picture { refused: (!decision.allowed).then(|| decision.retry()), ..Picture::default() };
        let policies = decision.policies.policies();
        let bound = decision.binding.map(|at| decision.limits[at].policy);
        for lines in decision.limits.chunk_by(|one, next| one.policy == next.policy) {
            let enforced = lines.iter().filter(|line| line.binding);
            let tightest = enforced.min_by_key(|line| {
                let left = u128::from(line.remaining()) << 64;
                (line.decision.is_allowed(), left / u128::from(line.decision.standing.limit.max(1)))
            });
            let Some(line) = tightest else { continue };
            let policy = &policies[line.policy];
            if bound == Some(line.policy) {
                picture.binding = Some(picture.limits.len());
            }
            picture.limits.push(shown(policy, &self.facts[line.policy], line, self.request, decision.at));
        }
        picture
    }
}

fn shown<'a>(
    policy: &'a Policy,
    facts: &Facts,
    line: &LimitDecision,
    request: &Descriptor<'_>,
    now: Tick,
) -> ShownLimit<'a> {
    let standing = line.decision.standing;
    let quota: Option<&Arc<Quota>> =
        policy.limit(line.limit).and_then(|limit| limit.terms_for(request).quota.as_ref());
    let concurrent = quota.is_some_and(|quota| quota.is_guard());
    let wait = if concurrent {
        // Places come back when others leave: no number of seconds says when.
        None
    } else if line.decision.is_allowed() {
        Some(standing.reset_after).filter(|wait| !wait.is_zero())
    } else {
        line.decision.retry().after()
    };
    ShownLimit {
        name: &policy.name,
        quota: standing.limit,
        window: quota.and_then(|quota| facts.window(quota, now)),
        concurrent,
        remaining: line.remaining().min(standing.limit),
        refused: !line.decision.is_allowed(),
        wait: wait.map(seconds_up),
    }
}

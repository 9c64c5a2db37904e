//! Turns a conclusion into an answer: status, headers, body.
//!
//! An allowed request is answered 200. A denied one has the status of the policy that binds: 429 for a caller over a
//! quota, 503 if the server itself is short. Its body is the decision inside `application/problem+json` ([`RefusalBody`]).
//! Behind a proxy the body is short ([`PublicRefusal`](tidegate::http_answer::server_parts::PublicRefusal)), since the
//! proxy may show it to anybody: Caddy and Traefik pass the answer of forward-auth to their client. Operators find the
//! full decision by its id: `/v1/explain?id=`.

mod decision_body;

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use tidegate::http_answer::PROBLEM_JSON;
use tidegate::http_answer::server_parts::{Refusal, RefusalProblem, ShownLimits};
use tidegate::policy::Descriptor;
use tidegate::store::BreakerView;
use tidegate_core::Retry;
use ulid::Ulid;

use self::decision_body::DecisionBody;
pub(crate) use self::decision_body::mode;
use super::response_headers;
use crate::active_config::{ActiveConfig, Facts};
use crate::engine::{Conclusion, Engine, TicketAnswer, Want};
use crate::json::{self, JSON};
use crate::problem::STORE_RETRY;

/// An answer is true only at its moment.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

#[derive(Serialize)]
struct InBatch<'a> {
    status: u16,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

/// The body of a refusal to an API caller: a problem document that contains the full decision.
#[derive(Debug, Serialize)]
struct RefusalBody<'a> {
    #[serde(flatten)]
    problem: RefusalProblem<'a>,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

impl<'a> RefusalBody<'a> {
    /// Makes the body of a refusal with this status.
    fn of(refusal: Refusal<'a>, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        Self { problem: refusal.problem(status, decision.decision_id.as_deref()), decision }
    }
}

/// The parts from which the answer to one check is made.
#[derive(Debug)]
pub(crate) struct Reply<'a, 'd> {
    pub(crate) engine: &'a Engine,
    pub(crate) request: &'a Descriptor<'d>,
    pub(crate) conclusion: &'a Conclusion,
    pub(crate) facts: Cow<'a, [Facts]>,
    pub(crate) want: Want,
    /// The id of the decision; `None` for a look.
    pub(crate) id: Option<Ulid>,
    /// The ticket, or why there is none; `None` if nobody wants one.
    pub(crate) ticket: Option<TicketAnswer>,
}

impl<'a, 'd> Reply<'a, 'd> {
    /// Makes the reply to a look that is answered without headers, for which alone the facts are needed.
    pub(crate) fn of_look(
        engine: &'a Engine,
        request: &'a Descriptor<'d>,
        conclusion: &'a Conclusion,
    ) -> Self {
        Self {
            engine,
            request,
            conclusion,
            facts: Cow::Borrowed(&[]),
            want: Want::Peek,
            id: None,
            ticket: None,
        }
    }

    /// Returns the response for an API caller: the full decision.
    pub(crate) fn response(&self, live: &ActiveConfig) -> Response {
        let decision = self.decision_body();
        let status = self.status();
        let (body, kind) = if self.allowed() {
            (json::bytes(&decision), JSON)
        } else {
            let breaker = self.breaker();
            let refusal = self.refusal().by_breaker(breaker.as_ref());
            (json::bytes(&RefusalBody::of(refusal, &decision, status)), PROBLEM_JSON)
        };
        let mut response = (status, body).into_response();
        response.headers_mut().insert(CONTENT_TYPE, kind);
        self.headers(live, response.headers_mut());
        response
    }

    /// Returns the response for a proxy. A refusal has a short body, since the proxy may show it to anybody; any other
    /// answer has none, since proxies read only status and headers. `denied` is the status of all refusals if the proxy
    /// accepts no other.
    pub(crate) fn to_proxy(&self, live: &ActiveConfig, denied: Option<StatusCode>) -> Response {
        let mut response = if self.allowed() {
            StatusCode::OK.into_response()
        } else {
            let refusal = self.refusal();
            let status = denied.unwrap_or_else(|| refusal.status());
            let id = self.id.map(|id| id.to_string());
            let body = refusal.public(status, id.as_deref());
            let mut response = (status, [(CONTENT_TYPE, PROBLEM_JSON)], json::bytes(&body)).into_response();
            if let Some(policy) = refusal.policy() {
                response_headers::write_refusing_policy(policy, response.headers_mut());
            }
            response
        };
        self.headers(live, response.headers_mut());
        response
    }

    /// Writes the entry of one check in a batch: the body of the answer alone, and its status.
    pub(crate) fn write_in_batch(&self, out: &mut Vec<u8>) {
        let decision = self.decision_body();
        let status = self.status();
        if self.allowed() {
            json::write(out, &InBatch { status: status.as_u16(), decision: &decision });
        } else {
            let breaker = self.breaker();
            let refusal = self.refusal().by_breaker(breaker.as_ref());
            json::write(out, &RefusalBody::of(refusal, &decision, status));
        }
    }

    /// Returns the decision alone, as the answers of explain and dry-run embed it.
    pub(crate) fn value(&self) -> serde_json::Value {
        serde_json::to_value(self.decision_body()).unwrap_or_default()
    }

    pub(crate) fn allowed(&self) -> bool {
        self.conclusion.allowed()
    }

    /// Returns how long to delay the work.
    pub(crate) fn wait(&self) -> Duration {
        match self.conclusion {
            Conclusion::Decided(decision) => decision.wait,
            Conclusion::Unsettled { .. } => Duration::ZERO,
        }
    }

    /// Writes the rate-limit headers, and forbids caches to keep the answer.
    fn headers(&self, live: &ActiveConfig, out: &mut HeaderMap) {
        out.insert(CACHE_CONTROL, NO_STORE);
        if let Conclusion::Decided(decision) = self.conclusion
            && decision.allowed
            && decision.policies.lets_through()
        {
            live.over.write(decision, out);
        }
        let shown = match self.conclusion {
            Conclusion::Decided(decision) => ShownLimits::of(decision, self.request, |policy, quota| {
                self.facts[policy].window(quota, decision.at)
            }),
            Conclusion::Unsettled { allowed, .. } => {
                ShownLimits::none((!allowed).then_some(Retry::After(STORE_RETRY)))
            }
        };
        shown.write(live.headers, out);
    }

    /// Returns what refuses the request.
    fn refusal(&self) -> Refusal<'a> {
        match self.conclusion {
            Conclusion::Decided(decision) => Refusal::of_gate(decision).for_request(self.request),
            Conclusion::Unsettled { policy, .. } => Refusal::undecided(policy.as_deref()),
        }
    }

    /// Returns the state of the breaker that refuses the request. Callers of the check API see a person's reason for it,
    /// as for a block; clients of proxies do not.
    fn breaker(&self) -> Option<BreakerView> {
        self.engine.breakers.refusing(self.request, self.conclusion)
    }

    /// Returns the status code of the answer to a check.
    pub(crate) fn status(&self) -> StatusCode {
        if self.allowed() { StatusCode::OK } else { self.refusal().status() }
    }

    fn decision_body(&self) -> DecisionBody<'a> {
        DecisionBody::of(self.conclusion, self.want, self.id, self.ticket.as_ref())
    }
}

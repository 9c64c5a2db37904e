//! Turns a conclusion into an answer: status, headers, body.
//!
//! Allowed: 200. Denied: the status of the policy that binds (429 over a quota, 503 if the server itself is short),
//! and the decision inside `application/problem+json` ([`RefusalBody`]). Behind a proxy the body is short, since
//! Caddy and Traefik pass the answer of forward-auth to their client
//! ([`PublicRefusal`](tidegate::http_answer::server_parts::PublicRefusal)); operators find the decision by its id
//! (`/v1/explain?id=`).

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use tidegate::gate::LimitDecision;
use tidegate::http_answer::PROBLEM_JSON;
use tidegate::http_answer::server_parts::{
    Refusal, RefusalProblem, ShownLimits, insert, millis_up, push_escaped,
};
use tidegate::policy::{Descriptor, Limit, Mode, Over, Policy};
use tidegate::store::{BreakerView, DecidedBy};
use tidegate_core::Retry;
use ulid::{ULID_LEN, Ulid};

use crate::active_config::{ActiveConfig, Facts};
use crate::body::json::{self, JSON};
use crate::body::{self, Response};
use crate::decider::{Conclusion, Decider, TicketAnswer, Want};
use crate::problem::STORE_RETRY;
use crate::text::{moment, wall_moment};

/// An answer is true only at its moment.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

#[derive(Serialize)]
struct InBatch<'a> {
    status: u16,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

/// The body of a refusal to an API caller: a problem document with the full decision.
#[derive(Debug, Serialize)]
struct RefusalBody<'a> {
    #[serde(flatten)]
    problem: RefusalProblem<'a>,
    #[serde(flatten)]
    decision: &'a DecisionBody<'a>,
}

impl<'a> RefusalBody<'a> {
    fn of(refusal: Refusal<'a>, decision: &'a DecisionBody<'a>, status: StatusCode) -> Self {
        Self { problem: refusal.problem(status, decision.decision_id.as_deref()), decision }
    }
}

/// The most headers of a refusal, with those that the connection adds. Room for them is made at once: a map that grows
/// hashes all names again.
const HEADERS_OF_REFUSAL: usize = 12;

/// What the answer to one check is made of.
#[derive(Debug)]
pub(crate) struct Reply<'a, 'd> {
    pub(crate) decider: &'a Decider,
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
        decider: &'a Decider,
        request: &'a Descriptor<'d>,
        conclusion: &'a Conclusion,
    ) -> Self {
        Self {
            decider,
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
        let mut response = self.with_room(body::answer(status, kind, body));
        self.headers(live, response.headers_mut());
        response
    }

    fn with_room(&self, mut response: Response) -> Response {
        if !self.allowed() {
            response.headers_mut().reserve(HEADERS_OF_REFUSAL);
        }
        response
    }

    /// Returns the answer for a proxy. A refusal has a short body; any other answer has none, since proxies read
    /// only status and headers. `denied` is the status of all refusals if the proxy accepts no other.
    pub(crate) fn to_proxy(&self, live: &ActiveConfig, denied: Option<StatusCode>) -> Response {
        let mut response = if self.allowed() {
            body::bare(StatusCode::OK)
        } else {
            let refusal = self.refusal();
            let status = denied.unwrap_or_else(|| refusal.status());
            let id = self.id.map(|id| id.to_string());
            let body = refusal.public(status, id.as_deref());
            let mut response = self.with_room(body::answer(status, PROBLEM_JSON, json::bytes(&body)));
            if let Some(policy) = refusal.policy() {
                write_refusing_policy(policy, response.headers_mut());
            }
            response
        };
        self.headers(live, response.headers_mut());
        response
    }

    /// Writes the entry of one check in a batch: the body of its answer alone, and its status.
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

    /// Returns the decision alone, for explain and dry-run.
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

    /// Writes the rate-limit headers; caches must not keep the answer.
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

    fn refusal(&self) -> Refusal<'a> {
        match self.conclusion {
            Conclusion::Decided(decision) => Refusal::of_gate(decision).for_request(self.request),
            Conclusion::Unsettled { policy, .. } => Refusal::undecided(policy.as_deref()),
        }
    }

    /// Returns the breaker that refuses. Callers of the API see a person's reason for it; clients of proxies do not.
    fn breaker(&self) -> Option<BreakerView> {
        self.decider.breakers.refusing(self.request, self.conclusion)
    }

    pub(crate) fn status(&self) -> StatusCode {
        if self.allowed() { StatusCode::OK } else { self.refusal().status() }
    }

    fn decision_body(&self) -> DecisionBody<'a> {
        DecisionBody::of(self.conclusion, self.want, self.id, self.ticket.as_ref())
    }
}

/// A decision as response bodies show it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct DecisionBody<'a> {
    /// `now` for a look, which says how a request would be decided; absent for a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    answers: Option<&'static str>,
    decision: &'static str,
    /// The policy that binds: of a denial the one with the longest wait, else the one with least left.
    policy: Option<&'a str>,
    remaining: Option<u64>,
    limit: Option<u64>,
    /// When it is worth repeating a refused request: `after`, `unknown` or `never`; absent if allowed.
    retry: Option<&'static str>,
    /// Absent if allowed, or if no wait is known.
    retry_after_ms: Option<u64>,
    reset_at: Option<String>,
    delay_ms: u64,
    decision_id: Option<String>,
    /// The ticket that settles the decision; absent if nobody wants one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// Why there is none although one is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket_error: Option<String>,
    policies: Vec<LimitBody<'a>>,
    /// The policies that let the request pass over their limit, with a mark.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marked: Vec<&'a str>,
    /// The policies that lowered its priority.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    demoted: Vec<&'a str>,
    /// The priority that the request was decided for, if it was lowered.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct LimitBody<'a> {
    name: &'a str,
    mode: &'static str,
    /// Whether the limit only measures, in a shadow policy or as a `shadow_limit`.
    shadow: bool,
    /// Whether the limit is the policy's canary, which decides about this key in the place of the first limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    canary: bool,
    decision: &'static str,
    /// What a request of this priority may still take.
    remaining: u64,
    /// Further units that are left, but kept back for requests of higher priority.
    #[serde(skip_serializing_if = "is_zero")]
    kept_back: u64,
    limit: u64,
    /// How many units the limit is below empty.
    debt: u64,
    retry: Option<&'static str>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    /// `None` if it cannot be determined, which refuses the request.
    cost: Option<u64>,
    charged: bool,
    /// Whether a report about the end of the work keeps or returns the charge.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    awaits_report: bool,
}

impl<'a> DecisionBody<'a> {
    /// Makes the body of a conclusion; `want` says whether the cost was charged.
    fn of(conclusion: &'a Conclusion, want: Want, id: Option<Ulid>, ticket: Option<&TicketAnswer>) -> Self {
        let decision_id = id.map(|id| id.to_string());
        let answers = (want == Want::Peek).then_some("now");
        let decision = match conclusion {
            Conclusion::Decided(decision) => decision,
            Conclusion::Unsettled { allowed, policy, error } => {
                return Self {
                    answers,
                    decision: if *allowed { "allowed" } else { "denied" },
                    policy: policy.as_deref(),
                    retry: (!allowed).then_some("unknown"),
                    decision_id,
                    store_error: Some(error.to_string()),
                    ..Self::default()
                };
            }
        };
        let bound = decision.binding.map(|at| &decision.limits[at]);
        let policies = decision.policies.policies();
        let charged = decision.allowed && want == Want::Take;
        let (demoted, marked): (Vec<_>, Vec<_>) =
            decision.over().partition(|(_, over)| matches!(over, Over::Demote { .. }));
        let names = |all: Vec<(&'a str, Over)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        Self {
            answers,
            decision: match (decision.allowed, decision.wait.is_zero()) {
                (false, _) => "denied",
                (true, true) => "allowed",
                (true, false) => "delayed",
            },
            policy: decision.policy().map(|at| policies[at].name.as_str()),
            remaining: bound.map(LimitDecision::remaining),
            limit: bound.map(|bound| bound.decision.standing.limit),
            retry: (!decision.allowed).then(|| decision.retry().as_str()),
            retry_after_ms: if decision.allowed { None } else { decision.retry().after().map(millis_up) },
            reset_at: bound.and_then(|bound| {
                // An engine's own clock has the time of day.
                let moment = if decision.by == DecidedBy::Engine { wall_moment } else { moment };
                moment(decision.at, bound.decision.standing.reset_after)
            }),
            delay_ms: millis_up(decision.wait),
            decision_id,
            ticket: ticket.and_then(|answer| Some(answer.ticket.as_ref()?.to_string())),
            ticket_error: ticket.and_then(|answer| Some(answer.error.as_ref()?.to_string())),
            policies: decision
                .limits
                .iter()
                .map(|limit| {
                    let anyway = decision.anyway.as_ref().is_some_and(|anyway| {
                        anyway
                            .lines
                            .iter()
                            .any(|(policy, at, _)| (*policy, *at) == (limit.policy, limit.limit))
                    });
                    let charged = anyway || charged && limit.decision.is_allowed();
                    LimitBody::of(&policies[limit.policy], limit, charged)
                })
                .collect(),
            marked: names(marked),
            priority: (!demoted.is_empty()).then(|| decision.priority.to_string()),
            demoted: names(demoted),
            store_error: None,
        }
    }
}

impl<'a> LimitBody<'a> {
    fn of(policy: &'a Policy, limit: &LimitDecision, charged: bool) -> Self {
        let standing = limit.decision.standing;
        let allowed = limit.decision.is_allowed();
        Self {
            name: &policy.name,
            mode: mode(policy.mode),
            shadow: policy.mode == Mode::Shadow || policy.is_shadow_limit(limit.limit),
            canary: policy.is_canary(limit.limit),
            decision: match (allowed, limit.decision.wait().is_zero()) {
                (false, _) if policy.mode == Mode::Enforce && !policy.is_shadow_limit(limit.limit) => {
                    match policy.over {
                        Over::Mark => "marked",
                        Over::Demote { .. } => "demoted",
                        Over::Deny | Over::Block { .. } => "denied",
                    }
                }
                (false, _) => "denied",
                (true, true) => "allowed",
                (true, false) => "delayed",
            },
            remaining: limit.remaining(),
            kept_back: limit.kept_back,
            limit: standing.limit,
            debt: standing.debt,
            retry: (!allowed).then(|| limit.decision.retry().as_str()),
            retry_after_ms: if allowed { None } else { limit.decision.retry().after().map(millis_up) },
            reset_after_ms: millis_up(standing.reset_after),
            cost: (!limit.cost_is_unknown()).then(|| limit.cost.units()),
            charged,
            awaits_report: charged && (limit.on_failure || is_place(policy, limit)),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(units: &u64) -> bool {
    *units == 0
}

/// Returns whether the limit lends a place, which is returned when the work ends.
fn is_place(policy: &Policy, limit: &LimitDecision) -> bool {
    policy.limit(limit.limit).is_some_and(Limit::is_guard)
}

/// Returns the word for a mode, as in files and answers.
pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Shadow => "shadow",
        Mode::Enforce => "enforce",
    }
}

// Headers of forward-auth for the proxy and the application behind it. The library writes those of rate limits
// ([`tidegate::http_answer`]).

/// The id of the decision, for logs.
const DECISION_ID: HeaderName = HeaderName::from_static("x-tidegate-decision-id");

/// The policy that refused, for proxies that write the answer themselves and can insert the value of a header.
const POLICY: HeaderName = HeaderName::from_static("x-tidegate-policy");

/// The longest policy name in the header, in bytes: the whole head must fit the 4 KiB buffer into which nginx reads
/// it.
const LONGEST_POLICY: usize = 128;

/// The ticket that settles the decision.
const TICKET: HeaderName = HeaderName::from_static("x-tidegate-ticket");

/// Why there is no ticket, or one for the places alone, although a policy expects a settlement.
const TICKET_ERROR: HeaderName = HeaderName::from_static("x-tidegate-ticket-error");

/// Writes the policy that refused, percent-encoded as in a path, so that it can stand between quotes in any
/// language. A long name is cut.
pub(crate) fn write_refusing_policy(name: &str, out: &mut HeaderMap) {
    let mut value = String::new();
    push_escaped(name, LONGEST_POLICY, &mut value);
    insert(out, POLICY, value);
}

/// Writes the decision id and the ticket.
pub(crate) fn write_decision(id: Option<Ulid>, answer: Option<&TicketAnswer>, out: &mut HeaderMap) {
    // Letters and digits, which any header can carry.
    if let Some(Ok(value)) = id.map(|id| HeaderValue::from_str(id.array_to_str(&mut [0; ULID_LEN]))) {
        out.insert(DECISION_ID, value);
    }
    let Some(TicketAnswer { ticket, error }) = answer else { return };
    if let Some(ticket) = ticket {
        insert(out, TICKET, ticket.to_string());
    }
    if let Some(error) = error {
        insert(out, TICKET_ERROR, error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policys_name_is_one_word_that_no_quote_ends_and_is_bounded() {
        let written = |name: &str| {
            let mut out = HeaderMap::new();
            write_refusing_policy(name, &mut out);
            out[POLICY].to_str().unwrap().to_owned()
        };
        assert_eq!(written("per-ip_2.x~"), "per-ip_2.x~");
        assert_eq!(written("a \"b\\\r\n</ä"), "a%20%22b%5C%0D%0A%3C%2F%C3%A4");
        assert_eq!(written(&"x".repeat(100_000)), "x".repeat(128));
        assert_eq!(written(&"ä".repeat(100)), "%C3%A4".repeat(21), "no escape is cut in two");
    }
}

//! Turns a conclusion into an answer: status, headers, body.
//!
//! Allowed: 200. Denied: the status of the policy that binds (429 over a quota, 503 if the server itself is short),
//! and the decision inside `application/problem+json`. Behind a proxy the body is short, since
//! Caddy and Traefik pass the answer of forward-auth to their client
//! ([`PublicRefusal`](tidegate::http_answer::server_parts::PublicRefusal)); operators find the decision by its id
//! (`/v1/explain?id=`).

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tidegate::gate::{GateDecision, LimitDecision};
use tidegate::http_answer::PROBLEM_JSON;
use tidegate::http_answer::server_parts::{
    Refusal, ShownLimits, insert, millis_up, push_escaped, push_number, push_text, push_texts,
};
use tidegate::policy::{Descriptor, Limit, Mode, Over, Policy};
use tidegate::store::{BreakerView, DecidedBy};
use tidegate_core::Retry;
use ulid::{ULID_LEN, Ulid};

use crate::active_config::{ActiveConfig, Facts};
use crate::body::json::JSON;
use crate::body::{self, Response};
use crate::decider::{Conclusion, Decider, TicketAnswer, Want};
use crate::problem::STORE_RETRY;
use crate::text::{moment, wall_moment};

/// An answer is true only at its moment.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// More than the answer to a check with two limits takes, in bytes, so that most are written without a reallocation.
const USUAL: usize = 1024;

/// The most headers of a refusal to a proxy. Room for them is made at once: a map that grows hashes all names again. Those
/// to an API caller, usually six, fit the room of a new map.
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
        let mut body = String::with_capacity(USUAL);
        let (status, kind) = if self.allowed() {
            body.push('{');
            self.write_members(&mut body);
            (StatusCode::OK, JSON)
        } else {
            (self.write_refusal(&mut body), PROBLEM_JSON)
        };
        body.push('}');
        let mut response = body::answer(status, kind, body);
        self.headers(live, response.headers_mut());
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
            let mut text = [0; ULID_LEN];
            let id = self.id.map(|id| &*id.array_to_str(&mut text));
            let body = refusal.public(status, id).to_json();
            let mut response = Response::new(body::whole(body));
            *response.status_mut() = status;
            let headers = response.headers_mut();
            *headers = HeaderMap::with_capacity(HEADERS_OF_REFUSAL);
            headers.insert(CONTENT_TYPE, PROBLEM_JSON);
            if let Some(policy) = refusal.policy() {
                write_refusing_policy(policy, headers);
            }
            response
        };
        self.headers(live, response.headers_mut());
        response
    }

    /// Writes the entry of one check in a batch: the body of its answer alone, and its status.
    pub(crate) fn write_in_batch(&self, out: &mut Vec<u8>) {
        let mut entry = String::with_capacity(USUAL);
        if self.allowed() {
            entry.push_str(r#"{"status":200,"#);
            self.write_members(&mut entry);
        } else {
            self.write_refusal(&mut entry);
        }
        entry.push('}');
        out.extend_from_slice(entry.as_bytes());
    }

    /// Begins a problem document, without its end, with the members of the decision. Returns its status.
    fn write_refusal(&self, out: &mut String) -> StatusCode {
        let breaker = self.breaker();
        let refusal = self.refusal().by_breaker(breaker.as_ref());
        let (status, mut text) = (refusal.status(), [0; ULID_LEN]);
        let id = self.id.map(|id| &*id.array_to_str(&mut text));
        refusal.problem(status, id).begin(out);
        out.push(',');
        self.write_members(out);
        status
    }

    /// Returns the decision alone, for explain and dry-run.
    pub(crate) fn value(&self) -> serde_json::Value {
        let mut text = String::from("{");
        self.write_members(&mut text);
        text.push('}');
        serde_json::from_str(&text).unwrap_or_default()
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
}

// A decision as response bodies show it: the members of a JSON object, in this order.
//
// `answers` is `now` for a look, which says how a request would be decided, and absent for a decision. `policy` is the
// one that binds: of a denial the one with the longest wait, else the one with least left. `retry` says when it is worth
// repeating a refused request (`after`, `unknown`, `never`); it and its wait are null if allowed. `ticket` settles the
// decision; it and `ticket_error` are absent if nobody wants one. `marked` has the policies that let the request pass
// over their limit with a mark, `demoted` those that lowered its priority, and `priority` what it became; absent if none.

impl Reply<'_, '_> {
    fn write_members(&self, out: &mut String) {
        if self.want == Want::Peek {
            out.push_str(r#""answers":"now","#);
        }
        match self.conclusion {
            Conclusion::Decided(decision) => self.write_decided(decision, out),
            Conclusion::Unsettled { allowed, policy, error } => {
                out.push_str(if *allowed { r#""decision":"allowed""# } else { r#""decision":"denied""# });
                out.push_str(r#","policy":"#);
                push_text_or_null(policy.as_deref(), out);
                out.push_str(r#","remaining":null,"limit":null,"retry":"#);
                push_text_or_null((!allowed).then_some("unknown"), out);
                out.push_str(r#","retry_after_ms":null,"reset_at":null,"delay_ms":0"#);
                self.write_id(out);
                out.push_str(r#","policies":[],"store_error":"#);
                push_text(&error.to_string(), out);
            }
        }
    }

    fn write_id(&self, out: &mut String) {
        out.push_str(r#","decision_id":"#);
        let mut text = [0; ULID_LEN];
        push_text_or_null(self.id.map(|id| &*id.array_to_str(&mut text)), out);
    }

    fn write_decided(&self, decision: &GateDecision, out: &mut String) {
        let bound = decision.binding.map(|at| &decision.limits[at]);
        let policies = decision.policies.policies();
        out.push_str(match (decision.allowed, decision.wait.is_zero()) {
            (false, _) => r#""decision":"denied""#,
            (true, true) => r#""decision":"allowed""#,
            (true, false) => r#""decision":"delayed""#,
        });
        out.push_str(r#","policy":"#);
        push_text_or_null(decision.policy().map(|at| policies[at].name.as_str()), out);
        out.push_str(r#","remaining":"#);
        push_number(bound.map(LimitDecision::remaining), out);
        out.push_str(r#","limit":"#);
        push_number(bound.map(|bound| bound.decision.standing.limit), out);
        write_retry((!decision.allowed).then(|| decision.retry()), out);
        out.push_str(r#","reset_at":"#);
        let reset_at = bound.and_then(|bound| {
            // An engine's own clock has the time of day.
            let moment = if decision.by == DecidedBy::Engine { wall_moment } else { moment };
            moment(decision.at, bound.decision.standing.reset_after)
        });
        push_text_or_null(reset_at.as_deref(), out);
        out.push_str(r#","delay_ms":"#);
        push_number(millis_up(decision.wait), out);
        self.write_id(out);
        if let Some(TicketAnswer { ticket, error }) = &self.ticket {
            if let Some(ticket) = ticket {
                out.push_str(r#","ticket":"#);
                push_text(&ticket.to_string(), out);
            }
            if let Some(error) = error {
                out.push_str(r#","ticket_error":"#);
                push_text(&error.to_string(), out);
            }
        }
        out.push_str(r#","policies":["#);
        let charged = decision.allowed && self.want == Want::Take;
        for (number, limit) in decision.limits.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            let anyway = decision.anyway.as_ref().is_some_and(|anyway| {
                anyway.lines.iter().any(|(policy, at, _)| (*policy, *at) == (limit.policy, limit.limit))
            });
            let charged = anyway || charged && limit.decision.is_allowed();
            write_limit(&policies[limit.policy], limit, charged, out);
        }
        out.push(']');
        let demotes = |over: &Over| matches!(over, Over::Demote { .. });
        let named = |demoted: bool| {
            decision.over().filter(move |(_, over)| demotes(over) == demoted).map(|(name, _)| name)
        };
        if named(false).next().is_some() {
            out.push_str(r#","marked":"#);
            push_texts(named(false), out);
        }
        if named(true).next().is_some() {
            out.push_str(r#","demoted":"#);
            push_texts(named(true), out);
            out.push_str(r#","priority":"#);
            push_text(&decision.priority.to_string(), out);
        }
    }
}

/// Writes one limit: whether it only measures (`shadow`) or is the policy's `canary`, what a request of this priority may still take (`remaining`) and
/// what is kept back for higher ones, how many units it is below empty (`debt`), the cost (null if it cannot be
/// determined, which refuses the request), and whether a report about the end of the work keeps or returns the charge.
fn write_limit(policy: &Policy, limit: &LimitDecision, charged: bool, out: &mut String) {
    let standing = limit.decision.standing;
    let allowed = limit.decision.is_allowed();
    let shadow_limit = policy.is_shadow_limit(limit.limit);
    out.push_str(r#"{"name":"#);
    push_text(&policy.name, out);
    out.push_str(match policy.mode {
        Mode::Off => r#","mode":"off","shadow":"#,
        Mode::Shadow => r#","mode":"shadow","shadow":"#,
        Mode::Enforce => r#","mode":"enforce","shadow":"#,
    });
    push_flag(policy.mode == Mode::Shadow || shadow_limit, out);
    if policy.is_canary(limit.limit) {
        out.push_str(r#","canary":true"#);
    }
    out.push_str(match (allowed, limit.decision.wait().is_zero()) {
        (false, _) if policy.mode == Mode::Enforce && !shadow_limit => match policy.over {
            Over::Mark => r#","decision":"marked","remaining":"#,
            Over::Demote { .. } => r#","decision":"demoted","remaining":"#,
            Over::Deny | Over::Block { .. } => r#","decision":"denied","remaining":"#,
        },
        (false, _) => r#","decision":"denied","remaining":"#,
        (true, true) => r#","decision":"allowed","remaining":"#,
        (true, false) => r#","decision":"delayed","remaining":"#,
    });
    push_number(limit.remaining(), out);
    if limit.kept_back > 0 {
        out.push_str(r#","kept_back":"#);
        push_number(limit.kept_back, out);
    }
    out.push_str(r#","limit":"#);
    push_number(standing.limit, out);
    out.push_str(r#","debt":"#);
    push_number(standing.debt, out);
    write_retry((!allowed).then(|| limit.decision.retry()), out);
    out.push_str(r#","reset_after_ms":"#);
    push_number(millis_up(standing.reset_after), out);
    out.push_str(r#","cost":"#);
    push_number((!limit.cost_is_unknown()).then(|| limit.cost.units()), out);
    out.push_str(r#","charged":"#);
    push_flag(charged, out);
    if charged && (limit.on_failure || is_place(policy, limit)) {
        out.push_str(r#","awaits_report":true"#);
    }
    out.push('}');
}

/// Writes when it is worth asking again; `None`: nothing is refused.
fn write_retry(retry: Option<Retry>, out: &mut String) {
    out.push_str(match retry {
        Some(Retry::After(_)) => r#","retry":"after","retry_after_ms":"#,
        Some(Retry::Unknown) => r#","retry":"unknown","retry_after_ms":"#,
        Some(Retry::Never) => r#","retry":"never","retry_after_ms":"#,
        None => r#","retry":null,"retry_after_ms":"#,
    });
    push_number(retry.and_then(Retry::after).map(millis_up), out);
}

fn push_text_or_null(text: Option<&str>, out: &mut String) {
    match text {
        Some(text) => push_text(text, out),
        None => out.push_str("null"),
    }
}

fn push_flag(flag: bool, out: &mut String) {
    out.push_str(if flag { "true" } else { "false" });
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
    let mut value = String::with_capacity(name.len().min(LONGEST_POLICY));
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

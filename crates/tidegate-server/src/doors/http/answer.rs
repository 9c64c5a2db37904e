//! Turns a conclusion into an answer: status, headers, body.
//!
//! An allowed request is 200; a denied one has the status of the policy that binds, 429 for a caller over a quota and 503
//! when we are short ourselves, and its body is the same decision inside `application/problem+json`.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Serialize;
use tidegate::gate::ticket::Ticket;
use tidegate::policy::{Deny, Descriptor, Limit, Mode, Policy};
use tidegate::{GateDecision, LimitDecision, Quota, Tick};
use tidegate_core::{Cost, Retry};
use ulid::Ulid;

use super::headers::{self, HeaderForm, Picture, Shown, millis_up, seconds_up};
use super::problem::{PROBLEM_JSON, json};
use crate::engine::{Conclusion, NoTicket, Want};
use crate::live::Facts;

/// How long to wait before asking again when the store could not decide: long enough not to add to its trouble.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// A decision as bodies show it.
#[derive(Debug, Serialize)]
pub(crate) struct Answer<'a> {
    decision: &'static str,
    /// The policy that binds: of a denial the one that lasts longest, else the one with least left.
    policy: Option<&'a str>,
    remaining: Option<u64>,
    limit: Option<u64>,
    /// `after`, `unknown` or `never`: when a refused request is worth repeating; absent when allowed.
    retry: Option<&'static str>,
    /// Absent when allowed, and when no wait is known.
    retry_after_ms: Option<u64>,
    reset_at: Option<String>,
    delay_ms: u64,
    decision_id: Option<String>,
    /// What settles the decision; absent where nobody wants one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// Why there is none although it is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket_error: Option<String>,
    policies: Vec<Part<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store_error: Option<String>,
}

/// One limit's part in it.
#[derive(Debug, Serialize)]
struct Part<'a> {
    name: &'a str,
    mode: &'static str,
    /// Whether it is only measured, as a shadow policy or a `shadow_limit`.
    shadow: bool,
    decision: &'static str,
    remaining: u64,
    limit: u64,
    /// Units below empty.
    debt: u64,
    retry: Option<&'static str>,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    cost: u64,
    /// Whether the cost was taken.
    charged: bool,
    /// Whether it waits for the end of the work: a report decides if it stays, or gives the place back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    awaits_report: bool,
}

#[derive(Serialize)]
struct Denial<'a> {
    r#type: &'a str,
    title: String,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated: Vec<&'a str>,
    #[serde(rename = "tidegate-decision-id", skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    answer: &'a Answer<'a>,
}

#[derive(Serialize)]
struct InBatch<'a> {
    status: u16,
    #[serde(flatten)]
    answer: &'a Answer<'a>,
}

/// What answers are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a, 'd> {
    pub(crate) request: &'a Descriptor<'d>,
    pub(crate) conclusion: &'a Conclusion,
    pub(crate) facts: &'a [Facts],
    pub(crate) want: Want,
    pub(crate) id: Option<Ulid>,
    pub(crate) ticket: Option<&'a Result<Ticket, NoTicket>>,
}

impl<'a> Told<'a, '_> {
    /// Returns the whole response. `denied` is the status of denials where the asker accepts no other.
    pub(crate) fn response(self, form: HeaderForm, denied: Option<StatusCode>) -> Response {
        let answer = self.answer();
        let status = self.status();
        let (body, kind) = if self.allowed() {
            (json(&answer), HeaderValue::from_static("application/json"))
        } else {
            (json(&self.denial(&answer, status)), PROBLEM_JSON)
        };
        let mut response = (denied.filter(|_| !self.allowed()).unwrap_or(status), body).into_response();
        let out = response.headers_mut();
        out.insert(CONTENT_TYPE, kind);
        out.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.headers(form, out);
        response
    }

    /// Returns how many limits the answer tells of.
    pub(crate) fn limits(&self) -> usize {
        match self.conclusion {
            Conclusion::Decided(decision) => decision.limits.len(),
            Conclusion::Unsettled { .. } => 0,
        }
    }

    /// Returns the body of one check in a batch, its status included.
    pub(crate) fn in_batch(self) -> serde_json::Value {
        let answer = self.answer();
        serde_json::to_value(InBatch { status: self.status().as_u16(), answer: &answer }).unwrap_or_default()
    }

    /// Returns the decision alone, as a question's answer has it.
    pub(crate) fn value(self) -> serde_json::Value {
        serde_json::to_value(self.answer()).unwrap_or_default()
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

    /// Writes the rate-limit headers.
    fn headers(&self, form: HeaderForm, out: &mut HeaderMap) {
        match self.conclusion {
            Conclusion::Decided(decision) => headers::write(form, &self.picture(decision), out),
            Conclusion::Unsettled { allowed, .. } => {
                let refused = (!allowed).then_some(Retry::After(STORE_RETRY));
                headers::write(form, &Picture { refused, ..Picture::default() }, out);
            }
        }
    }

    fn status(&self) -> StatusCode {
        if self.allowed() {
            return StatusCode::OK;
        }
        let status = match self.conclusion {
            Conclusion::Decided(decision) => match &decision.denied_by_list {
                Some(refusal) => refusal.status,
                None => refusal(decision).map_or(429, |deny| deny.status),
            },
            Conclusion::Unsettled { .. } => 503,
        };
        // Configured statuses are checked when the file is read; a set made by hand may hold anything.
        StatusCode::from_u16(status).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
    }

    fn answer(&self) -> Answer<'a> {
        let decision_id = self.id.map(|id| id.to_string());
        let decision = match self.conclusion {
            Conclusion::Decided(decision) => decision,
            Conclusion::Unsettled { allowed, policy, error } => {
                return Answer {
                    decision: if *allowed { "allowed" } else { "denied" },
                    policy: policy.as_deref(),
                    remaining: None,
                    limit: None,
                    retry: (!allowed).then_some("unknown"),
                    retry_after_ms: None,
                    reset_at: None,
                    delay_ms: 0,
                    decision_id,
                    ticket: None,
                    ticket_error: None,
                    policies: Vec::new(),
                    store_error: Some(error.to_string()),
                };
            }
        };
        let bound = decision.binding.map(|at| &decision.limits[at]);
        let policies = decision.policies.policies();
        let charged = decision.allowed && self.want == Want::Take;
        Answer {
            decision: match (decision.allowed, decision.wait.is_zero()) {
                (false, _) => "denied",
                (true, true) => "allowed",
                (true, false) => "delayed",
            },
            policy: decision.policy().map(|at| policies[at].name.as_str()),
            remaining: bound.map(|bound| bound.decision.standing.remaining),
            limit: bound.map(|bound| bound.decision.standing.limit),
            retry: (!decision.allowed).then(|| decision.retry().as_str()),
            retry_after_ms: if decision.allowed { None } else { decision.retry().after().map(millis_up) },
            reset_at: bound.and_then(|bound| moment(decision.at, bound.decision.standing.reset_after)),
            delay_ms: millis_up(decision.wait),
            decision_id,
            ticket: self.ticket.and_then(|sealed| sealed.as_ref().ok()).map(ToString::to_string),
            ticket_error: self.ticket.and_then(|sealed| sealed.as_ref().err()).map(ToString::to_string),
            policies: decision
                .limits
                .iter()
                .map(|limit| Part::of(&policies[limit.policy], limit, charged))
                .collect(),
            store_error: None,
        }
    }

    fn denial<'b>(&'b self, answer: &'b Answer<'b>, status: StatusCode) -> Denial<'b> {
        let (mut violated, kind, detail);
        match self.conclusion {
            Conclusion::Decided(decision) => {
                let policies = decision.policies.policies();
                violated =
                    decision.refusing().map(|limit| policies[limit.policy].name.as_str()).collect::<Vec<_>>();
                violated.dedup();
                (kind, detail) = match &decision.denied_by_list {
                    Some(refusal) => {
                        violated.extend(refusal.policy.map(|at| policies[at].name.as_str()));
                        ("about:blank", format!("{} is on a deny-list", refusal.entry))
                    }
                    None => {
                        let kind = refusal(decision).map_or("about:blank", |deny| &*deny.problem);
                        (kind, detail_of(decision))
                    }
                };
            }
            Conclusion::Unsettled { policy, .. } => {
                violated = policy.as_deref().into_iter().collect();
                kind = our_shortage();
                detail =
                    "the limits could not be looked up, and a policy refuses requests meanwhile".to_owned();
            }
        }
        let id = answer.decision_id.as_deref();
        Denial {
            r#type: kind,
            title: title(kind, status),
            status: status.as_u16(),
            detail,
            violated,
            id,
            answer,
        }
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
                let left = u128::from(line.decision.standing.remaining) << 64;
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

impl<'a> Part<'a> {
    fn of(policy: &'a Policy, limit: &LimitDecision, charged: bool) -> Self {
        let standing = limit.decision.standing;
        let allowed = limit.decision.is_allowed();
        Self {
            name: &policy.name,
            mode: mode(policy.mode),
            shadow: policy.mode == Mode::Shadow || policy.is_shadow_limit(limit.limit),
            decision: match (allowed, limit.decision.wait().is_zero()) {
                (false, _) => "denied",
                (true, true) => "allowed",
                (true, false) => "delayed",
            },
            remaining: standing.remaining,
            limit: standing.limit,
            debt: standing.debt,
            retry: (!allowed).then(|| limit.decision.retry().as_str()),
            retry_after_ms: if allowed { None } else { limit.decision.retry().after().map(millis_up) },
            reset_after_ms: millis_up(standing.reset_after),
            cost: limit.cost.units(),
            charged: charged && allowed,
            awaits_report: charged && allowed && (limit.on_failure || is_place(policy, limit)),
        }
    }
}

/// Says whether it is a place, which is left when the work ends.
fn is_place(policy: &Policy, limit: &LimitDecision) -> bool {
    policy.limit(limit.limit).is_some_and(Limit::is_guard)
}

pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Off => "off",
        Mode::Shadow => "shadow",
        Mode::Enforce => "enforce",
    }
}

fn our_shortage() -> &'static str {
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
}

/// Returns how the policy that binds answers a refusal by the limit that binds.
fn refusal(decision: &GateDecision) -> Option<&Deny> {
    let bound = &decision.limits[decision.binding?];
    Some(decision.policies.policies().get(bound.policy)?.refusal(bound.limit))
}

fn shown<'a>(
    policy: &'a Policy,
    facts: &Facts,
    line: &LimitDecision,
    request: &Descriptor<'_>,
    now: Tick,
) -> Shown<'a> {
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
    Shown {
        name: &policy.name,
        quota: standing.limit,
        window: quota.and_then(|quota| facts.window(quota, now)),
        concurrent,
        remaining: standing.remaining.min(standing.limit),
        refused: !line.decision.is_allowed(),
        wait: wait.map(seconds_up),
    }
}

fn detail_of(decision: &GateDecision) -> String {
    let Some(bound) = decision.binding.map(|at| &decision.limits[at]) else {
        return "refused by a policy".to_owned();
    };
    let name = &decision.policies.policies()[bound.policy].name;
    let (cost, standing): (Cost, _) = (bound.cost, bound.decision.standing);
    match decision.retry() {
        Retry::After(wait) => format!(
            "policy {name:?} has {} of {} left and {cost} asked for; try again in {} ms",
            standing.remaining,
            standing.limit,
            millis_up(wait)
        ),
        Retry::Unknown => {
            format!("policy {name:?} has no room for {cost} now, and nobody can say when; try again later")
        }
        Retry::Never => format!(
            "policy {name:?} never grants a cost of {cost}: its limit is {}; ask for less at a time",
            standing.limit
        ),
    }
}

/// Makes the title of a problem type: its name in words.
fn title(kind: &str, status: StatusCode) -> String {
    let name = kind.rsplit(['#', '/']).next().unwrap_or_default();
    if kind == "about:blank" || name.is_empty() {
        return status.canonical_reason().unwrap_or("Denied").to_owned();
    }
    let words = name.replace('-', " ");
    let mut chars = words.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Writes the moment that lies some time after a tick, in RFC 3339; ticks of a server count from 1970.
pub(crate) fn moment(at: Tick, after: Duration) -> Option<String> {
    let nanos = u128::from(at.as_nanos()) + after.as_nanos();
    // Up to the next millisecond: the moment named must not be early.
    let millis = i64::try_from(nanos.div_ceil(1_000_000)).ok()?;
    jiff::Timestamp::from_millisecond(millis).ok().map(|moment| format!("{moment:.3}"))
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

    #[test]
    fn moments_are_rounded_up() {
        let at = Tick::from_secs(1_800_000_000);
        assert_eq!(moment(at, Duration::from_nanos(1)).as_deref(), Some("2027-01-15T08:00:00.001Z"));
        assert_eq!(moment(at, Duration::ZERO).as_deref(), Some("2027-01-15T08:00:00.000Z"));
        assert_eq!(moment(at, Duration::MAX), None);
    }
}

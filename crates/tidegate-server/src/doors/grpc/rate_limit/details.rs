//! Details of an answer. A call that does not ask for them pays nothing.

use std::collections::BTreeMap;

use http::StatusCode;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tidegate::gate::GateDecision;
use tidegate::http_answer::server_parts::{Refusal, ShownLimits, seconds_up};
use tidegate::limiter::Retry;
use tidegate::visible::excerpt;

use super::super::envoy::{Entry, HeaderValue, RateLimitRequest, RateLimitResponse};
use super::super::framing::{Code, Status};
use super::descriptors::{CallDescriptor, MAX_CALL, Refused, Units, not_an_address};
use super::response::refuses;
use crate::active_config::ActiveConfig;
use crate::decider::{Conclusion, Decider};
use crate::doors::http::mode;
use crate::problem::{Problem, STORE_RETRY};
use crate::requests::MAX_VALUE;
use crate::span_attributes;

/// The metadata that lists the wanted details.
const WANTED: HeaderName = HeaderName::from_static("x-tidegate-details");
/// The id of the decision, in headers and in the metadata of the answer.
const DECISION_ID: &str = "x-tidegate-decision-id";

/// The status in problem documents: what Envoy answers to a refusal unless `rate_limited_status` is set. The
/// policy's status has no effect there.
const ANSWERED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Details {
    /// The rate-limit headers, and a problem document about a refusal.
    pub(super) headers: bool,
    /// The policy that decided, and the id of the decision.
    pub(super) decision: bool,
    /// Whether the caller refuses every request that is over its limit, so that headers of a refusal reach only
    /// refused clients. Envoy's filter may let it pass (`filter_enforced`), and adds the headers of a refusal all
    /// the same: so its answers have the wait in their metadata, unless it wants `headers`.
    pub(super) enforces: bool,
}

impl Details {
    /// Reads the metadata of a call.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for an unknown word.
    pub(super) fn wanted(headers: &HeaderMap) -> Result<Self, Status> {
        let mut wanted = Self::default();
        for value in headers.get_all(WANTED) {
            let words = String::from_utf8_lossy(value.as_bytes());
            for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
                match word {
                    "headers" => wanted.headers = true,
                    "decision" => wanted.decision = true,
                    other => {
                        let shown = excerpt(other);
                        let message = format!("{WANTED}: \"{shown}\" is none; use headers, decision or both");
                        return Err(Status::new(Code::InvalidArgument, message));
                    }
                }
            }
        }
        Ok(wanted)
    }

    /// Adds the wanted details, and what every answer has: when a refused client may return, and which policies let a
    /// request pass over their limits.
    pub(super) fn write(
        self,
        decider: &Decider,
        live: &ActiveConfig,
        descriptors: &[CallDescriptor<'_>],
        conclusions: &[Conclusion],
        answer: &mut RateLimitResponse,
        allowed: bool,
    ) {
        let Some((deciding, conclusion)) = deciding_descriptor(descriptors, conclusions) else { return };
        if allowed {
            over_headers(live, descriptors, conclusions, answer);
        }
        let wait = match conclusion {
            Conclusion::Decided(decision) => retry_after(decision.retry(), allowed),
            Conclusion::Unsettled { .. } => retry_after(Retry::After(STORE_RETRY), allowed),
        };
        let in_header = || wait.clone().map(|wait| pair(RETRY_AFTER.as_str(), wait));
        match conclusion {
            Conclusion::Decided(decision) if self.headers => {
                headers(decider, live, deciding, conclusion, decision, allowed, answer);
            }
            Conclusion::Unsettled { policy, .. } if self.headers && !allowed => {
                problem(Refusal::undecided(policy.as_deref()).public(ANSWERED, None).to_json(), answer);
                answer.response_headers_to_add.extend(in_header());
            }
            _ if self.enforces => answer.response_headers_to_add.extend(in_header()),
            _ => {}
        }
        if let Some(wait) = wait.filter(|_| !self.enforces) {
            let fields = BTreeMap::from([("retry_after".to_owned(), text(&wait))]);
            answer.dynamic_metadata = Some(Struct { fields });
        }
        // A tracing span shows the id too.
        if !self.decision && !span_attributes::wanted() {
            return;
        }
        let id = decider.telemetry.name(live, &deciding.check(), None, conclusion).to_string();
        if self.decision {
            let to = if allowed {
                &mut answer.request_headers_to_add
            } else {
                &mut answer.response_headers_to_add
            };
            to.push(pair(DECISION_ID, id.clone()));
            let told = answer.dynamic_metadata.get_or_insert_default();
            describe(conclusion, &id, &mut told.fields);
        }
    }
}

impl Details {
    /// Adds the reason to a refusal that no policy decided: a value that is too long, or a limit of the call itself
    /// that grants nothing.
    pub(super) fn write_unjudged(
        self,
        call: &RateLimitRequest,
        descriptors: &[CallDescriptor<'_>],
        answer: &mut RateLimitResponse,
    ) {
        let refused = descriptors.iter().zip(&call.descriptors).find(|(read, _)| read.refused.is_some());
        let Some((read, written)) = refused.filter(|_| self.headers) else { return };
        let long = written.entries.iter().find(|entry| entry.value.len() > MAX_VALUE);
        let detail = match long {
            Some(Entry { key, value }) => format!(
                "the value of the entry \"{}\" has {} bytes, and at most {MAX_VALUE} are judged; nothing was charged",
                excerpt(key),
                value.len()
            ),
            None if read.refused == Some(Refused::TooLong) => format!(
                "rls.call would have more than {MAX_CALL} bytes, which a policy reads; nothing was charged"
            ),
            None if read.refused == Some(Refused::NotAnAddress) => {
                format!("{}; nothing was charged", not_an_address(&written.entries).unwrap_or_default())
            }
            None => "the limit of the call grants 0 requests; nothing was charged".to_owned(),
        };
        problem(Problem::new(ANSWERED, detail).in_batch().to_string(), answer);
    }
}

/// Adds a problem document as the proxy's body.
fn problem(body: String, answer: &mut RateLimitResponse) {
    answer.raw_body = body.into_bytes();
    answer.response_headers_to_add.push(pair(CONTENT_TYPE.as_str(), "application/problem+json".to_owned()));
}

/// Adds the headers for the next hop that name the policies over whose limits the request passes: of all
/// descriptors, since a client could otherwise remove its mark with a header that makes one more descriptor.
fn over_headers(
    live: &ActiveConfig,
    descriptors: &[CallDescriptor<'_>],
    conclusions: &[Conclusion],
    answer: &mut RateLimitResponse,
) {
    let decided = descriptors.iter().zip(conclusions).filter_map(|pair| match pair {
        // Giving back is not a request, however full the limits are.
        (CallDescriptor { units: Units::GiveBack(_), .. }, _) | (_, Conclusion::Unsettled { .. }) => None,
        (_, Conclusion::Decided(decision)) => decision.policies.lets_through().then_some(decision),
    });
    let mut marks = HeaderMap::new();
    live.over.write_all(decided, &mut marks);
    answer.request_headers_to_add.extend(pairs(&marks));
}

/// Returns what the details are about: the first descriptor that refuses, else the one with the least of its limit
/// left.
fn deciding_descriptor<'a, 'r>(
    descriptors: &'a [CallDescriptor<'r>],
    conclusions: &'a [Conclusion],
) -> Option<(&'a CallDescriptor<'r>, &'a Conclusion)> {
    let left = |(descriptor, conclusion): &(&CallDescriptor<'r>, &Conclusion)| match conclusion {
        Conclusion::Unsettled { allowed, .. } => (*allowed, 0),
        Conclusion::Decided(decision) => {
            let refuses = refuses(decision, descriptor);
            let limit = decision.binding.map(|at| &decision.limits[at]);
            let share = limit.map_or(u128::MAX, |limit| {
                (u128::from(limit.remaining()) << 64) / u128::from(limit.decision.standing.limit.max(1))
            });
            (!refuses, share)
        }
    };
    descriptors.iter().zip(conclusions).min_by_key(left)
}

/// Returns the whole seconds after which a refused client may return; at least one.
fn retry_after(retry: Retry, allowed: bool) -> Option<String> {
    match retry {
        _ if allowed => None,
        Retry::After(wait) => Some(seconds_up(wait).max(1).to_string()),
        Retry::Unknown | Retry::Never => None,
    }
}

/// Adds the headers of the policy file and, to a refusal, the problem document.
fn headers(
    decider: &Decider,
    live: &ActiveConfig,
    deciding: &CallDescriptor<'_>,
    conclusion: &Conclusion,
    decision: &GateDecision,
    allowed: bool,
    answer: &mut RateLimitResponse,
) {
    let facts = conclusion.facts(live, &decider.metrics);
    let mut out = HeaderMap::new();
    let shown = ShownLimits::of(decision, &deciding.request, |policy, quota| {
        facts[policy].window(quota, decision.at)
    });
    shown.write(live.headers, &mut out);
    if allowed {
        // Units that are given back are never refused, however full their limit is.
        out.remove(RETRY_AFTER);
        out.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
    }
    if !allowed && !decision.allowed {
        let refusal = Refusal::of_gate(decision).for_request(&deciding.request);
        problem(refusal.public(ANSWERED, None).to_json(), answer);
    }
    answer.response_headers_to_add.extend(pairs(&out));
}

/// Writes the policy that decided, its mode and the id, for a proxy's access log.
fn describe(conclusion: &Conclusion, id: &str, fields: &mut BTreeMap<String, Value>) {
    let (policy, mode) = match conclusion {
        Conclusion::Unsettled { policy, .. } => (policy.as_deref(), None),
        Conclusion::Decided(decision) => {
            let policy = decision.policy().map(|at| &decision.policies.policies()[at]);
            (policy.map(|policy| policy.name.as_str()), policy.map(|policy| mode(policy.mode)))
        }
    };
    fields.insert("decision_id".to_owned(), text(id));
    policy.map(|policy| fields.insert("policy".to_owned(), text(policy)));
    mode.map(|mode| fields.insert("mode".to_owned(), text(mode)));
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn pairs(headers: &HeaderMap) -> impl Iterator<Item = HeaderValue> + '_ {
    headers.iter().filter_map(|(name, value)| Some(pair(name.as_str(), value.to_str().ok()?.to_owned())))
}

fn pair(key: &str, value: String) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value }
}

//! The answer to a call: one status for each descriptor, from which a proxy makes its headers, and the details that the
//! call asks for. One that asks for none pays nothing for them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use tidegate::gate::{GateDecision, LimitDecision};
use tidegate::http_answer::server_parts::{Refusal, ShownLimits, seconds_up};
use tidegate::limiter::Retry;
use tidegate::visible::excerpt;

use super::super::envoy::{
    DescriptorStatus, Entry, HeaderValue, RateLimit, RateLimitCode, RateLimitRequest, RateLimitResponse, Unit,
};
use super::super::framing::{Code, Status};
use super::descriptors::{CallDescriptor, MAX_CALL, Refused, Units, not_an_address};
use crate::active_config::{ActiveConfig, Facts};
use crate::decider::{Conclusion, Decider};
use crate::doors::http::mode;
use crate::problem::{Problem, STORE_RETRY};
use crate::requests::MAX_VALUE;
use crate::span_attributes;

/// Answers a call whose limits were not asked, since some descriptors are refused whatever their limits say.
pub(super) fn refused(descriptors: &[CallDescriptor<'_>]) -> RateLimitResponse {
    let status = |descriptor: &CallDescriptor<'_>| DescriptorStatus {
        code: code(descriptor.refused.is_none()),
        current_limit: (descriptor.refused == Some(Refused::NothingGranted)).then(RateLimit::default),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(false),
        statuses: descriptors.iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

/// Answers a decided call. `facts`: those of the policies that a conclusion was made under.
pub(super) fn decided<'l>(
    descriptors: &[CallDescriptor<'_>],
    conclusions: &[Conclusion],
    allowed: bool,
    facts: impl Fn(&Conclusion) -> Cow<'l, [Facts]>,
) -> RateLimitResponse {
    let status = |(at, descriptor): (usize, &CallDescriptor<'_>)| {
        // If none could be decided, there is one conclusion for all.
        match conclusions.get(at).or(conclusions.first()) {
            Some(conclusion @ Conclusion::Decided(decision)) => {
                status(decision, descriptor, &facts(conclusion))
            }
            Some(Conclusion::Unsettled { allowed, .. }) => {
                DescriptorStatus { code: code(*allowed), ..DescriptorStatus::default() }
            }
            None => DescriptorStatus { code: code(allowed), ..DescriptorStatus::default() },
        }
    };
    RateLimitResponse {
        overall_code: code(allowed),
        statuses: descriptors.iter().enumerate().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

fn status(decision: &GateDecision, descriptor: &CallDescriptor<'_>, facts: &[Facts]) -> DescriptorStatus {
    // If another descriptor refuses, this one may not be evaluated completely; that is no refusal.
    let refuses = refuses(decision, descriptor);
    let mut status = DescriptorStatus { code: code(!refuses), ..DescriptorStatus::default() };
    let Some(limit) = shown(decision) else { return status };
    let standing = limit.decision.standing;
    let quota = decision.quota_of(limit, &descriptor.request).map(|(quota, _)| quota);
    let window = quota.and_then(|quota| facts[limit.policy].window(quota, decision.at));
    status.current_limit = Some(RateLimit {
        name: decision.policies.policies()[limit.policy].name.clone(),
        requests_per_unit: whole(standing.limit),
        unit: unit(window) as i32,
    });
    status.limit_remaining = whole(limit.remaining().min(standing.limit));
    let wait = match limit.decision.retry() {
        // No wait is long enough for these units, but after that others may pass.
        Retry::Never => Some(standing.reset_after),
        _ if limit.decision.is_allowed() => Some(standing.reset_after),
        retry => retry.after(),
    };
    // Limits without a window, such as places, have no number of seconds after which they reset.
    status.duration_until_reset = wait.filter(|_| window.is_some()).map(reset_seconds);
    status
}

/// The limit that a status tells: the one that binds. If all are shadow limits, the one over its limit, else the one
/// with least remaining: a trial shows what it would do, as rules in shadow mode of envoyproxy/ratelimit do.
fn shown(decision: &GateDecision) -> Option<&LimitDecision> {
    match decision.binding {
        Some(at) => decision.limits.get(at),
        None => decision.limits.iter().min_by_key(|limit| (limit.decision.is_allowed(), limit.remaining())),
    }
}

/// Returns whether a descriptor refuses the call. Giving back never does, however full the limits are.
fn refuses(decision: &GateDecision, descriptor: &CallDescriptor<'_>) -> bool {
    let refuses = decision.refusal.is_some() || decision.refusing().next().is_some();
    refuses && !matches!(descriptor.units, Units::GiveBack(_))
}

fn code(allowed: bool) -> i32 {
    if allowed { RateLimitCode::Ok as i32 } else { RateLimitCode::OverLimit as i32 }
}

/// Returns the unit of a limit whose window has this many seconds; unknown if no unit has that length.
fn unit(seconds: Option<u64>) -> Unit {
    const DAY: u64 = 86_400;
    // Days and months differ in length, also where clocks are changed.
    const HOURS_23: u64 = 23 * 3600;
    const HOURS_25: u64 = 25 * 3600;
    match seconds {
        Some(1) => Unit::Second,
        Some(60) => Unit::Minute,
        Some(3600) => Unit::Hour,
        Some(HOURS_23 | DAY | HOURS_25) => Unit::Day,
        Some(604_800) => Unit::Week,
        Some(days) if (28 * DAY - 3600..=31 * DAY + 3600).contains(&days) => Unit::Month,
        Some(days) if (365 * DAY..=366 * DAY).contains(&days) => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Rounded up: a client that returns after these seconds must not be refused again.
fn reset_seconds(span: Duration) -> prost_types::Duration {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    // The message allows 10,000 years at most.
    prost_types::Duration { seconds: seconds.min(315_576_000_000) as i64, nanos: 0 }
}

fn whole(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

// Details of an answer.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_told_in_the_unit_that_it_is() {
        for (seconds, named) in [
            (1, Unit::Second),
            (60, Unit::Minute),
            (3600, Unit::Hour),
            (86_400, Unit::Day),
            (604_800, Unit::Week),
            (28 * 86_400, Unit::Month),
            (31 * 86_400, Unit::Month),
            (365 * 86_400, Unit::Year),
            (2, Unit::Unknown),
            (600, Unit::Unknown),
            (27 * 86_400, Unit::Unknown),
        ] {
            assert_eq!(unit(Some(seconds)), named, "{seconds}");
        }
        assert_eq!(unit(None), Unit::Unknown);
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(reset_seconds(Duration::from_nanos(1)).seconds, 1);
        assert_eq!(reset_seconds(Duration::from_secs(2)).seconds, 2);
        assert_eq!(reset_seconds(Duration::MAX).seconds, 315_576_000_000);
    }
}

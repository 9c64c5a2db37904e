//! `/v1/explain`: explains a decision, and what would let the request pass.
//!
//! `POST` takes the body of a check. `GET ?id=` takes the id of a recent refusal, which is decided anew, since counters
//! have moved. Nothing is charged. `lines` is the answer for a terminal, `reasons` the same for programs.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tidegate::Quota;
use tidegate::breaker::{Condition, Force};
use tidegate::explain::{BreakerState, Explanation};
use tidegate::http_answer::server_parts::in_words;
use tidegate::policy::{Policy, PolicySet};
use tidegate::visible;
use ulid::Ulid;

use super::answer::Reply;
use super::check::{decide, named, unreturnable};
use super::query::Query;
use super::request_body::{self, CheckBody};
use crate::app::App;
use crate::engine::{Conclusion, Held, TicketFor, Want, breakers_of, why};
use crate::json;
use crate::live::Live;
use crate::problem::Problem;
use crate::refused_requests::Stated;
use crate::span::moment;
use crate::spelling::quoted;

/// Decides without charging, and explains the decision.
pub(crate) async fn explain(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri, &["id", "reveal"])?;
    let reveal = query.flag("reveal")?;
    let live = app.engine.live();
    if let Some(id) = query.get("id") {
        let id = decision_id(id)?;
        let (stated, remembered) = app.engine.find(id).ok_or_else(|| unknown(id))?;
        let remembered = remembered.ok_or_else(|| {
            let detail =
                format!("the request of decision {id} was too long to be kept; POST the body of the check");
            Problem::conflict(detail)
        })?;
        let still = |name: &&str| live.set.find(name).is_some();
        let names = remembered.only().map(|names| names.iter().map(|name| &**name).filter(still));
        let policies = names.map(|names| names.map(Into::into).collect());
        let Stated { cost, priority } = stated;
        let asked = CheckBody { request: remembered.descriptor(), cost, priority, policies, ticket: None };
        return answer(app, &live, &asked, reveal).await;
    }
    if parts.method == Method::GET {
        let detail = "say which decision: GET /v1/explain?id=DECISION_ID, or POST the body of a check";
        return Err(Problem::bad_request(detail).with("field", "id"));
    }
    let bytes = request_body::read(Request::from_parts(parts, body), request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    answer(app, &live, &asked, reveal).await
}

async fn answer(app: &App, live: &Live, asked: &CheckBody<'_>, reveal: bool) -> Result<Response, Problem> {
    let only = named(live, asked)?;
    let (ticket, held) = (TicketFor::Nobody, &mut Held::default());
    let answered = decide(app, live, asked, only.as_deref(), Want::Peek, ticket, held, |reply| {
        let explanation = explanation(app, &live.set, &reply, only.as_deref(), reveal);
        (reply.value(), explanation)
    });
    let answered = answered.await.map_err(|none| unreturnable(&none, StatusCode::BAD_REQUEST));
    let (mut answer, explanation) = answered?;
    if let Some(explanation) = explanation {
        let states = match explanation.has_breakers() {
            true => breaker_states(app, live, &explanation, asked).await,
            false => Vec::new(),
        };
        let tell = |policy: &str, limit: usize| {
            let found = states.iter().find(|(name, at, _)| name == policy && *at == limit);
            found.map(|(.., state)| state.clone())
        };
        put(&mut answer, &explanation.with_breakers(tell));
    }
    Ok(json::shown(&answer))
}

/// Returns the breakers of the request whose decision does not say enough, since they are open for some cause, they try
/// the service, they refuse a share of the calls, or a person has forced them: policy, index of the limit, and the state.
async fn breaker_states(
    app: &App,
    live: &Live,
    explanation: &Explanation,
    asked: &CheckBody<'_>,
) -> Vec<(String, usize, BreakerState)> {
    let mut states = Vec::new();
    for reason in explanation.reasons.iter().filter(|reason| !reason.limits.is_empty()) {
        let Some((at, policy)) = live.set.find(&reason.policy) else { continue };
        if breakers_of(policy).next().is_none() {
            continue;
        }
        // A store that does not answer leaves what the decision says.
        let listed = app.engine.handle_breakers(live, at, &asked.request, None).await.unwrap_or_default();
        for one in listed {
            let seen = &one.noted.seen;
            let mut admitted_share = None;
            let words = match seen.view.condition {
                Condition::Forced { to, until } => {
                    let until = until.and_then(|until| moment(until, Duration::ZERO));
                    forced_state(to, until.as_deref(), &why(seen))
                }
                Condition::HalfOpen { in_flight, at_most, .. } => {
                    trying(in_flight, at_most, one.lapses_after)
                }
                // Once the open time is over the call is the first probe, and the decision says that it passes.
                Condition::Open { until, .. } if until > seen.at => {
                    let until = moment(until, Duration::ZERO).unwrap_or_default();
                    format!(
                        "is open until {until}, then lets the first probe through: {}",
                        visible::line(&why(seen))
                    )
                }
                Condition::Shedding { .. } => {
                    let quota = breakers_of(policy).find(|(limit, _)| *limit == seen.limit);
                    let Some(Quota::Breaker(breaker)) = quota.map(|(_, quota)| &**quota) else { continue };
                    let Some(admitted) = breaker.admitted(&seen.view.condition) else { continue };
                    admitted_share = Some(f64::from(admitted.share) / 1e6);
                    admitted.to_string()
                }
                _ => continue,
            };
            states.push((one.policy, seen.limit, BreakerState { words, admitted_share }));
        }
    }
    states
}

/// Says in words that a breaker is half-open, and what its probes do. `lapses_after`: the time after which the place of a
/// probe is free again although nobody has reported its end.
fn trying(in_flight: u64, at_most: u64, lapses_after: Option<Duration>) -> String {
    let calls = if at_most == 1 { "call" } else { "calls" };
    let does = match lapses_after {
        _ if in_flight < at_most => "lets this call through".to_owned(),
        None => "lets no more through until one ends".to_owned(),
        Some(time) => format!(
            "lets no more through until one ends, or {} after it began if nobody reports the end",
            in_words(time)
        ),
    };
    format!("is half-open: tries the service with {at_most} {calls} at a time, {in_flight} under way; {does}")
}

/// Says in words that a person has forced a breaker, until when and why. Who it was is not kept.
fn forced_state(to: Force, until: Option<&str>, reason: &str) -> String {
    let to = match to {
        Force::Open => "open",
        Force::Closed => "closed",
        Force::MetricsOnly => "to metrics-only",
        _ => "to disabled",
    };
    let until = until.map_or_else(|| "until it is released".to_owned(), |until| format!("until {until}"));
    let reason = if reason.is_empty() { String::new() } else { format!(": {}", visible::line(reason)) };
    format!("is forced {to} by a person {until}{reason}")
}

/// Returns a decision with its reasons, under the policy set of that decision. `only`: the policies that were asked.
pub(super) fn explained(
    app: &App,
    set: &PolicySet,
    reply: Reply<'_, '_>,
    only: Option<&[usize]>,
    reveal: bool,
) -> Value {
    let mut answer = reply.value();
    if let Some(explanation) = explanation(app, set, &reply, only, reveal) {
        put(&mut answer, &explanation);
    }
    answer
}

/// Returns the explanation of a decision; `None` if the store could not decide.
fn explanation(
    app: &App,
    set: &PolicySet,
    reply: &Reply<'_, '_>,
    only: Option<&[usize]>,
    reveal: bool,
) -> Option<Explanation> {
    let Conclusion::Decided(decision) = reply.conclusion else { return None };
    let request = reply.request;
    let chosen = |place| only.is_none_or(|only| only.contains(&place));
    let key = |policy: &Policy| app.redact.key(set, policy, request, reveal);
    Some(Explanation::of(set, request, decision, chosen, key))
}

fn put(answer: &mut Value, explanation: &Explanation) {
    answer["lines"] = explanation.to_string().lines().collect();
    answer["reasons"] = json!(explanation.reasons);
}

/// Parses a decision id.
fn decision_id(text: &str) -> Result<Ulid, Problem> {
    Ulid::from_string(text).map_err(|_| {
        let detail = format!("{} is not a decision id, which has 26 letters and digits", quoted(text));
        Problem::bad_request(detail).with("field", "id")
    })
}

/// Makes the problem for an id that is not remembered.
fn unknown(id: Ulid) -> Problem {
    let detail = format!(
        "decision {id} is not known here: it was allowed (only refused requests are remembered), belongs to another \
         server, is older than the last restart, or was forgotten; POST the body of the check"
    );
    Problem::not_found(detail)
}

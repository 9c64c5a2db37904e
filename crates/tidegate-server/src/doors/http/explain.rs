//! `/v1/explain`: explains a decision, and what would let the request pass. Charges nothing.
//!
//! `POST` takes a check and says how it would be decided now. `GET ?id=` answers the record of a recent refusal,
//! and under `now` how its request would be decided now; `POST ?id=` with a limit also answers how that limit would
//! have decided then. Nothing is charged. `answers` says which of the two a document is, `lines` is the answer for a
//! terminal, `reasons` the same for programs.

mod other_limit;

use std::time::Duration;

use http::{Method, Request};
use serde_json::{Value, json};
use tidegate::breaker::{Condition, Force};
use tidegate::clock::SystemClock;
use tidegate::gate::explain::{BreakerState, Explanation};
use tidegate::http_answer::server_parts::{in_words, millis_up};
use tidegate::limiter::Retry;
use tidegate::policy::{Policy, PolicySet};
use tidegate::{Quota, Tick, visible};
use tokio::task::spawn_blocking;
use ulid::Ulid;

use self::other_limit::OtherLimit;
use super::answer::{Reply, mode};
use super::request_body::{self, CheckBody};
use super::routes::Query;
use crate::active_config::{ActiveConfig, policy_as_written};
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{Conclusion, REMEMBERED, Want, breakers_of, why};
use crate::metrics::Transport;
use crate::problem::{Delayed, Problem};
use crate::refusal_record::{self, ReadRecord};
use crate::refused_requests::{Record, RememberedRefusal, SeenLimit, Stated};
use crate::sight::Recalled;
use crate::text::{moment, quoted, wall_moment};

pub(crate) async fn explain(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri, &["id", "reveal", "digest"])?;
    let reveal = query.flag("reveal")?;
    let live = app.decider.live();
    if let Some(id) = query.get("id") {
        let id = decision_id(id)?;
        let digest = query.get("digest").map(str::to_owned);
        let other = if parts.method == Method::GET {
            None
        } else {
            let request = Request::from_parts(parts, body);
            OtherLimit::read(&request_body::read(request, request_body::MAX_BODY).await?)?
        };
        return record(app, &live, id, reveal, digest.as_deref(), other.as_ref()).await;
    }
    if parts.method == Method::GET {
        let detail = "say which decision: GET /v1/explain?id=DECISION_ID, or POST the body of a check";
        return Err(Problem::bad_request(detail).with("field", "id"));
    }
    let bytes = request_body::read(Request::from_parts(parts, body), request_body::MAX_BODY).await?;
    let asked = request_body::check(&bytes)?;
    let mut answer = json::shown(&would(app, &live, &asked, reveal).await?);
    // Explaining takes many times as long as deciding, so others have their turn.
    answer.extensions_mut().insert(Delayed(Duration::ZERO));
    Ok(answer)
}

/// Answers with the record of a refusal, how its request would be decided now, and how another limit would have decided
/// it then.
async fn record(
    app: &App,
    live: &ActiveConfig,
    id: Ulid,
    reveal: bool,
    digest: Option<&str>,
    other: Option<&OtherLimit>,
) -> Result<Response, Problem> {
    let found = FoundRefusal::find(app, live, id, digest).await?;
    let RememberedRefusal { record, stated, request } = &found.refused;
    let key = record.key.as_deref().map(|key| app.redact.text(key, reveal || found.had_secret));
    let cause = shown_cause(app, record, reveal || found.had_secret);
    let mut lines = record_lines(&found, key.as_deref(), &cause, app.decider.now(), live);
    let with = match other {
        Some(other) => {
            let (value, line) = other.decide(record)?;
            lines.push(line);
            value
        }
        None => Value::Null,
    };
    let now = match request {
        Some(request) => {
            let still = |name: &&str| live.set.find(name).is_some();
            let names = request.only().map(|names| names.iter().map(|name| &**name).filter(still));
            let policies = names.map(|names| names.map(Into::into).collect());
            let Stated { cost, priority } = *stated;
            let asked = CheckBody { request: request.descriptor(), cost, priority, policies, ticket: None };
            // What cannot be asked again does not hide the record.
            would(app, live, &asked, reveal).await.ok()
        }
        None => None,
    };
    let words = |now: &Value| {
        let words = now["lines"].as_array().into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    match now.as_ref().map(words) {
        Some(words) if !words.is_empty() => {
            let mut words = words.into_iter();
            lines.extend(words.next().map(|first| format!("now: would be {first}")));
            lines.extend(words);
        }
        Some(_) => lines.push("now: would not be decided, since the store does not answer".to_owned()),
        None if request.is_some() => lines.push("now: not known, since it cannot be asked again".to_owned()),
        None if found.had_secret => lines.push(
            "now: not known, since its key has a secret, which is not recorded; POST the body of the check"
                .to_owned(),
        ),
        None => lines.push(
            "now: not known, since a request above 8 KiB is not kept; POST the body of the check".to_owned(),
        ),
    }
    let limits = record.limits.iter().map(|seen| {
        json!({
            "policy": seen.policy,
            "mode": mode(seen.mode),
            "limit": seen.limit,
            "result": seen.result,
            "shadow_limit": seen.shadow_limit,
            "canary": seen.canary,
            "counts": if seen.counts_places { "places" } else { "units" },
            "needs": seen.needs,
            "has": seen.has,
            "kept_back": seen.kept_back,
            "of": seen.of,
            "retry": seen.retry.map(Retry::as_str),
            "retry_after_ms": seen.retry.and_then(Retry::after).map(millis_up),
            "state_known": seen.asked.as_ref().is_some_and(|asked| asked.state(record.at).is_some()),
        })
    });
    Ok(json::shown(&json!({
        "answers": "then",
        "from": found.from,
        "decision": "denied",
        "decision_id": id.to_string(),
        "decided_at": wall_moment(found.wall, Duration::ZERO),
        "configuration": { "number": record.configuration, "in_force": found.is_in_force },
        "policy": record.policy,
        // Its lists and overrides may have names of keys.
        "policy_then": found.policy_then.as_deref().filter(|_| reveal),
        "refused_by": record.by,
        "key": key,
        "cause": if cause.is_empty() { None } else { Some(&cause) },
        "retry": record.retry.as_str(),
        "retry_after_ms": record.retry.after().map(millis_up),
        "priority": stated.priority.to_string(),
        "limits": limits.collect::<Vec<_>>(),
        "limits_left_out": record.more_limits,
        "lines": lines,
        "with": with,
        "now": now,
    })))
}

/// Returns the cause of a refusal. The entry of a list has a caller's address or name in it, so it is shown as keys
/// are.
fn shown_cause(app: &App, record: &Record, reveal: bool) -> String {
    match record.by {
        "list" => app.redact.text(&record.cause, reveal),
        _ => visible::line(&record.cause).into_owned(),
    }
}

/// A refusal, and where it was found.
struct FoundRefusal {
    refused: RememberedRefusal,
    from: &'static str,
    /// When it was refused, by the wall clock.
    wall: Tick,
    /// Whether the configuration that refused it is still in force.
    is_in_force: bool,
    /// Whether another run of the server refused it.
    is_of_another_run: bool,
    /// Whether a secret was left out: the key and the entry of a list are digests then.
    had_secret: bool,
    /// The policy that refused it, as it was written.
    policy_then: Option<String>,
}

impl FoundRefusal {
    /// Looks for a refusal in memory, then in the record on disk.
    ///
    /// # Errors
    /// 404 if it is in neither, with the reason; 503 if others ask for too much.
    async fn find(app: &App, live: &ActiveConfig, id: Ulid, digest: Option<&str>) -> Result<Self, Problem> {
        if let Some(refused) = app.decider.telemetry.find(id) {
            return Ok(Self {
                from: "memory",
                wall: SystemClock::wall_time(refused.record.at),
                is_in_force: refused.record.configuration == live.number,
                is_of_another_run: false,
                had_secret: false,
                policy_then: None,
                refused,
            });
        }
        let Some(sight) = app.decider.sight().cloned() else { return Err(unknown(app, id)) };
        let digest = digest.map(str::to_owned);
        let turn = app.reading().await?;
        let recalling = move || {
            // Held by the work, which goes on when the caller hangs up.
            let _turn = turn;
            Some(match sight.recall(id.0, digest.as_deref())? {
                Recalled::Missing { why, nearest } => Err((why, nearest)),
                Recalled::Found { text, policies } => match refusal_record::read(&text) {
                    None => Err(("its record cannot be read by this version".to_owned(), None)),
                    Some(read) => {
                        let policy = read.refused.record.policy.as_deref();
                        let then = policies.and_then(|policies| policy_as_written(&policies, policy?));
                        Ok((read, then))
                    }
                },
            })
        };
        // It reads a file, and a disk may hang, and the text of thousands of policies: not on a thread that decides.
        let recalled = spawn_blocking(recalling).await;
        let (read, policy_then) = match recalled {
            Ok(Some(Ok(found))) => found,
            Ok(Some(Err((why, nearest)))) => return Err(unrecorded(id, &why, nearest)),
            Ok(None) | Err(_) => return Err(unknown(app, id)),
        };
        let ReadRecord { refused, wall, run, had_secret } = read;
        let is_of_another_run = run != app.decider.telemetry.run();
        Ok(Self {
            from: "record",
            wall,
            is_in_force: !is_of_another_run && refused.record.configuration == live.number,
            is_of_another_run,
            had_secret,
            policy_then,
            refused,
        })
    }
}

fn record_lines(
    found: &FoundRefusal,
    key: Option<&str>,
    cause: &str,
    now: Tick,
    live: &ActiveConfig,
) -> Vec<String> {
    let record = &found.refused.record;
    let source = match (record.by, record.policy.as_deref()) {
        ("block", None) => "by a block for all policies".to_owned(),
        ("block", Some(name)) => format!("by a block of its key under {name}"),
        ("deadline", Some(name)) => format!("by the deadline of {name}"),
        ("list", Some(name)) => format!("by the deny-list of {name}"),
        ("list", None) => "by the deny-list for all policies".to_owned(),
        ("store", Some(name)) => format!("by {name}, since the store did not answer"),
        ("store", None) => "since the store did not answer".to_owned(),
        (_, Some(name)) => format!("by {name}"),
        (_, None) => "since another check of its call was refused".to_owned(),
    };
    let cause = if cause.is_empty() { String::new() } else { format!(" ({cause})") };
    let at = wall_moment(found.wall, Duration::ZERO).unwrap_or_default();
    let ago = in_words(SystemClock::wall_time(now).since(found.wall));
    let retry = match (record.retry, record.by) {
        (Retry::After(wait), _) => format!("retry after {}", in_words(wait)),
        (Retry::Unknown, _) => "it was unknown when it would be allowed".to_owned(),
        (Retry::Never, "list" | "deadline") => "a retry would not help".to_owned(),
        (Retry::Never, _) => "never allowed at this cost".to_owned(),
    };
    let mut lines = vec![format!("DENIED {source}{cause} at {at}, {ago} ago; {retry}")];
    let width = record.limits.iter().map(|seen| seen.policy.chars().count()).max().unwrap_or(0);
    for (at, seen) in record.limits.iter().enumerate() {
        let key = key.filter(|_| record.policy.as_ref() == Some(&seen.policy));
        lines.push(format!("{:>3} {:width$}   {}", at + 1, seen.policy, seen_line(seen, key)));
    }
    if record.limits.is_empty()
        && let Some(key) = key
    {
        lines.push(format!("    key {}", visible::line(key)));
    }
    if record.more_limits > 0 {
        lines.push(format!("    and {} more limits, which are not kept", record.more_limits));
    }
    lines.push(match live.number {
        _ if found.is_of_another_run => {
            format!("    under configuration {} of an earlier run of the server", record.configuration)
        }
        number if number == record.configuration => {
            format!("    under configuration {number}, which is still in force")
        }
        number => format!("    under configuration {}; now {number} is in force", record.configuration),
    });
    lines
}

fn seen_line(seen: &SeenLimit, key: Option<&str>) -> String {
    let what = match (seen.shadow_limit, seen.canary) {
        (true, _) => "shadow limit, ",
        (_, true) => "canary, ",
        _ => "",
    };
    let mut line = format!("{:<11} {what}{}: ", seen.result, seen.limit);
    line += &match seen.needs {
        Some(needs) => format!("needed {needs}, "),
        None => "its cost could not be worked out, ".to_owned(),
    };
    line += &match seen.counts_places {
        true => format!("{} of {} places were free", seen.has, seen.of),
        false => format!("had {} of {}", seen.has, seen.of),
    };
    if seen.kept_back > 0 {
        line += &format!(", kept {} for higher priority", seen.kept_back.min(seen.of));
    }
    if let Some(key) = key {
        line += &format!("; key {}", visible::line(key));
    }
    line
}

/// Decides without charging, and explains how it would go now.
async fn would(
    app: &App,
    live: &ActiveConfig,
    asked: &CheckBody<'_>,
    reveal: bool,
) -> Result<Value, Problem> {
    let only = asked.named(&live.set)?;
    let only = only.as_deref();
    let deciding = &app.decider.deciding;
    let conclusion = deciding.decide(live, asked.check(), only, Want::Peek, None, Transport::http).await;
    let reply = Reply::of_look(&app.decider, &asked.request, &conclusion);
    let mut answer = reply.value();
    if let Some(explanation) = explanation(app, &live.set, &reply, only, reveal) {
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
    Ok(answer)
}

/// Returns the breakers of the request whose decision does not say enough: open for a cause, half-open, shedding, or
/// forced. Policy, index of the limit, state.
async fn breaker_states(
    app: &App,
    live: &ActiveConfig,
    explanation: &Explanation,
    asked: &CheckBody<'_>,
) -> Vec<(String, usize, BreakerState)> {
    let mut states = Vec::new();
    for reason in explanation.reasons.iter().filter(|reason| !reason.limits.is_empty()) {
        let Some((at, policy)) = live.set.find(&reason.policy) else { continue };
        if breakers_of(policy).next().is_none() {
            continue;
        }
        // Without an answer of the store, what the decision says stays.
        let listed = app.decider.breakers.handle(live, at, &asked.request, None).await.unwrap_or_default();
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
                // Once the open time is over, the call is the first probe, and the decision says so.
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

/// Says that a breaker is half-open, and what its probes do. `lapses_after`: when an unreported probe frees its
/// place.
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

/// Says that a person has forced a breaker, until when and why. Who it was is not kept.
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

/// Returns a decision with its reasons, under its set. `only`: the policies that were asked.
pub(super) fn explained(
    app: &App,
    set: &PolicySet,
    reply: &Reply<'_, '_>,
    only: Option<&[usize]>,
    reveal: bool,
) -> Value {
    let mut answer = reply.value();
    if let Some(explanation) = explanation(app, set, reply, only, reveal) {
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

fn decision_id(text: &str) -> Result<Ulid, Problem> {
    Ulid::from_string(text).map_err(|_| {
        let detail = format!("{} is not a decision id, which has 26 letters and digits", quoted(text));
        Problem::bad_request(detail).with("field", "id")
    })
}

/// Makes the problem for an id that is neither remembered nor recorded.
fn unrecorded(id: Ulid, why: &str, nearest: Option<u128>) -> Problem {
    let problem = |more: String| {
        Problem::not_found(format!(
            "decision {id} is neither among the latest {REMEMBERED} refusals nor in the record: {why}{more}"
        ))
    };
    match nearest.map(|nearest| Ulid(nearest).to_string()) {
        None => problem(String::new()),
        Some(nearest) => {
            problem(format!("; the nearest of the same key is {nearest}")).with("nearest", nearest)
        }
    }
}

/// Makes the problem for an id that is not remembered. A new decision would not be the one that is asked about.
fn unknown(app: &App, id: Ulid) -> Problem {
    let since = moment(app.decider.started(), Duration::ZERO).unwrap_or_default();
    let detail = format!(
        "decision {id} is not remembered here (kept: at most the latest {REMEMBERED} refusals of this process, which runs \
         since {since}; nothing of requests that passed); to see how such a request would be decided now, POST the body of \
         the check"
    );
    Problem::not_found(detail)
}

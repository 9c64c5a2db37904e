//! `/v1/breakers`: lists breakers, and lets operators force or release them.

use std::time::Duration;

use http::{Request, Uri};
use serde_json::{Value, json};
use tidegate::breaker::{Condition, Force, Totals};
use tidegate::policy::{Descriptor, Mode, Over, PolicySet};
use tidegate::priority::Criticality;
use tidegate::store::StoreError;
use tidegate::visible;

use super::answer::mode;
use super::keys::key_of;
use super::policies::find;
use super::request_body;
use super::routes::Query;
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{ListedBreaker, Wanted, breakers_of, why};
use crate::problem::Problem;
use crate::text::{moment, nearest, quoted};

/// The states that a body can name.
const STATES: [&str; 5] = ["open", "closed", "metrics-only", "disabled", "auto"];

const EXAMPLE: &str = r#"{"state": "open", "for": "5min", "reason": "upgrade"}"#;

/// `GET /v1/breakers?reveal=`: the breakers of all policies. Of a policy's keys, only those whose breaker was ever in
/// another state than closed.
pub(crate) async fn list(app: &App, uri: &Uri) -> Result<Response, Problem> {
    let reveal = Query::of(uri, &["reveal"])?.flag("reveal")?;
    let live = app.decider.live();
    let listed = app.decider.breakers.list(&live, None).await.map_err(|error| unanswered(&error))?;
    Ok(json::shown(&breakers_json(app, &listed, reveal)))
}

/// `GET /v1/breakers/{policy}`: one breaker, its key given as parameters.
pub(crate) async fn one(app: &App, uri: &Uri, policy: &str) -> Result<Response, Problem> {
    let live = app.decider.live();
    let at = breaker(&live, policy)?;
    let query = uri.query().unwrap_or_default();
    // With `reveal` alone, all breakers of the policy are listed. Any other parameter is part of a key.
    if let Ok(query) = Query::of(uri, &["reveal"]) {
        let is_part_of_key = || live.set.policies()[at].by.iter().any(|name| name == "reveal");
        match query.flag("reveal") {
            Ok(reveal) => {
                let listed =
                    app.decider.breakers.list(&live, Some(at)).await.map_err(|error| unanswered(&error))?;
                return Ok(json::shown(&breakers_json(app, &listed, reveal)));
            }
            Err(wrong) if !is_part_of_key() => return Err(wrong),
            Err(_) => {}
        }
    }
    let key = key_of(&live, at, query)?;
    handle(app, &live, at, &key, None).await
}

/// `PUT /v1/breakers/{policy}`: forces the breaker of a key into a state, or releases it.
pub(crate) async fn put(app: &App, request: Request<Body>, policy: &str) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let token = app.access.name_of(request.headers());
    let live = app.decider.live();
    let at = breaker(&live, policy)?;
    let bytes = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    let wanted = wanted(&bytes)?;
    let key = key_of(&live, at, uri.query().unwrap_or_default())?;
    if let Wanted::Forced { .. } = wanted
        && live.set.policies()[at].mode == Mode::Off
    {
        let detail = format!(
            "policy {:?} is off and refuses nobody, so a forced state would have no effect; set mode: enforce first, or shadow to measure",
            live.set.policies()[at].name
        );
        return Err(Problem::conflict(detail));
    }
    let answer = handle(app, &live, at, &key, Some(&wanted)).await?;
    let (token, words) = (token.as_deref(), &live.set.policies()[at]);
    let key = app.redact.key(&live.set, words, &key, false);
    let name = || visible::name(&words.name);
    match &wanted {
        Wanted::Forced { to, lasts, reason } => {
            tracing::info!(token, policy = words.name, key, "the breaker of a key is forced by hand");
            app.decider.tell_change("breaker", token.unwrap_or_default(), reason, || {
                let lasts = lasts.map_or_else(String::new, |lasts| format!(" for {} s", lasts.as_secs()));
                format!("{}: the breaker of {key} is forced {}{lasts}", name(), to.as_str())
            });
        }
        _ => {
            tracing::info!(token, policy = words.name, key, "the breaker of a key is let go by hand");
            let told = || format!("{}: the breaker of {key} is let go", name());
            app.decider.tell_change("breaker", token.unwrap_or_default(), "", told);
        }
    }
    Ok(answer)
}

/// Returns why a breaker that is forced open refuses nobody all the same; `None` if it refuses calls.
fn refuses_nobody(set: &PolicySet, at: usize, listed: &[ListedBreaker]) -> Option<String> {
    let policy = &set.policies()[at];
    let name = &policy.name;
    if policy.mode == Mode::Shadow {
        return Some(format!(
            "policy {name:?} is in mode shadow: its breaker refuses nobody, and what it would refuse is counted; mode: enforce refuses it"
        ));
    }
    match policy.over {
        Over::Deny | Over::Block { .. } => {}
        Over::Mark => {
            return Some(format!(
                "policy {name:?} has `over: mark`: its breaker refuses nobody, and requests that it would refuse are marked"
            ));
        }
        Over::Demote { .. } => {
            return Some(format!(
                "policy {name:?} has `over: demote`: its breaker refuses nobody, and requests that it would refuse get a lower priority"
            ));
        }
    }
    // A condition that holds for some levels of priority holds for the lowest.
    if let Some(why) = set.why_idle(at, Criticality::Sheddable.into()) {
        return Some(format!(
            "policy {name:?} is not in force, so its breaker refuses nobody until it is: {why}"
        ));
    }
    let shadows = listed.iter().filter(|one| one.mode == Mode::Shadow).count();
    (shadows > 0 && shadows == listed.len()).then(|| {
        format!("the only breaker of policy {name:?} is its `shadow_limit`, which refuses nobody; what it would refuse is counted")
    })
}

async fn handle(
    app: &App,
    live: &ActiveConfig,
    policy: usize,
    key: &Descriptor<'_>,
    wanted: Option<&Wanted>,
) -> Result<Response, Problem> {
    let handled = app.decider.breakers.handle(live, policy, key, wanted).await;
    let listed = handled.map_err(|error| unanswered(&error))?;
    let note = match wanted {
        Some(Wanted::Forced { to: Force::Open, .. }) => refuses_nobody(&live.set, policy, &listed),
        _ => None,
    };
    // The caller named the key, so it is shown in full.
    let mut answer = breakers_json(app, &listed, true);
    if let Some(note) = note {
        answer["note"] = note.into();
    }
    Ok(json::shown(&answer))
}

/// Finds a policy by name that has a breaker.
fn breaker(live: &ActiveConfig, name: &str) -> Result<usize, Problem> {
    let (at, policy) = find(&live.set, name)?;
    if breakers_of(policy).next().is_some() {
        return Ok(at);
    }
    let have = live.set.policies().iter().filter(|policy| breakers_of(policy).next().is_some());
    let have = have.map(|policy| policy.name.as_str()).take(10).collect::<Vec<_>>().join(", ");
    let others = if have.is_empty() {
        "nor has any other policy".to_owned()
    } else {
        format!("those with one: {have}")
    };
    Err(Problem::not_found(format!("policy {:?} has no breaker; {others}", policy.name)))
}

fn wanted(bytes: &[u8]) -> Result<Wanted, Problem> {
    let [state, lasts, reason] = request_body::strings(bytes, EXAMPLE, &["state", "for", "reason"])?;
    let refuse = |field: &str, detail: String| Problem::bad_request(detail).with("field", field);
    let to = match state.unwrap_or_default().as_str() {
        "open" => Force::Open,
        "closed" => Force::Closed,
        "metrics-only" => Force::MetricsOnly,
        "disabled" => Force::Disabled,
        "auto" if lasts.is_some() => {
            return Err(refuse(
                "for",
                "`auto` holds until another state is forced; leave out `for`".to_owned(),
            ));
        }
        "auto" if reason.is_some() => {
            return Err(refuse("reason", "`auto` keeps no reason; leave out `reason`".to_owned()));
        }
        "auto" => return Ok(Wanted::Auto),
        other => {
            let advice = match nearest(other, STATES) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("use {}", STATES.join(", ")),
            };
            return Err(refuse("state", format!("{} is not a state of a breaker; {advice}", quoted(other))));
        }
    };
    let not = "a time to force a state for; use up to 30d, or leave it out";
    let lasts = lasts.map(|text| request_body::lasts(&text, not)).transpose()?;
    Ok(Wanted::Forced { to, lasts, reason: request_body::reason(reason)? })
}

fn unanswered(error: &StoreError) -> Problem {
    let detail = format!("the store did not answer; try again ({error})");
    Problem::unavailable(detail)
}

fn breakers_json(app: &App, listed: &[ListedBreaker], reveal: bool) -> Value {
    let each: Vec<Value> = listed.iter().map(|one| breaker_json(app, one, reveal)).collect();
    json!({ "breakers": each })
}

fn breaker_json(app: &App, one: &ListedBreaker, reveal: bool) -> Value {
    let seen = &one.noted.seen;
    let view = &seen.view;
    let why = why(seen);
    let at = |tick| moment(tick, Duration::ZERO);
    let mut shown = json!({
        "policy": one.policy,
        "key": app.redact.text(&one.key, reveal),
        "limit": one.limit,
        "limit_number": seen.limit + 1,
        "mode": mode(one.mode),
        "state": view.condition.as_str(),
        "since": one.noted.since.and_then(at),
        "opened": one.noted.opened,
        "calls": calls(view.totals),
    });
    match view.condition {
        Condition::Open { until, .. } => {
            shown["until"] = at(until).into();
            shown["probe_due"] = (until <= seen.at).into();
            shown["tripped_by"] = why.into();
        }
        Condition::Shedding { share, .. } => {
            shown["refused_share"] = (f64::from(share) / 1e6).into();
            shown["tripped_by"] = why.into();
        }
        Condition::HalfOpen { step, in_flight, at_most, .. } => {
            shown["probes"] = json!({ "step": step, "in_flight": in_flight, "at_most": at_most });
        }
        Condition::Forced { until, .. } => {
            shown["until"] = until.and_then(at).into();
            shown["reason"] = why.into();
        }
        _ => {}
    }
    if let Some(would) = view.would_trip {
        shown["would_have_opened"] =
            json!({ "times": would.times, "last": at(would.at), "by": would.by.to_string() });
    }
    shown
}

fn calls(totals: Totals) -> Value {
    json!({ "ended": totals.calls, "failed": totals.failures, "slow": totals.slow })
}

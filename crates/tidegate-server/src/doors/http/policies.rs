//! `GET /v1/policies` and `/v1/policies/{name}`: shows the policies in force, and who owns them.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, HeaderValue};
use http::{Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{
    ChargeOn, Deny, Direction, Glob, Holding, Learning, Limit, Match, OnStoreError, Over, Policy, Share, Want,
};
use tidegate::{Cost, Criticality};

use super::answer::mode;
use super::entity_tags::{Conditions, tag};
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::engine::{known, per_second};
use crate::json;
use crate::problem::Problem;
use crate::requests;
use crate::time_text::moment;

/// Lists all policies.
pub(crate) fn list(app: &App, request: &Request<Body>) -> Response {
    app.engine.conditions.tell();
    let live = app.engine.live();
    let policies = live.set.policies().iter().enumerate();
    let shown = |(at, policy): (usize, &Policy)| {
        let mut shown = policy_json(&live, policy, owner(app, &live, policy));
        add_in_force(&mut shown, &live, at);
        shown
    };
    let policies: Vec<Value> = policies.map(shown).collect();
    let since = moment(live.since, std::time::Duration::ZERO);
    let listed = json!({ "config": { "number": live.number, "since": since }, "policies": policies });
    let tag = tag(&listed.to_string());
    tagged(&listed, &tag, request)
}

/// Shows one policy.
///
/// # Errors
/// 404 that suggests the nearest name.
pub(crate) fn one(app: &App, request: &Request<Body>, name: &str) -> Result<Response, Problem> {
    app.engine.conditions.tell();
    let live = app.engine.live();
    let (at, policy) = find(&live.set, name)?;
    let (mut shown, tag) = json_and_tag(app, &live, policy);
    let mut moving = add_in_force(&mut shown, &live, at);
    if let Some(seen) = live.set.settlements_learnt(at) {
        // The estimate is null until enough settlements were seen; `estimate_from` shows how many are needed.
        shown["estimate"] = live.set.estimate(at).map(Cost::units).into();
        shown["estimate_from"] = json!({ "settlements": seen, "needed": Learning::ENOUGH });
        moving = true;
    }
    if let Some(places) = app.engine.keys.places(&live).get(&policy.name) {
        shown["places"] = json!({ "limit": places.standing.limit, "in_use": places.in_use() });
        moving = true;
    }
    if moving {
        // The tag covers the policy, not these figures. So a caller that has the tag is still sent the body.
        let mut response = json::shown(&shown);
        write_tag(&tag, &mut response);
        return Ok(response);
    }
    Ok(tagged(&shown, &tag, request))
}

/// Adds what is in force now to a policy's description: whether its conditions hold, and the rates that follow a number.
/// Returns whether anything was added.
fn add_in_force(shown: &mut Value, live: &ActiveConfig, at: usize) -> bool {
    let mut moving = false;
    if let Some(since) = live.unreached_since(at) {
        shown["unreached_since"] = moment(since, std::time::Duration::ZERO).into();
    }
    if let Some(standing) = live.set.holding(at) {
        shown["in_force"] = known(standing).into();
        if let Holding::Yes { below: Some(below) } = standing {
            shown["in_force_below"] = below.as_str().into();
        }
        moving = true;
    }
    for limit in 0..live.set.policies()[at].limits.len() {
        if let Some(rate) = live.set.rate_in_force(at, limit) {
            shown["limits"][limit]["per_second_in_force"] = per_second(rate).into();
            moving = true;
        }
    }
    moving
}

/// Returns the part of a policy's description that does not change by itself, and its tag.
pub(super) fn json_and_tag(app: &App, live: &ActiveConfig, policy: &Policy) -> (Value, String) {
    let shown = policy_json(live, policy, owner(app, live, policy));
    let tag = tag_of(live, policy);
    (shown, tag)
}

/// Returns the tag of a policy; `None` if there is no policy of this name.
pub(super) fn tag_in(live: &ActiveConfig, name: &str) -> Option<String> {
    live.set.find(name).map(|(_, policy)| tag_of(live, policy))
}

/// The tag covers everything shown except the owner, which follows from the rest.
fn tag_of(live: &ActiveConfig, policy: &Policy) -> String {
    tag(&policy_json(live, policy, "").to_string())
}

/// Returns the owner: who may change a policy.
fn owner(app: &App, live: &ActiveConfig, policy: &Policy) -> &'static str {
    match &live.written {
        _ if live.api.text(&policy.name).is_some() => "api",
        None => "program",
        Some(_) if app.reload.taken().in_force.is_some() => "cluster",
        Some(_) => "file",
    }
}

/// Finds a policy by the name in a path.
///
/// # Errors
/// 404 that suggests the nearest name.
pub(crate) fn find<'s>(
    set: &'s tidegate::policy::PolicySet,
    name: &str,
) -> Result<(usize, &'s Policy), Problem> {
    let name = percent_decode_str(name).decode_utf8_lossy();
    let at = requests::find(set, &name).map_err(|none| Problem::not_found(none.to_string()))?;
    Ok((at, &set.policies()[at]))
}

fn policy_json(live: &ActiveConfig, policy: &Policy, owner: &str) -> Value {
    let mut guards = policy.limits.iter().map(Limit::is_guard);
    let sheds = policy.deadline.is_some() || guards.clone().any(|guard| guard);
    let answer = |deny: &Deny| json!({ "status": deny.status, "problem": deny.problem });
    let (over, demote_to, block) = match policy.over {
        Over::Deny => ("deny", None, None),
        Over::Block { lasts } => ("block", None, Some(lasts)),
        Over::Mark => ("mark", None, None),
        Over::Demote { to } => ("demote", to.map(Criticality::as_str), None),
    };
    let mut shown = json!({
        "name": policy.name,
        "mode": mode(policy.mode),
        "match": matching(&policy.matching),
        "direction": match policy.direction { Direction::Inbound => "inbound", Direction::Outbound => "outbound" },
        "when": policy.when.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "by": policy.by,
        "limits": policy.limits.iter().map(limit).collect::<Vec<_>>(),
        "shadow_limit": policy.shadow_limit.as_ref().map(limit),
        "charge": match policy.charge {
            ChargeOn::Check => "on-check",
            ChargeOn::Failure => "on-failure",
            ChargeOn::Always => "always",
        },
        "over": over,
        "demote_to": demote_to,
        "block_ms": block.map(millis_up),
        "deadline_ms": policy.deadline.map(millis_up),
        "deny": if guards.all(|guard| guard) { None } else { Some(answer(&policy.deny)) },
        "shed": if sheds { Some(answer(&policy.shed)) } else { None },
        "access": {
            "allow": policy.access.allow.len(),
            "deny": policy.access.deny.len(),
            "status": policy.access.status,
        },
        // The same as in `config show`: if the file does not say, each process counts for itself.
        "share": policy.share.unwrap_or(Share::Local).word(),
        "near_limit": format!("{}%", policy.near_limit),
        "on_cost_error": policy.on_cost_error.word(),
        "on_store_error": match policy.on_store_error {
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
            OnStoreError::Local => "local",
        },
        "owner": owner,
    });
    if let Some(text) = live.api.text(&policy.name) {
        shown["text"] = text.into();
    } else if let Some(place) = live.written.as_ref().and_then(|written| written.place(&policy.name)) {
        shown["place"] = place.into();
    }
    shown
}

fn limit(limit: &Limit) -> Value {
    let tiers = limit.tiers.as_ref().map(|choice| {
        let tiers = choice.values.iter().map(|(value, terms)| (value.clone(), terms.label.clone().into()));
        json!({ "by": choice.by, "rates": tiers.collect::<serde_json::Map<_, _>>() })
    });
    let kept = limit.keep_for.parts().map(|(level, kept)| (level.to_string(), kept.to_string().into()));
    json!({
        "limit": limit.terms.label,
        "tiers": tiers,
        "overrides": limit.overrides.len(),
        "max_wait_ms": millis_up(limit.max_wait),
        "keep_for": kept.collect::<serde_json::Map<_, _>>(),
    })
}

/// Shows a match; what it leaves open is absent.
fn matching(matching: &Match) -> Value {
    let mut parts = serde_json::Map::new();
    let mut add = |name: &str, values: Vec<Value>| {
        if !values.is_empty() {
            parts.insert(name.to_owned(), values.into());
        }
    };
    add("method", matching.methods().iter().map(|method| (**method).into()).collect());
    add("path", matching.paths().iter().map(|path| path.source().into()).collect());
    add("host", matching.hosts().iter().map(|host| host.source().into()).collect());
    add("not", matching.left_out().iter().map(self::matching).collect());
    let wanted = |want: &Want| match want {
        Want::OneOf(globs) => globs.iter().map(Glob::source).collect(),
        Want::Present => Value::Bool(true),
        Want::Absent => Value::Bool(false),
    };
    let attributes: serde_json::Map<_, _> =
        matching.attributes().iter().map(|(name, want)| (name.to_string(), wanted(want))).collect();
    if !attributes.is_empty() {
        parts.insert("attributes".to_owned(), attributes.into());
    }
    parts.into()
}

/// Answers with an entity tag, and without a body if the caller has this version.
fn tagged(value: &Value, tag: &str, request: &Request<Body>) -> Response {
    let has_it = Conditions::of(request.headers()).is_known(Some(tag));
    let mut response = if has_it { StatusCode::NOT_MODIFIED.into_response() } else { json::shown(value) };
    write_tag(tag, &mut response);
    response
}

fn write_tag(tag: &str, response: &mut Response) {
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
}

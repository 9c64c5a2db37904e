//! `GET /v1/policies` and `/v1/policies/{name}`: what is in force.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use http::{Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tidegate::Cost;
use tidegate::policy::{ChargeOn, Direction, Learning, Limit, OnStoreError, Policy, Share};

use super::answer::mode;
use crate::app::App;
use crate::json;
use crate::problem::Problem;
use crate::requests;
use crate::span::moment;

/// Lists all policies.
pub(crate) fn list(app: &App, request: &Request<Body>) -> Response {
    let live = app.engine.live();
    let policies: Vec<Value> = live.set.policies().iter().map(shown).collect();
    let since = moment(live.since, std::time::Duration::ZERO);
    tagged(&json!({ "config": { "number": live.number, "since": since }, "policies": policies }), request)
}

/// Shows one policy.
///
/// # Errors
/// 404 with the nearest name.
pub(crate) fn one(app: &App, request: &Request<Body>, name: &str) -> Result<Response, Problem> {
    let live = app.engine.live();
    let (at, policy) = find(&live.set, name)?;
    let mut shown = shown(policy);
    if let Some(seen) = live.set.settlements_learnt(at) {
        // Null until enough were seen, which the numbers beside it say.
        shown["estimate"] = live.set.estimate(at).map(Cost::units).into();
        shown["estimate_from"] = json!({ "settlements": seen, "needed": Learning::ENOUGH });
    }
    if let Some(places) = app.engine.places(&live).get(&policy.name) {
        shown["places"] = json!({ "limit": places.standing.limit, "in_use": places.in_use() });
    }
    Ok(tagged(&shown, request))
}

/// Finds a policy by the name in a path.
///
/// # Errors
/// 404 with the nearest name.
pub(crate) fn find<'s>(
    set: &'s tidegate::policy::PolicySet,
    name: &str,
) -> Result<(usize, &'s Policy), Problem> {
    let name = percent_decode_str(name).decode_utf8_lossy();
    let at = requests::find(set, &name).map_err(|none| Problem::not_found(none.to_string()))?;
    Ok((at, &set.policies()[at]))
}

fn shown(policy: &Policy) -> Value {
    json!({
        "name": policy.name,
        "mode": mode(policy.mode),
        "direction": match policy.direction { Direction::Inbound => "inbound", Direction::Outbound => "outbound" },
        "when": policy.when.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "by": policy.by,
        "limits": policy.limits.iter().map(limit).collect::<Vec<_>>(),
        "shadow_limit": policy.shadow_limit.as_ref().map(limit),
        "charge": match policy.charge { ChargeOn::Check => "on-check", ChargeOn::Failure => "on-failure" },
        "deny": { "status": policy.refusal(0).status, "problem": policy.refusal(0).problem },
        // As `config show` has it: where the file says nothing, each process counts for itself.
        "share": policy.share.unwrap_or(Share::Local).word(),
        "near_limit": format!("{}%", policy.near_limit),
        "on_store_error": match policy.on_store_error {
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
            OnStoreError::Local => "local",
        },
        "owner": "file",
    })
}

fn limit(limit: &Limit) -> Value {
    let tiers = limit.tiers.as_ref().map(|choice| {
        let tiers = choice.values.iter().map(|(value, terms)| (value.clone(), terms.label.clone().into()));
        json!({ "by": choice.by, "rates": tiers.collect::<serde_json::Map<_, _>>() })
    });
    json!({ "limit": limit.terms.label, "tiers": tiers, "overrides": limit.overrides.len() })
}

/// Answers with an entity tag, or without a body to a caller who has it.
fn tagged(value: &Value, request: &Request<Body>) -> Response {
    // The default hasher's keys are fixed: the same text has the same tag on every server and after a restart.
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    let known = request.headers().get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let has_it = known.is_some_and(|tags| {
        tags.split(',').map(str::trim).any(|have| have == "*" || have.trim_start_matches("W/") == tag)
    });
    let mut response = if has_it { StatusCode::NOT_MODIFIED.into_response() } else { json::ok(value) };
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

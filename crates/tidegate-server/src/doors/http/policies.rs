//! `GET /v1/policies` and `/v1/policies/{name}`: shows the policies in force, and who owns them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use http::header::{ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::{Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tidegate::Cost;
use tidegate::config::{Diagnostic, Severity};
use tidegate::http_answer::server_parts::millis_up;
use tidegate::policy::{
    Canary, CanaryGuard, ChargeOn, Deny, Direction, Glob, Holding, Learning, Limit, Match, OnStoreError,
    Over, Policy, Portion, Share, Want,
};
use tidegate::priority::Criticality;
use tidegate::visible;

use super::answer::mode;
use super::pages;
use super::request_body::{self, CanaryBody};
use crate::active_config::ActiveConfig;
use crate::api_policies::MAX_TEXT;
use crate::app::App;
use crate::body::{self, Body, Response, json};
use crate::decider::{known, per_second};
use crate::problem::Problem;
use crate::reload::{Changed, NotChanged};
use crate::requests;
use crate::text::moment;

/// Lists all policies.
pub(crate) fn list(app: &App, request: &Request<Body>) -> Response {
    app.decider.conditions.tell();
    let live = app.decider.live();
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
    app.decider.conditions.tell();
    let live = app.decider.live();
    let (at, policy) = find(&live.set, name)?;
    let (mut shown, tag) = json_and_tag(app, &live, policy);
    let mut moving = add_in_force(&mut shown, &live, at);
    if let Some(seen) = live.set.settlements_learnt(at) {
        // The estimate is null until enough settlements were seen; `estimate_from` shows how many are needed.
        shown["estimate"] = live.set.estimate(at).map(Cost::units).into();
        shown["estimate_from"] = json!({ "settlements": seen, "needed": Learning::ENOUGH });
        moving = true;
    }
    if let Some(places) = app.decider.keys.places(&live).get(&policy.name) {
        shown["places"] = json!({ "limit": places.standing.limit, "in_use": places.in_use() });
        moving = true;
    }
    if moving {
        // The tag does not cover these figures, so a caller that has it is still sent the body.
        let mut response = json::shown(&shown);
        write_tag(&tag, &mut response);
        return Ok(response);
    }
    Ok(tagged(&shown, &tag, request))
}

/// Adds whether a policy's conditions hold, the share of its canary, and the rates that follow a number. Returns whether
/// there was anything.
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
    if let Some(share) = live.set.canary_share(at) {
        shown["canary_share"] = share.as_f64().into();
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

/// Returns the tag of a policy; `None` if there is no such policy.
pub(super) fn tag_in(live: &ActiveConfig, name: &str) -> Option<String> {
    live.set.find(name).map(|(_, policy)| tag_of(live, policy))
}

/// The tag covers all that is shown but the owner, which follows from the rest.
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
    let mut shown = describe_policy(policy);
    shown["owner"] = owner.into();
    if let Some(text) = live.api.text(&policy.name) {
        shown["text"] = text.into();
    } else if let Some(place) = live.written.as_ref().and_then(|written| written.place(&policy.name)) {
        shown["place"] = place.into();
    }
    shown
}

/// Describes a policy as `GET /v1/policies` does, without what only a running server knows, such as its owner.
///
/// Overrides, and the entries of lists, are only counted.
#[must_use]
pub fn describe_policy(policy: &Policy) -> Value {
    let mut guards = policy.limits.iter().map(Limit::is_guard);
    let sheds = policy.deadline.is_some() || guards.clone().any(|guard| guard);
    let answer = |deny: &Deny| json!({ "status": deny.status, "problem": deny.problem });
    let (over, demote_to, block) = match policy.over {
        Over::Deny => ("deny", None, None),
        Over::Block { lasts } => ("block", None, Some(lasts)),
        Over::Mark => ("mark", None, None),
        Over::Demote { to } => ("demote", to.map(Criticality::as_str), None),
    };
    json!({
        "name": policy.name,
        "mode": mode(policy.mode),
        "match": matching(&policy.matching),
        "direction": match policy.direction { Direction::Inbound => "inbound", Direction::Outbound => "outbound" },
        "when": policy.when.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "by": policy.by,
        "limits": policy.limits.iter().map(limit).collect::<Vec<_>>(),
        "shadow_limit": policy.shadow_limit.as_ref().map(limit),
        "canary": policy.canary.as_ref().map(canary),
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
        // As in `config show`: if the file does not say, each process counts for itself.
        "share": policy.share.unwrap_or(Share::Local).word(),
        "near_limit": format!("{}%", policy.near_limit),
        "on_cost_error": policy.on_cost_error.word(),
        "on_store_error": match policy.on_store_error {
            OnStoreError::Allow => "allow",
            OnStoreError::Deny => "deny",
            OnStoreError::Local => "local",
        },
    })
}

fn canary(canary: &Canary) -> Value {
    let CanaryGuard { denied, keys_refused, failures, .. } = canary.guard;
    json!({
        "limit": limit(&canary.limit),
        "share": canary.share.as_f64(),
        "for_ms": millis_up(canary.lasts),
        "guard": { "denied": denied.as_f64(), "keys_refused": keys_refused, "failures": failures.as_f64() },
        "then": if canary.enforce { "enforce" } else { "hold" },
    })
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

/// Answers with a tag, and no body if the caller has this version.
fn tagged(value: &Value, tag: &str, request: &Request<Body>) -> Response {
    let has_it = Conditions::of(request.headers()).is_known(Some(tag));
    let mut response = if has_it { body::bare(StatusCode::NOT_MODIFIED) } else { json::shown(value) };
    write_tag(tag, &mut response);
    response
}

fn write_tag(tag: &str, response: &mut Response) {
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
}

/// `PUT` and `DELETE`: changes a policy that the API owns.
///
/// # Errors
/// 404 for a policy to delete that does not exist, 409 for one that the API does not own, 412 if a condition does not
/// hold, 413 for too long a text, 422 with every mistake, 503 if it cannot be stored. Nothing has changed then.
pub(crate) async fn change(app: &Arc<App>, request: Request<Body>, name: &str) -> Result<Response, Problem> {
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| Problem::bad_request("the name of a policy is UTF-8"))?.into_owned();
    let conditions = Conditions::of(request.headers());
    let token = app.access.name_of(request.headers()).unwrap_or_default();
    let text = if *request.method() == Method::PUT {
        let bytes = request_body::read(request, MAX_TEXT).await?;
        let text = String::from_utf8(bytes.to_vec());
        Some(text.map_err(|_| Problem::bad_request("the body is not UTF-8; a policy is YAML or JSON"))?)
    } else {
        None
    };
    let deleted = text.is_none();
    let holds = {
        let name = name.clone();
        move |live: &ActiveConfig| conditions.hold(tag_in(live, &name).as_deref())
    };
    // In its own task: if the caller hangs up, a stored policy is still put in force.
    let changing = {
        let (app, name) = (Arc::clone(app), name.clone());
        async move { app.reload.change(&app.decider, &name, text.as_deref(), &token, holds).await }
    };
    let changed = tokio::spawn(changing).await;
    let failed =
        || Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the change failed; the log has the reason");
    let changed = changed.map_err(|_| failed())?.map_err(|why| not_changed(&name, why))?;
    let Changed { live, new, kept, warnings } = changed;
    let told = json!({ "survives_restart": kept, "warnings": warnings });
    if deleted {
        let mut answer = json!({ "policy": name, "deleted": true });
        extend(&mut answer, told);
        return Ok(json::shown(&answer));
    }
    let (_, policy) = live.set.find(&name).ok_or_else(failed)?;
    let (mut answer, tag) = json_and_tag(app, &live, policy);
    extend(&mut answer, told);
    let mut response = json::shown(&answer);
    *response.status_mut() = if new { StatusCode::CREATED } else { StatusCode::OK };
    write_tag(&tag, &mut response);
    Ok(response)
}

fn extend(answer: &mut Value, more: Value) {
    if let (Some(answer), Value::Object(more)) = (answer.as_object_mut(), more) {
        answer.extend(more);
    }
}

fn not_changed(name: &str, why: NotChanged) -> Problem {
    let detail = format!("policy {name:?}: {why}");
    match why {
        NotChanged::Cluster(_) => Problem::conflict(detail).with("owner", "cluster"),
        NotChanged::File(place) => Problem::conflict(detail).with("owner", "file").with("place", place),
        NotChanged::Program => Problem::conflict(detail).with("owner", "program"),
        NotChanged::NoRoom(_) => Problem::conflict(detail),
        NotChanged::NoPolicy => Problem::not_found(detail),
        NotChanged::Condition => Problem::new(StatusCode::PRECONDITION_FAILED, detail),
        NotChanged::Mistakes(mistakes) => of_mistakes(&mistakes),
        NotChanged::Unfit(refused) => of_lines(refused.diagnostics),
        NotChanged::NotSaved(_) => Problem::unavailable(detail),
    }
}

/// 422 for the mistakes in a text, each with its place and correction. `line` and `column` are the first mistake's.
pub(super) fn of_mistakes(mistakes: &[Diagnostic]) -> Problem {
    // Warnings do not cause the refusal, and those of a whole file would hide the mistake.
    let mistakes = || mistakes.iter().filter(|mistake| mistake.severity == Severity::Error);
    let problem = of_lines(mistakes().map(ToString::to_string).collect());
    match mistakes().find(|mistake| mistake.line > 0) {
        Some(first) => problem.with("line", first.line).with("column", first.column),
        None => problem,
    }
}

pub(super) fn of_lines(diagnostics: Vec<String>) -> Problem {
    let count = diagnostics.len();
    let mistakes = if count == 1 { "mistake" } else { "mistakes" };
    let detail = format!("the policies are refused, {count} {mistakes}; nothing was changed");
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).with("diagnostics", diagnostics)
}

/// `POST /v1/canaries/{name}`: sets the share of the keys that a policy's canary decides, by hand; 0 stops it. If
/// something sees decisions, it is told, and keeps the share.
///
/// # Errors
/// 400 for a malformed body or a share out of range, 404 for a policy that does not exist or has no canary, and whatever
/// the sight finds wrong.
pub(crate) async fn set_canary(app: &App, request: Request<Body>, name: &str) -> Result<Response, Problem> {
    let token = app.access.name_of(request.headers());
    let path = request.uri().path().to_owned();
    let bytes = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    let CanaryBody { share, reason } = request_body::canary(&bytes)?;
    let reason = request_body::reason(reason)?;
    let (name, text) = {
        let live = app.decider.live();
        let (_, policy) = find(&live.set, name)?;
        let Some(canary) = &policy.canary else {
            return Err(Problem::not_found(format!("policy {:?} has no canary", policy.name)));
        };
        let most = canary.share.as_f64();
        if !(0.0..=most).contains(&share) {
            let detail =
                format!("share {share} is not possible; use 0 to stop it, or up to {most}, as its text says");
            return Err(Problem::bad_request(detail).with("field", "share"));
        }
        (policy.name.clone(), canary.text.clone())
    };
    tracing::info!(
        token = token.as_deref(),
        policy = name,
        share,
        reason,
        "the share of a canary is set by hand"
    );
    if let Some(sight) = app.decider.sight() {
        return pages::hand_over(Arc::clone(sight), path, bytes, token.unwrap_or_default()).await;
    }
    if !app.decider.live().set.set_canary_share(&name, &text, Portion::of(share)) {
        return Err(Problem::conflict(format!("policy {name:?} has another canary now; ask again")));
    }
    let done =
        format!("the canary of {} decides for {} of its keys", visible::name(&name), Portion::of(share));
    Ok(json::shown(&json!({ "done": done })))
}

// Entity tags: whether the state that a caller knows is current.
//
// # Source
// RFC 9110, sections 8.8.3 and 13.1: compared strongly for `If-Match`, weakly for `If-None-Match`.

/// The hasher's keys are fixed: a text has the same tag on every server and after a restart.
pub(super) fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// The conditional headers of one request.
#[derive(Clone, Debug)]
pub(super) struct Conditions {
    matches: Option<String>,
    none_matches: Option<String>,
}

impl Conditions {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let list = |name: HeaderName| {
            let lines = headers.get_all(name).iter();
            // A value that is not text cannot be a tag of this server: it counts as a list without tags.
            let lines: Vec<&str> = lines.map(|line| HeaderValue::to_str(line).unwrap_or_default()).collect();
            (!lines.is_empty()).then(|| lines.join(","))
        };
        Self { matches: list(IF_MATCH), none_matches: list(IF_NONE_MATCH) }
    }

    /// Returns whether the resource with this tag may be changed; `None` if it does not exist yet.
    pub(super) fn hold(&self, tag: Option<&str>) -> bool {
        let matched = self.matches.as_deref().is_none_or(|list| has(list, tag));
        matched && !self.is_known(tag)
    }

    /// Returns whether the caller has this version.
    pub(super) fn is_known(&self, tag: Option<&str>) -> bool {
        self.none_matches.as_deref().is_some_and(|list| has(&list.replace("W/", ""), tag))
    }
}

/// Returns whether a tag is in a list; `*` in the list matches any tag. The server's tags have no comma.
fn has(list: &str, tag: Option<&str>) -> bool {
    tag.is_some_and(|tag| list.split(',').map(str::trim).any(|one| one == "*" || one == tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_to_what_the_caller_knows_and_to_nothing_else() {
        let own = tag("x");
        let hold = |name: HeaderName, value: &str, tag: Option<&str>| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::try_from(value).unwrap())]);
            Conditions::of(&headers).hold(tag)
        };
        let cases = [
            (IF_MATCH, own.clone(), Some(&*own), true),
            (IF_MATCH, format!("\"0\", {own}"), Some(&own), true),
            (IF_MATCH, format!("W/{own}"), Some(&own), false),
            (IF_MATCH, "*".to_owned(), Some(&own), true),
            (IF_MATCH, "*".to_owned(), None, false),
            (IF_MATCH, String::new(), Some(&own), false),
            (IF_NONE_MATCH, "*".to_owned(), None, true),
            (IF_NONE_MATCH, "*".to_owned(), Some(&own), false),
            (IF_NONE_MATCH, format!("W/{own}"), Some(&own), false),
            (IF_NONE_MATCH, "\"0\"".to_owned(), Some(&own), true),
        ];
        for (name, value, tag, expected) in cases {
            assert_eq!(hold(name.clone(), &value, tag), expected, "{name}: {value} of {tag:?}");
        }
        assert!(Conditions::of(&HeaderMap::new()).hold(None));
    }
}

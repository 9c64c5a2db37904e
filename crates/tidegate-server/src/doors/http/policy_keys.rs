//! `/v1/keys/{policy}`: the keys of one policy that are known here, their standing, and blocks on them.
//!
//! Stores are not asked for all their keys: there are millions, and most stores keep only fingerprints. Known keys are
//! those that were refused or near their limit most often, from the bounded lists behind `/v1/keys/top`, and those that
//! are blocked.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Request, Uri};
use serde_json::{Value, json};
use tidegate::explain::key_text;
use tidegate::gate::BlockError;
use tidegate::policy::{Block, Descriptor, Mode, Policy, span};

use super::keys::key_of;
use super::policies::find;
use super::query::Query;
use super::request_body;
use crate::app::App;
use crate::engine::missing;
use crate::json;
use crate::live::Live;
use crate::problem::Problem;
use crate::requests;
use crate::span::moment;
use crate::spelling::quoted;
use crate::top_keys;

/// The default number of keys that are listed. Each is looked up in the store.
const LISTED: usize = 20;
/// The largest number of keys that a caller can ask for.
const MOST_LISTED: usize = 100;
/// The longest body, in bytes: room for a reason of 255 bytes.
const MAX_BODY: usize = 4096;
/// The longest block of a key. A caller that is to be kept out for longer belongs on a deny-list.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// A whole body, for error messages.
const EXAMPLE: &str = r#"{"block": {"for": "10min", "reason": "credential stuffing"}}"#;

/// The facts that are known about one key.
#[derive(Debug, Default)]
struct Known {
    denied: u64,
    near: u64,
    error: u64,
    block: Option<std::sync::Arc<Block>>,
}

/// `GET /v1/keys/{policy}?limit=&from=&reveal=`: the known keys. With the attributes that `by` names as parameters:
/// that one key.
pub(crate) async fn list(app: &App, uri: &Uri, policy: &str) -> Result<Response, Problem> {
    let live = app.engine.live();
    let (at, words) = find(&live.set, policy)?;
    let own = |name: &str| words.by.iter().any(|by| by == name);
    let query = Query::of(uri, &["limit", "from", "reveal"]);
    let names_key =
        form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).any(|(name, _)| own(&name));
    let known = known(app, &live, at);
    if names_key {
        let key = key_with_plan(&live, at, uri.query().unwrap_or_default())?;
        let text = app.redact.key(&live.set, words, &key, true);
        let known = known.into_iter().find(|(key, _)| *key == text).map(|(_, known)| known);
        let standing = standing(app, &live, at, &key).await;
        return Ok(json::shown(&key_json(&text, &known.unwrap_or_default(), &standing)));
    }
    let query = query?;
    let reveal = query.flag("reveal")?;
    let number = |name: &'static str, default: usize, most: usize, least: usize| match query.get(name) {
        None => Ok(default),
        Some(text) => match text.parse::<usize>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(query.wrong(name, text, &format!("{least} to {most}"))),
        },
    };
    let most = number("limit", LISTED, MOST_LISTED, 1)?;
    let from = number("from", 0, usize::MAX >> 1, 0)?;
    let total = known.len();
    let mut keys: Vec<Value> = Vec::new();
    for (text, known) in known.iter().skip(from).take(most) {
        let standing = match key_in(words, text) {
            Some(key) => standing(app, &live, at, &key).await,
            None => Value::Null,
        };
        keys.push(key_json(&app.redact.text(text, reveal), known, &standing));
    }
    let next = from.saturating_add(most);
    let next = (next < total).then_some(next);
    Ok(json::shown(&json!({ "policy": words.name, "known": total, "keys": keys, "next": next })))
}

/// `PUT /v1/keys/{policy}?client.ip=203.0.113.9`: blocks one key for a while, or with `{"block": null}` ends its block and
/// leaves what it has spent.
pub(crate) async fn block(app: &App, request: Request<Body>, policy: &str) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let bytes = request_body::read(request, MAX_BODY).await?;
    // Only after the body was read, which may take a while: the policy may change meanwhile.
    let live = app.engine.live();
    let (at, words) = find(&live.set, policy)?;
    let Some([lasts, reason]) = request_body::block(&bytes, EXAMPLE)? else {
        let key = key_of(&live, at, uri.query().unwrap_or_default())?;
        let unblocked = app.engine.unblock(&words.name, &key);
        let digest = app.redact.key(&live.set, words, &key, false);
        if unblocked {
            tracing::info!(policy = words.name, key = digest, "a key is unblocked");
        }
        let answer = json!({ "policy": words.name, "key": digest, "block": null, "unblocked": unblocked });
        return Ok(json::shown(&answer));
    };
    let lasts = duration(&lasts.unwrap_or_default())?;
    let reason = request_body::reason(reason)?;
    let key = key_of(&live, at, uri.query().unwrap_or_default())?;
    if words.mode != Mode::Enforce {
        let detail = format!(
            "policy {:?} is not enforced and refuses nobody, so a block would have no effect; set mode: enforce first",
            words.name
        );
        return Err(Problem::conflict(detail));
    }
    let text = app.redact.key(&live.set, words, &key, true);
    let block = app.engine.block(&words.name, &key, &text, lasts, &reason).map_err(|error| match error {
        BlockError::NoPolicy { .. } => Problem::not_found(error.to_string()),
        error => Problem::conflict(error.to_string()),
    })?;
    let digest = app.redact.text(&text, false);
    tracing::info!(policy = words.name, key = digest, reason, lasts_s = lasts.as_secs(), "a key is blocked");
    Ok(json::shown(&json!({ "policy": words.name, "key": digest, "block": block_json(&block) })))
}

/// Reads how long a block lasts.
fn duration(lasts: &str) -> Result<Duration, Problem> {
    let refuse = |detail: String| Err(Problem::bad_request(detail).with("field", "for"));
    match span(lasts) {
        Ok(lasts) if lasts > Duration::ZERO && lasts <= LONGEST => Ok(lasts),
        Ok(_) => refuse(format!("{} is not a time to block a key for; use up to 30d", quoted(lasts))),
        Err(error) => refuse(error.to_string()),
    }
}

/// Returns the known keys of a policy: blocked ones first, then by refusals. The one key of a policy without `by` is always
/// known.
fn known(app: &App, live: &Live, policy: usize) -> Vec<(String, Known)> {
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    let words = &live.set.policies()[policy];
    if words.by.is_empty() {
        known.insert(key_text(&live.set, words, &Descriptor::new()), Known::default());
    }
    for block in app.engine.blocks(&words.name) {
        let key = block.key.to_string();
        known.entry(key).or_default().block = Some(block);
    }
    if let Some(facts) = live.policies.get(policy) {
        for row in facts.keys.denied.largest(top_keys::KEYS).0 {
            let one = known.entry(row.key).or_default();
            (one.denied, one.error) = (row.count, one.error.max(row.error));
        }
        for row in facts.keys.near.largest(top_keys::KEYS).0 {
            let one = known.entry(row.key).or_default();
            (one.near, one.error) = (row.count, one.error.max(row.error));
        }
    }
    let mut known: Vec<(String, Known)> = known.into_iter().collect();
    // The sort is stable, and the map has sorted equal keys by text, so pages do not overlap while nothing changes.
    known.sort_by_key(|(_, one)| std::cmp::Reverse((one.block.is_some(), one.denied, one.near)));
    known
}

/// Parses a key, with the attributes that select its limits if they are given: its plan.
fn key_with_plan<'q>(live: &Live, at: usize, query: &'q str) -> Result<Descriptor<'q>, Problem> {
    let policy = &live.set.policies()[at];
    let selects = |name: &str| {
        let mut choices = policy.limits.iter().flat_map(|limit| limit.overrides.iter().chain(&limit.tiers));
        !policy.by.iter().any(|by| by == name) && choices.any(|choice| choice.by == name)
    };
    let (plan, key): (Vec<_>, Vec<_>) =
        form_urlencoded::parse(query.as_bytes()).partition(|(name, _)| selects(name));
    let key = requests::key_of(&policy.by, key);
    let mut key =
        key.map_err(|wrong| Problem::bad_request(wrong.to_string()).with("key", policy.by.as_slice()))?;
    plan.into_iter().for_each(|(name, value)| key.push(name, value));
    Ok(key)
}

/// Returns the standing of a key under each limit; null if the store did not answer. A limit that depends on more than
/// the key says on what (`depends_on`).
async fn standing(app: &App, live: &Live, policy: usize, key: &Descriptor<'_>) -> Value {
    let standings = app.engine.standings(live, policy, key).await;
    let Ok(standings) = standings else { return Value::Null };
    let words = &live.set.policies()[policy];
    let limits = words.limits.iter().chain(&words.shadow_limit);
    let depends_on = limits.map(|of| missing(of, key).collect::<Vec<_>>());
    let each = standings.into_iter().zip(depends_on).map(|((limit, standing), depends_on)| match standing {
        None => json!({ "limit": limit, "remaining": null, "depends_on": depends_on }),
        Some(standing) => json!({
            "limit": limit,
            "remaining": standing.remaining,
            "most": standing.limit,
            "debt": standing.debt,
            "reset_after_ms": tidegate::http_answer::server_parts::millis_up(standing.reset_after),
        }),
    });
    each.collect::<Vec<Value>>().into()
}

fn key_json(key: &str, known: &Known, standing: &Value) -> Value {
    let block = known.block.as_deref().map(block_json);
    json!({
        "key": key,
        "denied": known.denied,
        "near": known.near,
        "error": known.error,
        "block": block,
        "standing": standing,
    })
}

fn block_json(block: &Block) -> Value {
    let at = |tick| moment(tick, Duration::ZERO);
    json!({ "since": at(block.since), "until": at(block.until), "reason": &*block.reason })
}

/// Parses a key from its text; `None` if the text is cut, lacks an attribute, or is ambiguous.
fn key_in<'t>(policy: &Policy, text: &'t str) -> Option<Descriptor<'t>> {
    let mut key = Descriptor::new();
    if policy.by.is_empty() {
        return Some(key);
    }
    if text.len() >= top_keys::MAX_KEY {
        return None;
    }
    let mut rest = text;
    for (at, name) in policy.by.iter().enumerate() {
        rest = rest.strip_prefix(name.as_str())?.strip_prefix('=')?;
        let value = match policy.by.get(at + 1) {
            None => rest,
            Some(next) => {
                let separator = format!(", {next}=");
                let (first, after) = rest.split_once(&separator)?;
                if after.contains(&separator) {
                    return None;
                }
                rest = &rest[first.len() + 2..];
                first
            }
        };
        key.push(name.clone(), value);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::Quota;
    use tidegate::policy::Limit;

    #[test]
    fn a_key_is_read_back_where_its_text_has_one_meaning() {
        let mut policy = Policy::new("p", Limit::new(Quota::per_second(1).gcra().unwrap(), "1/s"));
        policy.by = vec!["client.ip".to_owned(), "user.id".to_owned()];
        let read = |text: &str| {
            let key = key_in(&policy, text)?;
            Some((key.value("client.ip")?.to_owned(), key.value("user.id")?.to_owned()))
        };
        let both = Some(("::1".to_owned(), "a, b=c".to_owned()));
        assert_eq!(read("client.ip=::1, user.id=a, b=c"), both);
        for text in ["client.ip=::1, user.id=x, user.id=y", "client.ip absent, user.id=x", "user.id=x", ""] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read(&format!("client.ip=::1, user.id={}", "x".repeat(300))), None, "it may be cut");
    }
}

//! `/v1/keys`: lists the keys that are refused most, and resets single keys.

use http::Request;
use serde_json::{Value, json};
use tidegate::policy::{Descriptor, Mode};
use tidegate::visible;

use super::answer::mode;
use super::policies::find;
use super::routes::Query;
use crate::active_config::{ActiveConfig, Facts};
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::LetGo;
use crate::problem::Problem;
use crate::{requests, top_keys};

/// The default number of keys listed.
const LISTED: usize = 20;

/// Whose keys are listed.
enum Chosen {
    All,
    List(&'static str),
    Policy(usize),
}

/// `GET /v1/keys/top?policy=&by=denied|near&limit=&reveal=`: the keys most often refused, or near their limit.
///
/// A count exceeds the true one by at most its `error`, which is zero until a policy has met more keys than are
/// counted.
pub(crate) fn top(app: &App, request: &Request<Body>) -> Result<Response, Problem> {
    let query = Query::of(request.uri(), &["policy", "by", "limit", "reveal"])?;
    let reveal = query.flag("reveal")?;
    let by = query.get("by").unwrap_or("denied");
    let sketch = match by {
        "denied" => |facts: &Facts, most| facts.keys.denied.largest(most),
        "near" => |facts: &Facts, most| facts.keys.near.largest(most),
        other => return Err(query.wrong("by", other, "`denied` or `near`")),
    };
    let most = match query.get("limit") {
        None => LISTED,
        Some(text) => match text.parse::<usize>() {
            Ok(most @ 1..=top_keys::KEYS) => most,
            _ => return Err(query.wrong("limit", text, &format!("1 to {}", top_keys::KEYS))),
        },
    };
    let live = app.decider.live();
    // The lists of no policy are listed as policies, after a policy of the same name.
    let lists = app.decider.telemetry.lists();
    let own = |name: &str| {
        let list = lists.iter().find(|list| list.name == name).map(|list| list.name);
        list.filter(|_| live.set.find(name).is_none())
    };
    let chosen = match query.get("policy") {
        None => Chosen::All,
        Some(name) if let Some(list) = own(name) => Chosen::List(list),
        Some(name) => Chosen::Policy(find(&live.set, name)?.0),
    };
    let of_policies = live.set.policies().iter().zip(&*live.policies).enumerate();
    let mut sketches: Vec<_> = of_policies
        .filter(|(at, _)| {
            matches!(chosen, Chosen::All) || matches!(chosen, Chosen::Policy(one) if one == *at)
        })
        .map(|(_, (policy, facts))| (policy.name.as_str(), mode(policy.mode), sketch(facts, most)))
        .collect();
    let is_wanted = |list: &str| match chosen {
        Chosen::All => true,
        Chosen::List(wanted) => wanted == list,
        Chosen::Policy(_) => false,
    };
    for list in lists.into_iter().filter(|list| by == "denied" && is_wanted(list.name)) {
        sketches.push((list.name, mode(Mode::Enforce), list.keys.largest(most)));
    }
    let mut rows: Vec<(u64, Value)> = Vec::new();
    let (mut counted, mut error) = (0_u64, 0_u64);
    for (policy, mode, (largest, total)) in sketches {
        counted = counted.saturating_add(total);
        for row in largest {
            error = error.max(row.error);
            let shown = json!({
                "policy": policy,
                "mode": mode,
                "key": app.redact.text(&row.key, reveal),
                "count": row.count,
                "error": row.error,
            });
            rows.push((row.count, shown));
        }
    }
    rows.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let keys: Vec<Value> = rows.into_iter().take(most).map(|(_, row)| row).collect();
    Ok(json::shown(&json!({ "by": by, "counted": counted, "largest_error": error, "keys": keys })))
}

/// `DELETE /v1/keys/{policy}?client.ip=203.0.113.9`: resets what a key has spent, and ends its block. `token`: the
/// name of the caller's.
pub(crate) async fn reset(
    app: &App,
    uri: &http::Uri,
    token: &str,
    policy: &str,
) -> Result<Response, Problem> {
    let live = app.decider.live();
    let (at, words) = find(&live.set, policy)?;
    let key = key_of(&live, at, uri.query().unwrap_or_default())?;
    let let_go = app.decider.keys.let_go(&live, at, &key).await;
    let LetGo { unblocked, places, still_forced } =
        let_go.map_err(|error| Problem::unavailable(error.to_string()))?;
    let digest = app.redact.key(&live.set, words, &key, false);
    let told = || format!("{}: {digest} is reset", visible::name(&words.name));
    app.decider.tell_change("key", token, "", told);
    let mut answer = json!({
        "policy": words.name,
        "key": digest,
        "reset": true,
        "unblocked": unblocked,
        "places_forgotten": places,
        "breakers_still_forced": still_forced,
    });
    if let Some(nodes) = app.decider.storage.nodes_counted(words) {
        answer["nodes"] = nodes.into();
    }
    Ok(json::shown(&answer))
}

/// Reads the key of a policy from parameters: the attributes that its `by` names.
pub(super) fn key_of<'q>(
    live: &ActiveConfig,
    policy: usize,
    query: &'q str,
) -> Result<Descriptor<'q>, Problem> {
    let by = &live.set.policies()[policy].by;
    let pairs = form_urlencoded::parse(query.as_bytes());
    requests::key_of(&live.set, policy, pairs)
        .map_err(|wrong| Problem::bad_request(wrong.to_string()).with("key", by.as_slice()))
}

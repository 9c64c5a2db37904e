//! `/v1/keys/{policy}`: the known keys of a policy, their standing, and blocks on them. `/v1/keys`: the blocks for
//! all policies.
//!
//! Known are the keys most often refused or near their limit (the bounded lists of `/v1/keys/top`), and blocked ones.
//! Stores are not asked for all keys: there are millions, and most keep only fingerprints.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use http::{Request, Uri};
use serde_json::{Value, json};
use tidegate::config::{Config, Format, Severity, canonical_attribute};
use tidegate::gate::BlockError;
use tidegate::gate::explain::key_text;
use tidegate::policy::{AccessEntry, Block, Descriptor, Mode, Over, Policy, PolicySet, canonical};
use tidegate::visible;

use super::keys::key_of;
use super::policies::find;
use super::request_body;
use super::routes::Query;
use crate::active_config::ActiveConfig;
use crate::app::App;
use crate::body::{Body, Response, json};
use crate::decider::{limits_of, missing};
use crate::problem::Problem;
use crate::text::{moment, nearest, quoted};
use crate::{requests, top_keys};

/// How many keys are listed by default. Each is looked up in the store.
const LISTED: usize = 20;

const MOST_LISTED: usize = 100;

/// A whole body, for error messages.
const EXAMPLE: &str = r#"{"block": {"for": "10min", "reason": "credential stuffing"}}"#;

/// What a time out of range is not, and what to do.
const NOT_A_TIME: &str = "a time to block a key for; use up to 30d";

/// The parameters of lists of keys.
const OF_LISTS: [&str; 3] = ["limit", "from", "reveal"];

#[derive(Debug, Default)]
struct KnownKey {
    denied: u64,
    near: u64,
    error: u64,
    block: Option<std::sync::Arc<Block>>,
}

/// `GET /v1/keys/{policy}?limit=&from=&reveal=`: the known keys; with the attributes of a key as parameters, that
/// one.
pub(crate) async fn list(app: &App, uri: &Uri, policy: &str) -> Result<Response, Problem> {
    let live = app.decider.live();
    let (at, words) = find(&live.set, policy)?;
    let own = |name: &str| words.by.iter().any(|by| by == name);
    let query = Query::of(uri, &OF_LISTS);
    let names_key =
        form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).any(|(name, _)| own(&name));
    if names_key {
        let key = key_with_plan(&live, at, uri.query().unwrap_or_default())?;
        // Then the list has it; without an answer, what is known here.
        let _ = app.decider.keys.block_of(&words.name, &key).await;
        let text = app.redact.key(&live.set, words, &key, true);
        let known = known(app, &live, at).into_iter().find(|(key, _)| *key == text).map(|(_, known)| known);
        let mut known = known.unwrap_or_default();
        // A block for all policies refuses the key too.
        known.block = known.block.or_else(|| app.decider.keys.blocked_everywhere(&key));
        let standing = standing(app, &live, at, &key).await;
        return Ok(json::shown(&key_json(&text, &known, &standing)));
    }
    let query = query?;
    let reveal = query.flag("reveal")?;
    let (most, from) = page(&query)?;
    let known = known(app, &live, at);
    let total = known.len();
    let mut keys: Vec<Value> = Vec::new();
    for (text, mut known) in known.into_iter().skip(from).take(most) {
        let standing = match key_in(words, &text) {
            Some(key) => {
                if let Ok(block) = app.decider.keys.block_of(&words.name, &key).await {
                    known.block = block;
                }
                standing(app, &live, at, &key).await
            }
            None => Value::Null,
        };
        keys.push(key_json(&app.redact.text(&text, reveal), &known, &standing));
    }
    let next = from.saturating_add(most);
    let next = (next < total).then_some(next);
    Ok(json::shown(&json!({ "policy": words.name, "known": total, "keys": keys, "next": next })))
}

fn page(query: &Query<'_>) -> Result<(usize, usize), Problem> {
    let number = |name: &'static str, default: usize, most: usize, least: usize| match query.get(name) {
        None => Ok(default),
        Some(text) => match text.parse::<usize>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(query.wrong(name, text, &format!("{least} to {most}"))),
        },
    };
    Ok((number("limit", LISTED, MOST_LISTED, 1)?, number("from", 0, usize::MAX >> 1, 0)?))
}

/// `GET /v1/keys?limit=&from=&reveal=`: the blocks for all policies; with an attribute as parameter, that caller's.
pub(crate) fn list_everywhere(app: &App, uri: &Uri) -> Result<Response, Problem> {
    let counts: BTreeMap<String, u64> = app
        .decider
        .telemetry
        .blocked
        .keys
        .largest(top_keys::KEYS)
        .0
        .into_iter()
        .map(|row| (row.key, row.count))
        .collect();
    let known = |key: &str, block| KnownKey {
        denied: counts.get(key).copied().unwrap_or(0),
        block,
        ..KnownKey::default()
    };
    let blocks = app.decider.keys.blocks_everywhere();
    let names_caller = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .any(|(name, _)| !OF_LISTS.contains(&&*name));
    if names_caller {
        let entry = entry_of(&app.decider.live(), uri.query().unwrap_or_default())?;
        let key = top_keys::entry_key(&entry);
        // A caller may be blocked by an entry that was written otherwise: a network around it.
        let block = blocks.into_iter().find(|block| *block.key == *key).or_else(|| {
            let (name, value) = named_value(&entry);
            app.decider.keys.blocked_everywhere(&Descriptor::new().with(name, value))
        });
        return Ok(json::shown(&key_json(&key, &known(&key, block), &Value::Null)));
    }
    let query = Query::of(uri, &OF_LISTS)?;
    let reveal = query.flag("reveal")?;
    let (most, from) = page(&query)?;
    let total = blocks.len();
    let shown = blocks.into_iter().skip(from).take(most).map(|block| {
        let key = block.key.to_string();
        key_json(&app.redact.text(&key, reveal), &known(&key, Some(block)), &Value::Null)
    });
    let keys: Vec<Value> = shown.collect();
    let next = from.saturating_add(most);
    let next = (next < total).then_some(next);
    Ok(json::shown(&json!({ "policy": null, "known": total, "keys": keys, "next": next })))
}

/// `PUT /v1/keys?client.ip=203.0.113.9`: blocks a caller for all policies for a while; `{"block": null}` ends that.
pub(crate) async fn block_everywhere(app: &App, request: Request<Body>) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let token = app.access.name_of(request.headers());
    let token = token.as_deref();
    let bytes = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    let wanted = request_body::block(&bytes, EXAMPLE)?;
    let entry = entry_of(&app.decider.live(), uri.query().unwrap_or_default())?;
    let digest = app.redact.text(&top_keys::entry_key(&entry), false);
    let Some([lasts, reason]) = wanted else {
        let unblocked = app.decider.keys.unblock_everywhere(&entry);
        if unblocked {
            tracing::info!(token, key = digest, "a caller is no longer blocked for all policies");
            let told = || format!("{digest} is no longer blocked for all policies");
            app.decider.tell_change("key", token.unwrap_or_default(), "", told);
        }
        let mut answer = json!({ "policy": null, "key": digest, "block": null, "unblocked": unblocked });
        of_this_node(app, &mut answer);
        return Ok(json::shown(&answer));
    };
    let lasts = request_body::lasts(&lasts.unwrap_or_default(), NOT_A_TIME)?;
    let reason = request_body::reason(reason)?;
    let covers = covers(&entry)?;
    let network = match &entry {
        AccessEntry::Network(network) if network.prefix_len() < network.max_prefix_len() => {
            Some(network.to_string())
        }
        _ => None,
    };
    let block = app.decider.keys.block_everywhere(entry, lasts, &reason);
    let block = block.map_err(|error| Problem::conflict(error.to_string()))?;
    tracing::info!(
        token,
        key = digest,
        reason,
        lasts_s = lasts.as_secs(),
        "a caller is blocked for all policies"
    );
    app.decider.tell_change("key", token.unwrap_or_default(), &reason, || {
        format!("{digest} is blocked for all policies for {} s", lasts.as_secs())
    });
    let mut answer = blocked(None, &digest, network, &block);
    if let Some(addresses) = covers {
        answer["addresses"] = json!(addresses);
    }
    of_this_node(app, &mut answer);
    Ok(json::shown(&answer))
}

/// Returns how many addresses a block is for, `u64::MAX` at most; `None` if it is not for addresses.
///
/// # Errors
/// 400 for a network that a slip of the pen makes a part of the world: shorter than /8, for IPv6 /16.
fn covers(entry: &AccessEntry) -> Result<Option<u64>, Problem> {
    let AccessEntry::Network(network) = entry else { return Ok(None) };
    let (length, least, most) = match network.addr() {
        IpAddr::V4(_) => (network.prefix_len(), 8, 32),
        IpAddr::V6(_) => (network.prefix_len(), 16, 128),
    };
    if length < least {
        let detail = format!(
            "{network} is too large to be blocked by hand; block a /{least} or less, or write `access: {{ deny: [\"{network}\"] }}` in the policy file"
        );
        return Err(Problem::bad_request(detail).with("field", "key"));
    }
    Ok(Some(1u64.checked_shl(most - u32::from(length)).unwrap_or(u64::MAX)))
}

/// Reads the caller to block: one attribute that some policy reads. An IPv6 address means the network that shares its
/// capacity; a network is written with its length.
fn entry_of(live: &ActiveConfig, query: &str) -> Result<AccessEntry, Problem> {
    let mut pairs = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| !OF_LISTS.contains(&&**name));
    let refuse = |detail: String| Err(Problem::bad_request(detail).with("field", "key"));
    let (Some((name, value)), None) = (pairs.next(), pairs.next()) else {
        return refuse("name one attribute of the caller, such as /v1/keys?client.ip=203.0.113.9".to_owned());
    };
    let (name, value) = (canonical_attribute(name), value.trim());
    if value.is_empty() {
        return refuse(format!("{} has no value; write it as client.ip=203.0.113.9", quoted(&name)));
    }
    let named = live.set.named();
    if !named.contains(&name) {
        // A short name as `ip` is near none, and the set knows what it stands for.
        let short = || {
            let request = Descriptor::new().with(&*name, value);
            let told = live.set.unread(&request, None).into_iter().next()?;
            Some(told.split_once("; did you mean ")?.1.trim_end_matches('?').to_owned())
        };
        let near = nearest(&name, named.names()).map(str::to_owned).or_else(short);
        let near = near.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        return refuse(format!(
            "no policy reads the attribute {}, so a block of it would refuse nobody{near}",
            quoted(&name)
        ));
    }
    let is_address = name == "client.ip";
    let written = match () {
        () if !is_address => format!("{name}={value}"),
        () if value.contains('/') => value.to_owned(),
        () => key_address(&live.set, value),
    };
    match written.parse() {
        // A network with host bits: both readings are told.
        Err(error) if is_address && value.contains('/') => refuse(error.to_string()),
        Err(_) | Ok(AccessEntry::Attribute { .. }) if is_address => refuse(format!(
            "{} is neither an address nor a network; write 203.0.113.9 or 203.0.113.0/24",
            quoted(value)
        )),
        Err(error) => refuse(error.to_string()),
        // Values of other attributes are compared as they are.
        Ok(entry) if is_address || name.starts_with("request.") => match as_in_a_file(&written) {
            Some(mistake) => refuse(mistake.trim_start_matches("access.deny: ").to_owned()),
            None => Ok(entry),
        },
        Ok(entry) => Ok(entry),
    }
}

/// Says what is wrong with an entry with which no request is compared, as the file's reader does.
fn as_in_a_file(entry: &str) -> Option<String> {
    let file = format!(
        "version: 1\nclient_ip: {{ trusted_proxies: [] }}\naccess: {{ deny: [{}] }}\npolicies: []\n",
        Value::from(entry)
    );
    let mistakes = Config::parse(&file, "key", Format::Yaml).err()?;
    mistakes.into_iter().find(|one| one.severity == Severity::Error).map(|one| one.message)
}

/// Returns the attribute and value of an entry; of a network, the first address.
fn named_value(entry: &AccessEntry) -> (&str, String) {
    match entry {
        AccessEntry::Network(network) => ("client.ip", network.addr().to_string()),
        AccessEntry::Attribute { name, value } => (name, value.clone()),
    }
}

/// Returns an address in the form of a key: an IPv6 address as the network that shares its capacity.
fn key_address(set: &PolicySet, text: &str) -> String {
    match text.parse::<IpAddr>().map(canonical) {
        Ok(IpAddr::V6(address)) => {
            let length = set.ipv6_prefix();
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or_default();
            format!("{}/{length}", Ipv6Addr::from(u128::from(address) & mask))
        }
        Ok(address) => address.to_string(),
        Err(_) => text.to_owned(),
    }
}

/// `PUT /v1/keys/{policy}?client.ip=203.0.113.9`: blocks a key for a while; `{"block": null}` ends that and leaves
/// what it has spent.
pub(crate) async fn block(app: &App, request: Request<Body>, policy: &str) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let token = app.access.name_of(request.headers());
    let token = token.as_deref();
    let bytes = request_body::read(request, request_body::MAX_OPERATOR_BODY).await?;
    // After the body, which may take a while: the policy may change meanwhile.
    let live = app.decider.live();
    let (at, words) = find(&live.set, policy)?;
    let Some([lasts, reason]) = request_body::block(&bytes, EXAMPLE)? else {
        let key = key_of(&live, at, uri.query().unwrap_or_default())?;
        let unblocked = app.decider.keys.unblock(&words.name, &key).await;
        let unblocked = unblocked.map_err(|error| {
            let detail =
                format!("the store did not answer, and the key may still be blocked; try again ({error})");
            Problem::unavailable(detail)
        })?;
        let digest = app.redact.key(&live.set, words, &key, false);
        if unblocked {
            tracing::info!(token, policy = words.name, key = digest, "a key is unblocked");
            let told = || format!("{}: {digest} is no longer blocked", visible::name(&words.name));
            app.decider.tell_change("key", token.unwrap_or_default(), "", told);
        }
        let mut answer =
            json!({ "policy": words.name, "key": digest, "block": null, "unblocked": unblocked });
        // A block after the limit is in the engine.
        if !matches!(words.over, Over::Block { .. }) {
            of_this_node(app, &mut answer);
        }
        return Ok(json::shown(&answer));
    };
    let lasts = request_body::lasts(&lasts.unwrap_or_default(), NOT_A_TIME)?;
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
    let block =
        app.decider.keys.block(&words.name, &key, &text, lasts, &reason).map_err(|error| match error {
            BlockError::NoPolicy { .. } => Problem::not_found(error.to_string()),
            error => Problem::conflict(error.to_string()),
        })?;
    let digest = app.redact.text(&text, false);
    tracing::info!(
        token,
        policy = words.name,
        key = digest,
        reason,
        lasts_s = lasts.as_secs(),
        "a key is blocked"
    );
    app.decider.tell_change("key", token.unwrap_or_default(), &reason, || {
        format!("{}: {digest} is blocked for {} s", visible::name(&words.name), lasts.as_secs())
    });
    let network = requests::network_of(&live.set, &key);
    let mut answer = blocked(Some(&words.name), &digest, network, &block);
    of_this_node(app, &mut answer);
    Ok(json::shown(&answer))
}

/// Says of a block by hand that the other nodes that share the engine do not have it.
fn of_this_node(app: &App, answer: &mut Value) {
    if app.decider.storage.is_shared() {
        answer["nodes"] = "this".into();
    }
}

/// Returns the known keys of a policy: blocked ones first, then by refusals. The one key of a policy without `by`
/// is always known.
fn known(app: &App, live: &ActiveConfig, policy: usize) -> Vec<(String, KnownKey)> {
    let mut known: BTreeMap<String, KnownKey> = BTreeMap::new();
    let words = &live.set.policies()[policy];
    if words.by.is_empty() {
        known.insert(key_text(&live.set, words, &Descriptor::new()), KnownKey::default());
    }
    for block in app.decider.keys.blocks(&words.name) {
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
    let mut known: Vec<(String, KnownKey)> = known.into_iter().collect();
    // The sort is stable and the map sorted by text, so pages do not overlap while nothing changes.
    known.sort_by_key(|(_, one)| std::cmp::Reverse((one.block.is_some(), one.denied, one.near)));
    known
}

/// Parses a key, and the attributes that select its limits (its plan).
fn key_with_plan<'q>(live: &ActiveConfig, at: usize, query: &'q str) -> Result<Descriptor<'q>, Problem> {
    let policy = &live.set.policies()[at];
    let selects = |name: &str| {
        let mut choices =
            policy.deciding_limits().flat_map(|limit| limit.overrides.iter().chain(&limit.tiers));
        !policy.by.iter().any(|by| by == name) && choices.any(|choice| choice.by == name)
    };
    let (plan, key): (Vec<_>, Vec<_>) =
        form_urlencoded::parse(query.as_bytes()).partition(|(name, _)| selects(name));
    let key = requests::key_of(&live.set, at, key);
    let mut key =
        key.map_err(|wrong| Problem::bad_request(wrong.to_string()).with("key", policy.by.as_slice()))?;
    plan.into_iter().for_each(|(name, value)| key.push(name, value));
    Ok(key)
}

/// Returns the standing of a key under each limit; null if the store did not answer. A limit that depends on more
/// than the key says on what (`depends_on`). Where nodes share an engine, says of which nodes it is.
async fn standing(app: &App, live: &ActiveConfig, policy: usize, key: &Descriptor<'_>) -> Value {
    let standings = app.decider.keys.standings(live, policy, key).await;
    let Ok(standings) = standings else { return Value::Null };
    let (words, storage) = (&live.set.policies()[policy], &app.decider.storage);
    let nodes = storage.nodes_counted(words);
    let each = standings.into_iter().zip(limits_of(&live.set, policy, key)).map(|((limit, standing), of)| {
        let Some(standing) = standing else {
            let depends_on: Vec<&str> = missing(of, key).collect();
            return json!({ "limit": limit, "remaining": null, "depends_on": depends_on });
        };
        let mut shown = json!({
            "limit": limit,
            "remaining": standing.remaining,
            "most": standing.limit,
            "debt": standing.debt,
            "reset_after_ms": tidegate::http_answer::server_parts::millis_up(standing.reset_after),
        });
        if let Some(nodes) = nodes {
            shown["nodes"] = nodes.into();
        }
        let held = of.terms_for(key).quota.as_ref().and_then(|_| storage.held_at_most(words, &standing));
        if let Some(held) = held {
            shown["held_at_most"] = held.into();
        }
        shown
    });
    each.collect::<Vec<Value>>().into()
}

fn key_json(key: &str, known: &KnownKey, standing: &Value) -> Value {
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

/// Returns the answer to a block that was set. `network`: whom it refuses, if that is more than one address.
fn blocked(policy: Option<&str>, key: &str, network: Option<String>, block: &Block) -> Value {
    let mut answer = json!({ "policy": policy, "key": key, "block": block_json(block) });
    if let Some(network) = network {
        answer["network"] = network.into();
    }
    answer
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

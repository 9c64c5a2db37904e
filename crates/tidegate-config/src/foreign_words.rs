//! Answers words of other rate limiters with one line that works here.
//!
//! People write what they know: nginx's `burst=20 nodelay`, Traefik's `average`, Envoy's `requests_per_unit`, Kong's
//! `minute`, bucket4j's `capacity`, a `key`, a `status`. A word that is near none of this file's gets the line with the
//! author's own values.

use super::keys::{KINDS, OWN};
use super::names::{self, variable};
use super::node::{Node, Value};
use super::removed_keys;
use tidegate_gate::policy::{GrammarError, WrittenRate, span, whole_number};
use tidegate_limits::visible::excerpt;

/// Words for how many requests may pass in a period.
const COUNTS: [&str; 14] = [
    "max_value",
    "average",
    "requests_per_unit",
    "limitforperiod",
    "replenishrate",
    "requests",
    "count",
    "points",
    "max_requests",
    "maxrequests",
    "max",
    "limit",
    "tokens",
    "rate",
];
/// Words for how many units a bucket gets back in a period, by default a second.
const REFILLS: [&str; 8] = [
    "refill_rate",
    "refillrate",
    "refilltokens",
    "refill_tokens",
    "refill_amount",
    "fill_rate",
    "tokens_per_fill",
    "tokens_per_second",
];
/// Words for what a bucket holds.
const CAPACITIES: [&str; 6] =
    ["capacity", "bucket_size", "bucket_capacity", "bucketcapacity", "size", "max_size"];
/// Words for the period, each with whether a plain number is in milliseconds.
const PERIODS: [(&str, bool); 20] = [
    ("time", false),
    ("refill_interval", false),
    ("refillperiod", false),
    ("refill_period", false),
    ("period", false),
    ("unit", false),
    ("per", false),
    ("limitrefreshperiod", false),
    ("fill_interval", false),
    ("window", false),
    ("window_size", false),
    ("windowms", true),
    ("window_ms", true),
    ("interval", false),
    ("duration", false),
    ("seconds", false),
    ("time_window", false),
    ("timeframe", false),
    ("rate_interval", false),
    ("ttl", false),
];
/// Words for what may come at once.
const BURSTS: [&str; 7] =
    ["burst", "burstcapacity", "burst_size", "burst_capacity", "max_burst", "maxburst", "max_tokens"];
/// How many entries of a section are looked at: more than any limit has.
const MOST: usize = 64;
/// Kong's words: each is a limit of its own.
const UNITS: [(&str, &str); 6] =
    [("second", "s"), ("minute", "min"), ("hour", "h"), ("day", "day"), ("month", "month"), ("year", "year")];

/// Returns the end of the message about an unknown key: the line to write instead. `None` if the word is nobody's, or a
/// typing error.
pub(super) fn instead(section: &str, key: &str, value: &Node, whole: &Node) -> Option<String> {
    let lower = key.to_ascii_lowercase();
    if let Some(now) = removed_keys::instead(section, &lower, value, whole) {
        return Some(now);
    }
    if matches!(section, "file" | "policy")
        && let Some(line) = listed(&lower, value)
    {
        return Some(format!("; write access: {{ {line} }}"));
    }
    match section {
        "file" => of_file(&lower, value),
        "server" => matches!(lower.as_str(), "port" | "listen" | "bind" | "address" | "addr")
            .then(|| format!("; write http: {}", port(value))),
        "policy" => of_policy(&lower, value, whole),
        "limit" | "shadow_limit" | "canary.limit" | "rate" => of_limit(&lower, value, whole),
        "deny" => match lower.as_str() {
            "status_code" | "code" | "http_status" => {
                Some(format!("; write status: {}", shown(value, "429")))
            }
            "message" | "body" | "text" | "title" | "detail" => Some(NO_MESSAGE.to_owned()),
            _ => None,
        },
        "access" => listed(&lower, value).map(|line| format!("; write {line}")),
        "store" if matches!(lower.as_str(), "type" | "backend" | "engine" | "driver" | "provider") => {
            let text = value.text().map_or("", |text| same_word(text).unwrap_or(text));
            let kind = KINDS.iter().find(|kind| kind.eq_ignore_ascii_case(text)).unwrap_or(&"redis");
            Some(format!("; write kind: {kind}"))
        }
        "store" => {
            let is_address = matches!(
                lower.as_str(),
                "addr" | "address" | "host" | "hostname" | "uri" | "endpoint" | "port" | "server"
            );
            is_address.then(|| format!("; write url: \"{}\"", store_url(whole)))
        }
        "match" | "not" => of_methods(key, value, whole).or_else(|| of_match(&lower, value)),
        _ => None,
    }
}

fn listed(key: &str, value: &Node) -> Option<String> {
    Some(match key {
        "whitelist" | "allowlist" | "allow_list" | "allow" | "bypass" | "exempt" => {
            format!("allow: {}", list(value, "10.0.0.0/8"))
        }
        "blacklist" | "denylist" | "deny_list" | "blocklist" => {
            format!("deny: {}", list(value, "192.0.2.0/24"))
        }
        "deny" if are_networks(value) => format!("deny: {}", list(value, "192.0.2.0/24")),
        "except" | "unless" | "exclude" | "excluding" | "not" if are_networks(value) => {
            format!("allow: {}", list(value, "10.0.0.0/8"))
        }
        _ => return None,
    })
}

const NO_MESSAGE: &str = "; a refusal is a problem document, whose text says what is left and when to come back; write problem: quota-exceeded, \
     or a URI of your own";

fn of_file(key: &str, value: &Node) -> Option<String> {
    Some(match key {
        "rules" | "limits" | "limiters" | "rate_limits" | "ratelimits" => {
            "; write policies:, a list of - { name: api, limit: { rate: 10/s } }".to_owned()
        }
        "port" | "listen" | "bind" | "address" | "http" => {
            format!("; write server: {{ http: {} }}", port(value))
        }
        "redis" => {
            let url =
                value.text().filter(|text| text.starts_with("redis")).unwrap_or("redis://localhost:6379");
            format!("; write store: {{ kind: redis, url: \"{}\", nodes: 2 }}", excerpt(url))
        }
        "trusted_proxies" | "trust_proxy" | "proxies" | "real_ip" | "set_real_ip_from" => {
            format!("; write client_ip: {{ trusted_proxies: {} }}", list(value, "10.0.0.0/8"))
        }
        "mode" | "near_limit" | "headers" => {
            format!("; write defaults: {{ {key}: {} }}", shown(value, "shadow"))
        }
        _ => return None,
    })
}

fn store_url(store: &Node) -> String {
    let text = |names: &[&str]| names.iter().find_map(|name| word(store, name));
    let address =
        text(&["addr", "address", "uri", "endpoint", "host", "hostname", "server"]).unwrap_or("localhost");
    if address.contains("://") {
        return excerpt(address);
    }
    let (scheme, usual) = match text(&["kind"]) {
        Some("etcd") => ("http", "2379"),
        Some("zookeeper") => ("zookeeper", "2181"),
        _ => ("redis", "6379"),
    };
    let address = match text(&["port"]) {
        Some(port) if !address.contains(':') => format!("{address}:{port}"),
        None if !address.contains(':') => format!("{address}:{usual}"),
        _ => address.to_owned(),
    };
    excerpt(&format!("{scheme}://{address}"))
}

/// Returns the map for a store that is one text: an address, or the word for its kind.
pub(super) fn store(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let word = same_word(text).unwrap_or(&lower);
    let kind = KINDS.iter().find(|kind| word.starts_with(**kind))?;
    let url = match *kind {
        _ if text.contains("://") => format!("\"{}\"", excerpt(text)),
        own if KINDS[..OWN].contains(&own) => return (word == own).then(|| format!("{{ kind: {own} }}")),
        "etcd" => "http://127.0.0.1:2379".to_owned(),
        "zookeeper" => "zookeeper://127.0.0.1:2181".to_owned(),
        _ => "redis://127.0.0.1:6379".to_owned(),
    };
    Some(format!("{{ kind: {kind}, url: {url}, nodes: 2 }}"))
}

fn of_match(key: &str, value: &Node) -> Option<String> {
    Some(match key {
        "prefix" | "path_prefix" | "pathprefix" | "starts_with" | "startswith" | "location" => {
            format!("; write path: {}", paths(value, names::below))
        }
        "regex" | "path_regex" | "pathregex" | "regexp" | "path_regexp" => {
            format!(
                "; write path: {}",
                paths(value, |text| names::path_meant(text).unwrap_or_else(|| text.to_owned()))
            )
        }
        "paths" | "uri" | "url" | "route" | "routes" | "exact" | "endpoint" | "request.path" => {
            format!("; write path: {}", shown_all(value, "/api/**"))
        }
        "methods" | "verb" | "verbs" | "request.method" => {
            format!("; write method: {}", shown_all(value, "POST"))
        }
        "hosts" | "domain" | "domains" | "hostname" | "request.host" => {
            format!("; write host: {}", patterns(value, "api.example.com"))
        }
        "headers" => {
            let first = value
                .entries()
                .first()
                .map(|(name, of)| format!("{}: {}", excerpt(&name.text), patterns(of, "true")));
            format!("; write header: {{ {} }}", first.unwrap_or_else(|| "x-name: true".to_owned()))
        }
        "when" | "mode" | "by" | "limit" => format!("; it belongs to the policy: write {key}: beside match:"),
        "except" | "unless" | "exclude" | "excluding" => "; write not: { path: /health }".to_owned(),
        "ip" | "ips" | "source_ip" | "remote_addr" | "cidr" | "client_ip" | "client.ip" => {
            network_meant(value)
        }
        key if key.starts_with(names::HEADER) => {
            let header = key.trim_start_matches(names::HEADER);
            format!("; write header: {{ {}: {} }}", excerpt(header), patterns(value, "true"))
        }
        key if tidegate_gate::policy::name_meant(key).is_some() || key.contains('.') => {
            let name = tidegate_gate::policy::name_meant(key).unwrap_or(key);
            format!("; write attributes: {{ {}: {} }}", excerpt(name), patterns(value, "true"))
        }
        _ => return None,
    })
}

/// Returns what to write for a match of addresses: its patterns are texts, so only networks of whole bytes can be
/// written.
fn network_meant(value: &Node) -> String {
    let patterns: Option<Vec<String>> =
        value.each().iter().map(|node| address_pattern(node.text()?)).collect();
    match patterns.as_deref() {
        Some([one]) => format!("; write attributes: {{ client.ip: \"{one}\" }}"),
        Some(several @ [_, ..]) => {
            format!("; write attributes: {{ client.ip: [\"{}\"] }}", several.join("\", \""))
        }
        _ => format!(
            "; a match compares addresses as texts, as attributes: {{ client.ip: \"10.*\" }}; exempt networks by access: {{ allow: {} }}",
            list(value, "10.0.0.0/8")
        ),
    }
}

pub(super) fn address_pattern(text: &str) -> Option<String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    let ipnet::IpNet::V4(network) = text.parse::<ipnet::IpNet>().ok()? else { return None };
    let bytes = network.addr().octets();
    let whole = matches!(network.prefix_len(), 8 | 16 | 24).then(|| usize::from(network.prefix_len() / 8))?;
    let begin: Vec<String> = bytes[..whole].iter().map(ToString::to_string).collect();
    Some(format!("{}.*", begin.join(".")))
}

fn paths(value: &Node, meant: impl Fn(&str) -> String) -> String {
    let texts: Vec<_> =
        value.each().iter().filter_map(Node::text).take(8).map(|text| excerpt(&meant(text))).collect();
    match (&value.value, texts.as_slice()) {
        (_, []) => "/api/**".to_owned(),
        (Value::List(_), texts) => format!("[{}]", texts.join(", ")),
        (_, texts) => texts[0].clone(),
    }
}

/// Returns the match for a list of matches. Alternatives of one kind are one list.
pub(super) fn match_of_list(node: &Node) -> Option<String> {
    let (mut all, mut methods, mut others) = (Vec::new(), Vec::new(), 0);
    for one in node.each().iter().take(MOST) {
        let path = one.text().filter(|text| text.starts_with('/'));
        let only = |key: &str| one.get(key).filter(|_| one.entries().len() == 1);
        if let Some(path) = path {
            all.push(excerpt(path));
        } else if let Some(path) = only("path") {
            all.extend(path.each().iter().filter_map(Node::text).map(excerpt));
        } else if let Some(prefix) = only("prefix") {
            all.extend(prefix.each().iter().filter_map(Node::text).map(|text| excerpt(&names::below(text))));
        } else if let Some(method) = only("method") {
            methods.extend(method.each().iter().filter_map(Node::text).map(excerpt));
        } else {
            others += 1;
        }
    }
    let (meant, rest) = match (all.is_empty(), methods.is_empty()) {
        (false, _) => (format!("{{ path: [{}] }}", all.join(", ")), others + methods.len()),
        (true, false) => (format!("{{ method: [{}] }}", methods.join(", ")), others),
        (true, true) => return None,
    };
    Some(match rest {
        0 => meant,
        1 => format!("{meant}, and a second policy for the other one"),
        rest => format!("{meant}, and a policy for each of the other {rest}"),
    })
}

/// Answers a method behind a comma, as in `{ method: GET,POST }`, which YAML reads as a key without a value.
fn of_methods(key: &str, value: &Node, whole: &Node) -> Option<String> {
    let is_method = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_behind = |text: &str, of: &Node| of.value == Value::Null && is_method(text);
    if !is_behind(key, value) {
        return None;
    }
    let first = whole.get("method")?.each().iter().filter_map(Node::text);
    let behind = whole.entries().iter().filter(|(name, of)| is_behind(&name.text, of));
    let behind = behind.map(|(name, _)| name.text.as_str());
    let methods: Vec<_> = first.chain(behind).take(MOST).map(excerpt).collect();
    Some(format!("; write method: [{}]", methods.join(", ")))
}

pub(super) fn several_rates(node: &Node) -> String {
    let rates: Option<Vec<_>> = node.each().iter().take(8).map(|one| rate(one.text()?)).collect();
    match rates.as_deref() {
        None | Some([]) => String::new(),
        Some([rate]) => format!("; write rate: {rate}"),
        Some(rates) => format!("; {}", limits_of(rates)),
    }
}

fn limits_of(rates: &[WrittenRate]) -> String {
    let limits: Vec<_> = rates.iter().map(|rate| format!("{{ rate: {rate} }}")).collect();
    format!("write limit: [{}]", limits.join(", "))
}

fn of_policy(key: &str, value: &Node, whole: &Node) -> Option<String> {
    let limit = |node: &Node| limit_meant(node).unwrap_or_else(|| "{ rate: 10/s }".to_owned());
    Some(match key {
        "rate_by" | "rates" | "otherwise" | "rate" if whole.get("rates").is_some() => {
            removed_keys::rates(whole, |rate| format!("; {key} belongs to the limit; write limit: {}", limit_with(whole, rate)))
        }
        "key" | "keys" | "key_by" | "rate_by" | "group_by" | "per" | "limit_by" | "descriptor" | "descriptors" | "identifier" => {
            format!("; write by: {}", attribute(value))
        }
        "status" | "status_code" | "code" | "http_status" | "rejected_code" => {
            format!("; write deny: {{ status: {} }}", shown(value, "429"))
        }
        "message" | "body" | "error_message" | "rejected_msg" => NO_MESSAGE.replace("write problem: quota-exceeded", "write deny: { problem: quota-exceeded }"),
        "rate" | "burst" | "algorithm" | "requests" | "average" | "requests_per_unit" | "count" | "capacity" | "window"
        | "period" | "interval" | "max_wait" | "unit" | "second" | "minute" | "hour" | "limitforperiod" => {
            match whole.get("limit") {
                Some(_) => format!("; {key} belongs to the limit; write limit: {}", limit_with(whole, &rate_with(whole))),
                None => match several_units(whole) {
                    Some(several) => format!("; {several}"),
                    None => format!("; write limit: {}", limit_line(whole)),
                },
            }
        }
        "rate_limit" | "ratelimit" | "ratelimits" | "rate_limits" | "limit_req" | "local_rate_limit" | "quota" => {
            format!("; write limit: {}", scalar_limit(value).unwrap_or_else(|| limit(value)))
        }
        "overrides" => {
            format!("; it belongs to the limit: write limit: {{ rate: 10/s, overrides: {} }}", override_meant(value))
        }
        "tiers" | "plans" => format!("; it belongs to the limit: write limit: {}", tiers(value)),
        "prefix" | "path_prefix" | "pathprefix" | "location" => {
            format!("; write match: {{ path: {} }}", paths(value, names::below))
        }
        "regex" | "path_regex" | "path" | "paths" | "route" | "routes" | "uri" | "url" | "endpoint" => {
            let meant = |text: &str| names::path_meant(text).unwrap_or_else(|| text.to_owned());
            format!("; write match: {{ path: {} }}", paths(value, meant))
        }
        "max_value" | "seconds" | "max_burst" | "size" | "refill_rate" => {
            format!("; write limit: {}", limit_line(whole))
        }
        "namespace" => format!("; write match: {{ attributes: {{ rls.domain: {} }} }}", shown(value, "api")),
        "variables" => format!("; write by: {}", attribute(value)),
        "conditions" => {
            "; write match: { method: POST }, or translate the file by tidegate init --from-limitador FILE".to_owned()
        }
        "timezone" | "time_zone" | "tz" => {
            format!("; it belongs to the limit: write limit: {{ rate: 1000/day, algorithm: fixed-window, calendar: {} }}", shown(value, "UTC"))
        }
        "method" | "methods" => format!("; write match: {{ method: {} }}", shown_all(value, "POST")),
        "host" | "hosts" | "domain" => format!("; write match: {{ host: {} }}", patterns(value, "api.example.com")),
        "header" | "headers" | "attributes" => {
            let part = if key == "attributes" { key } else { "header" };
            format!("; write match: {{ {part}: {{ x-name: value }} }}")
        }
        "except" | "unless" | "exclude" | "excluding" | "not" => {
            "; write match: { not: { path: /health } }".to_owned()
        }
        "dry_run" | "dryrun" | "shadow" | "shadow_mode" | "log_only" | "report_only" | "monitor" => {
            "; write mode: shadow".to_owned()
        }
        "enabled" | "disabled" => {
            let off = (key == "enabled") == (value.value == Value::Bool(false));
            format!("; write mode: {}", if off { "off" } else { "enforce" })
        }
        "weight" | "hits" | "hits_addend" | "tokens" | "requestedtokens" => {
            format!("; write cost: {}", shown(value, "5"))
        }
        "retry_after" => "; leave it out: a refusal says by itself when to come back".to_owned(),
        "max_connections" | "max_concurrent" | "max_concurrency" | "concurrent" | "maxconn" => {
            format!("; write limit: {{ algorithm: concurrency, max: {} }}", shown(value, "10"))
        }
        "timeout" => "; write deadline: 2s for the time that a request needs, or limit: { rate: 10/s, max_wait: 2s } for how long it may wait".to_owned(),
        _ => return None,
    })
}

fn of_limit(key: &str, value: &Node, whole: &Node) -> Option<String> {
    Some(match key {
        "timezone" | "time_zone" | "tz" | "zone_name" => {
            let rate = word(whole, "rate")
                .and_then(rate)
                .map_or_else(|| "1000/day".to_owned(), |rate| rate.to_string());
            format!(
                "; write limit: {{ rate: {rate}, algorithm: fixed-window, calendar: {} }}",
                shown(value, "UTC")
            )
        }
        "nodelay" => "; leave it out: without max_wait no request is delayed".to_owned(),
        "delay" | "timeoutduration" | "timeout" | "max_delay" | "wait" => {
            let time =
                value.text().and_then(time).filter(|text| span(text).is_ok_and(|span| !span.is_zero()));
            match time {
                Some(time) => format!("; write max_wait: {time}"),
                None => "; leave it out, or write max_wait: 2s for requests that wait".to_owned(),
            }
        }
        "concurrency" | "max_connections" | "max_concurrent" | "max_concurrency" | "concurrent"
        | "in_flight" | "maxconn" | "maxconcurrentcalls" => {
            format!("; write limit: {{ algorithm: concurrency, max: {} }}", shown(value, "10"))
        }
        "tiers" | "plans" => format!("; write limit: {}", tiers(value)),
        "key" | "by" | "zone" => format!("; it belongs to the policy: write by: {}", attribute(value)),
        "status" | "status_code" | "code" => {
            format!("; it belongs to the policy: write deny: {{ status: {} }}", shown(value, "429"))
        }
        "cost" | "mode" | "match" | "deny" | "access" | "over" | "when" => {
            format!("; it belongs to the policy: write {key}: beside limit:")
        }
        _ => {
            let known = COUNTS.contains(&key)
                || BURSTS.contains(&key)
                || CAPACITIES.contains(&key)
                || REFILLS.contains(&key)
                || PERIODS.iter().any(|(word, _)| *word == key)
                || UNITS.iter().any(|(word, _)| *word == key)
                || matches!(key, "token_bucket" | "requestedtokens" | "http_req_rate");
            let counts = matches!(word(whole, "algorithm"), Some("concurrency" | "adaptive"));
            return known.then(|| match (whole_word(value), several_units(whole)) {
                (Some(most), _) if counts && COUNTS.contains(&key) => {
                    let algorithm = word(whole, "algorithm").unwrap_or("concurrency");
                    format!("; write limit: {{ algorithm: {algorithm}, max: {most} }}")
                }
                (_, Some(several)) => format!("; {several}"),
                _ => format!("; write limit: {}", limit_line(whole)),
            });
        }
    })
}

/// Returns the remark about a key whose value is the period of a rate: `window: 1m`.
pub(super) fn period_beside_rate(key: &str, whole: &Node) -> Option<String> {
    if !PERIODS.iter().any(|(word, _)| *word == key) {
        return None;
    }
    let written = whole.text_of("rate").and_then(|text| text.parse::<WrittenRate>().ok());
    match (written, limit_meant(whole)) {
        (Some(rate), _) => {
            Some(format!("the time stands in the rate; leave {key} out and write rate: {rate}"))
        }
        (None, Some(meant)) => Some(format!("the time stands in the rate; write limit: {meant}")),
        (None, None) => None,
    }
}

const SAME: [(&str, &str); 29] = [
    ("valkey", "redis"),
    ("keydb", "redis"),
    ("dragonfly", "redis"),
    ("in-memory", "memory"),
    ("inmemory", "memory"),
    ("ram", "memory"),
    ("file", "disk"),
    ("sqlite", "disk"),
    ("on", "enforce"),
    ("true", "enforce"),
    ("enabled", "enforce"),
    ("dry-run", "shadow"),
    ("dryrun", "shadow"),
    ("log", "shadow"),
    ("monitor", "shadow"),
    ("disabled", "off"),
    ("false", "off"),
    ("log-only", "shadow"),
    ("report", "shadow"),
    ("report-only", "shadow"),
    ("audit", "shadow"),
    ("observe", "shadow"),
    ("open", "allow"),
    ("fail-open", "allow"),
    ("fail-closed", "deny"),
    ("closed", "deny"),
    // Bucket4j
    ("greedy", "continuous"),
    ("intervally", "interval"),
    ("intervally-aligned", "aligned"),
];

pub(super) fn same_word(text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase().replace('_', "-");
    SAME.iter().find(|(word, _)| *word == lower).map(|(_, same)| *same)
}

/// Returns the map for a limit that is a single text: `10r/s`, `rate=10r/s burst=20 nodelay`.
pub(super) fn scalar_limit(node: &Node) -> Option<String> {
    let text = node.text()?.trim();
    if let Some(rate) = rate(text) {
        return Some(format!("{{ rate: {rate} }}"));
    }
    if let Ok(count) = whole_number(text) {
        return (count > 0).then(|| format!("{{ rate: {count}/s }} or {{ rate: {count}/min }}"));
    }
    let word = |name: &str| {
        text.split_ascii_whitespace()
            .find_map(|word| word.trim_end_matches(';').strip_prefix(name)?.strip_prefix('='))
    };
    let burst = word("burst").and_then(|burst| whole_number(burst).ok()).filter(|burst| *burst > 0);
    match (word("rate").and_then(rate), burst) {
        (Some(rate), Some(burst)) => Some(format!("{{ rate: {rate}, burst: {burst} }}")),
        (Some(rate), None) => Some(format!("{{ rate: {rate} }}")),
        (None, Some(burst)) => Some(format!("{{ rate: 10/s, burst: {burst} }}")),
        (None, None) => None,
    }
}

fn rate(text: &str) -> Option<WrittenRate> {
    match text.parse::<WrittenRate>() {
        Ok(rate) => Some(rate),
        Err(GrammarError::OtherForm { rate, .. }) => Some(rate),
        Err(_) => None,
    }
}

/// Returns a value by a word, whatever the case of its letters.
fn word<'n>(node: &'n Node, word: &str) -> Option<&'n str> {
    node.entries().iter().take(MOST).find(|(name, _)| name.text.eq_ignore_ascii_case(word))?.1.text()
}

pub(super) fn count(node: &Node) -> Option<u64> {
    COUNTS.iter().find_map(|name| whole_number(word(node, name)?).ok()).filter(|count| *count > 0)
}

fn whole_word(node: &Node) -> Option<u64> {
    whole_number(node.text()?).ok().filter(|count| *count > 0)
}

/// Returns the line for the words of Kong, if there are several.
fn several_units(node: &Node) -> Option<String> {
    let of = |(name, unit): &(&str, &str)| {
        let count = whole_number(word(node, name)?).ok().filter(|count| *count > 0)?;
        format!("{count}/{unit}").parse::<WrittenRate>().ok()
    };
    let rates: Vec<_> = UNITS.iter().filter_map(of).collect();
    (rates.len() > 1).then(|| limits_of(&rates))
}

/// Returns the limit to write, with the numbers that were written.
fn limit_line(node: &Node) -> String {
    if let Some(meant) = limit_meant(node) {
        return meant;
    }
    let whole = |name: &&str| whole_number(word(node, name)?).ok().filter(|count| *count > 0);
    let count = COUNTS.iter().chain(&REFILLS).find_map(whole);
    let burst = BURSTS.iter().chain(&CAPACITIES).find_map(whole);
    match (count, burst, word(node, "unit")) {
        (Some(count), _, Some(unit)) => {
            format!(
                "{{ rate: {count}/day }}: \"{}\" is no unit; there are s, min, h, day, week, month and year",
                excerpt(unit)
            )
        }
        (Some(count), ..) => format!("{{ rate: {count}/s }} or {{ rate: {count}/min }}"),
        (None, Some(burst), _) => format!("{{ rate: 10/s, burst: {burst} }}"),
        (None, None, _) => "{ rate: 10/s, burst: 20 }".to_owned(),
    }
}

/// Returns the limit that is meant, if it is whole.
fn limit_meant(node: &Node) -> Option<String> {
    if let Some(bucket) = node.get("token_bucket") {
        return limit_meant(bucket);
    }
    let whole = |text: &str| whole_number(text).ok().filter(|count| *count > 0);
    let found =
        |names: &[&str]| names.iter().find_map(|name| Some((name.to_string(), whole(word(node, name)?)?)));
    let stated = word(node, "rate").and_then(rate);
    let of_unit =
        || UNITS.iter().find_map(|(name, unit)| format!("{}/{unit}", whole(word(node, name)?)?).parse().ok());
    let period = || {
        let of_word = PERIODS.iter().find_map(|(name, is_millis)| {
            let text = word(node, name)?;
            match whole(text) {
                Some(number) => Some(format!("{number}{}", if *is_millis { "ms" } else { "s" })),
                None => time(text),
            }
        });
        match (word(node, "time").and_then(whole), word(node, "unit")) {
            (Some(times), Some(unit)) => Some(format!("{times}{unit}")),
            _ => of_word,
        }
    };
    let per = |count: u64, period: String| rate(&format!("{count}/{}", period.to_ascii_lowercase()));
    let refilled = || {
        let as_rate = REFILLS.iter().find_map(|name| rate(word(node, name)?));
        as_rate.or_else(|| per(found(&REFILLS)?.1, period().unwrap_or_else(|| "s".to_owned())))
    };
    let counted = || {
        let (name, count) = found(&COUNTS).or_else(|| found(&CAPACITIES))?;
        // Without a period, these two count per second.
        let second = || matches!(&*name, "average" | "replenishrate").then(|| "s".to_owned());
        per(count, period().or_else(second)?)
    };
    let bucket = stated.or_else(refilled);
    let is_bucket = bucket.is_some();
    let rate: WrittenRate = tidied(bucket.or_else(of_unit).or_else(counted)?);
    // Beside a rate, a capacity is what may come at once.
    let burst = found(&BURSTS).or_else(|| is_bucket.then(|| found(&CAPACITIES)).flatten());
    Some(match burst {
        Some((_, burst)) => format!("{{ rate: {rate}, burst: {burst} }}"),
        None => format!("{{ rate: {rate} }}"),
    })
}

/// Returns a rate with its period in the largest unit that divides it.
fn tidied(rate: WrittenRate) -> WrittenRate {
    let (WrittenRate::Per { count, .. }, Some(period)) = (rate, rate.period()) else { return rate };
    let units = [("day", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let seconds = period.as_secs();
    let largest =
        units.into_iter().find(|(_, length)| period.subsec_nanos() == 0 && seconds.is_multiple_of(*length));
    let written = largest.and_then(|(unit, length)| match seconds / length {
        1 => format!("{count}/{unit}").parse().ok(),
        times => format!("{count}/{times}{unit}").parse().ok(),
    });
    written.unwrap_or(rate)
}

/// Returns the rate of a policy's limit, or the one that stands beside it.
fn rate_with(policy: &Node) -> String {
    let of_limit = policy.get("limit").and_then(|limit| word(limit, "rate"));
    let rate = of_limit.or_else(|| word(policy, "rate")).and_then(rate);
    rate.map_or_else(|| "10/s".to_owned(), |rate| rate.to_string())
}

/// Returns the limit of a policy at this rate, with the words that stand beside it.
fn limit_with(policy: &Node, rate: &str) -> String {
    let limit = policy.get("limit");
    let text = |key: &str| policy.get(key).or_else(|| limit?.get(key)).and_then(Node::text);
    let rest: Vec<_> = ["algorithm", "burst", "max_wait"]
        .into_iter()
        .filter_map(|key| Some(format!(", {key}: {}", excerpt(text(key)?))))
        .collect();
    format!("{{ rate: {rate}{} }}", rest.concat())
}

/// Reads a time of another system: `PT1M`, `minute`, `1m`.
fn time(text: &str) -> Option<String> {
    let text = text.trim();
    let iso = text.strip_prefix("PT").or_else(|| text.strip_prefix("pt"));
    Some(iso.unwrap_or(text).to_ascii_lowercase()).filter(|text| !text.is_empty() && text.len() < 20)
}

fn tiers(value: &Node) -> String {
    let rates: Vec<_> = value
        .entries()
        .iter()
        .filter_map(|(name, value)| {
            Some(format!("{}: {}", excerpt(&name.text), value.text().and_then(rate)?))
        })
        .take(4)
        .collect();
    let rates = if rates.is_empty() { "gold: 100/s".to_owned() } else { rates.join(", ") };
    format!("{{ rate: {{ by: user.tier, values: {{ {rates} }}, otherwise: 1/s }} }}")
}

pub(super) fn override_meant(value: &Node) -> String {
    let first = match &value.value {
        Value::List(entries) => entries.first(),
        _ => None,
    };
    if let Some(first) = first
        && let Some((name, of)) = first.get("key").and_then(|key| key.entries().first())
    {
        let rate = first.text_of("rate").and_then(rate);
        let rate = rate.map_or_else(|| "100/s".to_owned(), |rate| rate.to_string());
        return format!("[{{ key: {{ {}: {} }}, rate: {rate} }}]", excerpt(&name.text), shown(of, "vip"));
    }
    match value.entries().first() {
        Some((name, of)) if of.text().and_then(rate).is_some() => {
            let rate = of.text().and_then(rate).map_or_else(String::new, |rate| rate.to_string());
            let attribute =
                if name.text.parse::<std::net::IpAddr>().is_ok() { "client.ip" } else { "user.id" };
            format!("[{{ key: {{ {attribute}: {} }}, rate: {rate} }}]", excerpt(&name.text))
        }
        _ => "[{ key: { user.id: vip }, rate: 100/s }]".to_owned(),
    }
}

pub(super) fn attribute(value: &Node) -> String {
    let header =
        |name: &str| format!("[request.header.{}]", excerpt(&name.to_ascii_lowercase().replace('_', "-")));
    if let Some((name, value)) = value.entries().first()
        && let Some(of) = value.text()
        && name.text.to_ascii_lowercase().starts_with("header")
    {
        return header(of);
    }
    let names: Vec<_> = value.each().iter().filter_map(Node::text).take(4).map(attribute_name).collect();
    match names.as_slice() {
        [] => "[client.ip]".to_owned(),
        names => format!("[{}]", names.join(", ")),
    }
}

fn attribute_name(text: &str) -> String {
    let text = text.trim();
    let of_header = || names::header_meant(text).or_else(|| names::bare_variable(text));
    let of_short = || tidegate_gate::policy::name_meant(text).map(str::to_owned);
    if let Some(name) = variable(text).or_else(of_short).or_else(of_header) {
        return name;
    }
    let is_name = text.contains('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if is_name { text.to_owned() } else { "client.ip".to_owned() }
}

pub(super) fn are_networks(value: &Node) -> bool {
    let is_network = |node: &Node| {
        let text = node.text().unwrap_or_default();
        text.parse::<ipnet::IpNet>().is_ok() || text.parse::<std::net::IpAddr>().is_ok()
    };
    !value.each().is_empty() && value.each().iter().all(is_network)
}

fn port(value: &Node) -> String {
    match value.text().map(|text| text.trim_start_matches(['*', ':'])) {
        Some(text) if text.parse::<super::Address>().is_ok() => text.to_owned(),
        _ => "8080".to_owned(),
    }
}

fn shown(value: &Node, otherwise: &str) -> String {
    value.text().map_or_else(|| otherwise.to_owned(), excerpt)
}

fn shown_all(value: &Node, otherwise: &str) -> String {
    match &value.value {
        Value::List(_) => list(value, otherwise),
        _ => shown(value, otherwise),
    }
}

/// Returns a pattern or a list of them, in quotes where YAML would read it otherwise, as `*`.
fn patterns(value: &Node, otherwise: &str) -> String {
    let quoted = |text: &str| {
        let is_read_otherwise = text.is_empty()
            || text.starts_with(|first: char| "*&!|>%@`?~-'\"# ".contains(first))
            || text.contains([',', '[', ']', '{', '}', '#'])
            || text.contains(": ")
            || text.ends_with([':', ' ']);
        // Of its escapes, YAML does not know that of a single quote.
        let shown = excerpt(text);
        if is_read_otherwise { format!("\"{}\"", shown.replace("\\'", "'")) } else { shown }
    };
    let texts: Vec<_> = value.each().iter().filter_map(Node::text).take(8).map(quoted).collect();
    match (&value.value, texts.as_slice()) {
        (Value::List(_), [_, ..]) => format!("[{}]", texts.join(", ")),
        (Value::List(_), []) => format!("[{otherwise}]"),
        (_, texts) => texts.first().cloned().unwrap_or_else(|| otherwise.to_owned()),
    }
}

pub(super) fn list(value: &Node, otherwise: &str) -> String {
    let texts: Vec<_> = value.each().iter().filter_map(Node::text).take(8).map(excerpt).collect();
    if texts.is_empty() { format!("[{otherwise}]") } else { format!("[{}]", texts.join(", ")) }
}

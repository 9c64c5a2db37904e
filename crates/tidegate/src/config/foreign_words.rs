//! Answers words of other rate limiters with one line that works here.
//!
//! People write what they know: nginx's `rate=10r/s burst=20 nodelay`, Traefik's `average` and `period`, Envoy's
//! `requests_per_unit`, Kong's `minute`, bucket4j's `capacity`, Resilience4j's `limitForPeriod`, a `key`, a `status`. A
//! word that is near none of this file's gets the line with the author's own values, as far as they say what is meant.

use super::names::variable;
use super::node::{Node, Value};
use crate::policy::{GrammarError, WrittenRate, span, whole_number};
use crate::visible::excerpt;

/// Words for how many requests may pass in a period.
const COUNTS: [&str; 16] = [
    "average",
    "requests_per_unit",
    "limitforperiod",
    "replenishrate",
    "tokens_per_fill",
    "requests",
    "count",
    "capacity",
    "points",
    "max_requests",
    "maxrequests",
    "max",
    "limit",
    "tokens",
    "refill_rate",
    "rate",
];
/// Words for the period, each with whether a plain number is in milliseconds rather than seconds.
const PERIODS: [(&str, bool); 16] = [
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
const BURSTS: [&str; 4] = ["burst", "burstcapacity", "burst_size", "max_tokens"];
/// How many entries of a section are looked at: more than any limit has.
const MOST: usize = 64;
/// Kong's words: each is a limit of its own.
const UNITS: [(&str, &str); 6] =
    [("second", "s"), ("minute", "min"), ("hour", "h"), ("day", "day"), ("month", "month"), ("year", "year")];

/// Returns the end of the message about a key that a section does not have: the line to write instead. `None` if the
/// word is nobody's, or a typing error.
pub(super) fn instead(section: &str, key: &str, value: &Node, whole: &Node) -> Option<String> {
    let lower = key.to_ascii_lowercase();
    match section {
        "file" => of_file(&lower, value),
        "server" => matches!(lower.as_str(), "port" | "listen" | "bind" | "address" | "addr")
            .then(|| format!("; write http: {}", port(value))),
        "policy" => of_policy(&lower, value, whole),
        "limit" | "shadow_limit" => of_limit(&lower, value, whole),
        "deny" => match lower.as_str() {
            "status_code" | "code" | "http_status" => {
                Some(format!("; write status: {}", shown(value, "429")))
            }
            "message" | "body" | "text" | "title" | "detail" => Some(NO_MESSAGE.to_owned()),
            _ => None,
        },
        "access" => match lower.as_str() {
            "whitelist" | "allowlist" | "allow_list" => {
                Some(format!("; write allow: {}", list(value, "10.0.0.0/8")))
            }
            "blacklist" | "denylist" | "deny_list" | "blocklist" => {
                Some(format!("; write deny: {}", list(value, "192.0.2.0/24")))
            }
            _ => None,
        },
        "store" => matches!(lower.as_str(), "addr" | "address" | "host" | "uri" | "endpoint")
            .then(|| "; write url: redis://localhost:6379".to_owned()),
        _ => None,
    }
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

fn of_policy(key: &str, value: &Node, whole: &Node) -> Option<String> {
    let limit = |node: &Node| limit_meant(node).unwrap_or_else(|| "{ rate: 10/s }".to_owned());
    Some(match key {
        "key" | "keys" | "key_by" | "group_by" | "per" | "limit_by" | "descriptor" | "descriptors" | "identifier" => {
            format!("; write by: {}", attribute(value))
        }
        "status" | "status_code" | "code" | "http_status" | "rejected_code" => {
            format!("; write deny: {{ status: {} }}", shown(value, "429"))
        }
        "message" | "body" | "error_message" | "rejected_msg" => NO_MESSAGE.replace("write problem: quota-exceeded", "write deny: { problem: quota-exceeded }"),
        "rate" | "burst" | "algorithm" | "requests" | "average" | "requests_per_unit" | "count" | "capacity" | "window"
        | "period" | "interval" | "max_wait" | "unit" | "second" | "minute" | "hour" | "limitforperiod" => {
            match whole.get("limit") {
                Some(_) => format!("; {key} belongs to the limit; write limit: {}", limit_with(whole)),
                None => format!("; write limit: {}", limit_meant(whole).unwrap_or_else(|| "{ rate: 10/s, burst: 20 }".to_owned())),
            }
        }
        "rate_limit" | "ratelimit" | "ratelimits" | "rate_limits" | "limit_req" | "local_rate_limit" | "quota" => {
            format!("; write limit: {}", scalar_limit(value).unwrap_or_else(|| limit(value)))
        }
        "overrides" => {
            format!("; it belongs to the limit: write limit: {{ rate: 10/s, overrides: {} }}", override_meant(value))
        }
        "tiers" | "plans" => format!("; it belongs to the limit: write limit: {}", tiers(value)),
        "path" | "paths" | "route" | "routes" | "uri" | "url" | "endpoint" | "location" | "prefix" => {
            format!("; write match: {{ path: {} }}", shown_all(value, "/api/**"))
        }
        "method" | "methods" => format!("; write match: {{ method: {} }}", shown_all(value, "POST")),
        "host" | "hosts" | "domain" => format!("; write match: {{ host: {} }}", shown_all(value, "api.example.com")),
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
        "whitelist" | "allowlist" | "allow_list" | "allow" | "bypass" | "exempt" => {
            format!("; write access: {{ allow: {} }}", list(value, "10.0.0.0/8"))
        }
        "blacklist" | "denylist" | "deny_list" | "blocklist" => {
            format!("; write access: {{ deny: {} }}", list(value, "192.0.2.0/24"))
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
                || PERIODS.iter().any(|(word, _)| *word == key)
                || UNITS.iter().any(|(word, _)| *word == key)
                || matches!(
                    key,
                    "token_bucket" | "time" | "requestedtokens" | "http_req_rate" | "refilltokens"
                );
            return known.then(|| {
                let meant = limit_meant(whole).unwrap_or_else(|| "{ rate: 10/s, burst: 20 }".to_owned());
                format!("; write limit: {meant}")
            });
        }
    })
}

/// Returns the remark about a key of another algorithm whose value is the period of a rate: `window: 1m`.
pub(super) fn period_beside_rate(key: &str, whole: &Node) -> Option<String> {
    if !PERIODS.iter().any(|(word, _)| *word == key) {
        return None;
    }
    let written = whole.get("rate").and_then(Node::text).and_then(|text| text.parse::<WrittenRate>().ok());
    match (written, limit_meant(whole)) {
        (Some(rate), _) => {
            Some(format!("the time stands in the rate; leave {key} out and write rate: {rate}"))
        }
        (None, Some(meant)) => Some(format!("the time stands in the rate; write limit: {meant}")),
        (None, None) => None,
    }
}

/// Returns the map to write for a limit that is a single text: `10r/s`, `100 per minute`, `rate=10r/s burst=20 nodelay`.
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

/// Reads a rate in any form that it can be told from.
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

/// Returns the limit that the words of another system describe, as it is written here.
fn limit_meant(node: &Node) -> Option<String> {
    if let Some(bucket) = node.get("token_bucket") {
        return limit_meant(bucket);
    }
    let whole = |text: &str| whole_number(text).ok().filter(|count| *count > 0);
    let stated = word(node, "rate").and_then(rate);
    let of_unit =
        || UNITS.iter().find_map(|(name, unit)| format!("{}/{unit}", whole(word(node, name)?)?).parse().ok());
    let counted = || {
        let (name, count) = COUNTS.iter().find_map(|name| Some((*name, whole(word(node, name)?)?)))?;
        let period = PERIODS.iter().find_map(|(name, is_millis)| {
            let text = word(node, name)?;
            match whole(text) {
                Some(number) => Some(format!("{number}{}", if *is_millis { "ms" } else { "s" })),
                None => time(text),
            }
        });
        let unit = || match word(node, "time") {
            Some(times) => Some(format!("{}{}", whole(times)?, word(node, "unit")?)),
            None => None,
        };
        let period = unit().or(period);
        // Without a period, these two count per second.
        let period =
            period.or_else(|| matches!(name, "average" | "replenishrate").then(|| "s".to_owned()))?;
        rate(&format!("{count}/{}", period.to_ascii_lowercase()))
    };
    let rate: WrittenRate = tidied(stated.or_else(of_unit).or_else(counted)?);
    let burst = BURSTS.iter().find_map(|name| whole(word(node, name)?));
    Some(match burst {
        Some(burst) => format!("{{ rate: {rate}, burst: {burst} }}"),
        None => format!("{{ rate: {rate} }}"),
    })
}

/// Returns a rate with its period in the largest unit that divides it: 100 per 60,000 ms is 100 a minute.
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

/// Returns the limit of a policy with the words that stand beside it.
fn limit_with(policy: &Node) -> String {
    let limit = policy.get("limit");
    let rate = limit.and_then(|limit| word(limit, "rate")).or_else(|| word(policy, "rate")).and_then(rate);
    let rate = rate.map_or_else(|| "10/s".to_owned(), |rate| rate.to_string());
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

/// Returns the line for rates by plan.
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
    format!("{{ rate_by: user.tier, rates: {{ {rates} }}, otherwise: 1/s }}")
}

/// Returns a list of overrides for one that has another shape.
pub(super) fn override_meant(value: &Node) -> String {
    let first = match &value.value {
        Value::List(entries) => entries.first(),
        _ => None,
    };
    if let Some(first) = first
        && let Some((name, of)) = first.get("key").and_then(|key| key.entries().first())
    {
        let rate = first.get("rate").and_then(Node::text).and_then(rate);
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

/// Returns the attribute that a value of another system names.
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

/// Returns the attribute for a name of another system, such as nginx's `$binary_remote_addr`.
fn attribute_name(text: &str) -> String {
    let text = text.trim();
    if let Some(name) = variable(text).or_else(|| crate::policy::name_meant(text).map(str::to_owned)) {
        return name;
    }
    let is_name = text.contains('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if is_name { text.to_owned() } else { "client.ip".to_owned() }
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

/// Returns a value as a list.
fn list(value: &Node, otherwise: &str) -> String {
    let texts: Vec<_> = value.each().iter().filter_map(Node::text).take(8).map(excerpt).collect();
    if texts.is_empty() { format!("[{otherwise}]") } else { format!("[{}]", texts.join(", ")) }
}

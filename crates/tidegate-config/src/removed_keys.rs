//! Answers keys and words that the file had before with the line that works now.
//!
//! They went because nobody wants another value, or because a second key says the same; the Rust library still takes
//! them.

use super::conditions::{followed, of_switch};
use super::grammars::percent;
use super::grammars::{keys_held, open_for};
use super::node::{Node, Value};
use tidegate_gate::policy::Source;
use tidegate_limits::visible::excerpt;

const TOLD: usize = 4;

#[derive(Debug)]
enum Now {
    /// The value belongs to what the text names.
    Fixed(&'static str),
    Named(&'static str),
    Variable(&'static str),
    Rates,
    /// `over: demote to` the value.
    Level,
    /// `topology: sentinel` with the value.
    Master,
    /// Another outcome of the call, if the value says so.
    Overloaded,
    /// `keys` with `in full`, if the value says so.
    KeyForm,
    /// `estimate: learned` with the value.
    Quantile,
    /// `off_when` with `stale after` the value.
    Stale,
    /// `follows` with the range and the rate at its end.
    Follows,
    /// `open_for` with the value as the longest time.
    OpenAtMost,
    Line(&'static str),
}

const REPORT_IGNORED: &str = "; report one that is not to count with outcome: ignored, which holds for every limit of the call that goes by outcomes";

/// The removed keys: their section, the algorithm of the limit if there are several with the word, and what works.
const REMOVED: &[(&str, &str, &str, Now)] = &[
    ("tickets", "issuer", "", Now::Named("name")),
    ("store", "key_form", "", Now::KeyForm),
    ("limit", "overloaded", "breaker", Now::Overloaded),
    (
        "policy",
        "limits",
        "",
        Now::Line("limit: [{ rate: 10/s }, { rate: 100/min }], a list under the same word"),
    ),
    ("limit", "open_at_most", "", Now::OpenAtMost),
    ("limit", "between", "", Now::Follows),
    ("limit", "floor", "", Now::Follows),
    ("switch", "for", "", Now::Stale),
    ("store.region", "most", "", Now::Named("max")),
    ("limit", "rate_by", "", Now::Rates),
    ("limit", "rates", "", Now::Rates),
    ("limit", "otherwise", "", Now::Rates),
    ("forward_auth", "uri", "", Now::Named("path")),
    ("forward_auth", "deny_status", "", Now::Named("status")),
    ("policy", "demote_to", "", Now::Level),
    ("store", "master", "", Now::Master),
    ("limit", "initial", "", Now::Named("start")),
    ("limit", "cold_factor", "", Now::Fixed("the algorithm, which starts at a third of the rate")),
    ("tls", "cert", "", Now::Named("cert_file")),
    ("tls", "key", "", Now::Named("key_file")),
    ("tls", "client_ca", "", Now::Named("ca_file")),
    ("otlp", "endpoint", "", Now::Variable("OTEL_EXPORTER_OTLP_ENDPOINT")),
    ("otlp", "protocol", "", Now::Variable("OTEL_EXPORTER_OTLP_PROTOCOL")),
    (
        "otlp",
        "sample",
        "",
        Now::Fixed("OTEL_TRACES_SAMPLER=parentbased_traceidratio with OTEL_TRACES_SAMPLER_ARG=0.1"),
    ),
    (
        "store",
        "flush",
        "",
        Now::Fixed(
            "the store, which writes every 200ms; or write durable: strict for writes before the answer",
        ),
    ),
    ("cost", "quantile", "", Now::Quantile),
    ("limit", "timeout", "adaptive", Now::Named("slow_after")),
    ("limit", "smoothing", "", Now::Fixed("its law")),
    ("limit", "probe_every", "", Now::Fixed("law vegas")),
    ("limit", "long_window", "", Now::Fixed("law gradient")),
    ("limit", "buffer", "adaptive", Now::Line("law: gradient")),
    ("limit", "interval", "adaptive", Now::Line("law: gradient")),
    ("limit", "measure_every", "", Now::Line("law: gradient")),
    ("limit", "measure_calls", "", Now::Line("law: gradient")),
    ("limit", "cool_off", "", Now::Fixed("law bbr")),
    ("limit", "trips", "", Now::Line("profile: sentinel for a threshold that must be exceeded")),
    ("limit", "evaluate", "", Now::Line("profile: hystrix for thresholds that are compared every 500ms")),
    ("limit", "growth", "", Now::Line("open_for: 5s..60s, where each open time is twice the one before")),
    ("limit", "jitter", "", Now::Line("profile: sentinel for open times without chance")),
    ("limit", "steps", "", Now::Line("profile: sentinel for a breaker that closes at once")),
    ("limit", "risk", "", Now::Line("close_after: 3 for a verdict by a number of good probes")),
    ("limit", "judge_calls", "", Now::Line("profile: resilience4j, probes: 10, which are judged together")),
    ("limit", "forget_after", "", Now::Fixed("its law or profile")),
];

pub(super) fn instead(section: &str, key: &str, value: &Node, whole: &Node) -> Option<String> {
    let section = if matches!(section, "shadow_limit" | "canary.limit") { "limit" } else { section };
    let algorithm = whole.text_of("algorithm").unwrap_or_default();
    let is_it = |of: &&(&str, &str, &str, Now)| {
        of.0 == section && of.1 == key && (of.2.is_empty() || of.2 == algorithm)
    };
    let (.., now) = REMOVED.iter().find(is_it)?;
    let shown = || value.text().map_or_else(|| "...".to_owned(), excerpt);
    Some(match now {
        Now::Fixed(whose) => format!("; leave it out: its value belongs to {whose}"),
        Now::Named(name) => format!("; it is called {name} now: write {name}: {}", written(value)),
        Now::Variable(name) => format!("; leave it out and set {name}={}", shown()),
        Now::Rates => rates(whole, |rate| format!("; write rate: {rate}")),
        Now::Level => format!("; write over: \"demote to {}\"", shown()),
        Now::Master => format!("; write topology: \"sentinel {}\"", shown()),
        Now::Overloaded => {
            let fails = "; leave it out: a breaker counts overloaded calls as failed";
            let ignored = value.text() == Some("ignored");
            format!("{fails}{}", if ignored { REPORT_IGNORED } else { "" })
        }
        Now::KeyForm => key_form(value, whole),
        Now::Quantile => {
            let share = value.text().and_then(percent).unwrap_or(99);
            format!("; write estimate: \"learned {share}%\"")
        }
        Now::Stale => format!("; write off_when: \"{}\"", stale(value, whole)),
        Now::Follows => format!(
            "; write follows: \"{}\", with the range and the rate at its end behind the number",
            follows(whole)
        ),
        Now::OpenAtMost => format!(
            "; write open_for: {}, with the longest open time behind the first",
            open_at_most(value, whole)
        ),
        Now::Line(line) => format!("; write {line}"),
    })
}

fn written(value: &Node) -> String {
    value.text().map_or_else(|| "...".to_owned(), plain)
}

/// Returns a text as it is, or in quotes if it has another meaning without.
fn plain(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./:%+".contains(letter);
    let shown = excerpt(text);
    if !text.is_empty() && text.chars().all(is_plain) { shown } else { format!("\"{shown}\"") }
}

/// Returns the text of a key, if it may stand in a message as it is.
fn own<'n>(section: &'n Node, key: &str) -> Option<&'n str> {
    section.text_of(key).map(str::trim).filter(|text| excerpt(text) == **text)
}

fn key_form(form: &Node, store: &Node) -> String {
    if form.text() == Some("fingerprint") {
        return "; leave it out: the store keeps fingerprints, unless its keys are in full".to_owned();
    }
    let is_number = |text: &&str| keys_held(text).is_some_and(|(_, full)| !full);
    let keys = own(store, "keys").filter(is_number).unwrap_or("1000000");
    format!("; write keys: \"{keys} in full\" for keys that are kept in full")
}

/// Returns the condition of a switch with the time for which it stays off, once a key beside it.
fn stale(time: &Node, switch: &Node) -> String {
    let times = [time.text().map_or("10min", str::trim), "10min"];
    let each = own(switch, "off_when").into_iter().chain(["cpu above 80%"]);
    let mut each = each.flat_map(|when| times.map(|time| format!("{when}, stale after {time}")));
    each.find(|line| of_switch(line).is_ok()).unwrap_or_default()
}

/// Returns what a rate follows, with the range and the rate at its end, once keys beside it.
fn follows(limit: &Node) -> String {
    let said = own(limit, "follows");
    if let Some(whole) = said.filter(|text| followed(text).is_ok()) {
        return whole.to_owned();
    }
    let source = said.filter(|text| text.parse::<Source>().is_ok()).unwrap_or("memory");
    let compact = |text: &str| text.split_whitespace().collect::<String>();
    let range = match limit.get("between").map(|range| &range.value) {
        Some(Value::List(ends)) => {
            ends.iter().filter_map(Node::text).map(compact).collect::<Vec<_>>().join("..")
        }
        _ => own(limit, "between").map(compact).unwrap_or_default(),
    };
    let range = if range.contains("..") { excerpt(&range) } else { "70%..90%".to_owned() };
    let rates = [own(limit, "floor").unwrap_or("10/s"), "10/s"];
    let mut each = rates.into_iter().map(|rate| format!("{source} {range} to {rate}"));
    each.find(|line| followed(line).is_ok()).unwrap_or_else(|| "memory 70%..90% to 10/s".to_owned())
}

/// Returns the first open time of a breaker and the longest, once a key beside it.
fn open_at_most(longest: &Node, limit: &Node) -> String {
    let longest = longest.text().map_or("60s", str::trim);
    let firsts = [own(limit, "open_for").unwrap_or("5s"), "5s"];
    let mut each = firsts.into_iter().map(|first| format!("{first}..{longest}"));
    each.find(|line| open_for(line).is_some()).map_or_else(|| "5s..60s".to_owned(), |line| plain(&line))
}

fn key(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.".contains(&byte);
    let shown = excerpt(name);
    if !name.is_empty() && name.bytes().all(is_plain) { shown } else { format!("\"{shown}\"") }
}

/// Returns the line around the table for the rates of a limit, or of a policy with the keys of a limit.
pub(super) fn rates(section: &Node, line: impl Fn(&str) -> String) -> String {
    let text = |key: &str| section.text_of(key);
    let of_limit = || section.get("limit")?.get("rate")?.text();
    let all = section.entries_of("rates");
    let mut each: Vec<_> =
        all.iter().take(TOLD).map(|(name, rate)| format!("{}: {}", key(&name.text), written(rate))).collect();
    if each.is_empty() {
        each.push("gold: 100/s".to_owned());
    }
    // A file with the dots is refused.
    let others = if all.len() > TOLD {
        each.push("...".to_owned());
        ", with the others in place of the dots"
    } else {
        ""
    };
    let each = each.join(", ");
    let by = text("rate_by").map_or_else(|| "user.tier".to_owned(), excerpt);
    let otherwise = text("otherwise").or_else(|| text("rate")).or_else(of_limit);
    let otherwise = otherwise.map_or_else(|| "10/s".to_owned(), excerpt);
    line(&format!("{{ by: {by}, values: {{ {each} }}, otherwise: {otherwise} }}")) + others
}

/// Laws and profiles that only the library has, each with what comes closest.
const WORDS: [(&str, &str); 5] = [
    ("min-latency", "law: gradient"),
    (
        "sentinel-go",
        "profile: resilience4j, window: 1s, buckets: 1, min_calls: 5, failures: 50%, open_for: 5s, close_after: 1, probes: 1, or a threshold of your own in place of failures; its probe comes strictly after the open time",
    ),
    (
        "polly",
        "profile: resilience4j, window: 30s, buckets: 10, min_calls: 100, failures: 10%, open_for: 5s, close_after: 1, probes: 1, or a threshold of your own in place of failures; it is compared after each call, and its probe comes strictly after the open time",
    ),
    (
        "tower-resilience",
        "profile: resilience4j, failures: 50%, open_for: 30s, close_after: 1, probes: 1, or a threshold of your own in place of failures; its probe comes strictly after the open time",
    ),
    ("envoy", "profile: sre, window: 30s, buckets: 30, failures: 5%, shed_at_most: 80%"),
];

pub(super) fn word(text: &str, known: &[&str]) -> Option<&'static str> {
    let (_, line) = WORDS.iter().find(|(word, _)| *word == text)?;
    let meant = line.split([' ', ',']).nth(1)?;
    known.contains(&meant).then_some(*line)
}

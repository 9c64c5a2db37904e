//! Parses the rules of a tree of envoyproxy/ratelimit.

use super::super::super::diagnostic::Findings;
use super::super::super::names::instead;
use super::super::super::node::{Node, Spot};
use super::super::draft::Granted;
use super::super::keys;
use tidegate_limits::visible::excerpt;

const RULE: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The units of limits: the name in envoyproxy/ratelimit and the name here.
const UNITS: [(&str, &str); 7] = [
    ("second", "s"),
    ("minute", "min"),
    ("hour", "h"),
    ("day", "day"),
    ("week", "week"),
    ("month", "month"),
    ("year", "year"),
];

/// One rule of the tree.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) key: String,
    /// The required value, perhaps with stars; `None`: any value.
    pub(super) value: Option<String>,
    pub(super) granted: Option<Granted>,
    /// The name by which other limits replace this one.
    pub(super) name: Option<String>,
    /// The names of the limits that are not checked in a call that meets this one.
    pub(super) replaces: Vec<(String, Spot)>,
    pub(super) lenient: Option<&'static str>,
    pub(super) shared: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) file: usize,
    pub(super) spot: Spot,
}

impl Rule {
    pub(super) fn is_pattern(&self) -> bool {
        self.value.as_deref().is_some_and(|value| value.contains('*'))
    }
}

/// Reads a rule and all rules below it. Reports mistakes, and what works differently here.
pub(super) fn rule(file: usize, node: &Node, findings: &mut Findings) -> Option<Rule> {
    if !keys::is_map(node, "a descriptor", findings) {
        return None;
    }
    let elsewhere = LIMIT.map(|word| (word, "in rate_limit"));
    keys::check(node, "a descriptor", &RULE, &elsewhere, findings);
    let key = keys::text(node, "key", findings).filter(|key| !key.is_empty());
    if key.is_none() {
        findings.error(node.spot, "a descriptor has no key; write the key of the entry that Envoy sends");
    }
    let value = keys::text(node, "value", findings).filter(|value| !value.is_empty());
    let limit = node.get("rate_limit");
    let granted = limit.and_then(|limit| granted(limit, findings));
    let name =
        limit.and_then(|limit| limit.get("name")?.text()).filter(|name| !name.is_empty()).map(str::to_owned);
    let replaces = limit.map(|limit| replaced(limit, name.as_deref(), findings)).unwrap_or_default();
    let shadow = keys::flag(node, "shadow_mode", findings);
    let quota = keys::flag(node, "quota_mode", findings);
    if let Some(spot) = quota {
        findings.warn(
            spot,
            "quota_mode: a request over the limit passes with a header that says so; the status of its descriptor is OK, and no number of \
             such rules refuses the call",
        );
    }
    let shared = keys::flag(node, "share_threshold", findings);
    if let Some(spot) = shared
        && !value.is_some_and(|value| value.contains('*'))
    {
        findings.error(
            spot,
            "share_threshold needs a value with *, as files/*: other values are not shared by anyone",
        );
    }
    for word in ["detailed_metric", "value_to_metric"] {
        if let Some(spot) = keys::flag(node, word, findings) {
            findings.warn(
                spot,
                format_args!("{word}: metrics count by policy, not by value; /v1/keys/top lists the values that are refused most"),
            );
        }
    }
    if let Some((name, _)) = node.entry("metadata") {
        findings.warn(name.spot, "metadata is not sent to Envoy; the metadata of an answer names the policy, if the call asks for it");
    }
    let rules = keys::list(node.get("descriptors"), "descriptors", findings);
    let rules = rules.iter().filter_map(|node| rule(file, node, findings)).collect();
    Some(Rule {
        key: key?.to_owned(),
        value: value.map(str::to_owned),
        granted,
        name,
        replaces,
        lenient: match (shadow, quota) {
            (Some(_), _) => Some("mode: shadow"),
            (None, Some(_)) => Some("over: mark"),
            (None, None) => None,
        },
        shared: shared.is_some(),
        rules,
        file,
        spot: node.spot,
    })
}

fn granted(node: &Node, findings: &mut Findings) -> Option<Granted> {
    if !keys::is_map(node, "rate_limit", findings) {
        return None;
    }
    let elsewhere = RULE.map(|word| (word, "in the descriptor, beside rate_limit"));
    keys::check(node, "rate_limit", &LIMIT, &elsewhere, findings);
    if let Some((name, value)) = node.entry("name")
        && value.text() != Some("")
    {
        findings.warn(
            name.spot,
            "name: answers name the policy, which is called as the metrics there: domain, keys and values",
        );
    }
    let unit = keys::text(node, "unit", findings);
    let count = keys::whole(node, "requests_per_unit", u64::from(u32::MAX), findings);
    if let Some(spot) = keys::flag(node, "unlimited", findings) {
        if unit.is_some() {
            findings.error(spot, "unlimited and unit exclude each other");
        }
        return Some(Granted::Unlimited);
    }
    let Some(unit) = unit else {
        if node.get("unit").is_none() {
            findings.error(node.spot, "rate_limit has no unit; write second, minute, hour, day, week, month or year, or unlimited: true");
        }
        return None;
    };
    let Some((_, length)) = UNITS.iter().find(|(word, _)| word.eq_ignore_ascii_case(unit)) else {
        let hint = instead(unit, UNITS.iter().map(|(word, _)| *word));
        let spot = node.get("unit").map_or(node.spot, |node| node.spot);
        findings.error(spot, format_args!("rate_limit: unknown unit \"{}\"{hint}", excerpt(unit)));
        return None;
    };
    if count.is_none() && node.get("requests_per_unit").is_none() {
        findings.warn(node.spot, "rate_limit has no requests_per_unit: every request is refused, as there");
    }
    match count.unwrap_or(0) {
        0 => Some(Granted::Nothing),
        count => Some(Granted::Window { count, length: (*length).to_owned(), since_epoch: true }),
    }
}

/// Returns the names of the limits that a limit replaces. Reports an element without a name, and a limit that replaces
/// itself.
fn replaced(node: &Node, own: Option<&str>, findings: &mut Findings) -> Vec<(String, Spot)> {
    let mut names = Vec::new();
    for one in keys::list(node.get("replaces"), "replaces", findings) {
        match one.get("name").and_then(Node::text).filter(|name| !name.is_empty()) {
            None => findings.error(one.spot, "an element of replaces has no name; write - name: NAME"),
            Some(name) if Some(name) == own => {
                findings.error(
                    one.spot,
                    format_args!("\"{}\" replaces itself; name another limit", excerpt(name)),
                );
            }
            Some(name) => names.push((name.to_owned(), one.spot)),
        }
    }
    names
}

//! Checks the tree against the table of keys: known keys, values of the right kind, known words.
//!
//! Relations between values are checked where policies and settings are built. That code may assume that a value that
//! it can parse is in range, and need not report one that it cannot parse: it was reported here.

mod scalar;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tidegate_core::spelling::nearest;

pub(super) use self::scalar::network;
use self::scalar::{check_scalar, scalar};
use super::diagnostic::Findings;
use super::keys::{ALGORITHMS, AlgorithmKeys};
use super::kind::{Key, Kind, Table};
use super::names::instead;
use super::node::{Node, Value};
use super::unreachable;
use super::{budget, foreign_files, foreign_words};
use tidegate_limits::visible::excerpt;

/// Checks a value against its kind; messages call it `name`.
pub(super) fn check(node: &Node, kind: &Kind, name: &str, findings: &mut Findings) {
    match kind {
        Kind::Table(table) => check_table(node, table, findings),
        Kind::List(of) => check_list(node, of, name, findings),
        Kind::OneOrMany(of) => match node.value {
            Value::List(_) => check_list(node, of, name, findings),
            _ => check(node, of, name, findings),
        },
        Kind::Map(names, of) => match &node.value {
            Value::Map(entries) => {
                let most = match names {
                    Kind::Header | Kind::Attribute => budget::MATCHED,
                    Kind::Usage => budget::FEW,
                    _ => budget::ELEMENTS,
                };
                if !is_within(entries.len(), most, node, name, findings) {
                    return;
                }
                check_repeats(node, findings);
                for (key, value) in entries {
                    if let Err(reason) = scalar(&key.text, names, findings) {
                        findings.error(key.spot, format_args!("{name}: {reason}"));
                    }
                    let outer = findings.subject.clone();
                    if name == "switches" {
                        findings.subject = format!("switch \"{}\": ", excerpt(&key.text));
                    }
                    check(value, of, &format!("{name}.{}", excerpt(&key.text)), findings);
                    findings.subject = outer;
                }
            }
            _ => findings.error(node.spot, format_args!("{name} is a map, found {}", node.kind())),
        },
        Kind::Either(scalar, other) => {
            let kind = match node.value {
                // A list of rates is a list of limits.
                Value::List(_) if matches!(scalar, Kind::Rate) => scalar,
                Value::List(_) | Value::Map(_) => other,
                _ => scalar,
            };
            check(node, kind, name, findings);
        }
        Kind::Unavailable => {
            findings.error(node.spot, format_args!("{name} is not available in this version"));
        }
        Kind::Elsewhere(instead) => {
            findings.error(node.spot, format_args!("{name} is not a key here; write {instead}"));
        }
        scalar => check_scalar(node, scalar, name, findings),
    }
}

fn check_list(node: &Node, of: &Kind, name: &str, findings: &mut Findings) {
    let Value::List(nodes) = &node.value else {
        let remedy = match (&node.value, name) {
            (Value::Map(_), "overrides") => format!("; write {}", foreign_words::override_meant(node)),
            (Value::Map(_), "policies") if is_policy(node, of) => {
                let first = node.get("name").and_then(Node::text).filter(|name| !name.is_empty());
                format!("; begin each entry with its name, as - name: {}", excerpt(first.unwrap_or("api")))
            }
            (Value::Map(entries), "policies")
                if entries.iter().any(|(_, of)| matches!(of.value, Value::Map(_))) =>
            {
                let first = entries.first().map(|(name, _)| excerpt(&name.text)).unwrap_or_default();
                format!("; begin each entry with its name, as - name: {first}")
            }
            (Value::Map(_), _) => "; begin each entry with `- `".to_owned(),
            _ => String::new(),
        };
        findings.error(node.spot, format_args!("{name} is a list, found {}{remedy}", node.kind()));
        return;
    };
    let most = match of {
        Kind::Table(table) if table.name == "policy" => budget::POLICIES,
        Kind::Table(table) if matches!(table.name, "limit" | "not" | "switch") => budget::FEW,
        Kind::Attribute => budget::FEW,
        Kind::Method => budget::METHODS,
        Kind::Entry => budget::ENTRIES,
        _ => budget::ELEMENTS,
    };
    if !is_within(nodes.len(), most, node, name, findings) {
        return;
    }
    for (at, element) in nodes.iter().enumerate() {
        let Kind::Table(table) = of else {
            check(element, of, name, findings);
            continue;
        };
        let outer = findings.subject.clone();
        if table.name == "policy" {
            findings.subject = subject(element, at);
        }
        check_table(element, table, findings);
        findings.subject = outer;
    }
}

/// Reports whether a map in place of a list of policies is one policy, without the dash before it.
fn is_policy(node: &Node, of: &Kind) -> bool {
    let Kind::Table(table) = of else { return false };
    let is_key = |name: &str| table.key(name).is_some();
    node.get("name").is_some_and(|name| name.text().is_some())
        || (!node.entries().is_empty() && node.entries().iter().all(|(name, _)| is_key(&name.text)))
}

/// Checks the number of elements, and reports too many.
fn is_within(count: usize, most: usize, node: &Node, name: &str, findings: &mut Findings) -> bool {
    if count > most {
        findings.beyond(node.spot, format_args!("{name} has {count} entries; at most {most} are possible"));
    }
    count <= most
}

/// Returns the prefix of messages about a policy.
pub(super) fn subject(policy: &Node, at: usize) -> String {
    match policy.get("name").and_then(Node::text) {
        Some(name) => format!("policy \"{}\": ", excerpt(name)),
        None => format!("policy {}: ", at + 1),
    }
}

fn check_table(node: &Node, table: &Table, findings: &mut Findings) {
    if table.name == "file" && node.value == Value::Null {
        findings.error(node.spot, "the file is empty; `tidegate init` writes one to start from");
        return;
    }
    if table.name == "file"
        && let Some((spot, whose)) = foreign_files::told(node)
    {
        findings.error(spot, whose);
        return;
    }
    let Value::Map(entries) = &node.value else {
        let hint = map_meant(node, table).map_or_else(String::new, |map| format!("; write {map}"));
        findings.error(node.spot, format_args!("{} is a map, found {}{hint}", table.name, node.kind()));
        return;
    };
    // Another file, perhaps one with secrets: one mistake without its words, in place of one with the words of each line.
    let words = || table.keys.iter().map(|key| key.name);
    if table.name == "file"
        && !entries.is_empty()
        && entries
            .iter()
            .all(|(name, _)| nearest(&name.text, words()).is_none() && !name.text.starts_with("x-"))
    {
        findings.error(
            node.spot,
            "the file has no key of a policy file, such as version or policies; name another file",
        );
        return;
    }
    check_repeats(node, findings);
    for (name, value) in entries {
        match table.key(&name.text) {
            Some(key) if value.value == Value::Null => {
                findings
                    .error(name.spot, format_args!("{} has no value; give it one or leave it out", key.name));
            }
            Some(key) => check(value, &key.kind, &qualified(table, key.name), findings),
            // Keys that begin with `x-` may hold anything, such as anchors for other parts of the file.
            None if table.name == "file" && name.text.starts_with("x-") => {}
            None if !findings.is_full()
                && let Some(hint) = foreign_words::instead(table.name, &name.text, value, node) =>
            {
                let key = excerpt(&name.text);
                findings.error(name.spot, format_args!("unknown key \"{key}\" in {}{hint}", table.name));
            }
            None => {
                let available = |key: &&Key| !matches!(key.kind, Kind::Unavailable | Kind::Elsewhere(_));
                let words = table.keys.iter().filter(available).map(|key| key.name);
                let hint = match algorithm_of(node, table) {
                    _ if findings.is_full() => String::new(),
                    Some(known) if nearest(&name.text, words.clone()).is_none() => {
                        let possible: Vec<_> = words.filter(|word| known.has(word)).collect();
                        format!("; possible with {} are {}", known.name, possible.join(", "))
                    }
                    _ => instead(&name.text, words),
                };
                let key = excerpt(&name.text);
                findings.error(name.spot, format_args!("unknown key \"{key}\" in {}{hint}", table.name));
            }
        }
    }
    for required in table.required {
        if node.entries().iter().all(|(name, _)| name.text != *required) {
            let remedy = match (table.name, *required) {
                ("rate", "by") => "; write by: user.tier",
                ("rate", "values") => "; write values: { gold: 100/s }",
                ("rate", "otherwise") => "; write otherwise: 10/s for everybody else",
                ("estimate", "otherwise") => NO_OTHERWISE,
                ("file", "version") => "; write version: 1 in its first line",
                ("file", "policies") => "; write policies: [{ name: api, limit: { rate: 10/s } }]",
                ("override", "key") => "; name one attribute of `by`, as key: { user.id: vip }",
                _ => "",
            };
            findings.error(node.spot, format_args!("{} has no {required}{remedy}", table.name));
        }
    }
    unreachable::check(node, table, findings);
}

/// What to write where a table of costs does not say what all other requests cost. It has no default: that would be a
/// cost which nobody has stated.
pub(super) const NO_OTHERWISE: &str = ", the cost of requests with another value or without one; write otherwise: 1, or the largest of its values";

/// Returns the map to write in place of another value.
fn map_meant(node: &Node, table: &Table) -> Option<String> {
    let text = node.text().map(str::trim);
    match table.name {
        "deny" => {
            text.filter(|text| text.parse::<u16>().is_ok()).map(|status| format!("{{ status: {status} }}"))
        }
        "match" => match text {
            Some(path) => path.starts_with('/').then(|| format!("{{ path: {} }}", excerpt(path))),
            None => foreign_words::match_of_list(node),
        },
        "forward_auth" => Some(format!("{{ proxy: {} }}", excerpt(text.filter(|text| !text.is_empty())?))),
        "server" => text?
            .parse::<super::Address>()
            .is_ok()
            .then(|| format!("{{ http: {} }}", excerpt(text.unwrap_or("8080")))),
        "store" => {
            let url = text?;
            let kind = ["redis", "etcd", "zookeeper"].into_iter().find(|kind| url.starts_with(kind))?;
            match url.contains("://") {
                true => Some(format!("{{ kind: {kind}, url: \"{}\", nodes: 2 }}", excerpt(url))),
                false => Some(format!("{{ kind: {kind}, nodes: 2 }}")),
            }
        }
        "limit" | "shadow_limit" if matches!(node.value, Value::List(_)) => {
            let told = foreign_words::several_rates(node);
            told.strip_prefix("; write ").map(str::to_owned)
        }
        _ if table.key("rate").is_some() => foreign_words::scalar_limit(node),
        _ => None,
    }
}

/// Returns the algorithm of a limit, which decides its possible keys; `None` if the algorithm is not known here.
fn algorithm_of(node: &Node, table: &Table) -> Option<&'static AlgorithmKeys> {
    let named = match (table.name, node.get("algorithm")) {
        ("limit", None) => "gcra",
        ("limit" | "shadow_limit", Some(named)) => named.text()?,
        // A shadow limit without an algorithm has that of its limit.
        _ => return None,
    };
    ALGORITHMS.iter().find(|known| known.name == named)
}

/// Returns a key as messages name it: with its section, if the key alone would be ambiguous.
fn qualified(table: &Table, key: &str) -> String {
    match table.name {
        "file" | "policy" | "limit" | "shadow_limit" | "switch" => key.to_owned(),
        section => format!("{section}.{key}"),
    }
}

/// Reports whether a value has the shape of its kind, without adding findings.
pub(super) fn is_sound(node: &Node, kind: &Kind) -> bool {
    let mut scratch = Findings::of("");
    check(node, kind, "", &mut scratch);
    !scratch.refused()
}

fn check_repeats(node: &Node, findings: &mut Findings) {
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for (name, _) in node.entries() {
        let first = match lines.entry(&name.text) {
            Entry::Occupied(first) => *first.get(),
            Entry::Vacant(none) => {
                none.insert(name.spot.line);
                continue;
            }
        };
        let key = excerpt(&name.text);
        findings.error(name.spot, format_args!("key \"{key}\" is given twice, first in line {first}"));
    }
}

//! Checks the tree against the table of keys: known keys, values of the right kind, known words.
//!
//! Relations between values are checked where policies and settings are built: a value that can be parsed there is in
//! range, and one that cannot was reported here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ipnet::IpNet;
use tidegate_core::Rate;
use tidegate_core::rate::{CalendarUnit, FixedWindow, zone_meant};
use tidegate_core::spelling::nearest;

use super::diagnostic::Findings;
use super::foreign_words::{self, address_pattern};
use super::grammars::{kept, percent};
use super::keys::{ALGORITHMS, AlgorithmKeys, Key, Kind, Table};
use super::names::{self, instead, is_control};
use super::node::{Name, Node, Value};
use super::{budget, conditions, forward_auth, read, removed_keys};
use tidegate_gate::policy::{AccessEntry, Glob, PathGlob, WrittenRate, span, whole_number};
use tidegate_limits::priority::Kept;
use tidegate_limits::visible::excerpt;

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
                let first = node.text_of("name").filter(|name| !name.is_empty());
                format!("; begin each entry with its name, as - name: {}", excerpt(first.unwrap_or("api")))
            }
            (Value::Map(entries), "policies")
                if entries.iter().any(|(_, of)| matches!(of.value, Value::Map(_))) =>
            {
                let first = entries.first().map(|(name, _)| excerpt(&name.text)).unwrap_or_default();
                format!("; begin each entry with its name, as - name: {first}")
            }
            (Value::Map(_), _) => "; begin each entry with `- `".to_owned(),
            // Values may have blanks, commas and signs of YAML's: those are not taken apart.
            (Value::Text(text), _)
                if !matches!(of, Kind::Table(_))
                    && !text.trim().is_empty()
                    && !text.contains(|char: char| "=*&{}[]\"'#".contains(char)) =>
            {
                let each = text.split([',', ' ']).filter(|one| !one.is_empty()).take(8);
                let each: Vec<_> =
                    each.map(|one| names::network_meant(one).unwrap_or_else(|| excerpt(one))).collect();
                format!("; write [{}]", each.join(", "))
            }
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

fn is_within(count: usize, most: usize, node: &Node, name: &str, findings: &mut Findings) -> bool {
    if count > most {
        findings.beyond(node.spot, format_args!("{name} has {count} entries; at most {most} are possible"));
    }
    count <= most
}

/// Returns the prefix of messages about a policy.
pub(super) fn subject(policy: &Node, at: usize) -> String {
    match policy.text_of("name") {
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
        && let Some((spot, whose)) = read::foreign_file(node)
    {
        findings.error(spot, whose);
        return;
    }
    let Value::Map(entries) = &node.value else {
        let hint = match map_meant(node, table) {
            Some(map) => format!("; write {map}"),
            // Policies alone, as they are proposed to be copied.
            None if table.name == "file" && matches!(node.value, Value::List(_)) => {
                "; begin the file with version: 1 and policies:".to_owned()
            }
            None => String::new(),
        };
        findings.error(node.spot, format_args!("{} is a map, found {}{hint}", table.name, node.kind()));
        return;
    };
    // Another file, perhaps one with secrets: one mistake in place of one with the words of each line.
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
                ("canary", "limit") => "; write limit: { rate: 6/s }",
                ("canary", "share") => "; write share: 5%",
                ("canary", "for") => "; write for: 2h",
                ("override", "key") => "; name one attribute of `by`, as key: { user.id: vip }",
                _ => "",
            };
            findings.error(node.spot, format_args!("{} has no {required}{remedy}", table.name));
        }
    }
    check_reachable(node, table, findings);
}

/// What to write where a table of costs lacks the cost of all other requests, which nobody has stated.
pub(super) const NO_OTHERWISE: &str = ", the cost of requests with another value or without one; write otherwise: 1, or the largest of its values";

fn map_meant(node: &Node, table: &Table) -> Option<String> {
    let text = node.text().map(str::trim);
    match table.name {
        "deny" if foreign_words::are_networks(node) => {
            Some(format!("access: {{ deny: {} }}", foreign_words::list(node, "192.0.2.0/24")))
        }
        "deny" => {
            text.filter(|text| text.parse::<u16>().is_ok()).map(|status| format!("{{ status: {status} }}"))
        }
        "match" => match text {
            Some(path) => path.starts_with('/').then(|| format!("{{ path: {} }}", excerpt(path))),
            None => foreign_words::match_of_list(node),
        },
        "forward_auth" => Some(forward_auth::map_meant(text.filter(|text| !text.is_empty())?)),
        "server" => text?
            .parse::<super::Address>()
            .is_ok()
            .then(|| format!("{{ http: {} }}", excerpt(text.unwrap_or("8080")))),
        "store" => foreign_words::store(text?),
        "canary" => Some("{ limit: { rate: 6/s }, share: 5%, for: 2h }".to_owned()),
        "limit" | "shadow_limit" | "canary.limit" if matches!(node.value, Value::List(_)) => {
            let told = foreign_words::several_rates(node);
            told.strip_prefix("; write ").map(str::to_owned)
        }
        _ if table.key("rate").is_some() => foreign_words::scalar_limit(node),
        _ => None,
    }
}

/// Returns the algorithm of a limit, which decides its possible keys.
fn algorithm_of(node: &Node, table: &Table) -> Option<&'static AlgorithmKeys> {
    let named = match (table.name, node.get("algorithm")) {
        ("limit", None) => "gcra",
        ("limit" | "shadow_limit" | "canary.limit", Some(named)) => named.text()?,
        // A shadow limit or a canary without an algorithm has that of its limit.
        _ => return None,
    };
    ALGORITHMS.iter().find(|known| known.name == named)
}

/// Returns a key as messages name it: with its section, if it alone would be ambiguous.
fn qualified(table: &Table, key: &str) -> String {
    match table.name {
        "file" | "policy" | "limit" | "shadow_limit" | "switch" => key.to_owned(),
        section => format!("{section}.{key}"),
    }
}

/// Reports whether a value has the shape of its kind.
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

/// Checks a value that is no list and no map.
fn check_scalar(node: &Node, kind: &Kind, name: &str, findings: &mut Findings) {
    let Some(text) = node.text() else {
        let hint = match (kind, name) {
            (Kind::Attribute, "by") => format!("; write by: {}", foreign_words::attribute(node)),
            (Kind::Rate, "rate") => foreign_words::several_rates(node),
            _ => String::new(),
        };
        findings.error(node.spot, format_args!("{name} is {}, found {}{hint}", expected(kind), node.kind()));
        return;
    };
    if let Err(reason) = scalar(text, kind, findings) {
        let reason = match (kind, name, &*names::names_in(text)) {
            (Kind::Attribute, "by", within @ [_, _, ..]) if reason.contains(" names in one") => {
                format!(
                    "\"{}\" is {} names in one; write by: [{}]",
                    excerpt(text),
                    within.len(),
                    within.join(", ")
                )
            }
            _ => reason,
        };
        // A message about a time zone says what the value is.
        let plain = matches!(kind, Kind::Zone);
        let message = if plain { reason } else { format!("{name}: {reason}") };
        findings.error(node.spot, message);
    }
}

fn expected(kind: &Kind) -> &'static str {
    match kind {
        Kind::Whole(..) => "a whole number",
        Kind::Rate => "a rate as 100/s",
        Kind::Span => "a span of time as 200ms",
        Kind::Percent(..) => "a share as 80%",
        Kind::Kept => "a share as 20% or a number of units",
        Kind::Condition => "a condition as cpu above 80%",
        Kind::Source => "a number, its range and a rate as memory 70%..90% to 10/s",
        Kind::Socket => "an address such as 127.0.0.1:8080",
        Kind::Network => "a network such as 10.0.0.0/8",
        Kind::Word(..) => "one word",
        _ => "a text",
    }
}

fn most_bytes(kind: &Kind) -> usize {
    match kind {
        Kind::Name => budget::NAME,
        Kind::Attribute | Kind::Usage | Kind::Condition | Kind::Source => budget::ATTRIBUTE,
        Kind::Header => budget::ATTRIBUTE - names::HEADER.len(),
        Kind::Path | Kind::Host | Kind::Glob | Kind::Problem => budget::PATTERN,
        Kind::Entry => budget::ATTRIBUTE + 1 + budget::VALUE,
        Kind::Cost | Kind::Settle => budget::COST,
        Kind::Text => budget::VALUE,
        // The name of a set of servers.
        Kind::Read(_) => "sentinel ".len() + budget::NAME,
        _ => budget::WORD,
    }
}

/// Returns what is wrong with a text of this kind; patterns count towards the bound of `findings`.
pub(super) fn scalar(text: &str, kind: &Kind, findings: &mut Findings) -> Result<(), String> {
    let most = most_bytes(kind);
    if text.len() > most {
        return Err(format!("\"{}\" has {} bytes; use at most {most}", excerpt(text), text.len()));
    }
    // An expression may have several lines.
    let broken =
        |letter: char| !(matches!(kind, Kind::Cost | Kind::Settle) && matches!(letter, '\n' | '\r' | '\t'));
    if let Some(letter) = text.chars().find(|letter| is_control(*letter) && broken(*letter)) {
        let why = "it would break the headers, logs and terminals that show it";
        return Err(format!(
            "\"{}\" has the control character {}; {why}",
            excerpt(text),
            letter.escape_unicode()
        ));
    }
    let shown = excerpt(text);
    match kind {
        Kind::Whole(least, most) => match whole_number(text) {
            Ok(number) if (*least..=*most).contains(&number) => Ok(()),
            Ok(number) => Err(format!("{number} is out of range; use {}", range(*least, *most))),
            Err(_) => {
                // All digits: a number larger than any that is valid here.
                let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty();
                let wrong = if is_number { "is out of range" } else { "is not a whole number" };
                Err(format!("\"{shown}\" {wrong}; use {}", range(*least, *most)))
            }
        },
        Kind::Rate => text.parse::<WrittenRate>().map(drop).map_err(|error| error.to_string()),
        Kind::Span => span(text).map(drop).map_err(|error| error.to_string()),
        Kind::Percent(least, most) => percent(text)
            .map(drop)
            .ok_or_else(|| format!("\"{shown}\" is not a share; use {least}% to {most}%")),
        Kind::Read(grammar) => {
            if (grammar.reads)(text) {
                Ok(())
            } else {
                Err(format!("\"{shown}\" {}", grammar.expected))
            }
        }
        Kind::Kept => match kept(text) {
            Some(Kept::Units(units)) if units > Rate::MAX_COUNT => {
                Err(format!("{units} is out of range; use {}", range(0, Rate::MAX_COUNT)))
            }
            Some(_) => Ok(()),
            None => {
                Err(format!("\"{shown}\" is neither a share nor a number of units; use 0% to 100%, or 20"))
            }
        },
        Kind::Condition => conditions::condition(text).map(drop),
        Kind::Source => conditions::followed(text).map(drop),
        Kind::Socket => text.parse::<super::Address>().map(drop).map_err(|why| format!("\"{shown}\" {why}")),
        Kind::Network => match network(text) {
            Some(network) => names::network(network),
            None => Err(no_network(text)
                .unwrap_or_else(|| format!("\"{shown}\" is not a network, such as 10.0.0.0/8"))),
        },
        Kind::Zone => zone(text),
        Kind::Path => {
            if let Some(foreign) = names::foreign_path(text) {
                return Err(foreign);
            }
            let glob = PathGlob::new(text).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            names::path_pattern(&glob)
        }
        Kind::Host => {
            let glob = Glob::new(&text.to_ascii_lowercase()).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            names::host_pattern(&glob)
        }
        Kind::Glob => {
            let glob = Glob::new(text).map_err(|error| error.to_string())?;
            findings.patterns(glob.alternatives().count(), glob.walked());
            Ok(())
        }
        Kind::Entry => match text
            .parse::<AccessEntry>()
            .map_err(|error| no_network(text).unwrap_or_else(|| error.to_string()))?
        {
            AccessEntry::Network(network) => names::network(network),
            AccessEntry::Attribute { name, value } => {
                names::attribute(&name)?;
                names::value(&name, &value)
            }
        },
        Kind::Name => filled(text).and_then(|()| names::policy(text)),
        Kind::Attribute => filled(text).and_then(|()| names::attribute(text)),
        Kind::Usage => filled(text).and_then(|()| names::usage(text)),
        Kind::Header => filled(text).and_then(|()| names::header_name(text)),
        Kind::Method => filled(text).and_then(|()| names::method(text)),
        Kind::Problem => filled(text).and_then(|()| names::problem(text)),
        Kind::Word(words, later) => {
            if words.contains(&text) {
                Ok(())
            } else if later.contains(&text) {
                Err(format!("{text} is not available in this version; use {}", words.join(", ")))
            } else if let Some(line) = removed_keys::word(text, words) {
                Err(format!("\"{shown}\" is a word of the library alone; write {line}"))
            } else if let Some(line) = forward_auth::other_proxy(text).filter(|_| words.contains(&"nginx")) {
                Err(format!("unknown word \"{shown}\"; in place of proxy, write {line}"))
            } else if let Some(same) = foreign_words::same_word(text).filter(|same| words.contains(same)) {
                Err(format!("unknown word \"{shown}\"; write {same}"))
            } else {
                Err(format!("unknown word \"{shown}\"{}", instead(text, words.iter().copied())))
            }
        }
        _ => filled(text),
    }
}

fn filled(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("the text is empty; leave it out".to_owned()) } else { Ok(()) }
}

fn range(least: u64, most: u64) -> String {
    match most {
        most if most == least => least.to_string(),
        Rate::MAX_COUNT => format!("{least} to 2^60"),
        most => format!("{least} to {most}"),
    }
}

/// Parses a network; an address counts as a network of one.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))
}

fn no_network(text: &str) -> Option<String> {
    let address = text.strip_prefix("client.ip=").unwrap_or(text).trim();
    let meant = names::network_meant(address)?;
    Some(format!("\"{}\" is not a network; write {meant}", excerpt(text)))
}

fn zone(text: &str) -> Result<(), String> {
    if FixedWindow::calendar(1, CalendarUnit::Day, text).is_ok() {
        return Ok(());
    }
    if matches!(&*text.to_ascii_lowercase(), "true" | "false" | "yes" | "no" | "on" | "off") {
        return Err(format!("calendar is a time zone, found {text}; write calendar: UTC, or leave it out"));
    }
    if cfg!(not(feature = "tz")) {
        return Err(format!("time zone \"{}\" needs a build with the feature `tz`; use UTC", excerpt(text)));
    }
    let hint = match zone_meant(text) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => "; use an IANA name as Europe/Vienna, UTC or epoch".to_owned(),
    };
    Err(format!("unknown time zone \"{}\"{hint}", excerpt(text)))
}

// Finds conditions that no request can meet: values that an attribute never has, and empty lists.
//
// Here stands what depends on two words of the file.

fn check_reachable(node: &Node, table: &Table, findings: &mut Findings) {
    match table.name {
        "rate" | "cost" | "estimate" => by_value(node, findings),
        "override" => {
            for (attribute, value) in node.entries_of("key") {
                if let Some(text) = value.text()
                    && let Err(reason) = names::value(&attribute.text, text)
                {
                    findings.error(value.spot, format_args!("override.key: {reason}"));
                }
            }
        }
        "match" | "not" => matching(node, table.name, findings),
        _ => {}
    }
}

fn by_value(node: &Node, findings: &mut Findings) {
    let Some(attribute) = node.text_of("by") else { return };
    for (Name { spot, text }, _) in node.entries_of("values") {
        if text == "*" {
            findings
                .error(*spot, "values: \"*\" is compared as it is; for every other value write otherwise");
        } else if let Err(reason) = names::value(attribute, text) {
            findings.error(*spot, format_args!("values: {reason}"));
        }
    }
}

fn matching(node: &Node, section: &str, findings: &mut Findings) {
    for part in ["method", "path", "host"] {
        if let Some((name, value)) = node.entry(part)
            && is_empty_list(value)
        {
            findings.error(
                name.spot,
                format_args!("{section}.{part} is an empty list; leave it out to match everything"),
            );
        }
    }
    for part in ["header", "attributes"] {
        for (name, value) in node.entries_of(part) {
            if is_empty_list(value) {
                let name_shown = excerpt(&name.text);
                findings.error(
                    name.spot,
                    format_args!("{section}.{part}.{name_shown} is an empty list, which no value fits; write true if any will do"),
                );
            }
            if part == "header" {
                continue;
            }
            for one in value.each().iter().filter(|one| !matches!(one.value, Value::Bool(_))) {
                let Some(Ok(glob)) = one.text().map(Glob::new) else { continue };
                if let Err(reason) = names::pattern(&name.text, &glob) {
                    let pattern = one.text().filter(|_| name.text == "client.ip").and_then(address_pattern);
                    let instead = match pattern.filter(|_| !reason.contains("; write ")) {
                        Some(pattern) => format!("; in a match write \"{pattern}\""),
                        None => String::new(),
                    };
                    findings.error(one.spot, format_args!("{section}.{part}: {reason}{instead}"));
                }
            }
        }
    }
}

fn is_empty_list(node: &Node) -> bool {
    matches!(&node.value, Value::List(nodes) if nodes.is_empty())
}

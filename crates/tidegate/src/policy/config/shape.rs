//! Whether a tree has the shape that the keys say: known keys, the right kinds, words that exist.
//!
//! One walk over the table of keys; what values mean together is for the parts that build from them. Those may take for
//! granted that a value they can read is in range, and say nothing of one they cannot: it was reported here.

use ipnet::IpNet;

use super::diagnostic::{Findings, instead, nearest};
use super::keys::{Kind, Table};
use super::node::{Node, Value};
use crate::policy::access::AccessEntry;
use crate::policy::glob::{Glob, PathGlob};
use crate::policy::rate_grammar::{WrittenRate, span, whole_number};

/// Checks a value against its kind; `name` is its key, for messages.
pub(super) fn check(node: &Node, kind: &Kind, name: &str, findings: &mut Findings) {
    match kind {
        Kind::Table(table) => check_table(node, table, findings),
        Kind::List(of) => check_list(node, of, name, findings),
        Kind::OneOrMany(of) => match node.value {
            Value::List(_) => check_list(node, of, name, findings),
            _ => check(node, of, name, findings),
        },
        Kind::Map(of) => match &node.value {
            Value::Map(_) => {
                check_repeats(node, findings);
                for (key, value) in node.entries() {
                    check(value, of, &format!("{name}.{}", key.text.escape_debug()), findings);
                }
            }
            _ => findings.error(node.spot, format_args!("{name} is a map, found {}", node.kind())),
        },
        Kind::Either(scalar, other) => {
            let kind = if matches!(node.value, Value::List(_) | Value::Map(_)) { other } else { scalar };
            check(node, kind, name, findings);
        }
        Kind::Unavailable => {
            findings.error(node.spot, format_args!("{name} is not available in this version"));
        }
        scalar => check_scalar(node, scalar, name, findings),
    }
}

fn check_list(node: &Node, of: &Kind, name: &str, findings: &mut Findings) {
    let Value::List(nodes) = &node.value else {
        findings.error(node.spot, format_args!("{name} is a list, found {}", node.kind()));
        return;
    };
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

/// Returns how messages about a policy begin.
pub(super) fn subject(policy: &Node, at: usize) -> String {
    match policy.get("name").and_then(Node::text) {
        Some(name) => format!("policy \"{}\": ", name.escape_debug()),
        None => format!("policy {}: ", at + 1),
    }
}

fn check_table(node: &Node, table: &Table, findings: &mut Findings) {
    if table.name == "file" && node.value == Value::Null {
        findings.error(node.spot, "the file is empty; `tidegate init` writes one to start from");
        return;
    }
    let Value::Map(entries) = &node.value else {
        findings.error(node.spot, format_args!("{} is a map, found {}", table.name, node.kind()));
        return;
    };
    check_repeats(node, findings);
    for (name, value) in entries {
        match table.key(&name.text) {
            Some(key) if value.value == Value::Null => {
                findings
                    .error(name.spot, format_args!("{} has no value; give it one or leave it out", key.name));
            }
            Some(key) => check(value, &key.kind, &qualified(table, key.name), findings),
            // A place for anchors that the file shares.
            None if table.name == "file" && name.text.starts_with("x-") => {}
            None => {
                let words = table
                    .keys
                    .iter()
                    .filter(|key| !matches!(key.kind, Kind::Unavailable))
                    .map(|key| key.name);
                let hint = instead(&name.text, words);
                let key = name.text.escape_debug();
                findings.error(name.spot, format_args!("unknown key \"{key}\" in {}{hint}", table.name));
            }
        }
    }
    for required in table.required {
        if node.entries().iter().all(|(name, _)| name.text != *required) {
            findings.error(node.spot, format_args!("{} has no {required}", table.name));
        }
    }
}

/// Returns a key as messages name it: with its section, where the key alone would leave one guessing.
fn qualified(table: &Table, key: &str) -> String {
    match table.name {
        "file" | "policy" | "limit" | "shadow_limit" => key.to_owned(),
        section => format!("{section}.{key}"),
    }
}

/// Says whether a value has the shape of its kind, reporting nothing.
pub(super) fn is_sound(node: &Node, kind: &Kind) -> bool {
    let mut scratch = Findings::of("");
    check(node, kind, "", &mut scratch);
    !scratch.refused()
}

fn check_repeats(node: &Node, findings: &mut Findings) {
    for (at, (name, _)) in node.entries().iter().enumerate() {
        if let Some((first, _)) = node.entries()[..at].iter().find(|(first, _)| first.text == name.text) {
            let key = name.text.escape_debug();
            findings.error(
                name.spot,
                format_args!("key \"{key}\" is given twice, first in line {}", first.spot.line),
            );
        }
    }
}

fn check_scalar(node: &Node, kind: &Kind, name: &str, findings: &mut Findings) {
    let Some(text) = node.text() else {
        findings.error(node.spot, format_args!("{name} is {}, found {}", expected(kind), node.kind()));
        return;
    };
    if let Err(reason) = scalar(text, kind) {
        // A zone, a network and a word name themselves; a number needs its key's name.
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
        Kind::Percent => "a share as 80%",
        Kind::Socket => "an address as 127.0.0.1:8080",
        Kind::Network => "a network as 10.0.0.0/8",
        Kind::Word(..) => "one word",
        _ => "a text",
    }
}

fn scalar(text: &str, kind: &Kind) -> Result<(), String> {
    let shown = text.escape_debug();
    match kind {
        Kind::Whole(least, most) => match whole_number(text) {
            Ok(number) if (*least..=*most).contains(&number) => Ok(()),
            Ok(number) => Err(format!("{number} is out of range; use {}", range(*least, *most))),
            Err(_) => Err(format!("\"{shown}\" is not a whole number; use {}", range(*least, *most))),
        },
        Kind::Rate => text.parse::<WrittenRate>().map(drop).map_err(|error| error.to_string()),
        Kind::Span => span(text).map(drop).map_err(|error| error.to_string()),
        Kind::Percent => {
            percent(text).map(drop).ok_or_else(|| format!("\"{shown}\" is not a share; use 1% to 100%"))
        }
        Kind::Socket => text
            .parse::<std::net::SocketAddr>()
            .map(drop)
            .map_err(|_| format!("\"{shown}\" is not an address and port, as 127.0.0.1:8080")),
        Kind::Network => {
            network(text).map(drop).ok_or_else(|| format!("\"{shown}\" is not a network, as 10.0.0.0/8"))
        }
        Kind::Zone => zone(text),
        Kind::Path => PathGlob::new(text).map(drop).map_err(|error| error.to_string()),
        Kind::Glob => Glob::new(text).map(drop).map_err(|error| error.to_string()),
        Kind::Entry => text.parse::<AccessEntry>().map(drop).map_err(|error| error.to_string()),
        Kind::Word(words, later) => {
            if words.contains(&text) {
                Ok(())
            } else if later.contains(&text) {
                Err(format!("{text} is not available in this version; use {}", words.join(", ")))
            } else {
                Err(format!("unknown word \"{shown}\"{}", instead(text, words.iter().copied())))
            }
        }
        _ if text.is_empty() => Err("an empty text says nothing; leave it out".to_owned()),
        _ => Ok(()),
    }
}

fn range(least: u64, most: u64) -> String {
    match most {
        most if most == least => least.to_string(),
        tidegate_core::Rate::MAX_COUNT => format!("{least} to 2^60"),
        most => format!("{least} to {most}"),
    }
}

/// Reads `80%`.
pub(super) fn percent(text: &str) -> Option<u8> {
    let number: u8 = text.strip_suffix('%')?.trim().parse().ok()?;
    (1..=100).contains(&number).then_some(number)
}

/// Reads a network, or an address as a network of one.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))
}

fn zone(text: &str) -> Result<(), String> {
    if jiff::tz::TimeZone::get(text).is_ok() {
        return Ok(());
    }
    let known: Vec<_> = jiff::tz::db().available().collect();
    let hint = match nearest(text, known.iter().map(jiff::tz::TimeZoneName::as_str)) {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None => "; use an IANA name as Europe/Vienna, or UTC".to_owned(),
    };
    Err(format!("unknown time zone \"{}\"{hint}", text.escape_debug()))
}

//! Finds conditions that no request can meet: values that an attribute never has, and empty lists. Warns of conditions
//! that few requests meet and that probably mean more: `/api/`, `GTE`, `>100`.
//!
//! Single names and patterns are checked with the shape. This module checks what depends on two words of the file.

use super::diagnostic::Findings;
use super::foreign_words::address_pattern;
use super::kind::Table;
use super::names;
use super::node::{Name, Node, Spot, Value};
use crate::policy::{AccessEntry, Glob, PathGlob};
use crate::visible::excerpt;

/// Checks the entries of a table that passed the shape check.
pub(super) fn check(node: &Node, table: &Table, findings: &mut Findings) {
    match table.name {
        "rate" | "cost" | "estimate" => by_value(node, findings),
        "override" => {
            for (attribute, value) in node.get("key").map_or(&[][..], Node::entries) {
                if let Some(text) = value.text()
                    && let Err(reason) = names::value(&attribute.text, text)
                {
                    findings.error(value.spot, format_args!("override.key: {reason}"));
                } else {
                    warn_of_a_star(value, "override.key", &attribute.text, findings);
                }
            }
        }
        "access" => {
            for (list, entry) in ["allow", "deny"].into_iter().flat_map(|list| {
                node.get(list).map_or(&[][..], Node::each).iter().map(move |entry| (list, entry))
            }) {
                if let Some(Ok(AccessEntry::Attribute { name, value })) = entry.text().map(str::parse)
                    && value != "*"
                    && value.contains('*')
                {
                    tell_of_a_star(entry.spot, &format!("access.{list}"), &name, &value, findings);
                }
            }
        }
        "match" | "not" => matching(node, table.name, findings),
        _ => {}
    }
}

/// Checks the values of the attribute that selects a rate or a cost.
fn by_value(node: &Node, findings: &mut Findings) {
    let Some(attribute) = node.get("by").and_then(Node::text) else { return };
    for (Name { spot, text }, _) in node.get("values").map_or(&[][..], Node::entries) {
        if text == "*" {
            findings
                .error(*spot, "values: \"*\" is compared as it is; for every other value write otherwise");
        } else if let Err(reason) = names::value(attribute, text) {
            findings.error(*spot, format_args!("values: {reason}"));
        } else if text.contains('*') {
            tell_of_a_star(*spot, "values", attribute, text, findings);
        }
    }
}

fn warn_of_a_star(value: &Node, key: &str, attribute: &str, findings: &mut Findings) {
    if let Some(text) = value.text().filter(|text| text.contains('*')) {
        tell_of_a_star(value.spot, key, attribute, text, findings);
    }
}

/// Warns of a star where values are compared as they are.
fn tell_of_a_star(spot: Spot, key: &str, attribute: &str, text: &str, findings: &mut Findings) {
    let matching = match attribute.strip_prefix(names::HEADER) {
        Some(header) => format!("header: {{ {}: \"{}\" }}", excerpt(header), excerpt(text)),
        None => format!("attributes: {{ {}: \"{}\" }}", excerpt(attribute), excerpt(text)),
    };
    findings.warn(
        spot,
        format_args!(
            "{key}: the * in \"{}\" is compared as it is; patterns hold in match alone: write a policy with match: {{ {matching} }}",
            excerpt(text)
        ),
    );
}

/// Methods that a misspelt one is compared with.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Returns the method that a text is one slip of the fingers away from.
fn method_meant(text: &str) -> Option<&'static str> {
    let upper = text.to_ascii_uppercase();
    if text.len() > 16 || METHODS.contains(&&*upper) {
        return None;
    }
    METHODS.into_iter().find(|known| strsim::damerau_levenshtein(&upper, known) == 1)
}

fn warn_of_a_method(node: &Node, key: &str, findings: &mut Findings) {
    if let Some((text, meant)) = node.text().and_then(|text| Some((text, method_meant(text)?))) {
        findings.warn(
            node.spot,
            format_args!("{key}: few requests have the method {}; did you mean {meant}?", excerpt(text)),
        );
    }
}

/// Returns why a path pattern probably means more than it matches, and what to write; `is_alone` says that the match
/// names no other path.
fn path_remark(text: &str, is_alone: bool) -> Option<String> {
    let is_slip = |segment: &str| {
        let word = segment.strip_prefix(':').unwrap_or_default();
        matches!(segment, ".*" | ".+" | ".*?")
            || !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if let Some(segment) = text.split('/').find(|segment| is_slip(segment))
        && let Some(meant) = names::path_meant(text)
    {
        return Some(format!(
            "has {segment}, which is compared as it is: a path has no regular expressions or parameters here; write {}",
            excerpt(&meant)
        ));
    }
    if text == "/" {
        return is_alone.then(|| "matches the root alone; write /** for every path".to_owned());
    }
    if let Some(path) = text.strip_suffix('/').filter(|path| !path.ends_with("**")) {
        return Some(format!(
            "matches {} alone; write {} for all below it too",
            excerpt(path),
            excerpt(&names::below(path))
        ));
    }
    let last = text.rsplit('/').next().unwrap_or_default();
    let word = last.strip_suffix('*').unwrap_or_default();
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then(|| {
        let path = text.trim_end_matches('*');
        format!(
            "matches one segment, as {path} and {path}s, and nothing below; write {} for {path} and all below it",
            excerpt(&names::below(path))
        )
    })
}

/// Warns of a value that reads as a comparison or a regular expression: values are compared as texts and patterns.
fn warn_of_a_value(node: &Node, key: &str, name: &str, findings: &mut Findings) {
    let Some(text) = node.text() else { return };
    let is_number = |text: &str| !text.trim().is_empty() && text.trim().parse::<f64>().is_ok();
    let compares = [">=", "<=", "==", "!=", ">", "<", "="]
        .into_iter()
        .any(|sign| text.strip_prefix(sign).is_some_and(|rest| is_number(rest) || sign.len() == 2));
    let is_regex = text.starts_with('^')
        || text.starts_with("(?")
        || text.starts_with('~')
        || text.starts_with(".*")
        || text.starts_with(".+")
        || text.contains('\\')
        || (text.ends_with('$') && text.len() > 1);
    let (shown, name) = (excerpt(text), excerpt(name));
    if compares {
        findings.warn(
            node.spot,
            format_args!(
                "{key}: \"{shown}\" is compared as text: a match has values, as [a, b], and patterns, as a*, and no \
                 comparisons; let the caller send the class of the number, as {name}: high"
            ),
        );
    } else if text.starts_with('!') && text.len() > 1 {
        findings.warn(
            node.spot,
            format_args!("{key}: \"{shown}\" is compared as it is; what does not match is written as not: {{ ... }} within match"),
        );
    } else if is_regex {
        findings.warn(
            node.spot,
            format_args!("{key}: \"{shown}\" reads as a regular expression, and is compared as a pattern, in which * is any text; write {}", plainer(text)),
        );
    }
}

/// Returns a pattern for a regular expression.
fn plainer(text: &str) -> String {
    let starts = text.trim_start_matches("(?i)").trim_start_matches(['~', ' ']);
    let inner = starts.trim_start_matches('^').trim_end_matches('$');
    let inner = inner.replace(".*", "*").replace(".+", "*").replace('\\', "");
    let before = if starts.starts_with('^') || inner.starts_with('*') { "" } else { "*" };
    let after = if text.ends_with('$') || inner.ends_with('*') { "" } else { "*" };
    format!("\"{}\"", excerpt(&format!("{before}{inner}{after}")))
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
    for method in node.get("method").map_or(&[][..], Node::each) {
        warn_of_a_method(method, &format!("{section}.method"), findings);
    }
    let paths = node.get("path").map_or(&[][..], Node::each);
    for path in paths {
        if let Some(text) = path.text().filter(|text| PathGlob::new(text).is_ok())
            && let Some(remark) = path_remark(text, paths.len() == 1)
        {
            findings.warn(path.spot, format_args!("{section}.path: {} {remark}", excerpt(text)));
        }
    }
    for part in ["header", "attributes"] {
        for (name, value) in node.get(part).map_or(&[][..], Node::entries) {
            if is_empty_list(value) {
                let name_shown = excerpt(&name.text);
                findings.error(
                    name.spot,
                    format_args!("{section}.{part}.{name_shown} is an empty list, which no value fits; write true if any will do"),
                );
            }
            for one in value.each().iter().filter(|one| matches!(one.value, Value::Text(_))) {
                match (part, &*name.text) {
                    ("attributes", "request.path" | "request.method" | "client.ip" | "request.host") => {}
                    (_, name) => warn_of_a_value(one, &format!("{section}.{part}"), name, findings),
                }
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

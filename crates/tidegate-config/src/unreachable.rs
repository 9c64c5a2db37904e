//! Finds conditions that no request can meet: values that an attribute never has, and empty lists.
//!
//! Single names and patterns are checked with the shape. This module checks what depends on two words of the file.

use super::diagnostic::Findings;
use super::foreign_words::address_pattern;
use super::kind::Table;
use super::names;
use super::node::{Name, Node, Value};
use tidegate_gate::policy::Glob;
use tidegate_limits::visible::excerpt;

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
        for (name, value) in node.get(part).map_or(&[][..], Node::entries) {
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

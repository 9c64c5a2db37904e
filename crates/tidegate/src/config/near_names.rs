//! Warns of attributes whose names are short forms of those that doors and callers set, as `ip` of `client.ip`.
//!
//! A policy by such a name passes every other check and limits nobody. The names are free words all the same: an entry
//! of an Envoy descriptor has any name. So there is no warning for policies that name attributes of Envoy's (`rls.`), nor
//! for a file whose server has Envoy's door.

use super::diagnostic::Findings;
use super::node::{Node, Spot, Value};
use super::shape::subject;
use crate::policy::{AccessEntry, name_meant};
use crate::visible::excerpt;

/// Checks the names of all policies and of the lists of the file.
pub(super) fn check(file: &Node, findings: &mut Findings) {
    if !findings.served || file.get("server").is_some_and(|server| server.get("grpc").is_some()) {
        return;
    }
    listed(file, findings);
    for (at, policy) in file.get("policies").map_or(&[][..], Node::each).iter().enumerate() {
        let mut names: Vec<(Spot, &str, &str)> = Vec::new();
        for by in policy.get("by").map_or(&[][..], Node::each) {
            names.extend(by.text().map(|text| (by.spot, "by", text)));
        }
        if let Some(matching) = policy.get("match") {
            matched(matching, &mut names);
        }
        let own = ["limit", "shadow_limit", "cost"].into_iter().filter_map(|key| policy.get(key));
        for node in own.chain(policy.get("limits").map_or(&[][..], Node::each)) {
            for key in ["rate_by", "by"] {
                names.extend(node.get(key).and_then(|by| Some((by.spot, key, by.text()?))));
            }
        }
        if names.iter().any(|(.., name)| name.starts_with("rls.")) {
            continue;
        }
        findings.subject = subject(policy, at);
        for (spot, key, name) in names {
            tell(spot, key, name, findings);
        }
        listed(policy, findings);
        findings.subject.clear();
    }
}

/// Collects the attributes of a match.
fn matched<'n>(node: &'n Node, names: &mut Vec<(Spot, &'static str, &'n str)>) {
    let attributes = node.get("attributes").map_or(&[][..], Node::entries);
    names.extend(attributes.iter().map(|(name, _)| (name.spot, "match.attributes", &*name.text)));
    // The shape was checked: what `not` holds has none of its own.
    for not in node.get("not").map_or(&[][..], Node::each) {
        let attributes = not.get("attributes").map_or(&[][..], Node::entries);
        names.extend(attributes.iter().map(|(name, _)| (name.spot, "match.not.attributes", &*name.text)));
    }
}

/// Checks the lists of an `access` section.
fn listed(node: &Node, findings: &mut Findings) {
    let Some(access) = node.get("access").filter(|access| matches!(access.value, Value::Map(_))) else {
        return;
    };
    for key in ["access.allow", "access.deny"] {
        let (_, list) = key.split_once('.').unwrap_or_default();
        for entry in access.get(list).map_or(&[][..], Node::each) {
            if let Some(Ok(AccessEntry::Attribute { name, .. })) = entry.text().map(str::parse) {
                tell(entry.spot, key, &name, findings);
            }
        }
    }
}

fn tell(spot: Spot, key: &str, name: &str, findings: &mut Findings) {
    if let Some(meant) = name_meant(name) {
        let shown = excerpt(name);
        findings.warn(
            spot,
            format_args!(
                "{key}: no request has \"{shown}\" unless its caller sends that name; did you mean {meant}?"
            ),
        );
    }
}

//! Warns of attributes whose names are probably not meant: short forms as `ip` of `client.ip`, misspelt ones as
//! `user.teir`, and headers with an underscore.
//!
//! Such a policy passes every other check and limits nobody. An entry of an Envoy descriptor has any name, so there is
//! no warning of short names for policies of Envoy's (`rls.`), nor for a file whose server has Envoy's door.

use tidegate_core::spelling::{is_slip, nearest};

use crate::diagnostic::Findings;
use crate::names::{self, HEADER};
use crate::node::{Node, Spot, Value};
use crate::shape::subject;
use tidegate_gate::policy::{AccessEntry, LLM_USAGE, name_meant};
use tidegate_limits::visible::excerpt;

/// Names that the manual uses, and so most files.
const USUAL: [&str; 10] = [
    "client.ip",
    "user.id",
    "user.tier",
    "user.plan",
    "tenant.id",
    "llm.tokens",
    "llm.input",
    "llm.output",
    "llm.total",
    "llm.cached",
];
/// The shortest word whose letters are compared: shorter ones are near too many others.
const SHORTEST: usize = 4;

const ENVOY: &str = "rls.";
const OF_ENVOY: [&str; 4] = ["domain", "keys", "index", "call"];

/// Headers with the address of a caller, which are the caller's words unless a known proxy sent them.
const OF_CALLERS: [&str; 5] =
    ["x-forwarded-for", "x-real-ip", "forwarded", "cf-connecting-ip", "true-client-ip"];

#[derive(Clone, Copy, PartialEq)]
enum Short {
    Told,
    Free,
}

pub(super) fn check(file: &Node, findings: &mut Findings) {
    if !findings.served {
        return;
    }
    let has_grpc = file.get("server").is_some_and(|server| server.get("grpc").is_some());
    let of_file = if has_grpc { Short::Free } else { Short::Told };
    listed(file, of_file, findings);
    for (at, policy) in file.each_of("policies").iter().enumerate() {
        let mut names: Vec<(Spot, &str, &str)> = Vec::new();
        for by in policy.each_of("by") {
            names.extend(by.text().map(|text| (by.spot, "by", text)));
        }
        let mut headers: Vec<(Spot, &str)> = Vec::new();
        if let Some(matching) = policy.get("match") {
            matched(matching, &mut names, &mut headers);
        }
        let own = ["limit", "shadow_limit", "cost"].into_iter().filter_map(|key| policy.get(key));
        let own = own.chain(policy.get("canary").and_then(|canary| canary.get("limit")));
        for node in own.flat_map(Node::each) {
            for table in [node.get("rate"), Some(node), node.get("estimate")] {
                names.extend(
                    table.and_then(|table| table.get("by")).and_then(|by| Some((by.spot, "by", by.text()?))),
                );
            }
            for one in node.each_of("overrides") {
                let key = one.entries_of("key");
                names.extend(key.iter().map(|(name, _)| (name.spot, "override.key", &*name.text)));
            }
        }
        let is_envoys = names.iter().any(|(.., name)| name.starts_with(ENVOY));
        let short = if is_envoys { Short::Free } else { of_file };
        findings.subject = subject(policy, at);
        if !is_envoys {
            tell_of_callers(policy, findings);
        }
        for (spot, key, name) in names {
            tell(spot, key, name, short, findings);
        }
        for (spot, name) in headers {
            tell_header(spot, "match.header", name, "", findings);
        }
        listed(policy, short, findings);
        findings.subject.clear();
    }
}

/// Warns of a key that is made of nothing but what the caller writes of its own address.
fn tell_of_callers(policy: &Node, findings: &mut Findings) {
    let by = policy.each_of("by");
    let header = |node: &Node| {
        let own = node.text()?.strip_prefix(HEADER)?;
        OF_CALLERS.into_iter().find(|known| *known == own)
    };
    let Some((first, name)) = by.first().and_then(|node| Some((node, header(node)?))) else { return };
    if by.iter().all(|node| header(node).is_some()) {
        findings.warn(
            first.spot,
            format_args!(
                "by: the caller writes the header {name}, another with each request if it likes; write by: [client.ip], \
                 and the networks of your proxies as client_ip.trusted_proxies"
            ),
        );
    }
}

fn matched<'n>(
    node: &'n Node,
    names: &mut Vec<(Spot, &'static str, &'n str)>,
    headers: &mut Vec<(Spot, &'n str)>,
) {
    let keys = |node: &'n Node, part: &str| node.entries_of(part).iter();
    names.extend(keys(node, "attributes").map(|(name, _)| (name.spot, "match.attributes", &*name.text)));
    headers.extend(keys(node, "header").map(|(name, _)| (name.spot, &*name.text)));
    for not in node.each_of("not") {
        names.extend(
            keys(not, "attributes").map(|(name, _)| (name.spot, "match.not.attributes", &*name.text)),
        );
        headers.extend(keys(not, "header").map(|(name, _)| (name.spot, &*name.text)));
    }
}

fn listed(node: &Node, short: Short, findings: &mut Findings) {
    let Some(access) = node.get("access").filter(|access| matches!(access.value, Value::Map(_))) else {
        return;
    };
    for key in ["access.allow", "access.deny"] {
        let (_, list) = key.split_once('.').unwrap_or_default();
        for entry in access.each_of(list) {
            if let Some(Ok(AccessEntry::Attribute { name, .. })) = entry.text().map(str::parse) {
                tell(entry.spot, key, &name, short, findings);
            }
        }
    }
}

pub(super) fn in_cost(spot: Spot, key: &str, name: &str, findings: &mut Findings) {
    if findings.served {
        tell(spot, key, name, Short::Free, findings);
    }
}

fn tell(spot: Spot, key: &str, name: &str, short: Short, findings: &mut Findings) {
    if let Some(header) = name.strip_prefix(HEADER) {
        tell_header(spot, key, header, HEADER, findings);
        return;
    }
    if let Some(own) = name.strip_prefix(ENVOY) {
        // An expression may have the map of all entries.
        if !OF_ENVOY.contains(&own) && own != "entry" && !own.starts_with("entry.") {
            let shown = excerpt(name);
            let meant = nearest(own, OF_ENVOY).map_or_else(
                || "there are rls.domain, rls.keys, rls.index, rls.call and rls.entry.KEY".to_owned(),
                |word| format!("did you mean {ENVOY}{word}?"),
            );
            findings.warn(
                spot,
                format_args!("{key}: no request has \"{shown}\" unless its caller sends that name; {meant}"),
            );
        }
        return;
    }
    let of_short = || name_meant(name).map(str::to_owned).or_else(|| names::bare_variable(name));
    let meant = if short == Short::Told { of_short() } else { None };
    let meant = meant.or_else(|| usual(name).map(str::to_owned));
    if let Some(meant) = meant {
        let shown = excerpt(name);
        findings.warn(
            spot,
            format_args!(
                "{key}: no request has \"{shown}\" unless its caller sends that name; did you mean {meant}?"
            ),
        );
    }
}

/// Warns of a header that is named as a variable of a program.
fn tell_header(spot: Spot, key: &str, header: &str, prefix: &str, findings: &mut Findings) {
    if header.contains('_') && !header.contains('-') {
        let meant = header.to_ascii_lowercase().replace('_', "-");
        findings.warn(
            spot,
            format_args!(
                "{key}: headers are sent with dashes, and proxies drop those with underscores; write {prefix}{} unless \"{}\" is meant",
                excerpt(&meant),
                excerpt(header)
            ),
        );
    }
}

fn usual(name: &str) -> Option<&'static str> {
    let (first, last) = name.split_once('.')?;
    if USUAL.contains(&name) || LLM_USAGE.contains(&name) || name.len() > 32 {
        return None;
    }
    let is_near = |one: &str, other: &str| {
        one.len().max(other.len()) >= SHORTEST
            && one.len().min(other.len()) >= SHORTEST - 1
            && is_slip(one, other)
    };
    USUAL.into_iter().find(|usual| {
        let Some((of, what)) = usual.split_once('.') else { return false };
        (first == of && (is_near(last, what) || are_swapped(last, what)))
            || (last == what && (is_near(first, of) || are_swapped(first, of)))
    })
}

/// Returns whether two words differ in the order of two neighbouring letters alone.
fn are_swapped(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let differ = || (0..one.len()).filter(|at| one[*at] != other[*at]);
    one.len() == other.len()
        && differ().count() == 2
        && differ()
            .next()
            .is_some_and(|at| at + 1 < one.len() && one[at] == other[at + 1] && one[at + 1] == other[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_are_near_and_names_of_ones_own_are_not() {
        for (name, meant) in [
            ("user.teir", "user.tier"),
            ("usre.id", "user.id"),
            ("usr.id", "user.id"),
            ("users.id", "user.id"),
            ("user.di", "user.id"),
            ("cleint.ip", "client.ip"),
            ("tennant.id", "tenant.id"),
            ("llm.token", "llm.tokens"),
            ("client.id", ""),
            ("user.ip", ""),
            ("user.uid", ""),
            ("user.team", ""),
            ("user.name", ""),
            ("tenant.tier", ""),
            ("form.user", ""),
            ("user.tier", ""),
            ("upstream.name", ""),
        ] {
            assert_eq!(usual(name).unwrap_or_default(), meant, "{name}");
        }
    }
}

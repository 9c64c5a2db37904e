//! Handles `replaces`: limits that are not checked in a call that meets another limit.

use std::collections::HashMap;

use super::super::super::diagnostic::Findings;
use super::super::super::node::Spot;
use super::rule::Rule;
use tidegate_limits::visible::excerpt;

/// The attribute with all descriptors of the call, as the gRPC door sets it.
pub(super) const CALL: &str = "rls.call";

/// Collects, by the names of replaced limits, patterns of `rls.call` for the calls in which they are replaced.
///
/// A pattern searches `rls.call` for a descriptor that meets the replacing rule. It is exact if all values of that rule
/// are spelled out. If the last key has no value and no other rule of its level has that key, the pattern also fits
/// longer descriptors. For all other rules the values that neighbouring rules take cannot be excluded, so they are
/// reported instead.
pub(super) fn replacements<'r>(
    rules: &'r [Rule],
    before: &str,
    found: &mut HashMap<&'r str, Vec<String>>,
    all: &mut [Findings],
) {
    for rule in rules {
        let start = format!("{before}{}=", escaped(&rule.key));
        let exact = rule.value.as_deref().filter(|value| !value.contains('*'));
        let has_neighbours = rules.iter().any(|other| !std::ptr::eq(other, rule) && other.key == rule.key);
        let pattern = match exact {
            Some(value) => Some(format!("*|{start}{}|*", escaped(value))),
            None if rule.value.is_none() && !has_neighbours => Some(format!("*|{start}*|*")),
            None => None,
        };
        for (name, spot) in &rule.replaces {
            match &pattern {
                Some(pattern) => found.entry(name).or_default().push(pattern.clone()),
                None => unsaid(name, rule.file, *spot, all),
            }
        }
        match exact {
            Some(value) => replacements(&rule.rules, &format!("{start}{},", escaped(value)), found, all),
            None => unsaid_below(&rule.rules, all),
        }
    }
}

fn unsaid_below(rules: &[Rule], all: &mut [Findings]) {
    for rule in rules {
        rule.replaces.iter().for_each(|(name, spot)| unsaid(name, rule.file, *spot, all));
        unsaid_below(&rule.rules, all);
    }
}

fn unsaid(name: &str, file: usize, spot: Spot, all: &mut [Findings]) {
    let name = excerpt(name);
    all[file].warn(
        spot,
        format_args!(
            "replaces: a call that matches both is limited by \"{name}\" too, because this rule does not list all its values; in \
             envoyproxy/ratelimit it is not"
        ),
    );
}

/// Escapes a part of `rls.call` as the gRPC door does.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('|', "%7C").replace(',', "%2C").replace('=', "%3D")
}

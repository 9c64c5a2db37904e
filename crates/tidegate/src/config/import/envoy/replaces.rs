//! Limits that are not asked in a call that meets another one.

use std::collections::HashMap;

use super::super::super::diagnostic::Findings;
use super::super::super::node::Spot;
use super::rule::Rule;
use crate::visible::excerpt;

/// All descriptors of the call, as the gRPC door has them.
pub(super) const CALL: &str = "rls.call";

/// Lists, by the names of limits, how `rls.call` looks when they are replaced.
///
/// That text is searched for a descriptor that meets the other rule. A rule whose values are all spelled out is found exactly; so is one
/// whose last key stands alone, but for descriptors that go on after it. Of others it cannot be told what they leave to their neighbours.
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
            "replaces: \"{name}\" holds beside this limit in a call that meets both, because not all of this rule's values are spelled out; \
             there it is not asked"
        ),
    );
}

/// Writes a part of `rls.call` as the gRPC door does.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace('|', "%7C").replace(',', "%2C").replace('=', "%3D")
}

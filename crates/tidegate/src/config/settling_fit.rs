//! Checks how settling a policy fits the rest of the file: names of usage in other policies, places, and the life of
//! tickets.

use std::collections::HashSet;

use super::costs::learned;
use super::diagnostic::Findings;
use super::keys::{ADAPTIVE, BREAKER, CONCURRENCY, PLACE_TTL, TICKET_TTL};
use super::node::{Node, Spot};
use crate::policy::LLM_USAGE;
use crate::policy::Policy;
use crate::policy::span;
use crate::suggest::nearest;
use crate::visible::excerpt;

/// The names of usage that policies settle by, each with the first policy that uses it.
#[derive(Default)]
pub(super) struct UsageNames {
    all: HashSet<String>,
    /// The names that further names are compared with, each with its policy.
    compared: Vec<(String, String)>,
}

/// How many names a name is compared with. Comparing all pairs would take too long for a file full of names.
const COMPARED: usize = 100;

/// The shortest name that may be reported as a typing error: `gpu.s` and `gpu.ms` are both accepted.
const SHORTEST: usize = 8;

impl UsageNames {
    /// Adds the names that a policy settles by. Warns of names that are probably typing errors of others.
    pub(super) fn add(&mut self, policy: &Policy, node: &Node, findings: &mut Findings) {
        let Some(rule) = &policy.settle else { return };
        let spot =
            node.get("cost").and_then(|cost| cost.get("settle")).map_or(node.spot, |settle| settle.spot);
        for name in rule.by.names() {
            if LLM_USAGE.contains(&name) || !self.all.insert(name.to_owned()) {
                continue;
            }
            if let Some(known) = slip_of(name, LLM_USAGE.into_iter()) {
                let name = excerpt(name);
                findings.warn(
                    spot,
                    format_args!("cost.settle: {name} differs by one letter from a value of language-model calls; did you mean {known}?"),
                );
            } else if let Some(known) = slip_of(name, self.compared.iter().map(|(name, _)| name.as_str()))
                && let Some((_, owner)) = self.compared.iter().find(|(name, _)| name == known)
            {
                let (name, known, owner) = (excerpt(name), excerpt(known), excerpt(owner));
                findings.warn(
                    spot,
                    format_args!("cost.settle: {name} differs by a letter from {known}, which policy \"{owner}\" settles by; is one of them meant?"),
                );
            }
            if self.compared.len() < COMPARED {
                self.compared.push((name.to_owned(), policy.name.clone()));
            }
        }
    }
}

/// Returns the known name that `name` is probably a typing error of: a letter is missing or doubled, or two
/// neighbouring letters are swapped. Two names that differ by one substituted letter, such as `cpu.seconds` and
/// `gpu.seconds`, are accepted.
fn slip_of<'w>(name: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let found = nearest(name, known).filter(|_| name.len() >= SHORTEST)?;
    let is_slip = strsim::damerau_levenshtein(name, found) == 1
        && (name.len() != found.len() || sorted(name) == sorted(found));
    is_slip.then_some(found)
}

/// Reports settlement by units in a policy that counts places, where units mean nothing.
pub(super) fn check_places(policy: &Policy, node: &Node, findings: &mut Findings) {
    let limits = policy.limits.iter().chain(&policy.shadow_limit);
    let Some(guard) = limits.into_iter().find(|limit| limit.is_guard()) else { return };
    let Some(cost) = node.get("cost") else { return };
    let label = &guard.terms.label;
    if let Some((name, _)) = cost.entry("settle") {
        findings.error(
            name.spot,
            format_args!("cost.settle: {label} counts places, but a settlement is in units; put one of the two into its own policy"),
        );
    }
    if let Some(estimate) =
        cost.get("estimate").filter(|estimate| estimate.text().and_then(learned).is_some())
    {
        findings.error(
            estimate.spot,
            format_args!("cost.estimate: {label} counts places, but an estimate is in units; put one of the two into its own policy"),
        );
    }
}

/// Warns of places that are held longer than their ticket can be settled.
pub(super) fn check_lives(file: &Node, findings: &mut Findings) {
    let stated = file.get("tickets").and_then(|tickets| tickets.get("ttl"));
    let tickets = stated.and_then(Node::text).unwrap_or(TICKET_TTL);
    let Ok(life) = span(tickets) else { return };
    for policy in file.get("policies").map_or(&[][..], Node::each) {
        let limits = policy.get("limit").map_or(&[][..], Node::each);
        for limit in limits.iter().filter(|limit| {
            matches!(limit.get("algorithm").and_then(Node::text), Some(CONCURRENCY | BREAKER | ADAPTIVE))
        }) {
            let held = limit.get("ttl").and_then(Node::text).unwrap_or(PLACE_TTL);
            if span(held).is_ok_and(|held| held > life) {
                let spot = |node: Option<&Node>| node.map(|node| node.spot);
                let spot: Spot = spot(limit.get("ttl")).or(spot(stated)).unwrap_or(limit.spot);
                let name = excerpt(policy.get("name").and_then(Node::text).unwrap_or_default()).to_string();
                findings.warn(
                    spot,
                    format_args!(
                        "policy \"{name}\": a place is held for up to {}, and tickets.ttl is {}: a ticket that has expired returns no place",
                        held.trim(),
                        tickets.trim()
                    ),
                );
            }
        }
    }
}

//! Warns of costs from what requests probably lack, and of settling that does not fit the rest of the file: names of
//! usage that differ from other policies', and places that outlive their tickets.

use std::collections::HashSet;

use tidegate_core::spelling::{is_slip, nearest};

#[cfg(feature = "cel")]
use super::comparisons;
use super::near_names;
use crate::diagnostic::Findings;
use crate::keys::{ADAPTIVE, BREAKER, CONCURRENCY, PLACE_TTL, TICKET_TTL};
use crate::names;
use crate::node::{Node, Spot};
use crate::policies::BuiltPolicy;
#[cfg(feature = "cel")]
use crate::sample_costs;
#[cfg(feature = "cel")]
use tidegate_gate::policy::SettleBy;
use tidegate_gate::policy::{CostRule, LLM_USAGE};
use tidegate_gate::policy::{SettleRule, span};
use tidegate_limits::visible::excerpt;

#[cfg(feature = "cel")]
const ALWAYS: [&str; 4] = ["request.method", "request.path", "request.host", "client.ip"];

const MOST_TOLD: usize = 4;

pub(super) fn check(built: &BuiltPolicy<'_>, findings: &mut Findings) {
    let BuiltPolicy { policy, node, .. } = built;
    let Some(cost) = node.get("cost") else { return };
    let (charged, key) = match cost.get("estimate") {
        Some(estimate) => (estimate, "cost.estimate"),
        None => (cost, "cost"),
    };
    match &policy.cost {
        Some(CostRule::Attribute(name)) if names::attribute(name).is_ok() => {
            near_names::in_cost(charged.spot, key, name, findings);
        }
        #[cfg(feature = "cel")]
        Some(CostRule::Expression(expression)) => {
            for name in expression.names().filter(|name| names::attribute_of_expression(name).is_ok()) {
                near_names::in_cost(charged.spot, key, name, findings);
            }
            tell_comparisons(expression.source(), charged, key, findings);
        }
        _ => {}
    }
    #[cfg(feature = "cel")]
    if let Some(SettleRule { by: SettleBy::Expression(expression), .. }) = &policy.settle
        && let Some(settle) = cost.get("settle")
    {
        tell_comparisons(expression.source(), settle, "cost.settle", findings);
    }
    if let Some(rule) = policy.cost.as_ref().filter(|rule| rule.may_be_unknown())
        && node.entry("on_cost_error").is_none()
    {
        tell_unknown(rule, charged, findings);
    }
}

#[cfg(feature = "cel")]
fn tell_comparisons(expression: &str, node: &Node, key: &str, findings: &mut Findings) {
    for remark in comparisons::remarks(expression) {
        findings.warn(node.spot, format_args!("{key}: {remark}"));
    }
}

fn tell_unknown(rule: &CostRule, node: &Node, findings: &mut Findings) {
    if !findings.served || findings.is_full() {
        return;
    }
    let names = without(rule, findings);
    let shown = match names.as_slice() {
        [] => return,
        names if names.len() > MOST_TOLD => format!("{} and others", names[..MOST_TOLD].join(", ")),
        names => names.join(" or "),
    };
    let instead = match rule {
        CostRule::Attribute(_) => String::new(),
        _ => format!(", or ask has({}) in the expression", names[0]),
    };
    findings.warn(
        node.spot,
        format_args!(
            "cost: a request without {shown}, or with another value than the cost needs, is refused; write \
             on_cost_error: deny if that is meant, else on_cost_error: whole-limit{instead}"
        ),
    );
}

/// Returns the attributes without which, or without a number in which, a cost cannot be worked out.
fn without(rule: &CostRule, findings: &mut Findings) -> Vec<String> {
    match rule {
        CostRule::Attribute(name) => vec![name.clone()],
        #[cfg(feature = "cel")]
        CostRule::Expression(expression) => {
            let names = sample_costs::fails_without(expression, &mut findings.samples);
            names.into_iter().filter(|name| !ALWAYS.contains(name)).map(str::to_owned).collect()
        }
        _ => {
            let _ = findings;
            Vec::new()
        }
    }
}

#[derive(Default)]
pub(super) struct UsageNames {
    all: HashSet<String>,
    compared: Vec<(String, String)>,
}

/// The most names that a name is compared with: all pairs of a file full of names would take too long.
const COMPARED: usize = 100;

/// The shortest name that may be reported as a typing error: `gpu.s` and `gpu.ms` are both accepted.
const SHORTEST: usize = 8;

impl UsageNames {
    /// Adds the names that a policy settles by. Warns of names that are probably typing errors of others.
    pub(super) fn add(&mut self, built: &BuiltPolicy<'_>, findings: &mut Findings) {
        let BuiltPolicy { policy, node, .. } = built;
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

/// Returns the known name of which `name` is probably a typing error: a letter missing or doubled, or two neighbours
/// swapped. A substituted letter, as in `cpu.seconds` and `gpu.seconds`, is accepted.
fn slip_of<'w>(name: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let found = nearest(name, known).filter(|_| name.len() >= SHORTEST)?;
    let is_meant = is_slip(name, found) && (name.len() != found.len() || sorted(name) == sorted(found));
    is_meant.then_some(found)
}

pub(super) fn check_lives(file: &Node, findings: &mut Findings) {
    let stated = file.get("tickets").and_then(|tickets| tickets.get("ttl"));
    let tickets = stated.and_then(Node::text).unwrap_or(TICKET_TTL);
    let Ok(life) = span(tickets) else { return };
    for policy in file.each_of("policies") {
        let limits = policy.each_of("limit");
        for limit in limits
            .iter()
            .filter(|limit| matches!(limit.text_of("algorithm"), Some(CONCURRENCY | BREAKER | ADAPTIVE)))
        {
            let held = limit.text_of("ttl").unwrap_or(PLACE_TTL);
            if span(held).is_ok_and(|held| held > life) {
                let spot = |node: Option<&Node>| node.map(|node| node.spot);
                let spot: Spot = spot(limit.get("ttl")).or(spot(stated)).unwrap_or(limit.spot);
                let name = excerpt(policy.text_of("name").unwrap_or_default()).to_string();
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

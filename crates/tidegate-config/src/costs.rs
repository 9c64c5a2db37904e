//! Reads the `cost` of a policy: what a check takes, and how its settlement corrects it.

use tidegate_core::Cost;

use super::diagnostic::Findings;
use super::grammars::percent;
use super::keys::Kind;
use super::names;
use super::node::{Node, Value};
#[cfg(feature = "cel")]
use super::sample_costs;
use super::shape::{NO_OTHERWISE, is_sound};
use tidegate_gate::policy::{
    CostRule, Learning, Policy, SettleBy, SettleRule, is_attribute_name, whole_number,
};
use tidegate_limits::visible::excerpt;

#[derive(Debug, Default)]
pub(super) struct Costs {
    pub(super) cost: Option<CostRule>,
    /// Whether a cost sent with the check takes precedence over `cost`.
    pub(super) caller: bool,
    pub(super) settle: Option<SettleRule>,
}

/// Where the names in an expression get their values from.
#[derive(Clone, Copy)]
enum NameSource {
    Request,
    Settlement,
}

/// Returns the number of bytes of expressions in a cost.
pub(super) fn length(cost: &Node) -> usize {
    let text = |node: Option<&Node>| node.and_then(Node::text).map_or(0, str::len);
    text(Some(cost)) + text(cost.get("estimate")) + text(cost.get("settle"))
}

const TABLE: [&str; 3] = ["by", "values", "otherwise"];

/// Checks that the file says what becomes of requests without a cost only where there may be such.
pub(super) fn check_unknown(policy: &Policy, node: &Node, findings: &mut Findings) {
    let is_known = policy.cost.as_ref().is_none_or(|rule| !rule.may_be_unknown());
    if is_known
        && let Some((key, _)) = node.entry("on_cost_error")
        && (node.get("cost").is_none() || policy.cost.is_some())
    {
        findings.error(
            key.spot,
            "on_cost_error: this cost is always known; leave the key out, or take the cost from the request, as cost: llm.tokens",
        );
    }
}

/// Reports settlement by units in a policy that counts places.
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

pub(super) fn costs(node: &Node, findings: &mut Findings) -> Costs {
    let Value::Map(_) = node.value else {
        return Costs { cost: rule(node, "cost", findings), ..Costs::default() };
    };
    const SETTLED: [&str; 5] = ["estimate", "start", "caller", "settle", "missing"];
    let settled = SETTLED.iter().find_map(|key| node.entry(key));
    let listed = TABLE.iter().find_map(|key| node.entry(key));
    match (listed, settled) {
        (Some((key, _)), Some(_)) => {
            let text = &key.text;
            findings.error(
                key.spot,
                format_args!(
                    "cost.{text} is part of an estimate here; write cost: {{ estimate: {{ {text}: … }} }}"
                ),
            );
            Costs::default()
        }
        (None, Some(_)) => estimated(node, findings),
        _ => {
            for key in TABLE.into_iter().filter(|key| node.entry(key).is_none()) {
                let remedy = if key == "otherwise" { NO_OTHERWISE } else { "" };
                findings.error(node.spot, format_args!("cost has no {key}{remedy}"));
            }
            Costs { cost: table(node), ..Costs::default() }
        }
    }
}

fn estimated(node: &Node, findings: &mut Findings) -> Costs {
    let settle = node.get("settle").map(|by| settle(by, findings));
    let missing = node.entries_of("missing");
    let missing =
        missing.iter().filter_map(|(name, node)| Some((name.text.clone(), whole_number(node.text()?).ok()?)));
    if let (Some(Some(by)), Some(missing)) = (&settle, node.get("missing")) {
        for (name, _) in missing.entries().iter().filter(|(name, _)| !by.uses(&name.text)) {
            let (shown, used) = (excerpt(&name.text), by.names().join(", "));
            findings
                .error(name.spot, format_args!("cost.missing: settle does not use {shown}; it uses {used}"));
        }
    }
    let rule = |by| {
        let mut rule = SettleRule::new(by);
        rule.missing = missing.collect();
        rule
    };
    let Some(estimate) = node.get("estimate") else {
        for key in ["start", "caller"] {
            if let Some((name, _)) = node.entry(key) {
                findings.error(name.spot, format_args!("cost.{key} needs cost.estimate"));
            }
        }
        if settle.is_none() && !findings.refused() {
            findings.error(node.spot, "cost.missing needs cost.settle");
        }
        // Without an estimate, the check takes the cost that its caller sends.
        return Costs { settle: settle.flatten().map(rule), ..Costs::default() };
    };
    if let (Some((name, _)), None) = (node.entry("missing"), &settle) {
        findings.error(name.spot, "cost.missing needs cost.settle");
    }
    Costs {
        cost: estimate_of(estimate, node, findings),
        caller: node.text_of("caller") == Some("believed"),
        settle: settle.unwrap_or(Some(SettleBy::Cost)).map(rule),
    }
}

fn estimate_of(estimate: &Node, cost: &Node, findings: &mut Findings) -> Option<CostRule> {
    if let Value::Map(_) = estimate.value {
        return table(estimate);
    }
    let text = estimate.text().unwrap_or_default();
    let Some(share) = learned(text) else {
        if text.starts_with("learned ") {
            let shown = excerpt(text);
            findings.error(
                estimate.spot,
                format_args!("cost.estimate: \"{shown}\" has no share; use 1% to 100%, as learned 99%"),
            );
            return None;
        }
        if let Some((name, _)) = cost.entry("start") {
            findings.error(name.spot, "cost.start needs estimate: learned");
        }
        return rule(estimate, "cost.estimate", findings);
    };
    let Some(start) = cost.get("start") else {
        findings.error(
            estimate.spot,
            "a learned estimate needs cost.start: the units charged until 20 requests were settled",
        );
        return None;
    };
    Some(CostRule::Learned(Learning::from(units(start)?).percent(share)))
}

/// Reads `learned`, or `learned 99%`, as a percentage of requests that cost at most the estimate.
pub(super) fn learned(text: &str) -> Option<u8> {
    // Few requests then cost more than was charged, and rare giants do not raise the estimate of all.
    const USUAL: u8 = 90;
    match text.trim().strip_prefix("learned")? {
        "" => Some(USUAL),
        share => percent(share.strip_prefix(' ')?.trim()),
    }
}

fn table(node: &Node) -> Option<CostRule> {
    let values = node.get("values")?.entries().iter();
    Some(CostRule::Table {
        by: node.text_of("by")?.to_owned(),
        values: values.filter_map(|(name, node)| Some((name.text.clone(), units(node)?))).collect(),
        otherwise: node.get("otherwise").and_then(units)?,
    })
}

fn units(node: &Node) -> Option<Cost> {
    whole_number(node.text()?).ok().and_then(Cost::new)
}

fn rule(node: &Node, key: &str, findings: &mut Findings) -> Option<CostRule> {
    let text = node.text().filter(|_| is_sound(node, &Kind::Cost))?;
    if let Value::Number(_) = node.value {
        if units(node).is_none() {
            findings.error(node.spot, format_args!("{key}: {text} is not a whole number of 1 or more"));
        }
        return units(node).map(CostRule::Fixed);
    }
    // YAML's infinity and not-a-number contain a dot, as names of attributes do.
    if matches!(text.trim_start_matches(['-', '+']).to_ascii_lowercase().as_str(), ".nan" | ".inf") {
        findings.error(node.spot, format_args!("{key}: {text} is not a whole number of 1 or more"));
        return None;
    }
    if is_attribute_name(text) {
        if let Err(reason) = names::attribute(text) {
            findings.error(node.spot, format_args!("{key}: {reason}"));
        }
        return Some(CostRule::Attribute(text.to_owned()));
    }
    if let Some(instead) = names::instead_of_a_word(text) {
        let shown = excerpt(text);
        findings.error(node.spot, format_args!("{key}: \"{shown}\" {instead}"));
        return None;
    }
    #[cfg(feature = "cel")]
    return expression(text, node, key, NameSource::Request, findings)
        .filter(|expression| costs_something(expression, node, key, findings))
        .map(CostRule::Expression);
    #[cfg(not(feature = "cel"))]
    return no_expression(node, key, NameSource::Request, findings);
}

fn settle(node: &Node, findings: &mut Findings) -> Option<SettleBy> {
    let key = "cost.settle";
    let text = node.text().filter(|_| is_sound(node, &Kind::Settle))?;
    if matches!(node.value, Value::Number(_)) {
        findings.error(
            node.spot,
            format_args!("{key}: {text} is the same for every request; write cost: {text}, which is charged at the check"),
        );
        return None;
    }
    if text.trim() == "cost" {
        findings.error(node.spot, format_args!("{key}: leave settle out to use the cost in the settlement"));
        return None;
    }
    if is_attribute_name(text) {
        if let Err(reason) = names::usage(text) {
            findings.error(node.spot, format_args!("{key}: {reason}"));
        }
        return Some(SettleBy::Value(text.to_owned()));
    }
    #[cfg(feature = "cel")]
    return expression(text, node, key, NameSource::Settlement, findings)
        .filter(|expression| settles(expression, node, findings))
        .map(SettleBy::Expression);
    #[cfg(not(feature = "cel"))]
    return no_expression(node, key, NameSource::Settlement, findings);
}

#[cfg(feature = "cel")]
fn expression(
    text: &str,
    node: &Node,
    key: &str,
    source: NameSource,
    findings: &mut Findings,
) -> Option<std::sync::Arc<tidegate_gate::policy::Expression>> {
    match tidegate_gate::policy::Expression::compile(text) {
        Ok(expression) => {
            for name in expression.names() {
                let checked = match source {
                    NameSource::Request => names::attribute_of_expression(name),
                    NameSource::Settlement => names::usage(name),
                };
                if let Err(reason) = checked {
                    findings.error(node.spot, format_args!("{key}: {reason}"));
                }
            }
            Some(std::sync::Arc::new(expression))
        }
        Err(error) => {
            let hint = if has_single_equals(text) { "; write == to compare" } else { "" };
            findings.error(node.spot, format_args!("{key}: {error}{hint}"));
            None
        }
    }
}

#[cfg(feature = "cel")]
fn has_single_equals(text: &str) -> bool {
    let bytes = text.as_bytes();
    (0..bytes.len()).any(|at| {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        bytes[at] == b'='
            && bytes.get(at + 1) != Some(&b'=')
            && !matches!(before, Some(b'=' | b'!' | b'<' | b'>'))
    })
}

#[cfg(feature = "cel")]
fn costs_something(
    expression: &tidegate_gate::policy::Expression,
    node: &Node,
    key: &str,
    findings: &mut Findings,
) -> bool {
    if findings.is_full() || expression.names().any(|name| names::attribute_of_expression(name).is_err()) {
        return true;
    }
    let Some(found) = sample_costs::never_costs(expression, &mut findings.samples) else { return true };
    let shown = excerpt(expression.source());
    findings.error(
        node.spot,
        format_args!(
            "{key}: \"{shown}\" gives no number of 0 or more for any sample; with 1 for every name: {found}"
        ),
    );
    false
}

/// Checks that an expression can settle: a failure at run time would leave every estimate uncorrected, unnoticed.
#[cfg(feature = "cel")]
fn settles(expression: &tidegate_gate::policy::Expression, node: &Node, findings: &mut Findings) -> bool {
    // More errors would only be counted, or an impossible name was reported already.
    if findings.is_full() || expression.names().any(|name| names::usage(name).is_err()) {
        return true;
    }
    let shown = excerpt(expression.source());
    let found = sample_costs::never_settles(expression, &mut findings.samples);
    if expression.names().next().is_none() {
        let also = found.map_or_else(String::new, |found| format!(" ({found})"));
        findings.error(
            node.spot,
            format_args!(
                "cost.settle: \"{shown}\" uses no value of the settlement{also}; use one such as llm.output"
            ),
        );
        return false;
    }
    match found {
        None => true,
        Some(found) => {
            findings.error(
                node.spot,
                format_args!("cost.settle: \"{shown}\" gives no number of 0 or more for any sample; with 1 for every name: {found}"),
            );
            false
        }
    }
}

#[cfg(not(feature = "cel"))]
fn no_expression<T>(node: &Node, key: &str, source: NameSource, findings: &mut Findings) -> Option<T> {
    let instead = match source {
        NameSource::Request => "a number, an attribute or a table",
        NameSource::Settlement => "the name of one value",
    };
    findings
        .error(node.spot, format_args!("{key}: expressions are not available in this build; use {instead}"));
    None
}

//! Warns of costs that are taken from what requests probably lack, or compare what no request has.

#[cfg(feature = "cel")]
use super::comparisons;
use super::near_names;
use crate::config::diagnostic::Findings;
use crate::config::names;
use crate::config::node::Node;
use crate::config::policies::BuiltPolicy;
#[cfg(feature = "cel")]
use crate::config::sample_costs;
use crate::policy::CostRule;
#[cfg(feature = "cel")]
use crate::policy::{SettleBy, SettleRule};

/// Attributes that all doors for web requests give.
#[cfg(feature = "cel")]
const ALWAYS: [&str; 4] = ["request.method", "request.path", "request.host", "client.ip"];

/// How many names a warning tells.
const MOST_TOLD: usize = 4;

/// Checks the cost of a policy. Impossible names in it were reported where it was read.
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

/// Tells which requests have no cost, in a file that does not say what becomes of them.
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

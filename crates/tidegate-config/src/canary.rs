//! Builds the canary of a policy: a limit that is tried on a share of its keys.

use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;

use super::diagnostic::Findings;
use super::grammars::{more, portion};
use super::keys::{CANARY, CANARY_LIMIT, Kind};
use super::limit_spec::PolicyFacts;
use super::limits;
use super::node::{Node, Spot, Value};
use super::shape::is_sound;
use tidegate_gate::policy::{Canary, CanaryError, CanaryGuard, Limit, Policy, span, whole_number};
use tidegate_limits::visible::excerpt;

/// The most bytes of a canary's text: a longer one is cut, and ends with a number that stands for the rest.
const LONGEST: usize = 1024;

/// Builds the canary of a policy, of which all else is built; `cost` is the largest that one request is known to have.
/// `None` if there is none, or it is invalid.
pub(super) fn canary(
    node: &Node,
    policy: &Policy,
    cost: Option<u64>,
    findings: &mut Findings,
) -> Option<Canary> {
    let written = node.get("canary")?;
    // What is wrong with its shape was reported by the shape check.
    if !is_sound(written, &Kind::Table(&CANARY)) {
        return None;
    }
    let base = node.get("limit").and_then(|limit| limit.each().first());
    let (own, first) = (written.get("limit")?, policy.limits.first()?);
    let facts = PolicyFacts { by: &policy.by, cost };
    let mut limit = limits::limit(own, base, &CANARY_LIMIT, facts, findings)?;
    check_plans(own, &limit, first, findings)?;
    // Who has a rate of its own is not tried on, unless the canary says so.
    if own.get("overrides").is_none() {
        limit.overrides.clone_from(&first.overrides);
    }
    let passes = !policy.over.refuses();
    if let (true, Some((name, _)), false) = (passes, own.entry("max_wait"), limit.max_wait.is_zero()) {
        let what = "canary.limit.max_wait: over lets requests through at once; leave out max_wait";
        findings.error(name.spot, what);
        return None;
    }
    let lasts = written.text_of("for").and_then(|text| span(text).ok())?;
    let mut canary = Canary::new(limit, written.text_of("share").and_then(portion)?, lasts);
    canary.guard = guard(written.get("guard"));
    canary.enforce = written.text_of("then") == Some("enforce");
    canary.text = text_of(written);
    if let Err(error) = canary.check(policy) {
        let (key, spot) = place(node, written, &error);
        findings.error(spot, format_args!("{key}: {error}"));
        return None;
    }
    Some(canary)
}

/// Checks that a limit with rates by plan is tried as one with rates by the same plan: otherwise the canary would give
/// everybody the rate of one plan.
fn check_plans(own: &Node, limit: &Limit, first: &Limit, findings: &mut Findings) -> Option<()> {
    let Some(plans) = &first.tiers else { return Some(()) };
    if limit.tiers.as_ref().is_some_and(|tiers| tiers.by == plans.by) {
        return Some(());
    }
    let rate = own.get("rate")?;
    let (by, plan) = (&plans.by, plans.values.keys().min().map_or("gold", String::as_str));
    let text = rate.text().unwrap_or("6/s");
    findings.error(
        rate.spot,
        format_args!(
            "canary.limit.rate: {text} would be the rate of every {by}, and the limit has one for each; write rate: {{ by: {by}, values: {{ \
             {}: {text} }}, otherwise: {text} }}",
            excerpt(plan)
        ),
    );
    None
}

fn guard(node: Option<&Node>) -> CanaryGuard {
    let mut guard = CanaryGuard::default();
    let text = |key: &str| node.and_then(|node| node.text_of(key));
    guard.denied = text("denied").and_then(more).unwrap_or(guard.denied);
    guard.failures = text("failures").and_then(more).unwrap_or(guard.failures);
    let keys = text("keys_refused").and_then(|text| whole_number(text).ok());
    guard.keys_refused = keys.unwrap_or(guard.keys_refused);
    guard
}

/// Returns the key that an error is about, and its place.
fn place(node: &Node, written: &Node, error: &CanaryError) -> (&'static str, Spot) {
    let of = |node: &Node, key: &str| node.entry(key).map_or(written.spot, |(name, _)| name.spot);
    match error {
        CanaryError::Share { .. } => ("canary.share", of(written, "share")),
        CanaryError::Lasts { .. } => ("canary.for", of(written, "for")),
        CanaryError::Unlimited
        | CanaryError::Guard { .. }
        | CanaryError::OtherAlgorithm { .. }
        | CanaryError::Follows => ("canary.limit", of(written, "limit")),
        _ => ("canary", of(node, "canary")),
    }
}

/// Returns the canary's text in one line, without its comments.
fn text_of(written: &Node) -> String {
    let mut text = String::new();
    write(written, &mut text);
    if text.len() > LONGEST {
        // Equal texts have equal numbers, also after a restart.
        let rest = FixedState::default().hash_one(&text);
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str(&format!("… {rest:016x}"));
    }
    text
}

fn write(node: &Node, into: &mut String) {
    match &node.value {
        Value::Map(entries) => {
            into.push_str("{ ");
            for (at, (name, value)) in entries.iter().enumerate() {
                into.push_str(if at == 0 { "" } else { ", " });
                into.push_str(&name.text);
                into.push_str(": ");
                write(value, into);
            }
            into.push_str(" }");
        }
        Value::List(nodes) => {
            into.push('[');
            for (at, node) in nodes.iter().enumerate() {
                into.push_str(if at == 0 { "" } else { ", " });
                write(node, into);
            }
            into.push(']');
        }
        _ => into.push_str(node.text().unwrap_or("null")),
    }
}

//! Builds the policies from the tree of the file.

use std::collections::HashMap;

use tidegate_core::Cost;

use super::contradiction::contradiction;
use super::diagnostic::Findings;
use super::limit_words::PolicyFacts;
use super::node::{Name, Node, Value};
use super::shape::subject;
use super::shares::percent;
use super::{budget, conditions, costs, durable, limits};
use super::{over_limit, share};
use tidegate_gate::policy::{
    Absent, Access, AccessList, ChargeOn, CostRule, Deny, Direction, Glob, Limit, Match, Mode, OnCostError,
    PathGlob, Policy, Want,
};
use tidegate_limits::store::OnStoreError;

/// A policy that was built, and its place in the file.
pub(super) struct BuiltPolicy<'n> {
    pub(super) policy: Policy,
    pub(super) node: &'n Node,
    /// Its index in the list of the file.
    pub(super) at: usize,
}

/// Builds the policies that have no mistake. The mistakes of the others are among the findings.
pub(super) fn policies<'n>(file: &'n Node, findings: &mut Findings) -> Vec<BuiltPolicy<'n>> {
    let mut built = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    let list = file.get("policies").map_or(&[][..], Node::each);
    let costs: usize = list.iter().filter_map(|node| Some(costs::length(node.get("cost")?))).sum();
    if costs > budget::COSTS {
        let most = budget::COSTS >> 10;
        findings
            .error(file.spot, format_args!("the costs of all policies are longer than {most} KiB together"));
        return Vec::new();
    }
    let defaults = file.get("defaults");
    share::check(defaults, "defaults.share", file, findings);
    durable::check(defaults, "defaults.durable", file, findings);
    for (at, node) in list.iter().enumerate() {
        findings.subject = subject(node, at);
        if let Some(name) = node.get("name")
            && let Some(text) = name.text()
            && let Some(line) = names.insert(text, name.spot.line)
        {
            findings.error(name.spot, format_args!("the name is taken by the policy in line {line}"));
        }
        share::check(Some(node), "share", file, findings);
        durable::check(Some(node), "durable", file, findings);
        if let Some(mut policy) = policy(node, defaults, findings) {
            share::check_split(&mut policy, node, file, findings);
            share::check_regional(&policy, node, file, findings);
            built.push(BuiltPolicy { policy, node, at });
        }
    }
    findings.subject.clear();
    built
}

fn policy(node: &Node, defaults: Option<&Node>, findings: &mut Findings) -> Option<Policy> {
    let own = |key: &str| node.get(key).and_then(Node::text);
    let inherited = |key: &str| own(key).or_else(|| defaults?.get(key)?.text());
    let by: Vec<String> = texts(node.get("by"));
    for (at, name) in node.get("by").map_or(&[][..], Node::each).iter().enumerate() {
        if name.text().is_some_and(|text| by[..at.min(by.len())].iter().any(|first| first == text)) {
            findings.error(name.spot, format_args!("{} is named twice in by", name.text().unwrap_or("")));
        }
    }
    let costs = node.get("cost").map(|node| costs::costs(node, findings)).unwrap_or_default();
    let largest = costs.cost.as_ref().and_then(CostRule::largest_known).map(Cost::units);
    let owner = PolicyFacts { by: &by, cost: largest };
    let limits = all_limits(node, owner, findings);
    let shadow_limit = node.get("shadow_limit").and_then(|shadow| {
        let base = node.get("limit").and_then(|limit| limit.each().first());
        limits::limit(shadow, base, PolicyFacts { cost: None, ..owner }, findings)
    });
    let access = access(node.get("access"));
    let mut limits = limits?.into_iter();
    let mut policy = Policy::new(own("name").unwrap_or_default(), limits.next()?);
    policy.limits.extend(limits);
    policy.shadow_limit = shadow_limit;
    policy.matching = node.get("match").map_or_else(Match::any, matching);
    policy.by = by;
    policy.when = conditions::conditions(node);
    conditions::check_together(&policy.when, node, findings);
    (policy.cost, policy.caller_cost, policy.settle) = (costs.cost, costs.caller, costs.settle);
    policy.on_cost_error = match own("on_cost_error") {
        Some("whole-limit") => OnCostError::WholeLimit,
        _ => OnCostError::Deny,
    };
    costs::check_unknown(&policy, node, findings);
    policy.access = access;
    policy.direction =
        if own("direction") == Some("outbound") { Direction::Outbound } else { Direction::Inbound };
    policy.absent = match own("absent") {
        Some("charge") => Absent::Charge,
        Some("skip") => Absent::Skip,
        _ => Absent::SkipIfNone,
    };
    policy.charge = match own("charge") {
        Some("on-failure") => ChargeOn::Failure,
        Some("always") => ChargeOn::Always,
        _ => ChargeOn::Check,
    };
    let why_unsettled = match policy.charge {
        ChargeOn::Check => None,
        ChargeOn::Failure => {
            Some("a policy that charges failures is decided by how the work ended, not by what it cost")
        }
        ChargeOn::Always => Some("charge: always also charges refused requests, which nobody settles"),
    };
    if let (Some(why), Some((charge, _)), true) =
        (why_unsettled, node.entry("charge"), policy.settle.is_some())
    {
        findings.error(charge.spot, format_args!("{why}; leave the estimate and settle out of cost"));
    }
    policy.mode = match inherited("mode") {
        Some("off") => Mode::Off,
        Some("shadow") => Mode::Shadow,
        _ => Mode::Enforce,
    };
    policy.on_store_error = match inherited("on_store_error") {
        Some("allow") => OnStoreError::Allow,
        Some("deny") => OnStoreError::Deny,
        _ => OnStoreError::Local,
    };
    policy.durable = durable::durable(node, defaults);
    policy.share = share::share(node, defaults);
    policy.near_limit = inherited("near_limit").and_then(percent).unwrap_or(80);
    let answer =
        |status| node.get("deny").map_or_else(|| Deny::with_status(status), |node| deny(node, status));
    (policy.deny, policy.shed) = (answer(429), answer(503));
    let guard = policy.limits.iter().chain(&policy.shadow_limit).find(|limit| limit.is_guard());
    let what = match policy.charge {
        ChargeOn::Check => None,
        ChargeOn::Failure => Some("on-failure keeps the charges of failures"),
        ChargeOn::Always => Some("always charges refused requests too"),
    };
    if let (Some(guard), Some(what), Some((charge, _))) = (guard, what, node.entry("charge")) {
        let what = format_args!(
            "{what}, and {} keeps none: a place is returned when its request ends",
            guard.terms.label
        );
        findings.error(charge.spot, format_args!("charge: {what}"));
    }
    over_limit::read(&mut policy, node, findings);
    costs::check_places(&policy, node, findings);
    if let Some((matches, _)) = node.entry("match")
        && let Some(why) = contradiction(&policy)
    {
        findings.error(matches.spot, format_args!("no request can match: {why}"));
    }
    Some(policy)
}

/// Builds the limits of a policy; `None` if any of them is invalid.
fn all_limits(node: &Node, owner: PolicyFacts<'_>, findings: &mut Findings) -> Option<Vec<Limit>> {
    let Some((name, limit)) = node.entry("limit") else {
        // The shape check has reported a policy that is no map, a limit without a value, and `limits`, the earlier key.
        let is_reported = |(name, _): &(Name, Node)| matches!(&*name.text, "limit" | "limits");
        if matches!(node.value, Value::Map(_)) && !node.entries().iter().any(is_reported) {
            findings.error(node.spot, "policy has no limit; write limit: { rate: 10/s }");
        }
        return None;
    };
    if matches!(&limit.value, Value::List(nodes) if nodes.is_empty()) {
        findings.error(name.spot, "limit is an empty list; write limit: { rate: 10/s }");
    }
    // All limits are built before the policy is given up, so that the mistakes of each are reported. A limit without a
    // value was reported by the shape check.
    let built: Vec<_> = limit.each().iter().map(|one| limits::limit(one, None, owner, findings)).collect();
    built.into_iter().collect::<Option<Vec<_>>>().filter(|limits| !limits.is_empty())
}

fn texts(node: Option<&Node>) -> Vec<String> {
    let nodes = node.map_or(&[][..], Node::each);
    nodes.iter().filter_map(Node::text).map(str::to_owned).collect()
}

/// Builds a match. Invalid patterns were reported by the shape check.
fn matching(node: &Node) -> Match {
    let mut built = Match::any();
    for method in texts(node.get("method")) {
        built = built.method(&method);
    }
    built.add_paths(texts(node.get("path")).iter().filter_map(|pattern| PathGlob::new(pattern).ok()));
    let hosts = texts(node.get("host"));
    built.add_hosts(hosts.iter().filter_map(|pattern| Glob::new(&pattern.to_ascii_lowercase()).ok()));
    for (name, value) in node.get("header").map_or(&[][..], Node::entries) {
        built = built.header(&name.text, want(value));
    }
    for (name, value) in node.get("attributes").map_or(&[][..], Node::entries) {
        built = built.attribute(&name.text, want(value));
    }
    let left_out = node.get("not").map_or(&[][..], Node::each);
    left_out.iter().fold(built, |built, not| built.not(matching(not)))
}

fn want(node: &Node) -> Want {
    match node.value {
        Value::Bool(true) => Want::Present,
        Value::Bool(false) => Want::Absent,
        _ => Want::OneOf(
            node.each().iter().filter_map(Node::text).filter_map(|text| Glob::new(text).ok()).collect(),
        ),
    }
}

fn deny(node: &Node, status: u16) -> Deny {
    let stated = node.get("status").and_then(Node::text).and_then(|text| text.parse().ok());
    let status = stated.unwrap_or(status);
    let mut deny = Deny::with_status(status);
    if let Some(problem) = node.get("problem").and_then(Node::text) {
        let is_uri = problem.contains(':') || problem.starts_with('/');
        deny.problem = if is_uri { problem.to_owned() } else { format!("{}{problem}", Deny::TYPES) };
    }
    deny
}

/// Builds the access lists. Invalid entries were reported by the shape check.
pub(super) fn access(node: Option<&Node>) -> Access {
    let list = |key: &str| -> AccessList {
        texts(node.and_then(|node| node.get(key))).iter().filter_map(|text| text.parse().ok()).collect()
    };
    let status = node.and_then(|node| node.get("status")?.text()?.parse().ok()).unwrap_or(403);
    Access { allow: list("allow"), deny: list("deny"), status }
}

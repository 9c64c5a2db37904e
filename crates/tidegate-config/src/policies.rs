//! Builds the policies from the tree of the file: what they match, and what they do to a request over its limit.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tidegate_core::{Cost, Criticality};

use super::conditions::{self, condition, followed};
use super::diagnostic::Findings;
use super::grammars::{block, demote, percent};
use super::keys::{LIMIT, SHADOW_LIMIT};
use super::limit_spec::PolicyFacts;
use super::names::instead;
use super::node::{Name, Node, Spot, Value};
use super::shape::subject;
use super::{budget, canary, costs, limits, share};
use tidegate_gate::policy::{
    Absent, Access, AccessList, ChargeOn, ConditionsError, CostRule, Deny, Direction, Glob, Limit, Match,
    Mode, OnCostError, Over, PathGlob, Policy, PolicySetError, Source, Want, span,
};
use tidegate_limits::priority::KeepFor;
use tidegate_limits::store::OnStoreError;
use tidegate_limits::visible::excerpt;

pub(super) struct BuiltPolicy<'n> {
    pub(super) policy: Policy,
    pub(super) node: &'n Node,
    /// Its index in the list of the file.
    pub(super) at: usize,
}

/// Builds the policies that have no mistake; those of the others are among the findings.
pub(super) fn policies<'n>(file: &'n Node, findings: &mut Findings) -> Vec<BuiltPolicy<'n>> {
    let mut built = Vec::new();
    let mut names: HashMap<&str, usize> = HashMap::new();
    let list = file.each_of("policies");
    let costs: usize = list.iter().filter_map(|node| Some(costs::length(node.get("cost")?))).sum();
    if costs > budget::COSTS {
        let most = budget::COSTS >> 10;
        findings
            .error(file.spot, format_args!("the costs of all policies are longer than {most} KiB together"));
        return Vec::new();
    }
    let defaults = file.get("defaults");
    share::check(defaults, "defaults.share", file, findings);
    share::check_durable(defaults, "defaults.durable", file, findings);
    for (at, node) in list.iter().enumerate() {
        findings.subject = subject(node, at);
        if let Some(name) = node.get("name")
            && let Some(text) = name.text()
            && let Some(line) = names.insert(text, name.spot.line)
        {
            findings.error(name.spot, format_args!("the name is taken by the policy in line {line}"));
        }
        share::check(Some(node), "share", file, findings);
        share::check_durable(Some(node), "durable", file, findings);
        if let Some(mut policy) = policy(node, defaults, findings) {
            share::check_split(&mut policy, node, file, findings);
            share::check_regional(&policy, node, file, findings);
            built.push(BuiltPolicy { policy, node, at });
        }
    }
    findings.subject.clear();
    check_canaries(file, &built, findings);
    built
}

/// Checks that somebody compares the figures of all canaries.
fn check_canaries(file: &Node, built: &[BuiltPolicy<'_>], findings: &mut Findings) {
    let canaries = built.iter().filter(|one| one.policy.canary.is_some()).count();
    if canaries > budget::CANARIES {
        let most = budget::CANARIES;
        let what = format_args!("{canaries} policies have a canary; at most {most} can be watched");
        findings.error(file.spot, what);
    }
    let sight = file.get("server").and_then(|server| server.get("sight"));
    if let Some(sight) = sight.filter(|sight| canaries > 0 && sight.text() == Some("off")) {
        findings.warn(
            sight.spot,
            "server.sight: off compares no canary with other keys, so nothing ends one that goes wrong; write sight: on",
        );
    }
}

fn policy(node: &Node, defaults: Option<&Node>, findings: &mut Findings) -> Option<Policy> {
    let own = |key: &str| node.text_of(key);
    let inherited = |key: &str| own(key).or_else(|| defaults?.get(key)?.text());
    let by: Vec<String> = texts(node.get("by"));
    for (at, name) in node.each_of("by").iter().enumerate() {
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
        let owner = PolicyFacts { cost: None, ..owner };
        limits::limit(shadow, base, if base.is_some() { &SHADOW_LIMIT } else { &LIMIT }, owner, findings)
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
    policy.durable = share::durable(node, defaults);
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
    over_limit(&mut policy, node, findings);
    policy.canary = canary::canary(node, &policy, largest, findings);
    costs::check_places(&policy, node, findings);
    if let Some((matches, _)) = node.entry("match")
        && let Some(why) = contradiction(&policy)
    {
        findings.error(matches.spot, format_args!("no request can match: {why}"));
    }
    Some(policy)
}

/// Builds all limits of a policy; `None` if there is none, or any of them is invalid.
fn all_limits(node: &Node, owner: PolicyFacts<'_>, findings: &mut Findings) -> Option<Vec<Limit>> {
    let Some((name, limit)) = node.entry("limit") else {
        let is_reported = |(name, _): &(Name, Node)| matches!(&*name.text, "limit" | "limits");
        if matches!(node.value, Value::Map(_)) && !node.entries().iter().any(is_reported) {
            findings.error(node.spot, "policy has no limit; write limit: { rate: 10/s }");
        }
        return None;
    };
    if matches!(&limit.value, Value::List(nodes) if nodes.is_empty()) {
        findings.error(name.spot, "limit is an empty list; write limit: { rate: 10/s }");
    }
    // All limits are built before the policy is given up, so that the mistakes of each are reported.
    let built: Vec<_> =
        limit.each().iter().map(|one| limits::limit(one, None, &LIMIT, owner, findings)).collect();
    built.into_iter().collect::<Option<Vec<_>>>().filter(|limits| !limits.is_empty())
}

fn texts(node: Option<&Node>) -> Vec<String> {
    let nodes = node.map_or(&[][..], Node::each);
    nodes.iter().filter_map(Node::text).map(str::to_owned).collect()
}

fn matching(node: &Node) -> Match {
    let mut built = Match::any();
    for method in texts(node.get("method")) {
        built = built.method(&method);
    }
    built.add_paths(texts(node.get("path")).iter().filter_map(|pattern| PathGlob::new(pattern).ok()));
    let hosts = texts(node.get("host"));
    built.add_hosts(hosts.iter().filter_map(|pattern| Glob::new(&pattern.to_ascii_lowercase()).ok()));
    for (name, value) in node.entries_of("header") {
        built = built.header(&name.text, want(value));
    }
    for (name, value) in node.entries_of("attributes") {
        built = built.attribute(&name.text, want(value));
    }
    let left_out = node.each_of("not");
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
    let stated = node.text_of("status").and_then(|text| text.parse().ok());
    let status = stated.unwrap_or(status);
    let mut deny = Deny::with_status(status);
    if let Some(problem) = node.text_of("problem") {
        let is_uri = problem.contains(':') || problem.starts_with('/');
        deny.problem = if is_uri { problem.to_owned() } else { format!("{}{problem}", Deny::TYPES) };
    }
    deny
}

pub(super) fn access(node: Option<&Node>) -> Access {
    let list = |key: &str| -> AccessList {
        texts(node.and_then(|node| node.get(key))).iter().filter_map(|text| text.parse().ok()).collect()
    };
    let status = node.and_then(|node| node.text_of("status")?.parse().ok()).unwrap_or(403);
    Access { allow: list("allow"), deny: list("deny"), status }
}

fn over_limit(policy: &mut Policy, node: &Node, findings: &mut Findings) {
    let text = |key: &str| node.text_of(key);
    policy.deadline = text("deadline").and_then(|text| span(text).ok());
    if let (Some(Duration::ZERO), Some((name, _))) = (policy.deadline, node.entry("deadline")) {
        findings.error(name.spot, "deadline: no request can be served in no time; leave it out");
    }
    let word = text("over").unwrap_or("deny");
    policy.over = match word {
        "mark" => Over::Mark,
        word if let Some(lasts) = block(word) => Over::Block { lasts },
        word if let Some(to) = demote(word) => Over::Demote { to },
        _ => Over::Deny,
    };
    let Some((over, _)) = node.entry("over") else { return };
    if let Over::Demote { to: Some(Criticality::CriticalPlus) } = policy.over {
        let what = "over: critical-plus lowers nobody, since no level is above it; write demote to critical, or to a lower one";
        findings.error(over.spot, what);
    }
    let passes = matches!(policy.over, Over::Mark | Over::Demote { .. });
    let delays = |limit: &Limit| !limit.max_wait.is_zero();
    if let Over::Block { .. } = policy.over {
        let limits = || policy.limits.iter();
        let told = if limits().any(Limit::is_guard) {
            Some(
                "blocks keys over a rate; a limit of requests in flight or a breaker says nothing of one caller",
            )
        } else if limits().any(|limit| limit.keep_for != KeepFor::default()) {
            Some(
                "would block a whole key for a request that is refused only for its priority; leave out keep_for",
            )
        } else if policy.charge == ChargeOn::Always {
            Some("charges nothing during the block; leave out charge: always")
        } else {
            None
        };
        if let Some(told) = told {
            findings.error(over.spot, format_args!("over: {word} {told}"));
        }
        if policy.by.is_empty() || policy.absent == Absent::Charge {
            let whom =
                if policy.by.is_empty() { "have one key" } else { "without the attribute share one key" };
            findings.warn(
                over.spot,
                format_args!(
                    "over: {word}: all requests {whom}, so one caller who exceeds the limit blocks everybody; name the callers, \
                     as in by: [client.ip]{}",
                    if policy.by.is_empty() { "" } else { ", or leave out absent: charge" }
                ),
            );
        }
    }
    match word {
        "wait" if !policy.limits.iter().any(delays) => {
            findings.error(over.spot, "over: wait needs a limit with max_wait: how long a request may wait");
        }
        _ if passes && policy.charge == ChargeOn::Failure => {
            findings.error(
                over.spot,
                format_args!(
                    "over: {word} cannot be combined with charge: on-failure, whose limit must refuse callers that fail"
                ),
            );
        }
        _ if passes && policy.limits.iter().any(delays) => {
            findings.error(
                over.spot,
                format_args!("over: {word} lets requests through at once; leave out max_wait"),
            );
        }
        _ => {}
    }
}

// Finds matches that no request can fit, when the file is read.
//
// Only easy cases: incompatible demands on one attribute, a direction that another key excludes, and a `not` that
// excludes all that the rest includes. Two patterns with wildcards are not compared.

/// Returns why no request can be charged to a policy, as the end of a sentence. Only easy cases are found: two
/// incompatible demands on one attribute, a direction that another key of the policy excludes, and a `not` that
/// excludes everything that the rest includes.
fn contradiction(policy: &Policy) -> Option<String> {
    let excluded = |name: &&String| {
        let mut asked = policy.matching.attributes().iter();
        asked.any(|(asked, want)| **asked == ***name && *want == Want::Absent)
    };
    let missing = policy.by.iter().find(excluded);
    let skipped = match policy.absent {
        Absent::Charge => None,
        Absent::Skip => missing,
        Absent::SkipIfNone => missing.filter(|_| policy.by.iter().all(|name| excluded(&name))),
    };
    match skipped {
        Some(name) => Some(format!("the key is made of {name}, which the match asks to be absent")),
        None => within(&policy.matching, policy.direction),
    }
}

/// Returns why no request fits a match, as the end of a sentence.
///
/// Quadratic in the number of attributes of the match.
fn within(matching: &Match, direction: Direction) -> Option<String> {
    let attributes = matching.attributes();
    for (at, (name, want)) in attributes.iter().enumerate() {
        let rival = attributes[..at].iter().find(|(other, second)| other == name && !agree(want, second));
        if rival.is_some() {
            return Some(format!("the conditions of match on {name} contradict each other"));
        }
        let (part, possible) = match &**name {
            "request.method" if !matching.methods().is_empty() => {
                let mut methods = matching.methods().iter();
                ("method", methods.any(|method| fits(want, &method.to_ascii_uppercase())))
            }
            "request.host" if !matching.hosts().is_empty() => {
                ("host", agree(&Want::OneOf(matching.hosts().into()), want))
            }
            "request.path" if !matching.paths().is_empty() => {
                let paths = matching.paths();
                let fitting =
                    |path: &PathGlob| path.literals().is_none_or(|mut all| all.any(|text| fits(want, text)));
                let one_fits = |value: &str| paths.iter().any(|path| path.matches(value));
                ("path", can_be(want, one_fits) && paths.iter().any(fitting))
            }
            "request.direction" if direction == Direction::Outbound => {
                ("direction: outbound", fits(want, "outbound"))
            }
            // A request without the attribute is inbound.
            "request.direction" => {
                let inbound = *want == Want::Absent || fits(want, "inbound");
                ("direction: inbound, which holds unless the policy says outbound", inbound)
            }
            _ => continue,
        };
        if !possible {
            return Some(format!("the conditions of match on {name} contradict {part}"));
        }
    }
    let covered = matching.left_out().iter().any(|not| covers(not, matching));
    covered.then(|| "`not` excludes everything that the rest of the match includes".to_owned())
}

/// Reports whether every request that fits `other` fits `this`, as far as that is easy to decide. `false` if `this` has
/// a `not` of its own.
fn covers(this: &Match, other: &Match) -> bool {
    let methods = this.methods().is_empty()
        || !other.methods().is_empty()
            && other.methods().iter().all(|method| this.methods().contains(method));
    let hosts = this.hosts().is_empty()
        || !other.hosts().is_empty()
            && other.hosts().iter().all(|host| {
                let whole = |own: &Glob| own.source() == "*" || own == host;
                let mut literals = host.literals();
                this.hosts().iter().any(whole)
                    || literals.as_mut().is_some_and(|texts| {
                        texts.all(|text| this.hosts().iter().any(|own| own.matches(text)))
                    })
            });
    // Every request has a path, except those that a program describes without one; a program tests such requests
    // explicitly.
    let paths = this.paths().is_empty()
        || this.paths().iter().any(|own| matches!(own.source(), "/**" | "**"))
        || !other.paths().is_empty()
            && other.paths().iter().all(|path| {
                let mut literals = path.literals();
                this.paths().contains(path)
                    || literals.as_mut().is_some_and(|texts| {
                        texts.all(|text| this.paths().iter().any(|own| own.matches(text)))
                    })
            });
    let attributes = this.attributes().iter().all(|(name, want)| {
        let same = |(_, asked): &&(Box<str>, Want)| {
            asked == want || *want == Want::Present && matches!(asked, Want::OneOf(_))
        };
        let within = |(_, asked): &&(Box<str>, Want)| {
            matches!(asked, Want::OneOf(globs) if is_literal(globs) && !can_be(asked, |value| !fits(want, value)))
        };
        let of_it = || other.attributes().iter().filter(|(asked, _)| asked == name);
        of_it().any(|pair| same(&pair)) || of_it().any(|pair| within(&pair))
    });
    methods && hosts && paths && attributes && this.left_out().is_empty()
}

fn agree(one: &Want, other: &Want) -> bool {
    match (one, other) {
        (Want::Absent, Want::Absent) => true,
        (Want::Absent, _) | (_, Want::Absent) => false,
        (Want::OneOf(globs), other) if is_literal(globs) => can_be(one, |value| fits(other, value)),
        (one, Want::OneOf(globs)) if is_literal(globs) => can_be(other, |value| fits(one, value)),
        _ => true,
    }
}

fn is_literal(globs: &[Glob]) -> bool {
    globs.iter().all(|glob| glob.literals().is_some())
}

fn fits(want: &Want, value: &str) -> bool {
    match want {
        Want::OneOf(globs) => globs.iter().any(|glob| glob.matches(value)),
        Want::Present => true,
        Want::Absent => false,
    }
}

/// Reports whether a value that `want` asks for can satisfy `has`; a pattern with wildcards counts as such.
fn can_be(want: &Want, mut has: impl FnMut(&str) -> bool) -> bool {
    match want {
        Want::OneOf(globs) => globs.iter().any(|glob| match glob.literals() {
            Some(mut values) => values.any(&mut has),
            None => true,
        }),
        Want::Present => true,
        Want::Absent => false,
    }
}

pub(super) fn check_references(file: &Node, findings: &mut Findings) {
    let list = file.each_of("policies");
    let names: HashSet<&str> = list.iter().filter_map(|node| node.text_of("name")).collect();
    for (at, policy) in list.iter().enumerate() {
        for (node, name) in references(policy) {
            if names.contains(&*name) {
                continue;
            }
            // A policy cannot depend on itself, nor on one with a key for each caller.
            let fits = |other: &&Node| !std::ptr::eq(*other, policy) && other.get("by").is_none();
            let known: Vec<&str> = list.iter().filter(fits).filter_map(|node| node.text_of("name")).collect();
            let hint = match known.is_empty() {
                _ if findings.is_full() => String::new(),
                true => "; a condition names a policy without by, and there is no other such".to_owned(),
                false => instead(&name, known.into_iter()),
            };
            findings.subject = subject(policy, at);
            findings.error(node.spot, format_args!("there is no policy \"{}\"{hint}", excerpt(&name)));
            findings.subject.clear();
        }
    }
    for (switch, trigger) in conditions::written_triggers(file) {
        let Some((node, name)) = of_switch(trigger).filter(|(_, name)| !names.contains(&**name)) else {
            continue;
        };
        let known = list.iter().filter(|other| other.get("by").is_none());
        let mut known = known.filter_map(|node| node.text_of("name")).peekable();
        let silent = known.peek().is_none() || findings.is_full();
        let hint = if silent { String::new() } else { instead(&name, known.collect::<Vec<_>>().into_iter()) };
        findings.subject = format!("switch \"{}\": ", excerpt(&switch.text));
        findings.error(node.spot, format_args!("there is no policy \"{}\"{hint}", excerpt(&name)));
        findings.subject.clear();
    }
}

/// Returns where a policy or a switch refers to one that it cannot depend on.
pub(super) fn place(file: &Node, error: &PolicySetError) -> Option<Spot> {
    let PolicySetError::Conditions(error) = error else { return None };
    if let ConditionsError::SwitchGoesBy { switch, other, .. } = error {
        let mut of_name = conditions::written_triggers(file).filter(|(name, _)| name.text == *switch);
        let found = of_name.find_map(|(_, node)| of_switch(node).filter(|(_, to)| **to == **other));
        return found.map(|(node, _)| node.spot);
    }
    let ConditionsError::GoesBy { name, other, .. } = error else { return None };
    let list = file.each_of("policies");
    let policy = list.iter().find(|node| node.text_of("name") == Some(name))?;
    references(policy).find(|(_, to)| **to == **other).map(|(node, _)| node.spot)
}

fn of_switch(trigger: &Node) -> Option<(&Node, Box<str>)> {
    let node = trigger.get("off_when")?;
    match condition(node.text()?).ok()?.source() {
        Source::Policy(name) => Some((node, name.clone())),
        _ => None,
    }
}

fn references(policy: &Node) -> impl Iterator<Item = (&Node, Box<str>)> {
    let conditions = policy.each_of("when").iter();
    let conditions =
        conditions.filter_map(|node| Some((node, condition(node.text()?).ok()?.source().clone())));
    let own = ["limit", "shadow_limit"].into_iter().filter_map(|key| policy.get(key));
    let limits = own.flat_map(Node::each);
    let followed = limits.filter(|node| matches!(node.value, Value::Map(_))).filter_map(|limit| {
        let node = limit.get("follows")?;
        Some((node, followed(node.text()?).ok()?.source))
    });
    conditions.chain(followed).filter_map(|(node, source)| match source {
        Source::Policy(name) => Some((node, name)),
        _ => None,
    })
}

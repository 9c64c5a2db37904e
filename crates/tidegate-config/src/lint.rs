//! Warns of what a file says and probably does not mean: names, limits and networks that are right by themselves and do
//! something else together. Nothing here refuses a file.
//!
//! What a limit or a condition is warned of by itself is told where it is built.

#[cfg(feature = "cel")]
mod comparisons;
mod costs;
mod duplicates;
mod near_names;
mod networks;
mod patterns;

use self::costs::UsageNames;
use self::duplicates::Alike;
use super::diagnostic::Findings;
use super::node::{Node, Value};
use super::policies::BuiltPolicy;
use super::shape::subject;
use tidegate_gate::policy::{Limit, Mode};

/// Warns about a file; `built` are those of its policies that could be built. Called once, after everything that may
/// refuse the file: policies with an error are not compared with others.
pub(super) fn lint(file: &Node, built: &[BuiltPolicy<'_>], findings: &mut Findings) {
    let mut usage_names = UsageNames::default();
    let mut alike = Alike::default();
    for (nth, one) in built.iter().enumerate() {
        findings.subject = subject(one.node, one.at);
        costs::check(one, findings);
        check_unlimited(one, findings);
        usage_names.add(one, findings);
        alike.add(&built[..nth], one, &findings.subject);
    }
    alike.tell(findings);
    findings.subject.clear();
    patterns::check(file, findings);
    near_names::check(file, findings);
    networks::check(file, findings);
    costs::check_lives(file, findings);
}

/// Warns of a policy that limits nothing, refuses nothing and tries no limit. For Envoy's calls such a policy says that
/// their values are known.
fn check_unlimited(built: &BuiltPolicy<'_>, findings: &mut Findings) {
    let BuiltPolicy { policy, node, .. } = built;
    let is_unlimited = policy.limits.iter().flat_map(Limit::all_terms).all(|terms| terms.quota.is_none());
    let refuses = !policy.access.deny.is_empty() || policy.deadline.is_some();
    if is_unlimited
        && !refuses
        && policy.shadow_limit.is_none()
        && policy.mode != Mode::Off
        && !is_of_envoy(node)
        && let Some((key, _)) = node.entry("limit")
    {
        findings.warn(
            key.spot,
            "limits nothing, since its rate is unlimited, and exempts from nothing; write access.allow, or not under match, in the \
             policies that are to spare these requests",
        );
    }
}

/// Reports whether a policy matches Envoy's calls alone, which say the caller's address themselves.
fn is_of_envoy(policy: &Node) -> bool {
    let asked = policy.get("match").and_then(|matching| matching.get("attributes"));
    let mut asked = asked.map_or(&[][..], Node::entries).iter();
    asked.any(|(name, want)| name.text.starts_with("rls.") && want.value != Value::Bool(false))
}

//! Reads `deadline` and `over`, and reports settings that exclude them.

use std::time::Duration;

use tidegate_core::Criticality;

use super::diagnostic::Findings;
use super::grammars::{block, demote};
use super::node::Node;
use tidegate_gate::policy::{Absent, ChargeOn, Limit, Over, Policy, span};
use tidegate_limits::priority::KeepFor;

/// Stores both in a policy whose limits and lists are already read.
pub(super) fn read(policy: &mut Policy, node: &Node, findings: &mut Findings) {
    let text = |key: &str| node.get(key).and_then(Node::text);
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

//! Reads `keep_for`: the part of a limit that is reserved for requests of higher priority.

use std::time::Duration;

use tidegate_core::Criticality;

use super::diagnostic::Findings;
use super::limit_words::{PolicyFacts, Words};
use super::node::{Node, Spot};
use super::shares::kept;
use tidegate_gate::policy::{Limit, Terms};
use tidegate_limits::priority::KeepFor;
use tidegate_limits::priority::keep_for::most_at_once;
use tidegate_limits::store::kept_back;

/// Builds the `keep_for` of a limit and checks it against each of the limit's terms.
pub(super) fn keep_for(
    words: &Words<'_>,
    limit: &Limit,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> KeepFor {
    let Some(node) = words.get("keep_for") else { return KeepFor::default() };
    let keep_for = Criticality::ALL.into_iter().fold(KeepFor::default(), |keep_for, level| {
        let written = node.get(level.as_str()).and_then(Node::text).and_then(kept);
        written.map_or(keep_for, |kept| keep_for.with(level, kept))
    });
    let spot = |level: Option<Criticality>| {
        level.and_then(|level| node.entry(level.as_str())).map_or(node.spot, |(name, _)| name.spot)
    };
    for terms in limit.all_terms() {
        let Some(quota) = &terms.quota else { continue };
        if let Err(error) = keep_for.check(quota, limit.max_wait) {
            findings.error(spot(error.level()), format_args!("{error} ({})", terms.label));
            return KeepFor::default();
        }
        warn_of_costs(&keep_for, terms, limit.max_wait, owner, node.spot, findings);
    }
    keep_for
}

/// Warns if a request's cost fits the limit but exceeds what `keep_for` leaves for the lowest level: such a request
/// would never pass.
fn warn_of_costs(
    keep_for: &KeepFor,
    terms: &Terms,
    max_wait: Duration,
    owner: PolicyFacts<'_>,
    spot: Spot,
    findings: &mut Findings,
) {
    let (Some(quota), Some(cost)) = (&terms.quota, owner.cost) else { return };
    if kept_back::moves(quota) {
        // A request that finds the limit empty passes, whatever it costs.
        return;
    }
    let kept_back = keep_for.kept_back(Criticality::Sheddable.into(), quota.capacity());
    let left = most_at_once(quota, max_wait).saturating_sub(kept_back);
    if left > 0 && cost > left {
        let label = &terms.label;
        findings.warn(
            spot,
            format_args!(
                "keep_for: a request may cost {cost}, and of {label} only {left} are left for sheddable requests: at that cost they never pass"
            ),
        );
    }
}

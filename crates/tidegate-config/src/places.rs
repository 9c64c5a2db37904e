//! Builds the terms of a limit on requests in flight (`algorithm: concurrency`).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Quota;

use super::diagnostic::Findings;
use super::keys::PLACE_TTL;
use super::limit_words::{PolicyFacts, Words};
use super::node::Spot;
use tidegate_gate::policy::{Terms, span};
use tidegate_limits::visible::excerpt;

/// Builds the terms of `algorithm: concurrency` and checks that one request can enter at all. Invalid words were
/// reported by the shape check.
pub(super) fn terms(
    words: &Words<'_>,
    spot: Spot,
    owner: PolicyFacts<'_>,
    findings: &mut Findings,
) -> Option<Terms> {
    let max = words.whole("max")?;
    let written = words.text("ttl").unwrap_or(PLACE_TTL);
    let label = format!("concurrency {max} ttl {}", written.trim());
    let spot_of = |key: &str| words.get(key).map_or(spot, |node| node.spot);
    if let Some(cost) = owner.cost.filter(|cost| *cost > max) {
        let message = format!("a request may cost {cost}, and {label} never grants more than {max} at once");
        findings.error(spot_of("max"), message);
        return None;
    }
    let ttl = span(written).ok()?;
    remark_short_ttl(words, ttl, findings);
    match Quota::concurrency(max, ttl) {
        Ok(quota) => Some(Terms { quota: Some(Arc::new(quota)), label }),
        Err(error) => {
            findings.error(spot_of("ttl"), words.error_text("ttl", &error));
            None
        }
    }
}

/// The time for a place below which a file is warned. No work over a network is shorter, and the server's clock has this
/// resolution under load, so with less most places are free again before their work ends.
const SHORT_TTL: Duration = Duration::from_millis(1);

/// Warns of a `ttl` so short that the limit of places bounds nothing: each place is free again at once.
pub(super) fn remark_short_ttl(words: &Words<'_>, ttl: Duration, findings: &mut Findings) {
    if ttl < SHORT_TTL
        && !ttl.is_zero()
        && let Some(node) = words.node.get("ttl")
    {
        let message = format_args!(
            "ttl: a place is free again after {}, before any work has ended, so this limits nothing; use a time longer than any work takes, \
             such as {PLACE_TTL}",
            excerpt(node.text().unwrap_or_default().trim())
        );
        findings.warn(node.spot, message);
    }
}

//! Builds the terms of a limit on requests in flight (`algorithm: concurrency`).

use std::sync::Arc;

use tidegate_core::Quota;

use super::diagnostic::Findings;
use super::keys::PLACE_TTL;
use super::node::Spot;
use super::words::{PolicyFacts, Words};
use crate::policy::{Terms, span};

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
    match Quota::concurrency(max, span(written).ok()?) {
        Ok(quota) => Some(Terms { quota: Some(Arc::new(quota)), label }),
        Err(error) => {
            findings.error(spot_of("ttl"), words.error_text("ttl", &error));
            None
        }
    }
}

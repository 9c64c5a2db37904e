//! Warns of queues whose places outlast the longest delay.

use std::time::Duration;

use tidegate_core::Quota;

use super::diagnostic::Findings;
use super::node::Spot;
use tidegate_gate::policy::{Limit, Terms};
use tidegate_limits::duration_text::in_words;
use tidegate_limits::priority::keep_for::most_at_once;

/// Warns for each queue of a limit in which `max_wait` is over before the last place is served: requests are refused
/// while places are free. `spot` is that of `max_wait`.
pub(super) fn warn_of_short_waits(limit: &Limit, spot: Spot, findings: &mut Findings) {
    for terms in limit.all_terms() {
        if let Some(text) = short_wait(terms, limit.max_wait) {
            findings.warn(spot, text);
        }
    }
}

fn short_wait(terms: &Terms, max_wait: Duration) -> Option<String> {
    let Some(Quota::LeakyQueue(queue)) = terms.quota.as_deref() else { return None };
    let places = queue.places();
    // A rested queue lets the slack and one more pass at once.
    let served = most_at_once(terms.quota.as_deref()?, max_wait).saturating_sub(queue.slack() + 1);
    if served >= places {
        return None;
    }
    let period = queue.rate().period().as_nanos();
    let wait_for = |place: u64| {
        let nanos = period.saturating_mul(u128::from(place)).div_ceil(u128::from(queue.rate().count()));
        in_words(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    };
    let (label, waits, needed) = (&terms.label, in_words(max_wait), wait_for(places));
    Some(match served {
        0 => format!(
            "max_wait: {waits} is less than the {} between two requests of {label}, so its queue is hardly used; with {needed} \
             all {places} places are",
            wait_for(1)
        ),
        _ => format!(
            "max_wait: within {waits}, {label} serves {served} of the {places} places of its queue, and the others stay free; \
             use max_wait: {needed} or queue: {served}"
        ),
    })
}

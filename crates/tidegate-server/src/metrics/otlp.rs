//! Metrics of decision spans, by their fate. Written only where spans are sent.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The fate of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "labels are written as they are named")]
pub(crate) enum Fate {
    /// The collector accepted it.
    sent,
    /// The collector did not accept it, or did not answer.
    failed,
    /// The queue was full.
    dropped,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FateLabel {
    fate: Fate,
}

/// The number of spans by fate. Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct Fates(Family<FateLabel, Counter>);

impl Default for Fates {
    fn default() -> Self {
        let family = Family::default();
        for fate in [Fate::sent, Fate::failed, Fate::dropped] {
            // The series exists from the start, so that its first increase is visible.
            drop(family.get_or_create(&FateLabel { fate }));
        }
        Self(family)
    }
}

impl Fates {
    /// Counts spans.
    pub(crate) fn count(&self, fate: Fate, spans: usize) {
        self.0.get_or_create(&FateLabel { fate }).inc_by(spans as u64);
    }

    /// Returns the number of spans with this fate.
    #[cfg(test)]
    pub(crate) fn of(&self, fate: Fate) -> u64 {
        self.0.get_or_create(&FateLabel { fate }).get()
    }
}

/// Registers the number of spans by fate.
pub(crate) fn show(registry: &mut Registry, fates: &Fates) {
    registry.register(
        "otlp_spans",
        "Spans of decisions: sent, failed, or dropped because the queue was full",
        fates.0.clone(),
    );
}

//! The bound on spans that wait for the collector, and what became of all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};
use prometheus_client::registry::Registry;

use crate::metrics::otlp::{self, Fate, Fates};

/// Spans that wait at most, those being sent among them: some megabytes.
pub(super) const QUEUE: usize = 4096;

/// How many spans wait, and what became of the others.
#[derive(Debug, Default)]
pub(super) struct Tally {
    waiting: AtomicUsize,
    fates: Fates,
}

impl Tally {
    /// Takes a place in the queue; without one the span is counted as dropped.
    fn enter(&self) -> bool {
        // Relaxed: a bound, and each span adds and takes away its own place.
        if self.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.fates.count(Fate::dropped, 1);
        false
    }

    /// Gives the places of spans back that wait no longer.
    pub(super) fn leave(&self, spans: usize, fate: Fate) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        self.fates.count(fate, spans);
    }

    /// Adds what became of spans to the metrics.
    pub(super) fn show(&self, registry: &mut Registry) {
        otlp::show(registry, &self.fates);
    }
}

/// Lets spans into the batches of the SDK as long as there is room; it drops spans as well, but tells nobody how many.
#[derive(Debug)]
pub(super) struct Bounded {
    pub(super) batches: BatchSpanProcessor,
    pub(super) tally: Arc<Tally>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.tally.enter() {
            self.batches.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let tally = Tally::default();
        assert_eq!((0..QUEUE + 3).filter(|_| tally.enter()).count(), QUEUE);
        assert_eq!(tally.fates.of(Fate::dropped), 3);
        tally.leave(2, Fate::sent);
        assert_eq!((0..3).filter(|_| tally.enter()).count(), 2);
        assert_eq!((tally.fates.of(Fate::sent), tally.fates.of(Fate::dropped)), (2, 4));
    }
}

//! Bounds the spans that wait for the collector, and counts the fate of all spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};
use prometheus_client::registry::Registry;

use crate::metrics::otlp::{self, Fate, Fates};

/// The most spans that wait, including those being sent: a few megabytes of memory.
pub(super) const QUEUE: usize = 4096;

/// The number of waiting spans, and the fates of the others.
#[derive(Debug, Default)]
pub(super) struct Tally {
    waiting: AtomicUsize,
    fates: Fates,
}

impl Tally {
    /// Reserves a place in the queue. If there is none, counts the span as dropped.
    fn enter(&self) -> bool {
        // Relaxed: only a bound, and each span adds and removes its own place.
        if self.waiting.fetch_add(1, Ordering::Relaxed) < QUEUE {
            return true;
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.fates.count(Fate::dropped, 1);
        false
    }

    /// Releases the places of spans that no longer wait.
    pub(super) fn leave(&self, spans: usize, fate: Fate) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        self.fates.count(fate, spans);
    }

    /// Registers the number of spans by fate.
    pub(super) fn show(&self, registry: &mut Registry) {
        otlp::show(registry, &self.fates);
    }
}

/// Passes spans to the SDK's batches while there is room. The SDK drops spans too, but does not report how many.
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

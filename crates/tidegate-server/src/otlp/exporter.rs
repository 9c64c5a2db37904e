//! What hands batches to the collector: the exporter of the OpenTelemetry crates, on our runtime, with its outcome counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::runtime::Handle;

use super::queue::Tally;
use crate::metrics::otlp::Fate;

/// Hands batches to the collector, and counts what became of them.
#[derive(Debug)]
pub(super) struct Counted {
    otlp: Arc<Otlp>,
    tally: Arc<Tally>,
    /// The thread of the batches is none of a runtime, and the client needs one for its timeouts.
    runtime: Handle,
    /// Whether the last batch came to nothing: the log is told when that changes.
    away: AtomicBool,
}

impl Counted {
    pub(super) fn new(otlp: Otlp, tally: Arc<Tally>) -> Self {
        Self { otlp: Arc::new(otlp), tally, runtime: Handle::current(), away: AtomicBool::new(false) }
    }

    /// Tells the log when the collector goes, and when it comes back.
    fn tell(&self, outcome: &OTelSdkResult) {
        // Relaxed: batches are sent one after the other.
        let was_away = self.away.swap(outcome.is_err(), Ordering::Relaxed);
        match outcome {
            Err(error) if !was_away => {
                tracing::warn!(%error, "the collector does not take spans; decisions are made without it");
            }
            Ok(()) if was_away => tracing::info!("the collector takes spans again"),
            _ => {}
        }
    }
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (spans, otlp) = (batch.len(), Arc::clone(&self.otlp));
        let sending = self.runtime.spawn(async move { otlp.export(batch).await });
        // An error means that the runtime ends, and the server with it.
        let outcome = sending.await.unwrap_or(Err(OTelSdkError::AlreadyShutdown));
        self.tally.leave(spans, if outcome.is_ok() { Fate::sent } else { Fate::failed });
        self.tell(&outcome);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // The batches set it before they send any, so nobody else holds it.
        if let Some(otlp) = Arc::get_mut(&mut self.otlp) {
            otlp.set_resource(resource);
        }
    }
}

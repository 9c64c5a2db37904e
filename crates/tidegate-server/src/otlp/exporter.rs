//! Exports batches of spans: runs the OpenTelemetry exporter on this server's runtime, and counts its results.

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

/// Sends batches to the collector, and counts the fate of their spans.
#[derive(Debug)]
pub(super) struct Counted {
    otlp: Arc<Otlp>,
    tally: Arc<Tally>,
    /// The batch thread belongs to no runtime, but the client needs one for its timeouts.
    runtime: Handle,
    /// Whether the last batch failed. Changes are logged.
    away: AtomicBool,
}

impl Counted {
    pub(super) fn new(otlp: Otlp, tally: Arc<Tally>) -> Self {
        Self { otlp: Arc::new(otlp), tally, runtime: Handle::current(), away: AtomicBool::new(false) }
    }

    /// Logs when the collector goes away, and when it comes back.
    fn log_outage(&self, outcome: &OTelSdkResult) {
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
        // An error means that the runtime is ending, and so is the server.
        let outcome = sending.await.unwrap_or(Err(OTelSdkError::AlreadyShutdown));
        self.tally.leave(spans, if outcome.is_ok() { Fate::sent } else { Fate::failed });
        self.log_outage(&outcome);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        // The batch processor sets the resource before it sends anything, so there is no other reference.
        if let Some(otlp) = Arc::get_mut(&mut self.otlp) {
            otlp.set_resource(resource);
        }
    }
}

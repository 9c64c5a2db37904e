//! Exports batches of spans: around the SDK's batch processor and exporter, what they lack.
//!
//! * Counts of the spans that are dropped, sent and failed: the SDK drops too, but tells no program how many ([`Bounded`])
//! * A runtime: the SDK's batch thread has none, and the clients' timeouts need one ([`Counted`])
//! * An HTTP client: the SDK has none without reqwest, except one that speaks no TLS
//! * Certificates: the SDK reads none of the variables about them ([`Trust`])

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use opentelemetry::Context;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{
    ExporterBuildError, OTEL_EXPORTER_OTLP_COMPRESSION, OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT, OTEL_EXPORTER_OTLP_TRACES_COMPRESSION,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, Protocol, SpanExporter as Otlp, WithExportConfig as _,
    WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use prometheus_client::registry::Registry;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tidegate::config::{OtlpProtocol, OtlpSettings, read_file};
use tokio::runtime::Handle;

use super::{OtlpError, variable};
use crate::metrics::otlp::{self, Fate, Fates};

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

/// The timeout of a batch, in milliseconds. The most specific one comes first.
const TIMEOUTS: [&str; 2] = [OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT];

/// The variables with the compression of batches.
const COMPRESSIONS: [&str; 2] = [OTEL_EXPORTER_OTLP_TRACES_COMPRESSION, OTEL_EXPORTER_OTLP_COMPRESSION];

/// Makes the exporter, which connects with the first batch.
///
/// # Errors
/// [`OtlpError`] if the address, or a file of certificates, cannot be used.
pub(super) fn exporter(settings: &OtlpSettings) -> Result<Otlp, OtlpError> {
    let endpoint = settings.endpoint.clone().unwrap_or_default();
    let trust = if endpoint.starts_with("https://") { Some(Trust::read()?) } else { None };
    if let Some((variable, value)) = set(COMPRESSIONS).filter(|(_, value)| value != "none") {
        tracing::warn!(variable, value, "spans are sent as they are: they are not compressed here");
    }
    let built = match (settings.protocol, trust) {
        (OtlpProtocol::HttpProtobuf, None) => over_http(&endpoint, HttpConnector::new()),
        (OtlpProtocol::HttpProtobuf, Some(trust)) => {
            let connector = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(trust.for_http()?)
                .https_only()
                .enable_http1()
                .build();
            over_http(&endpoint, connector)
        }
        (_, trust) => {
            let mut otlp = Otlp::builder().with_tonic().with_endpoint(&endpoint);
            if let Some(trust) = trust {
                // Only checks: the gRPC client does not say which file is wrong.
                trust.for_http()?;
                otlp = otlp.with_tls_config(trust.for_grpc());
            }
            otlp.build()
        }
    };
    built.map_err(|why| OtlpError::Collector { endpoint, why: why.to_string() })
}

fn over_http<C>(endpoint: &str, connector: C) -> Result<Otlp, ExporterBuildError>
where
    C: Connect + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let milliseconds = set(TIMEOUTS).and_then(|(_, text)| text.parse().ok());
    // The exporter does not pass its timeout to a client that it is given.
    let timeout = milliseconds.map_or(OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT, Duration::from_millis);
    Otlp::builder()
        .with_http()
        .with_http_client(HyperClient::new(connector, timeout, None))
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .build()
}

fn set(variables: [&'static str; 2]) -> Option<(&'static str, String)> {
    variables.into_iter().find_map(|name| Some((name, variable(name)?)))
}

/// The most spans that wait or are being sent: a few megabytes of memory.
pub(super) const QUEUE: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Tally {
    waiting: AtomicUsize,
    fates: Fates,
}

impl Tally {
    /// Takes a place in the queue. Without one, the span counts as dropped.
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

// TLS to a collector at an `https://` address.

/// The variables with files of root certificates for the collector. The most specific one comes first, here and
/// below.
const ROOTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];

/// The variables with files of the client certificate.
const CERTIFICATES: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"];

/// The variables with files of the client's private key.
const KEYS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "OTEL_EXPORTER_OTLP_CLIENT_KEY"];

/// The most bytes of such a file: more than all authorities of a system take.
const MOST: u64 = 1 << 20;

/// The content of a file that a variable names.
struct Named {
    variable: &'static str,
    path: String,
    pem: Vec<u8>,
}

pub(super) struct Trust {
    /// `None`: the system's roots.
    roots: Option<Named>,
    own: Option<(Named, Named)>,
}

impl Trust {
    /// Reads the files that the environment names.
    ///
    /// # Errors
    /// [`OtlpError::Certificate`] for a file that cannot be read, [`OtlpError::Pair`] for a certificate without its
    /// key.
    pub(super) fn read() -> Result<Self, OtlpError> {
        let own = match (named(CERTIFICATES)?, named(KEYS)?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (Some(one), None) => return Err(OtlpError::Pair { named: one.variable, missing: KEYS[1] }),
            (None, Some(one)) => {
                return Err(OtlpError::Pair { named: one.variable, missing: CERTIFICATES[1] });
            }
            (None, None) => None,
        };
        Ok(Self { roots: named(ROOTS)?, own })
    }

    /// Returns the settings for the gRPC client.
    pub(super) fn for_grpc(&self) -> ClientTlsConfig {
        let tls = ClientTlsConfig::new();
        let tls = match &self.roots {
            None => tls.with_native_roots(),
            Some(roots) => tls.ca_certificate(Certificate::from_pem(&roots.pem)),
        };
        match &self.own {
            None => tls,
            Some((certificate, key)) => tls.identity(Identity::from_pem(&certificate.pem, &key.pem)),
        }
    }

    /// Returns the settings for the HTTP client.
    ///
    /// # Errors
    /// [`OtlpError::Certificate`] for a file whose content is not valid.
    pub(super) fn for_http(&self) -> Result<ClientConfig, OtlpError> {
        use hyper_rustls::ConfigBuilderExt as _;

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|why| OtlpError::Roots { why: why.to_string() })?;
        let builder = match &self.roots {
            None => builder.with_native_roots().map_err(|why| OtlpError::Roots { why: why.to_string() })?,
            Some(file) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(all::<CertificateDer<'_>>(file, "certificate")?);
                builder.with_root_certificates(roots)
            }
        };
        let Some((certificate, key)) = &self.own else { return Ok(builder.with_no_client_auth()) };
        let chain = all::<CertificateDer<'_>>(certificate, "certificate")?;
        let its_key = all::<PrivateKeyDer<'_>>(key, "private key")?.remove(0);
        builder.with_client_auth_cert(chain, its_key).map_err(|why| key.wrong(why.to_string()))
    }
}

impl Named {
    fn wrong(&self, why: String) -> OtlpError {
        OtlpError::Certificate { variable: self.variable, path: self.path.clone(), why }
    }
}

fn named(variables: [&'static str; 2]) -> Result<Option<Named>, OtlpError> {
    let Some((variable, path)) = set(variables) else { return Ok(None) };
    match read_file(path.as_ref(), MOST) {
        Ok(pem) => Ok(Some(Named { variable, path, pem })),
        Err(error) => Err(OtlpError::Certificate { variable, path, why: error.to_string() }),
    }
}

/// Reads the PEM sections of one kind; there must be one. Errors do not repeat the content.
fn all<T: PemObject>(file: &Named, what: &str) -> Result<Vec<T>, OtlpError> {
    let found: Vec<T> = T::pem_slice_iter(&file.pem).filter_map(Result::ok).collect();
    if found.is_empty() { Err(file.wrong(format!("holds no {what} in PEM"))) } else { Ok(found) }
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

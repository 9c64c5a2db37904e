//! Connects to the collector: OTLP over gRPC, or as protobuf over HTTP.

use std::time::Duration;

use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter as Otlp, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use tidegate::config::{OtlpProtocol, OtlpSettings};

use super::error::OtlpError;
use super::trust::Trust;

/// The variables with the timeout of a batch, in milliseconds. The most specific one comes first.
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
/// The timeout if no variable is set.
const USUAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The variables with the compression of batches.
const COMPRESSIONS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];

/// Makes the exporter to a collector. Connects only when there is a batch.
///
/// # Errors
/// [`OtlpError`] if the collector's address, or a file of certificates, cannot be used.
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
                // Only checks the files: the gRPC client does not say which one is wrong.
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
    let timeout = milliseconds.map_or(USUAL_TIMEOUT, Duration::from_millis);
    Otlp::builder()
        .with_http()
        .with_http_client(HyperClient::new(connector, timeout, None))
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint)
        .build()
}

/// Returns the first of these variables that is set, with its value.
fn set(variables: [&'static str; 2]) -> Option<(&'static str, String)> {
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    variables.into_iter().find_map(|name| Some((name, value(name)?)))
}

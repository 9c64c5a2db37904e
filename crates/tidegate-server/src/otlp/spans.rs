//! Where spans go, and which calls have one.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request};
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{SpanKind, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use prometheus_client::registry::Registry;
use tidegate::config::OtlpSettings;

use super::call::CallSpan;
use super::collector;
use super::error::OtlpError;
use super::exporter::Counted;
use super::queue::{Bounded, QUEUE, Tally};

/// How long a span waits for others to be sent with.
const DELAY: Duration = Duration::from_secs(1);
/// What this program is called unless the environment says otherwise.
const SERVICE: &str = "tidegate";
/// Where spans of decisions go.
#[derive(Debug)]
pub(crate) struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    tally: Arc<Tally>,
    reveals_keys: bool,
}

impl Spans {
    /// Makes the way to a collector. Inside a tokio runtime, which sends; nothing is dialled before there is a span.
    ///
    /// # Errors
    /// [`OtlpError`]: a collector that cannot be dialled as it is named, a file of certificates that cannot be read.
    pub(crate) fn open(settings: &OtlpSettings) -> Result<Self, OtlpError> {
        let otlp = collector::exporter(settings)?;
        let tally = Arc::new(Tally::default());
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_scheduled_delay(DELAY);
        let batches = BatchSpanProcessor::new(Counted::new(otlp, Arc::clone(&tally)), batches.build());
        let bounded = Bounded { batches, tally: Arc::clone(&tally) };
        let mut provider =
            SdkTracerProvider::builder().with_span_processor(bounded).with_resource(resource());
        // Otherwise as the environment says, and without a word of it like this with all calls.
        if let Some(sample) = settings.sample {
            provider =
                provider.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample))));
        }
        let provider = provider.build();
        let tracer = provider.tracer("tidegate");
        Ok(Self { provider, tracer, tally, reveals_keys: settings.reveal_keys })
    }

    /// Begins the span of a request over HTTP, if it decides and is sampled.
    pub(crate) fn http<B>(&self, request: &Request<B>) -> Option<CallSpan> {
        let route = match request.uri().path() {
            "/v1/check" => "/v1/check",
            "/v1/forward-auth" => "/v1/forward-auth",
            "/v1/check/batch" => "/v1/check/batch",
            "/v1/peek" => "/v1/peek",
            "/v1/settle" => "/v1/settle",
            "/v1/report" => "/v1/report",
            "/v1/refund" => "/v1/refund",
            _ => return None,
        };
        // The method of a sub-request may be any word of the proxy's client.
        let method = match request.method().as_str() {
            known @ ("GET" | "POST" | "PUT" | "DELETE" | "HEAD" | "OPTIONS" | "PATCH") => known,
            _ => "_OTHER",
        };
        let of_protocol = || {
            vec![
                KeyValue::new("tidegate.door", "http"),
                KeyValue::new("http.request.method", method.to_owned()),
                KeyValue::new("http.route", route),
                KeyValue::new("url.path", route),
            ]
        };
        self.begin(format!("{method} {route}"), request.headers(), of_protocol)
    }

    /// Begins the span of a call over gRPC, if it is sampled.
    #[cfg(feature = "grpc")]
    pub(crate) fn grpc(&self, path: &str, headers: &HeaderMap) -> Option<CallSpan> {
        let method = path.trim_start_matches('/');
        let of_protocol = || {
            vec![
                KeyValue::new("tidegate.door", "grpc"),
                KeyValue::new("rpc.system.name", "grpc"),
                KeyValue::new("rpc.method", method.to_owned()),
            ]
        };
        self.begin(method.to_owned(), headers, of_protocol)
    }

    /// Begins the span of a command of a Redis client, if it is sampled. The protocol has no room for who called the client.
    pub(crate) fn resp(&self, command: &'static str) -> Option<CallSpan> {
        let of_protocol =
            || vec![KeyValue::new("tidegate.door", "resp"), KeyValue::new("network.protocol.name", "resp")];
        self.begin(command.to_owned(), &HeaderMap::new(), of_protocol)
    }

    fn begin(
        &self,
        name: String,
        headers: &HeaderMap,
        attributes: impl FnOnce() -> Vec<KeyValue>,
    ) -> Option<CallSpan> {
        // What a thread of the runtime was left with is none of this call's.
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let span = self.tracer.build_with_context(span, &caller);
        CallSpan::of(span, attributes, self.reveals_keys)
    }

    /// Adds what became of spans to the metrics.
    pub(crate) fn show(&self, registry: &mut Registry) {
        self.tally.show(registry);
    }

    /// Sends what waits, for so long at most; spans that end later are not sent.
    pub(crate) async fn close(&self, patience: Duration) {
        let provider = self.provider.clone();
        let closing = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience));
        if let Ok(Err(error)) = closing.await {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}

/// Returns what spans say of this process.
fn resource() -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|pairs| pairs.contains("service.name="));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if named { resource.build() } else { resource.with_service_name(SERVICE).build() }
}

/// The headers of a call, for who reads `traceparent` and `tracestate`.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

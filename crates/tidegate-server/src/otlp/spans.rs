//! Creates spans for calls, and sends them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span};
use prometheus_client::registry::Registry;
use tidegate::config::OtlpSettings;

use super::exporter::{self, Bounded, Counted, QUEUE, Tally};
use super::{CallEnd, OtlpError};
use crate::span_attributes::{self, Notes};

/// How long a span waits for others.
const DELAY: Duration = Duration::from_secs(1);

/// The service name, unless the environment sets another.
const SERVICE: &str = "tidegate";

/// Creates the spans of decisions.
#[derive(Debug)]
pub(crate) struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    tally: Arc<Tally>,
    reveals_keys: bool,
}

impl Spans {
    /// Connects spans to a collector with the first span. Call it inside a tokio runtime, which sends them.
    ///
    /// # Errors
    /// [`OtlpError`] if the address, or a file of certificates, cannot be used.
    pub(crate) fn open(settings: &OtlpSettings) -> Result<Self, OtlpError> {
        let otlp = exporter::exporter(settings)?;
        let tally = Arc::new(Tally::default());
        let batches = BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_scheduled_delay(DELAY);
        let batches = BatchSpanProcessor::new(Counted::new(otlp, Arc::clone(&tally)), batches.build());
        let bounded = Bounded { batches, tally: Arc::clone(&tally) };
        // The sampler is the SDK's, from the environment.
        let provider =
            SdkTracerProvider::builder().with_span_processor(bounded).with_resource(resource()).build();
        let tracer = provider.tracer("tidegate");
        Ok(Self { provider, tracer, tally, reveals_keys: settings.reveal_keys })
    }

    /// Begins the span of an HTTP request; `None` if it does not decide, or is not sampled.
    pub(crate) fn http<B>(&self, request: &Request<B>) -> Option<CallSpan> {
        let route = match request.uri().path() {
            "/v1/check" => "/v1/check",
            "/v1/forward-auth" => "/v1/forward-auth",
            "/v1/check/batch" => "/v1/check/batch",
            "/v1/peek" => "/v1/peek",
            "/v1/settle" => "/v1/settle",
            "/v1/extend" => "/v1/extend",
            _ => return None,
        };
        // The method of a sub-request can be any word that the proxy's client sends.
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

    /// Begins the span of a Redis client's command, if it is sampled. RESP cannot carry a parent span.
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
        // An empty context: this thread may still have that of another call.
        let caller =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let span = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(span, &caller);
        if !span.is_recording() {
            return None;
        }
        span.set_attributes(attributes());
        Some(CallSpan { span, reveals_keys: self.reveals_keys, is_answered: false })
    }

    /// Registers the number of spans by fate.
    pub(crate) fn show(&self, registry: &mut Registry) {
        self.tally.show(registry);
    }

    /// Sends the waiting spans, for at most `patience`. Spans that end later are not sent.
    pub(crate) async fn close(&self, patience: Duration) {
        let provider = self.provider.clone();
        let closing = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(patience));
        if let Ok(Err(error)) = closing.await {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}

fn resource() -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || std::env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|pairs| pairs.contains("service.name="));
    let resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if named { resource.build() } else { resource.with_service_name(SERVICE).build() }
}

// The span of one call.

/// The span of a call. Ends when the call is answered, or when it is dropped because the caller is gone.
#[derive(Debug)]
pub(crate) struct CallSpan {
    span: Span,
    reveals_keys: bool,
    is_answered: bool,
}

impl CallSpan {
    /// Runs a call, and ends the span with the notes made meanwhile and how the call ended.
    ///
    /// Boxed: otherwise calls without a span would reserve space for it.
    pub(crate) fn around<'a, T: 'a>(
        mut self,
        answering: Pin<&'a mut (dyn Future<Output = T> + Send + 'a)>,
        ended: fn(&T) -> CallEnd,
    ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
        Box::pin(async move {
            let notes = Notes { reveals_keys: self.reveals_keys, ..Notes::default() };
            let (answer, notes) = span_attributes::noted(notes, answering).await;
            self.end(notes, ended(&answer));
            answer
        })
    }

    fn end(&mut self, notes: Notes, ended: CallEnd) {
        self.is_answered = true;
        let mut failed = match ended {
            CallEnd::Http(status) => {
                self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
                // A refusal is an answer, not an error of the server.
                (status >= 500).then(|| status.to_string())
            }
            #[cfg(feature = "grpc")]
            CallEnd::Grpc(code) => {
                self.span.set_attribute(KeyValue::new("rpc.response.status_code", code));
                let ours = ["DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE"];
                ours.contains(&code).then(|| code.to_owned())
            }
            CallEnd::Resp { error } => error.then(|| "error".to_owned()),
        };
        let Notes { reveals_keys: _, outcome, policy, key, by_fallback, id, deciding, store } = notes;
        if outcome == Some("error") && failed.is_none() {
            failed = Some("store".to_owned());
        }
        if let Some(failed) = failed {
            self.span.set_attribute(KeyValue::new("error.type", failed));
            self.span.set_status(Status::error(""));
        }
        let seconds = |name, took: Duration| KeyValue::new(name, took.as_secs_f64());
        let noted = [
            outcome.map(|outcome| KeyValue::new("tidegate.outcome", outcome)),
            policy.map(|policy| KeyValue::new("tidegate.policy", policy)),
            key.map(|key| KeyValue::new("tidegate.key", key)),
            by_fallback.then(|| KeyValue::new("tidegate.fallback", true)),
            id.map(|id| KeyValue::new("tidegate.decision_id", id.to_string())),
            deciding.map(|took| seconds("tidegate.decision.duration", took)),
            store.map(|took| seconds("tidegate.store.duration", took)),
        ];
        self.span.set_attributes(noted.into_iter().flatten());
        self.span.end();
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        if !self.is_answered {
            self.span.set_attribute(KeyValue::new("error.type", "cancelled"));
        }
    }
}

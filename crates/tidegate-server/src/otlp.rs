//! Sends a span of each decision to a collector, by the protocol of OpenTelemetry (OTLP) over gRPC or HTTP.
//!
//! A door asks [`Spans`] for a [`CallSpan`] before it answers a call. It gets none if there is no collector, or if the
//! call is not sampled, which costs a look at two headers. Facts about a call are noted while it is answered
//! ([`crate::span_attributes`]) and written into the span at its end.
//!
//! No call ever waits for the collector: ended spans go into a bounded queue, and one thread sends them from there. If
//! the queue is full, the span is dropped and counted. The OpenTelemetry crates make the spans and batches, and speak
//! the protocol.

#[cfg(not(feature = "otel"))]
mod absent;
#[cfg(feature = "otel")]
mod call;
#[cfg(feature = "otel")]
mod collector;
mod environment;
mod error;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(feature = "otel")]
mod queue;
#[cfg(feature = "otel")]
mod spans;
#[cfg(feature = "otel")]
mod trust;

#[cfg(not(feature = "otel"))]
pub(crate) use self::absent::Spans;
pub use self::environment::otlp_of;
pub use self::error::OtlpError;
#[cfg(feature = "otel")]
pub(crate) use self::spans::Spans;

/// How a call ended, in the terms of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "no span is told"))]
pub(crate) enum CallEnd {
    /// An HTTP status.
    Http(u16),
    /// The name of a gRPC status, as in the specification.
    #[cfg(feature = "grpc")]
    Grpc(&'static str),
    /// A reply to a Redis client.
    Resp {
        /// Whether the reply was an error.
        error: bool,
    },
}

//! Sends a span of each decision to a collector, by the protocol of OpenTelemetry (OTLP) over gRPC or HTTP.
//!
//! A door asks [`Spans`] for a [`CallSpan`] before it answers a call. There is none where nobody collects, and of calls that are not sampled:
//! those cost a look at two headers. What is known of a call is noted on the way ([`crate::call_notes`]) and written into the span at the end.
//!
//! Nobody ever waits for the collector: ended spans go into a queue of bounded length, and one thread sends them from there. A span that finds
//! the queue full is dropped, and counted. Spans, batches and the protocol are the OpenTelemetry crates'.

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

/// How a call ended, in the words of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "no span is told"))]
pub(crate) enum Ended {
    /// A status of HTTP.
    Http(u16),
    /// A status of gRPC, as its specification writes it.
    #[cfg(feature = "grpc")]
    Grpc(&'static str),
    /// An answer to a Redis client, or an error.
    Resp {
        /// Whether it was an error.
        error: bool,
    },
}

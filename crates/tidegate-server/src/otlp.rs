//! Sends a span of each decision to a collector, by the protocol of OpenTelemetry (OTLP) over gRPC or HTTP.
//!
//! A door asks [`Spans`] for a [`CallSpan`] before it answers a call. It gets none if there is no collector, or if the
//! call is not sampled, which costs a look at two headers. Facts about a call are noted while it is answered
//! ([`crate::span_attributes`]) and written into the span at its end.
//!
//! No call ever waits for the collector: ended spans go into a bounded queue, and one thread sends them from there. If
//! the queue is full, the span is dropped and counted. The OpenTelemetry crates make the spans and batches, and speak
//! the protocol.

mod environment;
#[cfg(feature = "otel")]
mod exporter;
#[cfg(feature = "otel")]
mod spans;

#[cfg(not(feature = "otel"))]
pub(crate) use self::absent::Spans;
pub use self::environment::{OtlpError, otlp_of};
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

#[cfg(not(feature = "otel"))]
mod absent {
    //! Placeholders for a build without OpenTelemetry. No span is ever made, so no method here is ever called.

    use std::pin::Pin;
    use std::time::Duration;

    use http::Request;
    use prometheus_client::registry::Registry;
    use tidegate::config::OtlpSettings;

    use super::CallEnd;
    use super::environment::OtlpError;

    /// Never made: no spans are sent.
    #[derive(Debug)]
    pub(crate) enum Spans {}

    /// Never made: a call has no span.
    #[derive(Debug)]
    pub(crate) enum CallSpan {}

    impl Spans {
        pub(crate) fn open(_: &OtlpSettings) -> Result<Self, OtlpError> {
            Err(OtlpError::NotBuilt)
        }

        pub(crate) fn http<B>(&self, _: &Request<B>) -> Option<CallSpan> {
            match *self {}
        }

        #[cfg(feature = "grpc")]
        pub(crate) fn grpc(&self, _: &str, _: &http::HeaderMap) -> Option<CallSpan> {
            match *self {}
        }

        pub(crate) fn resp(&self, _: &'static str) -> Option<CallSpan> {
            match *self {}
        }

        pub(crate) fn show(&self, _: &mut Registry) {
            match *self {}
        }

        pub(crate) async fn close(&self, _: Duration) {
            match *self {}
        }
    }

    impl CallSpan {
        pub(crate) fn around<'a, T: 'a>(
            self,
            _: Pin<&'a mut (dyn Future<Output = T> + Send + 'a)>,
            _: fn(&T) -> CallEnd,
        ) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
            match self {}
        }
    }
}

//! Sends a span of each decision to a collector by OTLP, over gRPC or HTTP. The OpenTelemetry crates make spans and
//! batches, sample, and speak the protocol.
//!
//! A door asks [`Spans`] for a [`CallSpan`]; a call that is not sampled costs a look at two headers. Facts are noted
//! while it is answered ([`crate::span_attributes`]).
//!
//! No call waits for the collector: one thread sends from a bounded queue. If it is full, the span is dropped and
//! counted.

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
    /// A gRPC status by its name.
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
    //! A build without OpenTelemetry makes no span, so no method here is ever called.

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

//! Placeholders for a build without OpenTelemetry. No span is ever made, so no method here is ever called.

use std::pin::Pin;
use std::time::Duration;

use http::Request;
use prometheus_client::registry::Registry;
use tidegate::config::OtlpSettings;

use super::CallEnd;
use super::error::OtlpError;

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

//! A collector: implements the OTLP service, and stores what it receives.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

/// A collector that listens until the test ends.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector; returns its address.
    pub(crate) async fn start() -> (Self, SocketAddr) {
        let (collector, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (addr, service) = (listener.local_addr().unwrap(), TraceServiceServer::new(collector.clone()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(async move { drop(connection.await) });
            }
        });
        (collector, addr)
    }

    /// Returns all spans, in the order in which they ended.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let batches = self.0.lock().unwrap();
        let resources = batches.iter().flat_map(|batch| &batch.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Returns an attribute of the process, from the first batch.
    pub(crate) fn resource(&self, key: &str) -> String {
        let batches = self.0.lock().unwrap();
        text(&batches[0].resource_spans[0].resource.as_ref().unwrap().attributes, key)
    }
}

/// Returns an attribute of a span as text; empty if it does not exist.
pub(crate) fn attribute(span: &Span, key: &str) -> String {
    text(&span.attributes, key)
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        None => String::new(),
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(other) => panic!("{other:?}"),
    }
}

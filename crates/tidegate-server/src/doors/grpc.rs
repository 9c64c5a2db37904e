//! The gRPC door: Envoy's rate limit services, Limitador's, health checks and reflection.
//!
//! The `h2` crate speaks HTTP/2. A connection stays on one thread with its calls as small tasks, and answers of
//! several calls go out with one write. Above the frames, a call maps bytes to bytes ([`methods`]); an error is a
//! status of that call alone.

mod call;
mod connection;
mod counts;
mod envoy;
mod framing;
mod health;
mod methods;
mod quota;
mod rate_limit;
mod reading;
mod reflection;
mod service;

use std::net::SocketAddr;
use std::sync::Arc;

use self::service::Service;
use crate::app::App;
use crate::connections::{ConnectionPlace, Door, NotEncrypted, Stream, Tls};
use crate::options::Timeouts;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    pub use super::methods::fuzzing::answer;
    pub use super::quota::fuzzing::QuotaCall;
    pub use super::rate_limit::fuzzing::RateLimitDoor;
}

/// The gRPC door of one server.
#[derive(Debug)]
pub(crate) struct GrpcDoor {
    service: Arc<Service>,
    /// The TLS settings of its connections; `None` if they are not encrypted.
    tls: Option<Tls>,
}

impl GrpcDoor {
    pub(crate) fn new(app: Arc<App>, tls: Option<Tls>) -> Self {
        Self { service: Arc::new(Service::new(app)), tls }
    }
}

impl Door for GrpcDoor {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            Some(tls) => match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
                Ok(stream) => stream,
                Err(NotEncrypted::Cut(reason)) => {
                    return self.service.app.decider.metrics.connection_cut(reason);
                }
                // A plain-text caller speaks an unknown protocol, so it gets no answer.
                Err(NotEncrypted::PlainText(_) | NotEncrypted::Over) => return,
            },
        };
        connection::serve(stream, Arc::clone(&self.service), Arc::clone(place), timeouts).await;
    }
}

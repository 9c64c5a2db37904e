//! The gRPC door: Envoy's rate limit services, Limitador's, health checks and reflection.
//!
//! The `h2` crate speaks HTTP/2. A connection stays on one thread: its calls are small tasks beside it, and the answers
//! of several calls go out with one write. Above the frames, a call maps bytes to bytes ([`methods`]). An error in one
//! call is a status of that call alone.
//!
//! | | |
//! |---|---|
//! | [`connection`] | one connection, from its preface to its last answer |
//! | [`call`] | one call: its head, its message, its deadline, its answer |
//! | [`counts`] | counts the calls that are being answered, and those that stay open silently |
//! | [`reading`] | reads messages as they arrive, and sends the answers of a streaming call |
//! | [`methods`] | the methods, by path |
//! | [`rate_limit`] | `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` |
//! | [`quota`] | `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas` |
//! | [`health`] | `grpc.health.v1.Health/Check` and `/Watch` |
//! | [`reflection`] | describes the services and their messages, for tools |

mod call;
mod connection;
mod counts;
mod framing;
mod health;
mod methods;
mod quota;
mod rate_limit;
mod reading;
mod reflection;
mod service;
mod status;

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
    /// The TLS settings of its connections, if they are encrypted.
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
            None => Some(stream),
            Some(tls) => encrypted(tls, stream, peer, place, timeouts, &self.service).await,
        };
        if let Some(stream) = stream {
            connection::serve(stream, Arc::clone(&self.service), Arc::clone(place), timeouts).await;
        }
    }
}

/// Returns the encrypted connection, or `None` if the handshake fails. A plain-text caller gets no answer, since its
/// protocol is unknown.
async fn encrypted(
    tls: &Tls,
    stream: Stream,
    peer: SocketAddr,
    place: &ConnectionPlace,
    timeouts: Timeouts,
    service: &Service,
) -> Option<Stream> {
    match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
        Ok(stream) => Some(stream),
        Err(NotEncrypted::Cut(reason)) => {
            service.app.engine.metrics.connection_cut(reason);
            None
        }
        Err(NotEncrypted::PlainText(_) | NotEncrypted::Over) => None,
    }
}

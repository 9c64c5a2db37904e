//! The gRPC door: Envoy's rate limit services, Limitador's, health, and what the door offers.
//!
//! HTTP/2 is the `h2` crate's. Each core has a thread with a runtime of its own, and a connection stays on one of them: calls are small tasks
//! beside their connection, and what several of them answer goes out with one write. Above the frames a call is bytes in, bytes out
//! ([`methods`]); what is wrong with one call is a status of that call alone.
//!
//! | | |
//! |---|---|
//! | [`threads`] | a thread per core, each with its own runtime |
//! | [`connection`] | one connection: from its preface to the last answer |
//! | [`call`] | one call: its head, its message, its deadline, its answer |
//! | [`counts`] | which calls are answered, and which stay open and are silent |
//! | [`reading`] | messages as they come |
//! | [`answers`] | answers of a call that goes on |
//! | [`methods`] | which bytes answer which bytes |
//! | [`rate_limit`] | `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` |
//! | [`quota`] | `envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas` |
//! | [`health`] | `grpc.health.v1.Health/Check` and `/Watch` |
//! | [`reflection`] | what the services and their messages are, for tools |

mod answers;
mod call;
mod connection;
mod counts;
mod framing;
mod health;
mod lent;
mod methods;
mod quota;
mod rate_limit;
mod reading;
mod reflection;
mod service;
mod status;
mod threads;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::oneshot;

use self::service::Service;
use self::threads::Threads;
use crate::app::App;
use crate::connections::{Door, NotEncrypted, Place, Stream, Tls};
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
    threads: Threads,
    /// What encrypts its connections, if anything.
    tls: Option<Tls>,
}

impl GrpcDoor {
    /// Makes the door and starts its threads, which end with it.
    ///
    /// # Errors
    /// The system's, if it starts no thread.
    pub(crate) fn new(app: Arc<App>, tls: Option<Tls>) -> std::io::Result<Self> {
        Ok(Self { service: Arc::new(Service::new(app)), threads: Threads::start()?, tls })
    }
}

impl Door for GrpcDoor {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<Place>,
        timeouts: Timeouts,
    ) {
        // A stream is woken by the runtime it was made in, so it moves without one.
        let Ok(stream) = stream.into_moving() else { return };
        let (over, ended) = oneshot::channel::<()>();
        let (service, place, tls) = (Arc::clone(&self.service), Arc::clone(place), self.tls.clone());
        let running = self.threads.run(async move {
            if let Ok(stream) = stream.arrive() {
                let stream = match &tls {
                    None => Some(stream),
                    Some(tls) => encrypted(tls, stream, peer, &place, timeouts, &service).await,
                };
                if let Some(stream) = stream {
                    connection::serve(stream, service, place, timeouts).await;
                }
            }
            drop(over);
        });
        running.await;
        // Whether it is dropped by the connection or with its thread: it is over.
        let _ = ended.await;
    }
}

/// Returns the encrypted connection, if it comes to one. A caller of plain text is not answered: it may speak anything.
async fn encrypted(
    tls: &Tls,
    stream: Stream,
    peer: SocketAddr,
    place: &Place,
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

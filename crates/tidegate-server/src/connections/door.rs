//! What serves connections: one door for each protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection;
use super::handler::Handler;
use super::handshake::{NotEncrypted, Tls};
use super::places::Place;
use super::stream::Stream;
use crate::options::Timeouts;

/// Serves connections of one protocol.
pub(crate) trait Door: Send + Sync + 'static {
    /// Serves one connection from accept to close. Dropped unfinished when the server leaves; who serves elsewhere keeps the place.
    fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<Place>,
        timeouts: Timeouts,
    ) -> impl Future<Output = ()> + Send;
}

/// The door of connections that carry requests of HTTP.
#[derive(Debug)]
pub(crate) struct Http<H> {
    pub(crate) handler: Arc<H>,
    /// What encrypts its connections, if anything.
    pub(crate) tls: Option<Tls>,
}

impl<H: Handler> Door for Http<H> {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<Place>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            // In a box, so that connections without TLS have no room for it.
            Some(tls) => match Box::pin(tls.encrypt(stream, peer, place, timeouts)).await {
                Ok(stream) => stream,
                Err(NotEncrypted::PlainText(stream)) => {
                    return connection::refuse_plain_text(stream, peer, place, timeouts).await;
                }
                Err(NotEncrypted::Cut(reason)) => return self.handler.connection_cut(reason),
                Err(NotEncrypted::Over) => return,
            },
        };
        connection::serve(stream, peer, Arc::clone(&self.handler), place, timeouts).await;
    }
}

//! What serves connections: one door for each protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection;
use super::handler::Handler;
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
pub(crate) struct Http<H>(pub(crate) Arc<H>);

impl<H: Handler> Door for Http<H> {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<Place>,
        timeouts: Timeouts,
    ) {
        connection::serve(stream, peer, Arc::clone(&self.0), place, timeouts).await;
    }
}

//! The trait of a door, which serves the connections of one protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connection;
use super::handler::Handler;
use super::handshake::{NotEncrypted, Tls};
use super::places::ConnectionPlace;
use super::stream::Stream;
use crate::options::Timeouts;

/// Serves connections of one protocol.
pub(crate) trait Door: Send + Sync + 'static {
    /// Serves one connection from accept to close. The future is dropped unfinished when the server leaves. An
    /// implementation that serves in another task must keep `place` there.
    fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) -> impl Future<Output = ()> + Send;
}

/// The door for connections that carry HTTP requests.
#[derive(Debug)]
pub(crate) struct Http<H> {
    pub(crate) handler: Arc<H>,
    /// The TLS settings of its connections, if they are encrypted.
    pub(crate) tls: Option<Tls>,
}

impl<H: Handler> Door for Http<H> {
    async fn serve(
        self: Arc<Self>,
        stream: Stream,
        peer: SocketAddr,
        place: &Arc<ConnectionPlace>,
        timeouts: Timeouts,
    ) {
        let stream = match &self.tls {
            None => stream,
            // Boxed, so that connections without TLS do not reserve space for it.
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

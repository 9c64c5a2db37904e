//! The trait of a door, which serves the connections of one protocol.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;

use super::connection;
use super::handshake::{NotEncrypted, Tls};
use super::places::ConnectionPlace;
use super::stream::Stream;
use crate::metrics::CutReason;
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

// The trait by which a door answers the requests of its connections.

/// A response extension: the body is made while it is read, and until its end the connection does not count as idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed {
    /// About how many bytes the body holds until its end; 0 if it goes on for as long as the caller listens, and ends
    /// when the caller closes its side.
    pub(crate) held: usize,
}

/// Answers the requests that connections read.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request of the peer. Called once for each request; the future is dropped unfinished if the caller
    /// hangs up or the connection is cut.
    fn answer(&self, request: Request<Body>, peer: SocketAddr) -> impl Future<Output = Response> + Send;

    /// Returns whether a path is for operators, who must get in even when the server is full.
    fn is_operational(path: &str) -> bool;

    /// Counts a call over gRPC, or another request over HTTP/2, that this door cannot decide.
    fn misdirected(&self);

    /// Counts a connection that was ended for lack of room or time.
    fn connection_cut(&self, reason: CutReason);
}

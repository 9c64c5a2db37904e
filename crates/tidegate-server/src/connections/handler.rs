//! What a door does for the connections that bring its requests.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::Request;
use tokio::net::TcpStream;

use super::connection;
use super::places::Place;
use crate::metrics::CutReason;
use crate::options::Timeouts;

/// Serves connections of one protocol.
pub(crate) trait Door: Send + Sync + 'static {
    /// Serves one connection from accept to close. Dropped unfinished when the server leaves.
    fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        place: &Place,
        timeouts: Timeouts,
    ) -> impl Future<Output = ()> + Send;
}

/// The door of connections that carry requests of HTTP.
#[derive(Debug)]
pub(crate) struct Http<H>(pub(crate) Arc<H>);

impl<H: Handler> Door for Http<H> {
    async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, place: &Place, timeouts: Timeouts) {
        connection::serve(stream, peer, Arc::clone(&self.0), place, timeouts).await;
    }
}

/// Answers the requests that connections read.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request. Called once for each; dropped unfinished when the caller hangs up or the connection is cut.
    fn answer(&self, request: Request<Body>) -> impl Future<Output = Response> + Send;

    /// Says whether a path is for operators, who must get in when nobody else does.
    fn is_operational(path: &str) -> bool;

    /// Counts a connection that is ended for want of room or time.
    fn connection_cut(&self, reason: CutReason);
}

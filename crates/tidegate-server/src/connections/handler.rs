//! The trait by which a door answers the requests of its connections.

use std::net::SocketAddr;

use axum::body::Body;
use axum::response::Response;
use http::Request;

use crate::metrics::CutReason;

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

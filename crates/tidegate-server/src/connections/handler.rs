//! What a door does for the connections that bring its requests.

use std::net::SocketAddr;

use axum::body::Body;
use axum::response::Response;
use http::Request;

use crate::metrics::CutReason;

/// An extension of answers whose body goes on for as long as the caller listens: until its end, the connection does not count as idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed;

/// Answers the requests that connections read.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request of the other end of a connection. Called once for each; dropped unfinished when the caller hangs up or the
    /// connection is cut.
    fn answer(&self, request: Request<Body>, peer: SocketAddr) -> impl Future<Output = Response> + Send;

    /// Says whether a path is for operators, who must get in when nobody else does.
    fn is_operational(path: &str) -> bool;

    /// Counts a connection that is ended for want of room or time.
    fn connection_cut(&self, reason: CutReason);
}

//! How far the server is on its way from start to exit.

/// The phases of a server, in order; none comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts connections.
    Serving,
    /// Accepts none, and answers the requests in flight.
    Draining,
    /// Closes all connections at once.
    Leaving,
}

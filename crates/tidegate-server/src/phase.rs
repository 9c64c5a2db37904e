//! The phases of a server between start and exit.

/// The phases, in order. A server never goes back to an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Accepts connections.
    Serving,
    /// Accepts no connections, and answers the requests in flight.
    Draining,
    /// Closes all connections at once.
    Leaving,
}

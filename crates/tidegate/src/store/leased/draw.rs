//! A draw: what is asked of the engine, and what comes back.

use std::time::Duration;

use tidegate_core::{Cost, Receipt, Retry, Tick};

/// A draw to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) number: u64,
    pub(super) want: Cost,
    pub(super) kept_back: u64,
}

/// When a draw was sent and when its reply came, by this node's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) sent: Tick,
    pub(super) received: Tick,
}

/// What came of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drawn {
    /// Its cost says how many units there are.
    pub(super) receipt: Receipt,
    /// How long after the reply they may be spent.
    pub(super) wait: Duration,
    /// What the limit has left at the engine.
    pub(super) remaining: u64,
    /// When the limit would be full again, counted from the reply.
    pub(super) reset_after: Duration,
}

/// What the engine said when it refused a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refused {
    /// When to ask again: then units are granted that may be spent a little later.
    pub(super) retry: Retry,
    /// What the limit has left at the engine, for requests of higher priority.
    pub(super) remaining: u64,
}

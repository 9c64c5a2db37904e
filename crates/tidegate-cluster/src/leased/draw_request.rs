//! A draw: the request to the engine, and its result.

use std::time::Duration;

use tidegate_core::{Cost, Receipt, Retry, Tick};

/// A draw to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) number: u64,
    pub(super) want: Cost,
    pub(super) kept_back: u64,
}

/// When a draw was sent and when its reply arrived, by this node's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) sent: Tick,
    pub(super) received: Tick,
}

/// The result of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Drawn {
    /// The receipt of the draw; its cost is the number of units drawn.
    pub(super) receipt: Receipt,
    /// The time after the reply from which the units may be spent.
    pub(super) wait: Duration,
    /// The units that the engine's limit has left.
    pub(super) remaining: u64,
    /// The time after the reply at which the limit would be full again.
    pub(super) reset_after: Duration,
}

/// The engine's answer when it refused a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Refused {
    /// When to ask again; the units granted then may be spent a little later.
    pub(super) retry: Retry,
    /// The units that the engine's limit has left, for requests of higher priority.
    pub(super) remaining: u64,
}

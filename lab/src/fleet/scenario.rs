//! What a simulated run consists of.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::OnStoreError;
use tidegate_core::Quota;

use super::demand::Demand;
use super::link::WireCondition;

/// The nodes that an act applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeSelection {
    /// All nodes.
    All,
    /// One node, numbered from 0.
    Node(usize),
    /// All nodes from this number on.
    From(usize),
}

impl NodeSelection {
    /// Says whether a node is included.
    #[must_use]
    pub const fn has(self, node: usize) -> bool {
        match self {
            Self::All => true,
            Self::Node(one) => node == one,
            Self::From(first) => node >= first,
        }
    }
}

/// An event of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The wires of nodes change.
    Wires(NodeSelection, WireCondition),
    Stop {
        forget: bool,
    },
    Start,
    /// The engine hangs (`true`) or goes on (`false`). While it hangs, requests wait.
    Stall(bool),
    /// The engine loses all state and goes on.
    Forget,
    Lag(Duration),
    FailOver,
    /// The engine's clock jumps by this many nanoseconds.
    EngineClock(i64),
    /// The clocks of nodes jump by this many nanoseconds.
    NodeClock(NodeSelection, i64),
    /// Nodes pause for a span, then go on as if nothing had happened.
    Pause(NodeSelection, Duration),
    /// Nodes crash and lose their memory and their waiting requests.
    Crash(NodeSelection),
    /// Nodes that do not run start, with empty memory.
    Restart(NodeSelection),
    /// All nodes get another limit.
    Limit(Arc<Quota>),
    /// An act on the engine of one region only.
    OfRegion(usize, Box<Act>),
    /// The wire from one region to the coordinator changes. Its jitter and losses are ignored.
    Across(usize, WireCondition),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) nodes: usize,
    /// Nodes are divided among them evenly, in order; each region has an engine.
    pub(crate) regions: usize,
    /// The others wait for [`Act::Restart`].
    pub(crate) running: usize,
    pub(crate) limit: Arc<Quota>,
    /// Requests choose among them evenly; each key has the limit, and is judged on its own.
    pub(crate) keys: u32,
    /// What happens to requests that an engine does not decide.
    pub(crate) on_error: OnStoreError,
    pub(crate) demand: Demand,
    pub(crate) wire_condition: WireCondition,
    /// The events, and when they happen.
    pub(crate) acts: Vec<(Duration, Act)>,
    /// When the last fault is over, and recovery begins.
    pub(crate) healed: Duration,
    pub(crate) length: Duration,
}

impl Scenario {
    pub(super) fn region_of(&self, node: usize) -> usize {
        node * self.regions / self.nodes.max(1)
    }
}

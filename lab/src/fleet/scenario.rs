//! The description of a simulated run: nodes, limit, demand and faults.

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
    /// The engine stops.
    Stop {
        /// Whether the engine loses its state.
        forget: bool,
    },
    /// The engine runs again.
    Start,
    /// The engine hangs (`true`) or goes on (`false`). While it hangs, requests wait.
    Stall(bool),
    /// The engine loses all state and goes on.
    Forget,
    /// The engine's replica lags by this span.
    Lag(Duration),
    /// The engine's replica takes over.
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
    /// An act that applies only to the engine of one region, numbered from 0.
    OfRegion(usize, Box<Act>),
    /// The wire from one region to the coordinator changes. Its jitter and losses are ignored.
    Across(usize, WireCondition),
}

/// One simulated run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: &'static str,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// The number of regions. Nodes are divided among them evenly, in order. Each region has an engine, used by
    /// its own nodes only.
    pub(crate) regions: usize,
    /// How many nodes run at the start; the others wait for [`Act::Restart`].
    pub(crate) running: usize,
    /// The limit that the nodes share.
    pub(crate) limit: Arc<Quota>,
    /// The number of keys. Requests choose among them evenly; each key has the limit, and is judged on its own.
    pub(crate) keys: u32,
    /// What happens to requests that an engine does not decide.
    pub(crate) on_error: OnStoreError,
    /// The demand for each key.
    pub(crate) demand: Demand,
    /// The wires at the start.
    pub(crate) wire_condition: WireCondition,
    /// The events, and when they happen.
    pub(crate) acts: Vec<(Duration, Act)>,
    /// When the last fault is over. Recovery is measured from here.
    pub(crate) healed: Duration,
    /// The length of the run.
    pub(crate) length: Duration,
}

impl Scenario {
    /// Returns the region of a node.
    pub(super) fn region_of(&self, node: usize) -> usize {
        node * self.regions / self.nodes.max(1)
    }
}

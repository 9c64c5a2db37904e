//! What is simulated: nodes, limit, demand, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::OnStoreError;
use tidegate_core::Quota;

use super::demand::Demand;
use super::link::Weather;

/// Which nodes an act is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// One, from 0.
    Node(usize),
    /// Those from one on.
    From(usize),
}

impl Which {
    /// Says whether a node is one of them.
    #[must_use]
    pub const fn has(self, node: usize) -> bool {
        match self {
            Self::All => true,
            Self::Node(one) => node == one,
            Self::From(first) => node >= first,
        }
    }
}

/// Something that happens in a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Act {
    /// The wires of nodes change.
    Wires(Which, Weather),
    /// The engine stops; if `forget`, what it knew is lost.
    Stop {
        /// Whether it comes back empty.
        forget: bool,
    },
    /// The engine is there again.
    Start,
    /// The engine hangs: requests wait at its door.
    Stall(bool),
    /// The engine loses everything and goes on.
    Forget,
    /// The engine's replica lags so far behind.
    Lag(Duration),
    /// The engine's replica takes its place.
    FailOver,
    /// The engine's clock jumps by so many nanoseconds.
    EngineClock(i64),
    /// The clock of nodes jumps by so many nanoseconds.
    NodeClock(Which, i64),
    /// Nodes stand still, and go on after a span as if nothing had been.
    Pause(Which, Duration),
    /// Nodes die: what they had in memory is gone, and their requests with it.
    Crash(Which),
    /// Dead nodes start anew.
    Restart(Which),
    /// All nodes have another limit.
    Limit(Arc<Quota>),
    /// What happens to the engine of one region, from 0. The others are as they were.
    OfRegion(usize, Box<Act>),
    /// The wire changes that a region has to all others. Its jitter and what it loses are not looked at.
    Across(usize, Weather),
}

/// One simulated run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many regions they are in, evenly and in their order. Each has an engine, which is asked by its own nodes alone.
    pub regions: usize,
    /// How many of them run at the start; the others wait for [`Act::Restart`].
    pub running: usize,
    /// The limit that they share.
    pub limit: Arc<Quota>,
    /// How many keys are asked for, evenly; each has the limit, and is judged by itself.
    pub keys: u32,
    /// What becomes of requests that an engine does not decide.
    pub on_error: OnStoreError,
    /// How much is asked for of each key.
    pub demand: Demand,
    /// The wires at the start.
    pub weather: Weather,
    /// What happens, and when.
    pub acts: Vec<(Duration, Act)>,
    /// When the last fault is over, from which on recovery counts.
    pub healed: Duration,
    /// How long it is.
    pub length: Duration,
}

impl Scenario {
    /// Returns the region of a node.
    pub(super) fn region_of(&self, node: usize) -> usize {
        node * self.regions / self.nodes.max(1)
    }
}

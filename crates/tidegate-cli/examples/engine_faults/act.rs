//! What is run: nodes, how much is asked for, and what goes wrong when.

use std::time::Duration;

use tidegate_sim::fleet::{Demand, Which};
use tidegate_testkit::Fault;

/// A limit: so many a second, and so many at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
}

impl Limit {
    /// How long it takes to fill up, and a tenth of a second.
    pub(crate) fn fills_within(self) -> Duration {
        Duration::from_secs_f64(self.burst as f64 / self.rate as f64) + Duration::from_millis(100)
    }
}

/// Something that happens in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// The proxies of nodes do something to their connections.
    Wires(Which, Fault),
    /// The engine is held up (`SIGSTOP`), or goes on (`SIGCONT`).
    Hold(bool),
    /// The engine is killed (`SIGKILL`).
    Kill,
    /// It is started again.
    Start,
    /// It forgets everything.
    Flush,
    /// Redis does something.
    Command(&'static [&'static str]),
    /// The replica becomes a master, and nodes are led to it by new connections.
    Promote(Which),
    /// Nodes are killed (`SIGKILL`), with what they hold.
    KillNodes(Which),
    /// Nodes are stopped as a deployment does (`SIGTERM`).
    StopNodes(Which),
    /// Nodes that do not run are started.
    StartNodes(Which),
    /// Nodes are held up (`SIGSTOP`), or go on (`SIGCONT`).
    HoldNodes(Which, bool),
    /// All nodes have half the limit.
    Halve,
}

impl Act {
    /// Whether nodes end by it.
    pub(crate) const fn ends(self) -> Option<Which> {
        match self {
            Self::KillNodes(which) | Self::StopNodes(which) => Some(which),
            _ => None,
        }
    }
}

/// What a run must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most units of excess.
    pub(crate) excess: u64,
    /// The least use, in thousandths of the ideal.
    pub(crate) used_per_mille: u64,
    /// Whether nodes are to decide by themselves at all.
    pub(crate) alone: bool,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// A word of `share`.
    pub(crate) share: &'static str,
    pub(crate) limit: Limit,
    /// How many nodes there are at most, and how many run at the start.
    pub(crate) nodes: usize,
    pub(crate) running: usize,
    pub(crate) demand: Demand,
    /// How far a replica is behind; zero where there is none.
    pub(crate) lag: Duration,
    /// How long the engine has to answer (`store.deadline`).
    pub(crate) deadline: Duration,
    /// What happens, and when.
    pub(crate) acts: Vec<(Duration, Act)>,
    /// How long all goes on after the last act.
    pub(crate) after: Duration,
    pub(crate) bounds: Bounds,
}

//! The contents of a run: nodes, demand and faults.

use std::time::Duration;

use tidegate_lab::fleet::{Demand, NodeSelection};
use tidegate_testkit::Fault;

/// A limit: units per second, and burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) rate: u64,
    pub(crate) burst: u64,
}

impl Limit {
    /// Returns the time that the limit takes to fill up, plus a tenth of a second.
    pub(crate) fn fills_within(self) -> Duration {
        Duration::from_secs_f64(self.burst as f64 / self.rate as f64) + Duration::from_millis(100)
    }
}

/// The members of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    One,
    /// One, and before it in the nodes' lists an address where nobody is.
    OneAndDeadAddress,
    Three,
}

/// A member of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Member {
    /// The one that leads now.
    Leader,
    /// The first that follows now.
    Follower,
    /// The one with this number.
    Number(usize),
}

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// The proxies of nodes apply a fault to their connections.
    Wires(NodeSelection, Fault),
    /// All wires between a region and the others have a fault, or without a region those of all nodes to the etcd
    /// through which regions agree.
    Across(Option<usize>, Fault),
    /// The Redis of a region is killed (`false`), or started again (`true`).
    RunRedis(usize, bool),
    /// The engine is suspended (`SIGSTOP`) or resumed (`SIGCONT`).
    Hold(bool),
    /// The engine is killed (`SIGKILL`).
    Kill,
    /// The engine is started again.
    Start,
    /// A member of the engine is killed.
    KillMember(Member),
    /// A member is suspended; [`Act::StartMembers`] resumes it.
    HoldMember(Member),
    /// All members that were killed are started, and those that were suspended resumed.
    StartMembers,
    /// A member is added, which nodes do not know by their lists, and another removed, which their lists keep.
    ReplaceMember(Member),
    /// The engine loses all its data.
    Flush,
    /// Redis executes a command.
    Command(&'static [&'static str]),
    /// The replica becomes a master, and the proxies of nodes send new connections to it.
    Promote(NodeSelection),
    /// Nodes are killed (`SIGKILL`) and lose their memory.
    KillNodes(NodeSelection),
    /// Nodes are stopped as in a deployment (`SIGTERM`).
    StopNodes(NodeSelection),
    /// Stopped nodes are started.
    StartNodes(NodeSelection),
    /// Nodes are suspended (`SIGSTOP`) or resumed (`SIGCONT`).
    HoldNodes(NodeSelection, bool),
    /// The limit is halved on all nodes.
    Halve,
}

impl Act {
    /// Returns the nodes that the act ends, if any.
    pub(crate) const fn ends(self) -> Option<NodeSelection> {
        match self {
            Self::KillNodes(which) | Self::StopNodes(which) => Some(which),
            _ => None,
        }
    }
}

/// The bounds that a run must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The most excess, in units.
    pub(crate) excess: u64,
    /// The least use, in thousandths of the ideal, and the time from which it counts.
    pub(crate) used_per_mille: u64,
    pub(crate) used_from: Duration,
    /// Whether nodes are expected to decide without the engine.
    pub(crate) alone: bool,
    /// The most latency of 99 % of the requests.
    pub(crate) p99: Duration,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// How nodes decide, as in `share`.
    pub(crate) share: &'static str,
    pub(crate) limit: Limit,
    /// The most nodes, and the number of nodes that run at the start.
    pub(crate) nodes: usize,
    pub(crate) running: usize,
    pub(crate) demand: Demand,
    /// The lag of a replica; zero if there is none.
    pub(crate) lag: Duration,
    pub(crate) members: Members,
    /// What decides while the engine is gone (`on_store_error`).
    pub(crate) on_store_error: &'static str,
    /// The time that the engine has to answer (`store.deadline`).
    pub(crate) deadline: Duration,
    /// The events, and when they happen.
    pub(crate) acts: Vec<(Duration, Act)>,
    /// How long the run goes on after the last event.
    pub(crate) after: Duration,
    pub(crate) bounds: Bounds,
}

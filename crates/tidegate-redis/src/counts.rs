//! Counters of a store's activity.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store's activity since it was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Exchanges with a server: pipelines sent and answered.
    pub exchanges: u64,
    /// Calls of the script in them.
    pub calls: u64,
    /// Steps that the script decided.
    pub scripted: u64,
    /// Steps that the library decided, by compare-and-set.
    pub by_library: u64,
    /// Writes that were too late, after which the step was decided anew.
    pub conflicts: u64,
    /// Calls sent again after they were refused without being executed.
    pub retries: u64,
    /// How often a server did not have the script.
    pub reloads: u64,
    /// Cells replaced because the server had lost what was spent.
    pub replaced: u64,
    /// Cells that could not be read.
    pub corrupt: u64,
    /// Connections made.
    pub connections: u64,
    /// Full cells deleted.
    pub swept: u64,
    /// How often a server's clock was found set back by more than a second.
    pub clock_set_back: u64,
}

/// What nodes report of themselves, and how busy the server is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Reports {
    /// The reports of all nodes of the last ten seconds.
    pub nodes: Vec<String>,
    /// The used part of the memory that the server may use: `maxmemory`, or all memory of its machine.
    pub memory: f64,
    /// The processor time of its main thread, which executes all calls, since its start.
    pub processor: Duration,
}

impl Reports {
    /// Reads the script's reply.
    pub(crate) fn read(reply: &str) -> Option<Self> {
        let (load, nodes) = reply.split_once('\n').unwrap_or((reply, ""));
        let mut load = load.split(' ').map(str::parse::<u64>);
        let mut next = || load.next()?.ok();
        let memory = next()? as f64 / next()?.max(1) as f64;
        let processor = Duration::from_millis(next()?);
        Some(Self { nodes: nodes.lines().map(str::to_owned).collect(), memory, processor })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) exchanges: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) scripted: AtomicU64,
    pub(crate) by_library: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) reloads: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) swept: AtomicU64,
    pub(crate) clock_set_back: AtomicU64,
}

/// Relaxed: the counters are independent of one another.
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            exchanges: of(&self.exchanges),
            calls: of(&self.calls),
            scripted: of(&self.scripted),
            by_library: of(&self.by_library),
            conflicts: of(&self.conflicts),
            retries: of(&self.retries),
            reloads: of(&self.reloads),
            replaced: of(&self.replaced),
            corrupt: of(&self.corrupt),
            connections: of(&self.connections),
            swept: of(&self.swept),
            clock_set_back: of(&self.clock_set_back),
        }
    }
}

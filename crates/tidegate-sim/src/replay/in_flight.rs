//! The requests that hold places in guards or count as in flight, in the order in which they leave.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidegate::{Charged, Outcome, Tick};

use super::guards::Entered;

/// The most requests inside at once, over all runs; about 300 bytes each. Beyond it, the next one to leave leaves
/// early, and is counted.
const MOST: usize = 1 << 20;

/// A request inside.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) at: Tick,
    /// The run that it belongs to.
    pub(super) run: usize,
    pub(super) places: Charged,
    pub(super) entered: Entered,
    /// Its duration, if known.
    pub(super) took: Option<Duration>,
    /// Its outcome.
    pub(super) outcome: Outcome,
    /// How long the gate counts it as work; `None`: it is not counted.
    pub(super) work: Option<Duration>,
}

/// Ordered by tick, then by arrival.
#[derive(Debug)]
struct Ordered {
    arrival: u64,
    leaving: Leaving,
}

impl Ordered {
    fn key(&self) -> (Tick, u64) {
        (self.leaving.at, self.arrival)
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug, Default)]
pub(super) struct Inside {
    heap: BinaryHeap<Reverse<Ordered>>,
    arrivals: u64,
}

impl Inside {
    /// Removes and returns the next request that leaves at `at` or earlier. One that leaves at a tick makes room for
    /// one that arrives at that tick.
    pub(super) fn leaves_by(&mut self, at: Tick) -> Option<Leaving> {
        if self.heap.peek()?.0.leaving.at > at {
            return None;
        }
        self.heap.pop().map(|Reverse(ordered)| ordered.leaving)
    }

    /// Adds a request. If there is no room for both, removes and returns the next one to leave.
    pub(super) fn enter(&mut self, leaving: Leaving) -> Option<Leaving> {
        let early = if self.heap.len() >= MOST { self.heap.pop() } else { None };
        self.arrivals += 1;
        self.heap.push(Reverse(Ordered { arrival: self.arrivals, leaving }));
        early.map(|Reverse(ordered)| ordered.leaving)
    }
}

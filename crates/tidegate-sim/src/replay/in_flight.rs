//! The requests that hold places in guards or count as in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tidegate::gate::Charged;
use tidegate::gate::switches::Off;
use tidegate::policy::Source;
use tidegate::{Outcome, Tick};

use super::Replay;
use super::guards::Entered;
use crate::unknown::AssumedOn;

/// The most requests inside at once, over all runs; about 300 bytes each. Beyond it, the next one to leave leaves
/// early, and is counted.
const MOST: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) at: Tick,
    pub(super) run: usize,
    pub(super) places: Charged,
    pub(super) entered: Entered,
    pub(super) took: Option<Duration>,
    pub(super) outcome: Outcome,
    /// How long the gate counts it as work, if it does.
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

impl Replay {
    /// Turns a switch off for the whole replay, in each policy set that has it. Call it before the first request.
    ///
    /// # Errors
    /// The names of the switches of all sets, sorted, if none of them has this switch.
    pub fn turn_off(&mut self, name: &str) -> Result<(), Vec<String>> {
        let mut known = Vec::new();
        let mut is_known = false;
        for run in &mut self.runs {
            known.extend(run.policies.switches().map(str::to_owned));
            let off = Off::for_all("off throughout the replay");
            if run.switches.as_ref().is_some_and(|switches| switches.turn_off(name, off).is_ok()) {
                run.off.push(name.to_owned());
                is_known = true;
            }
        }
        known.sort();
        known.dedup();
        if is_known { Ok(()) } else { Err(known) }
    }

    /// Returns the switches that were taken as on because the requests do not tell what turns them off.
    #[must_use]
    pub fn assumed_on(&self) -> Vec<AssumedOn> {
        let mut all = Vec::new();
        for run in &self.runs {
            let is_off = |switch: &str| run.off.iter().any(|off| off == switch);
            for assumed in AssumedOn::of(&run.policies, |source| self.why_unknown(source)) {
                if !is_off(&assumed.switch) && !all.contains(&assumed) {
                    all.push(assumed);
                }
            }
        }
        all
    }

    /// Returns why a number is not known; `None` if it is.
    pub(super) fn why_unknown(&self, source: &Source) -> Option<String> {
        let teller = if self.is_recorded { "the log" } else { "the traffic" };
        match source {
            Source::InFlight | Source::Latency if !self.is_timed => {
                Some(format!("{teller} does not say how long requests took"))
            }
            // What turns a switch is reported of the switch.
            Source::InFlight | Source::Latency | Source::Rate | Source::Policy(_) | Source::Switch(_) => None,
            other => Some(format!("{teller} does not say what `{other}` was")),
        }
    }
}

//! Measures how long single checks take, and whether the limiter or the machine causes the longest.
//!
//! Each check is timed in wall time, since a stalled caller does not care about the reason. But the machine interrupts
//! every program: a timer that fires 250 times a second hits one in ten thousand checks of 400 ns, which is just the
//! percentile of interest, and on a virtual machine each interruption takes tens of microseconds. So each chunk of
//! checks is followed by equally many turns that only read the clock, each for the mean time of the chunk's checks: the
//! *idle* turns, which the same machine interrupts in the same milliseconds. Delays that hit both equally often are not
//! caused by the limiter; delays that hit more checks than idle turns are.

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::pair::Figures;
use crate::traffic::Key;

/// Checks between two rounds of idle turns: enough that the checks find the caches as the previous chunk left them.
const CHUNK: usize = 1024;

/// A check that takes longer than this is a stall.
const STALL_NS: u64 = 100_000;

/// Checks of at least this time, in nanoseconds, are compared with idle turns: shorter ones are the check itself.
const INTERRUPTED_NS: u64 = 1_000;

/// The longest time that is recorded exactly, in nanoseconds: maps of many millions of keys were seen to grow for three
/// seconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Histograms of the times of checks and of idle turns.
pub(crate) struct Stalls {
    clock: quanta::Clock,
    checks: Histogram<u64>,
    idle: Histogram<u64>,
}

impl Stalls {
    pub(crate) fn new() -> Result<Self> {
        let new = || Histogram::new_with_max(LONGEST_NS, 3);
        Ok(Self { clock: quanta::Clock::new(), checks: new()?, idle: new()? })
    }

    /// Times checks `0..count`; `prepare` writes the key of a check, and is not timed.
    pub(crate) fn time(
        &mut self,
        count: usize,
        mut prepare: impl FnMut(usize, &mut Key),
        mut check: impl FnMut(&Key),
    ) {
        let mut key = Key::with_capacity(32);
        for chunk in (0..count).step_by(CHUNK) {
            let chunk = chunk..(chunk + CHUNK).min(count);
            let mut spent = 0;
            for number in chunk.clone() {
                prepare(number, &mut key);
                let before = self.clock.raw();
                check(&key);
                let nanos = self.clock.delta_as_nanos(before, self.clock.raw());
                self.checks.saturating_record(nanos);
                // Capped, so that one long check does not lengthen all idle turns.
                spent += nanos.min(INTERRUPTED_NS);
            }
            let usual = spent / chunk.len() as u64;
            for number in chunk {
                prepare(number, &mut key);
                self.idle.saturating_record(self.stand(usual));
            }
        }
    }

    /// Reads the clock until `nanos` have passed, and returns how many have.
    fn stand(&self, nanos: u64) -> u64 {
        let before = self.clock.raw();
        loop {
            let passed = self.clock.delta_as_nanos(before, self.clock.raw());
            if passed >= nanos {
                return passed;
            }
        }
    }

    /// Returns the shortest time that at most `share` of the checks exceed, not counting as many as there are idle
    /// turns that exceed it.
    fn caused(&self, share: f64) -> u64 {
        let most = (self.checks.len() as f64 * share) as u64;
        let mut idle_steps: Vec<_> = self.idle.iter_recorded().collect();
        let (mut longer, mut longer_idle) = (0, 0);
        let mut least = self.checks.max();
        let steps: Vec<_> = self.checks.iter_recorded().collect();
        for step in steps.iter().rev() {
            let value = step.value_iterated_to();
            while let Some(idle) = idle_steps.pop_if(|idle| idle.value_iterated_to() > value) {
                longer_idle += idle.count_at_value();
            }
            if longer > most + longer_idle || value < INTERRUPTED_NS {
                break;
            }
            least = value;
            longer += step.count_at_value();
        }
        least
    }

    pub(crate) fn report(&self, figures: &mut Figures) {
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)] {
            figures.set(name, self.checks.value_at_quantile(quantile) as f64);
        }
        figures.set("max", self.checks.max() as f64);
        figures.set("caused p99.99", self.caused(0.0001) as f64);
        figures.set("idle p99.99", self.idle.value_at_quantile(0.9999) as f64);
        let stalls = |times: &Histogram<u64>| times.count_between(STALL_NS, LONGEST_NS) as f64;
        figures.set("stalls", stalls(&self.checks));
        figures.set("idle stalls", stalls(&self.idle));
    }
}

//! How long single checks take, and who is to blame for the longest.
//!
//! Each check is timed by the wall, since a caller who stands still does not care why. But a thread that the host put aside
//! stands still as well. So CPU time is read once per chunk: what a chunk spent off its core is taken off its slowest check, and
//! only what is left counts as a stall of the limiter. That errs on both sides: a limiter's stall is excused when its chunk was
//! put aside as well, and time that a hypervisor takes may count as CPU time. The loop without a limiter shows how much of either
//! there is.

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::figures::Figures;
use crate::measure::{cpu_ns, wall};
use crate::traffic::Key;

/// Checks between two looks at CPU time.
const CHUNK: usize = 256;

/// A check longer than this is a stall.
const STALL_NS: u64 = 100_000;

/// The longest time that is told apart: a map of many millions has been seen to grow for three seconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of checks under way.
pub(crate) struct Stalls {
    clock: quanta::Clock,
    checks: Histogram<u64>,
    stalls: u64,
    own: u64,
    longest_own: u64,
}

impl Stalls {
    pub(crate) fn new() -> Result<Self> {
        let checks = Histogram::new_with_max(LONGEST_NS, 3)?;
        Ok(Self { clock: quanta::Clock::new(), checks, stalls: 0, own: 0, longest_own: 0 })
    }

    /// Times checks `0..count`; `prepare` writes the key of a check, outside its time.
    pub(crate) fn time(
        &mut self,
        count: usize,
        mut prepare: impl FnMut(usize, &mut Key),
        mut check: impl FnMut(&Key),
    ) {
        let mut key = Key::with_capacity(32);
        for chunk in (0..count).step_by(CHUNK) {
            let (start, cpu) = (wall(), cpu_ns());
            let mut longest = 0;
            for number in chunk..(chunk + CHUNK).min(count) {
                prepare(number, &mut key);
                let before = self.clock.raw();
                check(&key);
                let nanos = self.clock.delta_as_nanos(before, self.clock.raw());
                self.checks.saturating_record(nanos);
                self.stalls += u64::from(nanos > STALL_NS);
                longest = nanos.max(longest);
            }
            let cpu = cpu_ns() - cpu;
            let away = (start.elapsed().as_nanos() as u64).saturating_sub(cpu);
            let own = longest.saturating_sub(away);
            self.own += u64::from(own > STALL_NS);
            self.longest_own = own.max(self.longest_own);
        }
    }

    pub(crate) fn report(&self, figures: &mut Figures) {
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)] {
            figures.set(name, self.checks.value_at_quantile(quantile) as f64);
        }
        figures.set("max", self.checks.max() as f64);
        figures.set("stalls", self.stalls as f64);
        figures.set("own stalls", self.own as f64);
        figures.set("longest own", self.longest_own as f64);
    }
}

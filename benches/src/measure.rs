//! Measures one check on one thread by CPU time, which a neighbour that takes the core does not affect.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

/// Checks between two readings of the clock: a reading costs about 300 ns, a chunk of the fastest checks 40 µs.
const CHUNK: u64 = 1 << 17;

/// The CPU time of one measurement: enough for a few dozen chunks, whose median is reported.
const SPAN_NS: u64 = 100_000_000;

/// Returns the CPU time of the calling thread so far.
pub(crate) fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the present, for spans of wall time.
#[allow(clippy::disallowed_methods, reason = "a bench reads the time")]
pub(crate) fn wall() -> Instant {
    Instant::now()
}

/// The answer that every check of a measurement has to give: a check with another answer does different work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Permitted,
    Denied,
}

impl Want {
    /// Fails unless all checks answered as wanted.
    pub(crate) fn verify(self, permitted: u64, checks: u64) -> Result<()> {
        let right = match self {
            Self::Permitted => permitted == checks,
            Self::Denied => permitted == 0,
        };
        ensure!(right, "{permitted} of {checks} checks were permitted; wanted all {self:?}");
        Ok(())
    }
}

/// Returns the CPU nanoseconds of one check on one thread, after one chunk to warm up.
pub(crate) fn alone(want: Want, mut check: impl FnMut() -> bool) -> Result<f64> {
    let mut chunk = || {
        let start = cpu_ns();
        let mut permitted = 0;
        for _ in 0..CHUNK {
            permitted += u64::from(black_box(check()));
        }
        (cpu_ns() - start, permitted)
    };
    chunk();
    let (mut spent, mut chunks) = (0, Vec::new());
    while spent < SPAN_NS {
        let (nanos, permitted) = chunk();
        want.verify(permitted, CHUNK)?;
        spent += nanos;
        chunks.push(nanos as f64 / CHUNK as f64);
    }
    chunks.sort_by(f64::total_cmp);
    Ok(chunks[chunks.len() / 2])
}

// Reads the memory of the process from the kernel.

/// Returns the resident bytes of the process, without pages of program files, which are loaded when code first runs.
pub(crate) fn resident() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let mut fields = text.split_whitespace().skip(1).map(str::parse::<u64>);
    let mut field = || fields.next().context("statm has fewer fields than three")?.context("statm has words");
    let (resident, of_files) = (field()?, field()?);
    Ok((resident - of_files) * rustix::param::page_size() as u64)
}

//! Runs one path under the instruction counter, on a clock that the path controls.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use tidegate::Tick;
use tidegate::clock::{Clock, SystemClock};

/// Checks in the shorter run: a multiple of the 64 units of a lease and the 16 keys of a batch, and enough that a mean
/// over keys does not depend on the table's secret seed.
pub(crate) const CHECKS: u64 = 4096;

/// Runs a path twice, with a fresh check each time, and prints its name. One call of a check decides `batch` times.
pub(crate) fn path<C: FnMut() -> bool>(
    name: &str,
    want: Want,
    batch: u64,
    make: impl Fn() -> Result<C>,
) -> Result<()> {
    for checks in [CHECKS, 2 * CHECKS] {
        SystemClock::share_tick();
        let mut check = make()?;
        SystemClock::share_tick();
        // Excludes work that only the first check does.
        black_box(check());
        let calls = checks / batch;
        let permitted = profiled(calls, &mut check);
        let right = permitted == if want == Want::Permitted { calls } else { 0 };
        ensure!(right, "{name}: {permitted} of {calls} permitted; wanted all {want:?}");
    }
    println!("{CHECKS} {name}");
    Ok(())
}

/// The answer that every check of a path has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Permitted,
    Denied,
}

/// Callgrind finds this function by its name and writes a profile when it returns: it accepts only one such command per
/// function.
#[inline(never)]
pub(crate) fn profiled(calls: u64, check: &mut impl FnMut() -> bool) -> u64 {
    black_box(collected(calls, check))
}

/// The loop whose instructions callgrind collects; callgrind finds it by its name. Returns the number of permitted
/// checks.
#[inline(never)]
pub(crate) fn collected(calls: u64, check: &mut impl FnMut() -> bool) -> u64 {
    let mut permitted = 0;
    for _ in 0..calls {
        permitted += u64::from(black_box(check()));
    }
    permitted
}

/// A clock that advances by a step on each reading; with a step of 0 it stands still.
#[derive(Debug)]
pub(crate) struct Stepping {
    now: AtomicU64,
    step: u64,
}

impl Stepping {
    pub(crate) fn by(nanos: u64) -> Self {
        // Not at the epoch, where every limit is full.
        Self { now: AtomicU64::new(1_000_000_000), step: nanos }
    }
}

impl Clock for Stepping {
    fn now(&self) -> Tick {
        // Only one thread reads it, so a load and a store are enough.
        let now = self.now.load(Ordering::Relaxed) + self.step;
        self.now.store(now, Ordering::Relaxed);
        Tick::from_nanos(now)
    }
}

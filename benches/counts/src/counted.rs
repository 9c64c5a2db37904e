//! One path under the counter: how it is run, and the clock it lives by.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use tidegate::{Clock, SystemClock, Tick};

/// Checks of the shorter run: a multiple of the 64 units of a lease and the 16 keys of a batch, and enough for a mean over
/// keys not to depend on the table's secret seed.
pub(crate) const CHECKS: u64 = 4096;

/// Runs a path twice, by a fresh check each time, and says what it was. One call of a check decides `batch` times.
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
        // Whatever only the first check does is not what is counted.
        black_box(check());
        let calls = checks / batch;
        let permitted = profiled(calls, &mut check);
        let right = permitted == if want == Want::Permitted { calls } else { 0 };
        ensure!(right, "{name}: {permitted} of {calls} permitted; wanted all {want:?}");
    }
    println!("{CHECKS} {name}");
    Ok(())
}

/// What every check of a path has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Permitted,
    Denied,
}

/// Callgrind writes a profile when this returns, and knows it by this name: it follows but one order for each function.
#[inline(never)]
pub(crate) fn profiled(calls: u64, check: &mut impl FnMut() -> bool) -> u64 {
    black_box(collected(calls, check))
}

/// The loop that callgrind collects, known to it by this name. Returns how many checks were permitted.
#[inline(never)]
pub(crate) fn collected(calls: u64, check: &mut impl FnMut() -> bool) -> u64 {
    let mut permitted = 0;
    for _ in 0..calls {
        permitted += u64::from(black_box(check()));
    }
    permitted
}

/// A clock that moves on by a step whenever it is read, or stands still where the step is 0.
#[derive(Debug)]
pub(crate) struct Stepping {
    now: AtomicU64,
    step: u64,
}

impl Stepping {
    pub(crate) fn by(nanos: u64) -> Self {
        // Not at the epoch, where everything is still full.
        Self { now: AtomicU64::new(1_000_000_000), step: nanos }
    }
}

impl Clock for Stepping {
    fn now(&self) -> Tick {
        // One thread reads it, so a load and a store do.
        let now = self.now.load(Ordering::Relaxed) + self.step;
        self.now.store(now, Ordering::Relaxed);
        Tick::from_nanos(now)
    }
}

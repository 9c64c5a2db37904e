//! How Tidegate's cost grows with the number of keys, of entries of a log, and of buckets of a window.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use tidegate::clock::Clock;
use tidegate::{Quota, Tick};

use super::{Keyed, Question};
use crate::contenders::tidegate as contender;
use crate::measure::{Want, alone};
use crate::pair::Figures;

const SECOND: u64 = 1_000_000_000;

pub(crate) fn run(huge: bool, figures: &mut Figures) -> Result<()> {
    let most = if huge { 8 } else { 7 };
    for exponent in 3..=most {
        let mut found = Figures::default();
        contender::keyed(&mut Keyed::new(Question::Keys(10_usize.pow(exponent)), &mut found)?)?;
        figures.take(&format!("keys 1e{exponent} "), found);
    }
    for entries in [10, 100, 1000, 10_000, 16_384] {
        figures.set(format!("log {entries}"), steady(Quota::per_second(entries).sliding_log()?, entries)?);
    }
    for buckets in [1, 4, 16, 64] {
        let units = 100_000;
        let quota = Quota::per_second(units).sliding_window(buckets)?;
        figures.set(format!("buckets {buckets}"), steady(quota, units / 2)?);
    }
    Ok(())
}

/// Measures a limiter with a period of one second, at the highest rate that it permits for ever.
fn steady(quota: Quota, per_second: u64) -> Result<f64> {
    let clock = Stepping { now: AtomicU64::new(SECOND), step: SECOND / per_second + 1 };
    alone(Want::Permitted, contender::on_clock(quota, clock)?)
}

/// A clock that advances by one step on each reading: the same traffic at any speed of checking.
#[derive(Debug)]
struct Stepping {
    now: AtomicU64,
    step: u64,
}

impl Clock for Stepping {
    fn now(&self) -> Tick {
        // A load and a store, because only one thread reads the clock; an exchange would take time that is measured
        // with the check.
        let now = self.now.load(Ordering::Relaxed) + self.step;
        self.now.store(now, Ordering::Relaxed);
        Tick::from_nanos(now)
    }
}

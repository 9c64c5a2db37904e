//! rate-net: with default settings, and with its coarse clock. Keys are borrowed, which its documentation recommends
//! for speed.

use std::time::Duration;

use anyhow::Result;
use rate_net::{Builder, CoarseClock, RateLimiter};

use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let limiter = Builder::new().quota(count, period).try_build_direct()?;
    run.shared(|| limiter.check().is_allow())
}

pub(crate) fn one_coarse(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let limiter = Builder::new().quota(count, period).clock(coarse()?).try_build_direct()?;
    run.shared(|| limiter.check().is_allow())
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let (period, burst) = run.limit();
    let limiter = RateLimiter::builder().quota(1, period).burst(burst).try_build()?;
    run.shared(|key| limiter.check_bytes(key).is_allow())
}

pub(crate) fn keyed_coarse(run: &mut Keyed<'_>) -> Result<()> {
    let (period, burst) = run.limit();
    let limiter = RateLimiter::builder().quota(1, period).burst(burst).clock(coarse()?).try_build()?;
    run.shared(|key| limiter.check_bytes(key).is_allow())
}

fn coarse() -> Result<CoarseClock> {
    Ok(CoarseClock::spawn(Duration::from_millis(1))?)
}

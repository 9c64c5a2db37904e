//! Tidegate itself.

use anyhow::Result;
use tidegate::{Clock, KeyedLimiter, Limiter, Quota};

use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let limiter = Limiter::new(Quota::per(count.into(), period))?;
    run.shared(|| limiter.allow().is_allowed())
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let (period, burst) = run.limit();
    let limiter = KeyedLimiter::new(Quota::per(1, period).burst(burst.into()), run.capacity())?;
    run.shared(|key| limiter.allow(key).is_allowed())
}

/// One limiter of any quota, on a clock of the caller's.
pub(crate) fn on_clock(quota: Quota, clock: impl Clock + 'static) -> Result<impl Fn() -> bool> {
    let limiter = Limiter::new(quota)?.with_clock(clock);
    Ok(move || limiter.allow().is_allowed())
}

//! governor: with default settings, and with the clock and the hasher that its documentation offers for speed.

use std::num::NonZero;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use governor::clock::QuantaUpkeepClock;
use governor::{Quota, RateLimiter};

use crate::traffic::Key;
use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let limiter = RateLimiter::direct(quota(run)?);
    run.shared(|| limiter.check().is_ok())
}

pub(crate) fn one_upkeep(run: &mut One<'_>) -> Result<()> {
    let limiter = RateLimiter::direct_with_clock(quota(run)?, upkeep()?);
    run.shared(|| limiter.check().is_ok())
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let limiter = RateLimiter::<Key, _, _>::keyed(key_quota(run)?);
    run.shared(|key| limiter.check_key(key).is_ok())
}

pub(crate) fn keyed_tuned(run: &mut Keyed<'_>) -> Result<()> {
    let hasher = ahash::RandomState::new();
    let limiter = RateLimiter::<Key, _, _>::dashmap_with_clock_and_hasher(key_quota(run)?, upkeep()?, hasher);
    run.shared(|key| limiter.check_key(key).is_ok())
}

fn quota(run: &One<'_>) -> Result<Quota> {
    let (count, period) = run.limit();
    per(period / count, count)
}

fn key_quota(run: &Keyed<'_>) -> Result<Quota> {
    let (period, burst) = run.limit();
    per(period, burst)
}

fn per(period: Duration, burst: u32) -> Result<Quota> {
    let burst = NonZero::new(burst).context("a burst of zero")?;
    Ok(Quota::with_period(period).context("a period of zero")?.allow_burst(burst))
}

fn upkeep() -> Result<QuantaUpkeepClock> {
    QuantaUpkeepClock::from_interval(Duration::from_millis(1)).map_err(|error| anyhow!("{error}"))
}

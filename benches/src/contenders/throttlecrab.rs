//! throttlecrab: a map behind `&mut`, with the time passed in by the caller, and the store that its server uses by
//! default.

use std::time::SystemTime;

use anyhow::Result;
use throttlecrab::{PeriodicStore, RateLimiter};

use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let mut limiter = RateLimiter::new(PeriodicStore::new());
    run.alone(move || permits(&mut limiter, "user:0", count.into(), count.into(), period.as_secs() as i64))
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let (period, burst) = run.limit();
    let mut limiter = RateLimiter::new(PeriodicStore::with_capacity(run.capacity()));
    run.alone(move |key| permits(&mut limiter, key, burst.into(), 1, period.as_secs() as i64))
}

#[allow(clippy::disallowed_methods, reason = "this peer has the caller read the time")]
fn permits(
    limiter: &mut RateLimiter<PeriodicStore>,
    key: &str,
    burst: i64,
    count: i64,
    seconds: i64,
) -> bool {
    limiter.rate_limit(key, burst, count, seconds, 1, SystemTime::now()).is_ok_and(|(allowed, _)| allowed)
}

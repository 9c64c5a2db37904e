//! ratelimit: one token bucket.

use anyhow::{Result, anyhow};
use ratelimit::Ratelimiter;

use crate::workloads::One;

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let count = u64::from(count);
    let builder = Ratelimiter::builder(count).period(period).max_tokens(count).initial_available(count);
    let limiter = builder.build().map_err(|error| anyhow!("{error}"))?;
    run.shared(|| limiter.try_wait().is_ok())
}

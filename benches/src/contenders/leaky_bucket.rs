//! leaky-bucket: fair, the default, and unfair, which takes tokens without a lock or a clock while there are any.

use anyhow::Result;
use leaky_bucket::RateLimiter;

use crate::workloads::One;

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    measure(run, true)
}

pub(crate) fn one_unfair(run: &mut One<'_>) -> Result<()> {
    measure(run, false)
}

fn measure(run: &mut One<'_>, fair: bool) -> Result<()> {
    let (count, period) = run.limit();
    let count = count as usize;
    let limiter =
        RateLimiter::builder().max(count).initial(count).refill(count).interval(period).fair(fair).build();
    run.shared(|| limiter.try_acquire(1))
}

//! gcra: a guard for one thread, and a map of keys with an async check that never waits.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use gcra::{GcraError, RateLimit, RateLimitGuard, RateLimiter};

use crate::traffic::Key;
use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let mut guard = RateLimitGuard::new_state(RateLimit::new(count, period));
    run.alone(move || guard.check_and_modify(1).is_ok())
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    let (period, burst) = run.limit();
    let limit = RateLimit::new(burst, period * burst);
    let limiter = RateLimiter::<Key>::new(run.capacity());
    run.shared(|key| at_once(limiter.check(key.clone(), &limit, 1)))
}

fn at_once<T>(check: impl Future<Output = Result<T, GcraError>>) -> bool {
    let answer = pin!(check).poll(&mut Context::from_waker(Waker::noop()));
    matches!(answer, Poll::Ready(Ok(_)))
}

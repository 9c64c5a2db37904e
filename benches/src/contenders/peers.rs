//! The peers that are one function or two each, a module for each.

pub(crate) mod gcra {
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
}

pub(crate) mod governor {
    //! governor: with default settings, and with the clock and the hasher that its documentation offers for speed.

    use std::num::NonZero;
    use std::time::Duration;

    use anyhow::{Context, Result, anyhow};
    use governor::clock::QuantaUpkeepClock;
    use governor::{Quota, RateLimiter};

    use crate::traffic::Key;
    use crate::workloads::{Keyed, One};

    pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
        let limiters = run.place(|| Ok(RateLimiter::direct(quota(run)?)))?;
        let limiter = limiters.get();
        run.shared(|| limiter.check().is_ok())
    }

    pub(crate) fn one_upkeep(run: &mut One<'_>) -> Result<()> {
        let clock = upkeep()?;
        let limiters = run.place(|| Ok(RateLimiter::direct_with_clock(quota(run)?, clock.clone())))?;
        let limiter = limiters.get();
        run.shared(|| limiter.check().is_ok())
    }

    pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
        let limiter = RateLimiter::<Key, _, _>::keyed(key_quota(run)?);
        run.shared(|key| limiter.check_key(key).is_ok())
    }

    pub(crate) fn keyed_tuned(run: &mut Keyed<'_>) -> Result<()> {
        let hasher = ahash::RandomState::new();
        let limiter =
            RateLimiter::<Key, _, _>::dashmap_with_clock_and_hasher(key_quota(run)?, upkeep()?, hasher);
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
}

pub(crate) mod leaky_bucket {
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
        let limiter = RateLimiter::builder()
            .max(count)
            .initial(count)
            .refill(count)
            .interval(period)
            .fair(fair)
            .build();
        run.shared(|| limiter.try_acquire(1))
    }
}

pub(crate) mod pingora {
    //! pingora-limits: counts per interval in a sketch of fixed size; the caller compares with the limit.

    use std::time::Duration;

    use anyhow::Result;
    use pingora_limits::rate::Rate;

    use crate::workloads::{Keyed, One};

    pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
        let (count, period) = run.limit();
        let limit = count as isize;
        let rate = Rate::new(period);
        run.shared(|| rate.observe(&"user:0", 1) <= limit)
    }

    pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
        let rate = Rate::new(Duration::from_secs(1));
        run.shared(|key| rate.observe(key, 1) < isize::MAX)
    }
}

pub(crate) mod rate_net {
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
}

pub(crate) mod ratelimit {
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
}

pub(crate) mod throttlecrab {
    //! throttlecrab: a map behind `&mut`, with the time passed in by the caller, and the store that its server uses by
    //! default.

    use std::time::SystemTime;

    use anyhow::Result;
    use throttlecrab::{PeriodicStore, RateLimiter};

    use crate::workloads::{Keyed, One};

    pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
        let (count, period) = run.limit();
        let mut limiter = RateLimiter::new(PeriodicStore::new());
        run.alone(move || {
            permits(&mut limiter, "user:0", count.into(), count.into(), period.as_secs() as i64)
        })
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
}

pub(crate) mod tokio {
    //! tokio's semaphore: borrowed permits, and owned ones, which tasks need.

    use std::sync::Arc;

    use anyhow::Result;
    use tokio::sync::Semaphore;

    use crate::workloads::permits::{PLACES, Permits};

    pub(crate) fn semaphore(run: &mut Permits<'_>) -> Result<()> {
        let semaphore = Arc::new(Semaphore::new(PLACES as usize));
        run.shared(|| Arc::clone(&semaphore).try_acquire_owned().is_ok())
    }

    pub(crate) fn semaphore_borrowed(run: &mut Permits<'_>) -> Result<()> {
        let semaphore = Semaphore::new(PLACES as usize);
        run.shared(|| semaphore.try_acquire().is_ok())
    }
}

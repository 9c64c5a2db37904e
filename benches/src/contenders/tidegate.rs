//! Tidegate itself.

use anyhow::Result;
use tidegate::bulkhead::Tenants;
use tidegate::clock::Clock;
use tidegate::concurrency::{Bounds, Partition, Vegas};
use tidegate::limiter::Precision;
use tidegate::{Bulkhead, KeyedLimiter, Limiter, Outcome, Quota};

use crate::workloads::permits::{PLACES, Permits};
use crate::workloads::{Keyed, One};

pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    one_in(Precision::Shared, run)
}

pub(crate) fn one_exact(run: &mut One<'_>) -> Result<()> {
    one_in(Precision::Exact, run)
}

pub(crate) fn one_leased(run: &mut One<'_>) -> Result<()> {
    one_in(Precision::Leased, run)
}

fn one_in(precision: Precision, run: &mut One<'_>) -> Result<()> {
    let (count, period) = run.limit();
    let quota = Quota::per(count.into(), period);
    let limiters = run.place(|| Ok(Limiter::new(quota)?.with_precision(precision)))?;
    let limiter = limiters.get();
    run.shared(|| limiter.admit())
}

pub(crate) fn bulkhead(run: &mut Permits<'_>) -> Result<()> {
    let bulkhead = Bulkhead::new(PLACES)?;
    run.shared(|| bulkhead.try_enter().is_ok())
}

pub(crate) fn adaptive(run: &mut Permits<'_>) -> Result<()> {
    // As many places as the others have, so that no sample lowers the limit below them.
    let law = Vegas::default().bounds(Bounds::new(PLACES, PLACES)?);
    let bulkhead = Bulkhead::adaptive(law);
    run.shared(|| bulkhead.try_enter().map(|permit| permit.leave(Outcome::Success)).is_ok())
}

pub(crate) fn tenants(run: &mut Permits<'_>) -> Result<()> {
    let tenants = Tenants::default().each(Partition::default(), 100)?;
    let bulkhead = Bulkhead::new(PLACES)?.with_tenants(tenants);
    run.shared(|| bulkhead.enter().of("ann").now().is_ok())
}

pub(crate) fn keyed(run: &mut Keyed<'_>) -> Result<()> {
    ask(limiter(run)?, run)
}

pub(crate) fn keyed_exact(run: &mut Keyed<'_>) -> Result<()> {
    ask(limiter(run)?.with_precision(Precision::Exact), run)
}

pub(crate) fn keyed_full_keys(run: &mut Keyed<'_>) -> Result<()> {
    ask(limiter(run)?.with_full_keys(), run)
}

fn limiter(run: &Keyed<'_>) -> Result<KeyedLimiter> {
    let (period, burst) = run.limit();
    Ok(KeyedLimiter::new(Quota::per(1, period).burst(burst.into()), run.capacity())?)
}

fn ask(limiter: KeyedLimiter, run: &mut Keyed<'_>) -> Result<()> {
    run.shared(|key| limiter.admit(key))?;
    run.batches(|keys| {
        let mut permitted = 0;
        limiter.admit_each(keys, |_, admitted| permitted += usize::from(admitted));
        permitted
    })
}

/// A limiter of any quota, on a clock of the caller's.
pub(crate) fn on_clock(quota: Quota, clock: impl Clock + 'static) -> Result<impl Fn() -> bool> {
    let limiter = Limiter::new(quota)?.with_clock(clock);
    Ok(move || limiter.admit())
}

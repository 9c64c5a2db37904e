//! A limit that a bucket meets. Converts parts of it between units and requests, by what a request costs under its
//! policy.

use std::sync::Arc;

use parking_lot::MutexGuard;
use tidegate::Tick;
use tidegate_core::division::{Bucket as Portion, Division, HolderId, Offer};

use super::assignment::AssignedPart;
use super::limit::Pace;
use super::pools::Pool;

/// A limit that a bucket meets; the bucket leaves it when this is dropped.
#[derive(Debug)]
pub(super) struct BucketLimit {
    pool: Arc<Pool>,
    holder: HolderId,
    /// The units that a request costs; at least 1.
    cost: u64,
}

/// A limit that is locked for one report.
pub(super) struct Locked<'l> {
    division: MutexGuard<'l, Division>,
    holder: HolderId,
    cost: u64,
    /// The interval of its rates is 10 to this power seconds.
    power: u8,
}

impl Drop for BucketLimit {
    fn drop(&mut self) {
        self.pool.division.lock().leave(self.holder);
    }
}

impl BucketLimit {
    /// Joins the holders of the limit; a request costs `cost` units.
    pub(super) fn join(pool: Arc<Pool>, cost: u64, now: Tick) -> Self {
        let cost = cost.max(1);
        let holder = pool.division.lock().join(cost, now);
        Self { pool, holder, cost }
    }

    /// Returns the number of the limit's pool.
    pub(super) fn number(&self) -> u64 {
        self.pool.number
    }

    /// Sets what a request costs from now on. Returns whether that is more than before.
    pub(super) fn set_cost(&mut self, cost: u64, now: Tick) -> bool {
        let before = std::mem::replace(&mut self.cost, cost.max(1));
        if before < self.cost {
            self.pool.division.lock().raise_least(self.holder, self.cost, now);
        }
        before < self.cost
    }

    /// Locks the limit. Several limits must be locked in the order of their numbers.
    pub(super) fn lock(&self) -> Locked<'_> {
        let (holder, cost, power) = (self.holder, self.cost, self.pool.pace.power);
        Locked { division: self.pool.division.lock(), holder, cost, power }
    }
}

impl Locked<'_> {
    /// Records how many requests asked for units of the limit.
    pub(super) fn report(&mut self, requests: u64, now: Tick) {
        self.division.report(self.holder, requests.saturating_mul(self.cost), now);
    }

    /// Renews the bucket's part until `until`. Returns whether it has one.
    pub(super) fn renew(&mut self, until: Tick, now: Tick) -> bool {
        self.division.renew(self.holder, until, now)
    }

    /// Returns the part that all limits can offer, and the index of the limit that offers least; `None` if one offers
    /// nothing.
    pub(super) fn offered_by_all(lines: &mut [Self], now: Tick) -> Option<(AssignedPart, usize)> {
        let (mut least, mut burst, mut binding, mut power) = (u128::MAX, u64::MAX, 0, 0);
        for (at, line) in lines.iter_mut().enumerate() {
            let Offer::UpTo(offered) = line.division.offer(line.holder, now) else { return None };
            let requests =
                u128::from(offered.rate) * scale(Pace::LONGEST - line.power) / u128::from(line.cost);
            if requests < least {
                (least, binding) = (requests, at);
            }
            (burst, power) = (burst.min(offered.burst / line.cost), power.max(line.power));
        }
        Some((AssignedPart::of(least, burst, power)?, binding))
    }

    /// Grants a part that was offered. Returns whether it may be handed out.
    pub(super) fn grant(&mut self, part: AssignedPart, until: Tick, now: Tick) -> bool {
        let interval = part.pace.power.saturating_sub(self.power);
        let units = u128::from(part.pace.tokens) * u128::from(self.cost);
        let rate = u64::try_from(units.div_ceil(scale(interval))).unwrap_or(u64::MAX);
        let burst = u64::from(part.burst).saturating_mul(self.cost);
        self.division.grant(self.holder, Portion { rate, burst }, until, now)
    }
}

/// Returns 10 to the `power`.
const fn scale(power: u8) -> u128 {
    10_u128.pow(power as u32)
}

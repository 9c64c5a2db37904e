//! A limit that a bucket meets: a part of it in units is a part in requests, by what a request costs under its policy.

use std::sync::Arc;

use parking_lot::MutexGuard;
use tidegate::Tick;
use tidegate_core::division::{Bucket as Portion, Division, HolderId, Offer};

use super::assignment::Part;
use super::limit::Pace;
use super::pools::Pool;

/// A limit that a bucket meets; left when it is dropped.
#[derive(Debug)]
pub(super) struct Line {
    pool: Arc<Pool>,
    holder: HolderId,
    /// The units that a request takes; at least 1.
    cost: u64,
}

/// A limit that is locked for one report.
pub(super) struct Locked<'l> {
    division: MutexGuard<'l, Division>,
    holder: HolderId,
    cost: u64,
    /// The interval of its rates has 10 to this power seconds.
    power: u8,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.pool.division.lock().leave(self.holder);
    }
}

impl Line {
    /// Joins those who share the limit; a request takes `cost` of its units.
    pub(super) fn join(pool: Arc<Pool>, cost: u64, now: Tick) -> Self {
        let cost = cost.max(1);
        let holder = pool.division.lock().join(cost, now);
        Self { pool, holder, cost }
    }

    /// Returns the number of its limit.
    pub(super) fn number(&self) -> u64 {
        self.pool.number
    }

    /// Sets what a request takes from now on; says whether that is more than before.
    pub(super) fn set_cost(&mut self, cost: u64, now: Tick) -> bool {
        let before = std::mem::replace(&mut self.cost, cost.max(1));
        if before < self.cost {
            self.pool.division.lock().raise_least(self.holder, self.cost, now);
        }
        before < self.cost
    }

    /// Locks it. Several are locked in the order of their numbers.
    pub(super) fn lock(&self) -> Locked<'_> {
        let (holder, cost, power) = (self.holder, self.cost, self.pool.pace.power);
        Locked { division: self.pool.division.lock(), holder, cost, power }
    }
}

impl Locked<'_> {
    /// Notes how many requests it was asked for.
    pub(super) fn report(&mut self, requests: u64, now: Tick) {
        self.division.report(self.holder, requests.saturating_mul(self.cost), now);
    }

    /// Lets the bucket keep what it has; says whether it has anything.
    pub(super) fn renew(&mut self, until: Tick, now: Tick) -> bool {
        self.division.renew(self.holder, until, now)
    }

    /// Returns what all of them offer, and the place of the one that offers least; `None` where one offers nothing.
    pub(super) fn offered_by_all(lines: &mut [Self], now: Tick) -> Option<(Part, usize)> {
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
        Some((Part::of(least, burst, power)?, binding))
    }

    /// Grants a part that was offered; says whether it may be handed out.
    pub(super) fn grant(&mut self, part: Part, until: Tick, now: Tick) -> bool {
        let interval = part.pace.power.saturating_sub(self.power);
        let units = u128::from(part.pace.tokens) * u128::from(self.cost);
        let rate = u64::try_from(units.div_ceil(scale(interval))).unwrap_or(u64::MAX);
        let burst = u64::from(part.burst).saturating_mul(self.cost);
        self.division.grant(self.holder, Portion { rate, burst }, until, now)
    }
}

/// Returns 10 to this power.
const fn scale(power: u8) -> u128 {
    10_u128.pow(power as u32)
}

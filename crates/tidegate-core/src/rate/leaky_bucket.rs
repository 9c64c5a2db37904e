//! The leaky bucket as a meter: a level that rises with every cost and drains at the rate.
//!
//! It refuses what would make the bucket run over. Seen from outside it grants exactly what a token bucket or
//! [`Gcra`](super::Gcra) of the same numbers grants; it is here for those who think in a fill level, read it on a
//! dashboard, or come from nginx, where it is the only form. For a bucket that *delays* to a constant outflow see
//! [`LeakyQueue`](super::LeakyQueue).
//!
//! With a rate of `c` units per `p` ns in lowest terms the level is kept in `1/p` of a unit: a unit weighs exactly `p`, a
//! nanosecond drains exactly `c`.

use core::time::Duration;

use super::Algorithm;
use super::exact::mul_div_ceil;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Retry, Standing, Transition};
use crate::quota::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick, nanos, span};

/// A bucket of some capacity that drains at a rate and refuses to run over.
///
/// # Source
/// ITU-T Recommendation I.371, the continuous-state leaky bucket: the twin of the virtual scheduling form. Capacity here
/// counts the first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    rate: Rate,
    capacity: u64,
    /// What a nanosecond drains.
    drain: u64,
    /// What one unit weighs.
    weight: u64,
}

/// What [`LeakyBucket`] remembers of a key: 24 bytes in the library's memory, the level and the tick it was true at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucketState {
    /// In `1/p` of a unit. Above the capacity while reservations wait.
    level: u128,
    last: Tick,
}

impl LeakyBucket {
    /// Makes a bucket that drains at `rate` and holds 1 to [`Rate::MAX_COUNT`] units.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the capacity is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::LeakyBucket, Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
    ///
    /// let limit = LeakyBucket::new(Rate::new(4, Duration::from_secs(1))?, 2)?;
    /// let now = Tick::from_secs(1);
    /// let full = Ask::allow(now, Cost::new(2).unwrap());
    /// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), full) else { panic!() };
    /// assert_eq!(limit.decide(&next, full), Transition::Denied { retry: Retry::After(Duration::from_millis(500)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, capacity: u64) -> Result<Self, QuotaError> {
        let capacity = burst_in_range(capacity)?;
        let (drain, weight) = rate.reduced();
        Ok(Self { rate, capacity, drain, weight })
    }

    /// Returns the rate at which the bucket drains.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns how many units the bucket holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Below 2^126, since a weight is at most 2^62.
    fn weight_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.weight)
    }

    /// Below 2^124, since a drain is at most 2^60.
    fn drained_in(&self, span: Duration) -> u128 {
        u128::from(nanos(span)) * u128::from(self.drain)
    }

    fn level(&self, state: &LeakyBucketState, at: Tick) -> u128 {
        state.level.saturating_sub(self.drained_in(at.since(state.last)))
    }

    /// What would run over: the weight that has to drain before the last reservation may act.
    fn over(&self, level: u128) -> u128 {
        level.saturating_sub(self.weight_of(self.capacity))
    }
}

impl Algorithm for LeakyBucket {
    type State = LeakyBucketState;

    fn fresh(&self, now: Tick) -> LeakyBucketState {
        LeakyBucketState { level: 0, last: now }
    }

    fn decide(&self, state: &LeakyBucketState, ask: Ask) -> Transition<LeakyBucketState> {
        let units = ask.cost.units();
        if units > self.capacity {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let level = self.level(state, at).saturating_add(self.weight_of(units));
        let over = self.over(level);
        let wait = over.div_ceil(u128::from(self.drain));
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        let wait = span(wait);
        let receipt = Receipt { at, act: at.after(wait), cost: ask.cost, mark: Receipt::mark(over, 0) };
        Transition::Allowed { wait, next: LeakyBucketState { level, last: at }, receipt }
    }

    fn standing(&self, state: &LeakyBucketState, now: Tick) -> Standing {
        let level = self.level(state, now.max(state.last));
        let left = self.weight_of(self.capacity).saturating_sub(level) / u128::from(self.weight);
        Standing {
            limit: self.capacity,
            // At most the capacity, which fits.
            remaining: left as u64,
            debt: 0,
            reset_after: span(level.div_ceil(u128::from(self.drain))),
        }
    }

    fn refund(&self, state: &LeakyBucketState, now: Tick, cost: Cost) -> LeakyBucketState {
        let last = now.max(state.last);
        LeakyBucketState { level: self.level(state, last).saturating_sub(self.weight_of(cost.units())), last }
    }

    fn cancel(&self, state: &LeakyBucketState, now: Tick, receipt: &Receipt) -> LeakyBucketState {
        let last = now.max(state.last);
        if receipt.act < last {
            return *state;
        }
        // Without what drained since, the receipt's own overflow is `mark`; what runs over above it came after.
        let since = self.over(state.level).saturating_add(self.drained_in(state.last.since(receipt.at)));
        let level = self.level(state, last);
        // Somebody after it still waits and relies on its place. Giving a part back would hide that promise from the level,
        // and the next cancellation would give back what is still relied on.
        if since.saturating_sub(receipt.marks().0).min(self.over(level)) > 0 {
            return *state;
        }
        LeakyBucketState { level: level.saturating_sub(self.weight_of(receipt.cost.units())), last }
    }

    fn carry(&self, old: &Self, state: &LeakyBucketState, now: Tick, how: Replace) -> LeakyBucketState {
        let last = now.max(state.last);
        let (level, full) = (old.level(state, last), old.weight_of(old.capacity));
        let (within, over) = (level.min(full), old.over(level));
        let convert = |level| mul_div_ceil(level, u128::from(self.weight), u128::from(old.weight));
        let within = match how {
            Replace::AsIs => convert(within).min(self.weight_of(self.capacity)),
            Replace::Proportional => mul_div_ceil(within, self.weight_of(self.capacity), full),
            Replace::Reset => return self.fresh(last),
        };
        LeakyBucketState { level: within.saturating_add(convert(over)), last }
    }

    /// Returns when the bucket has run dry.
    fn full_at(&self, state: &LeakyBucketState) -> Option<Tick> {
        let dry =
            u128::from(state.last.as_nanos()).saturating_add(state.level.div_ceil(u128::from(self.drain)));
        u64::try_from(dry).ok().map(Tick::from_nanos)
    }
}

impl Bytes for LeakyBucket {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.capacity);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, capacity) = (from.rate()?, from.u64()?);
        Self::new(rate, capacity).map_err(|_| DecodeError::Value { field: "capacity" })
    }
}

impl Bytes for LeakyBucketState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u128(self.level);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { last: from.tick()?, level: from.u128()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline() {
        let limit = LeakyBucket::new(Rate::new(3, Duration::from_secs(1)).unwrap(), 2).unwrap();
        let mut state = limit.fresh(Tick::EPOCH);
        // (ns, cost, denied for this many ns, remaining afterwards)
        for (at, cost, denied, remaining) in [
            (0, 2, None, 0),
            (0, 1, Some(333_333_334), 0),
            (333_333_333, 1, Some(1), 0),
            (333_333_334, 1, None, 0),
            (666_666_666, 1, Some(1), 0),
            (666_666_667, 1, None, 0), // a third of a second each, never a third rounded
            (100, 2, Some(666_666_667), 0),
            (5_000_000_000, 1, None, 1),
        ] {
            let at = Tick::from_nanos(at);
            match limit.decide(&state, Ask::allow(at, Cost::new(cost).unwrap())) {
                Transition::Allowed { next, .. } => {
                    assert_eq!(denied, None, "at {at:?}");
                    state = next;
                }
                Transition::Denied { retry } => {
                    assert_eq!(retry.after(), denied.map(Duration::from_nanos), "at {at:?}");
                }
            }
            assert_eq!(limit.standing(&state, at).remaining, remaining, "at {at:?}");
        }
    }

    #[test]
    fn cancelling_restores_what_nobody_relied_on() {
        let limit = LeakyBucket::new(Rate::new(1, Duration::from_secs(1)).unwrap(), 1).unwrap();
        let reserve = |state: &LeakyBucketState, at| {
            let ask = Ask::within(Tick::from_secs(at), Cost::ONE, Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("within a minute")
            };
            (next, receipt)
        };
        let (a, _) = reserve(&limit.fresh(Tick::EPOCH), 0);
        let (b, second) = reserve(&a, 0);
        let (c, third) = reserve(&b, 0);
        assert_eq!(limit.cancel(&c, Tick::EPOCH, &third), b);
        assert_eq!(limit.cancel(&c, Tick::EPOCH, &second), c, "the third counts on the second's place");
        assert_eq!(limit.cancel(&c, Tick::from_secs(3), &third), c, "it acted before");
    }
}

//! The sliding log: it keeps every arrival of one window, so the limit is exact. In any span of one window at most
//! the limit acts, and every request that this rule allows is granted. The price is 16 bytes per distinct tick at
//! which something acted. So it suits few and expensive things, such as three texts per hour; for many small ones a
//! [sliding window](super::SlidingWindow) comes close enough.
//!
//! An act at tick `e` counts at every tick before `e + window`, so two acts exactly one window apart do not count
//! together.

use super::ledger::{Ledger, Slots, ledger_algorithm};
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{Rate, Tick};

/// A count in any span of one window, kept exactly.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::rate::SlidingLog;
/// use tidegate_core::{Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
///
/// let limit = SlidingLog::new(Rate::new(1, Duration::from_secs(3600))?)?;
/// let now = Tick::from_secs(100);
/// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), Ask::allow(now, Cost::ONE)) else { panic!() };
/// let later = Tick::from_secs(3000);
/// let denied = limit.decide(&next, Ask::allow(later, Cost::ONE));
/// assert_eq!(denied, Transition::Denied { retry: Retry::After(Duration::from_secs(700)) });
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    rate: Rate,
}

/// The state of [`SlidingLog`] for one key: 40 bytes, and 16 on the heap per distinct tick of the window from the
/// second on; at most as many ticks as the limit has units, as many again or 4,096 while reservations lie ahead, and
/// 64 more with debts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLogState(Ledger);

impl SlidingLog {
    /// The largest limit of a log, 2¹⁴ units: each charge reads and copies its log, so one key then takes up to 256 KiB,
    /// or 512 KiB with reservations, and a check tens of microseconds. For a larger limit use
    /// [`SlidingWindow`](super::SlidingWindow), whose cost does not grow with the limit.
    const MAX_LIMIT: u64 = 1 << 14;

    /// Makes a limit of the count of `rate`, from 1 to 2¹⁴, in any span of its period.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the count is larger.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        if rate.count() > Self::MAX_LIMIT {
            return Err(QuotaError::Parameter {
                name: "count",
                value: rate.count().to_string(),
                want: "is too many for a log, which keeps each arrival; use at most 16384, or `sliding-window`, which costs the same for every limit",
            });
        }
        Ok(Self { rate })
    }

    /// Returns the limit and its window.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }
}

impl Slots for SlidingLog {
    fn last_tick(&self, slot: u64) -> u128 {
        u128::from(slot)
    }

    fn slot(&self, tick: Tick) -> u64 {
        tick.as_nanos()
    }

    fn begins(&self, slot: u64) -> u128 {
        u128::from(slot)
    }

    fn ends(&self, slot: u64) -> u128 {
        u128::from(slot) + u128::from(self.rate.period_nanos())
    }

    fn limit(&self) -> u64 {
        self.rate.count()
    }

    fn span(&self) -> usize {
        // At most 2^14.
        self.rate.count() as usize
    }
}

ledger_algorithm!(SlidingLog, SlidingLogState);

impl Bytes for SlidingLog {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::new(from.rate()?).map_err(|_| DecodeError::Value { field: "limit" })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::decision::Cost;
    use crate::rate::timeline;

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = SlidingLog::new(Rate::new(3, Duration::from_secs(1)).unwrap()).unwrap();
        let rows = [
            (500, 1, 0, Ok(0), 2),
            (900, 2, 0, Ok(0), 0),
            (900, 1, 0, Err(600), 0),
            (900, 2, 0, Err(1000), 0),
            (100, 1, 0, Err(600), 0), // a step back stands still at 900
            (1499, 1, 0, Err(1), 0),
            (1500, 1, 0, Ok(0), 0), // only the arrival of 500 has left
            (1500, 3, 999, Err(1), 0),
            (1500, 1, 500, Ok(400), 0), // when those of 900 leave
            (1900, 1, 0, Ok(0), 0),
            (2500, 1, 0, Ok(0), 0),
        ];
        timeline::holds(&limit, &rows);
    }

    #[test]
    fn a_smaller_limit_keeps_the_newest_arrivals() {
        let per_second = |count| SlidingLog::new(Rate::new(count, Duration::from_secs(1)).unwrap()).unwrap();
        let (old, new) = (per_second(4), per_second(2));
        let mut state = old.fresh(ms(0));
        for at in [0, 100, 200, 300] {
            let Transition::Allowed { next, .. } = old.decide(&state, Ask::allow(ms(at), Cost::ONE)) else {
                panic!()
            };
            state = next;
        }
        let wait = |how| {
            let carried = new.carry(&old, &state, ms(300), how);
            match new.decide(&carried, Ask::allow(ms(300), Cost::ONE)) {
                Transition::Allowed { .. } => 0,
                Transition::Denied { retry } => retry.after().unwrap().as_millis(),
            }
        };
        assert_eq!(wait(Replace::AsIs), 900, "when the arrival of 200 leaves, one of the last two");
        assert_eq!(wait(Replace::Proportional), 700, "one at 0 and one at 200 are the same half");
        assert_eq!(wait(Replace::Reset), 0);
    }

    #[test]
    fn what_is_settled_leaves_the_tick_it_acts_at() {
        let limit = SlidingLog::new(Rate::new(4, Duration::from_secs(1)).unwrap()).unwrap();
        let charge = |state: &SlidingLogState, at, units| {
            let ask = Ask::within(ms(at), Cost::new(units).unwrap(), Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("any wait")
            };
            (next, receipt)
        };
        let (one, first) = charge(&limit.fresh(ms(0)), 0, 2);
        let (two, _) = charge(&one, 100, 2);
        let left = |state: &SlidingLogState, at| {
            let standing = limit.standing(state, ms(at));
            (standing.remaining, standing.debt, standing.reset_after.as_millis())
        };
        // Long after both acted, and although somebody was charged in between.
        assert_eq!(left(&limit.settle(&two, ms(900), &first, 0), 900), (2, 0, 200));
        assert_eq!(left(&limit.settle(&two, ms(900), &first, 1), 900), (1, 0, 200));
        assert_eq!(
            left(&limit.settle(&two, ms(1000), &first, 0), 1000),
            (2, 0, 100),
            "of what is past nothing"
        );
        // Three more than was charged: they count from now for one window, and no longer.
        let debt = limit.settle(&two, ms(900), &first, 5);
        assert_eq!(left(&debt, 900), (0, 3, 1000));
        assert_eq!(left(&debt, 1000), (0, 1, 900));
        assert_eq!(left(&debt, 1100), (1, 0, 800));
        assert_eq!(left(&debt, 1900), (4, 0, 0));
    }

    #[test]
    fn debts_take_no_memory_without_bound() {
        let limit = SlidingLog::new(Rate::new(1, Duration::from_secs(1)).unwrap()).unwrap();
        let ask = Ask::allow(Tick::EPOCH, Cost::ONE);
        let Transition::Allowed { next: mut state, receipt, .. } =
            limit.decide(&limit.fresh(Tick::EPOCH), ask)
        else {
            panic!("it is full")
        };
        for nanos in 1..1000 {
            state = limit.settle(&state, Tick::from_nanos(nanos), &receipt, 2);
            let mut bytes = Writer::default();
            state.write(&mut bytes);
            assert!(bytes.finish().len() <= 25 + (2 + 64) * 16);
        }
        assert_eq!(limit.standing(&state, Tick::from_nanos(999)).debt, 999);
        assert_eq!(limit.standing(&state, Tick::from_nanos(1_000_000_998)).debt, 0);
        assert_eq!(limit.standing(&state, Tick::from_nanos(1_000_000_998)).remaining, 0);
    }
}

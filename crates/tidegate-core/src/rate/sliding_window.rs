//! The sliding window: the sliding log, rounded to N buckets per window. An act counts in its own bucket and the N
//! that follow, so **never more than the limit acts in any span of one window**: two acts less than a window apart
//! lie at most N buckets apart. Counting only N buckets would forget an act up to a bucket early, and let a span
//! across the edge see more than the limit. So the rounding errs by refusing: a steady caller gets at least N/(N+1) of
//! the limit.
//!
//! Bucket `i` begins at the first tick not before `i·window/N`, counted from the clock's epoch. Nothing is rounded
//! before that division, so buckets that do not divide the window evenly differ by a nanosecond and never drift. N
//! sets the precision: 1 costs up to half of the limit, 10 a tenth, 60 a sixtieth.

use super::ledger::{Ledger, Slots, ledger_algorithm};
use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{Rate, Tick};

/// A count in any span of one window, kept in buckets.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::rate::SlidingWindow;
/// use tidegate_core::{Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
///
/// let limit = SlidingWindow::new(Rate::new(100, Duration::from_secs(60))?, 60)?;
/// let now = Tick::from_nanos(500_000_000);
/// let ask = Ask::allow(now, Cost::new(100).unwrap());
/// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), ask) else { panic!() };
/// let denied = limit.decide(&next, Ask::allow(now, Cost::ONE));
/// // One window is over at 60.5 s; the bucket that holds half a second ends at 61 s.
/// assert_eq!(denied, Transition::Denied { retry: Retry::After(Duration::from_millis(60_500)) });
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    rate: Rate,
    buckets: u64,
}

/// The state of [`SlidingWindow`] for one key: 40 bytes, and 16 on the heap per bucket in use from the second on; at
/// most N + 1 buckets, up to 4,096 more while reservations lie ahead, and 64 more with debts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindowState(Ledger);

impl SlidingWindow {
    /// The most buckets. Buckets shorter than a thousandth of the window make no useful difference, and each charge
    /// copies its buckets.
    const MAX_BUCKETS: u64 = 1024;

    /// Makes a limit of the count of `rate` in any span of its period, kept in `buckets`, from 1 to
    /// 1024 and at most one per nanosecond.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the number of buckets is out of range.
    pub fn new(rate: Rate, buckets: u64) -> Result<Self, QuotaError> {
        let fault = if buckets == 0 || buckets > Self::MAX_BUCKETS {
            Some("cannot divide a window; use 1 to 1024")
        } else if buckets > rate.period_nanos() {
            Some("are more than the window has nanoseconds; use fewer")
        } else {
            None
        };
        match fault {
            Some(want) => Err(QuotaError::Parameter { name: "buckets", value: buckets.to_string(), want }),
            None => Ok(Self { rate, buckets }),
        }
    }

    /// Returns the limit and its window.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the number of buckets.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Returns the first tick of a bucket. The product is below 2^127: an index below 2^65, a period of at most 2^62.
    fn edge(&self, index: u128) -> u128 {
        (index * u128::from(self.rate.period_nanos())).div_ceil(u128::from(self.buckets))
    }
}

impl Slots for SlidingWindow {
    fn last_tick(&self, slot: u64) -> u128 {
        self.edge(u128::from(slot) + 1) - 1
    }

    fn slot(&self, tick: Tick) -> u64 {
        let scaled = u128::from(tick.as_nanos()) * u128::from(self.buckets);
        // A bucket lasts at least a nanosecond, so there are no more buckets than ticks.
        (scaled / u128::from(self.rate.period_nanos())) as u64
    }

    fn begins(&self, slot: u64) -> u128 {
        self.edge(u128::from(slot))
    }

    fn ends(&self, slot: u64) -> u128 {
        self.edge(u128::from(slot) + u128::from(self.buckets) + 1)
    }

    fn limit(&self) -> u64 {
        self.rate.count()
    }

    fn span(&self) -> usize {
        // At most 1025, and at most as many as units, because a bucket without units is not kept.
        self.rate.count().min(self.buckets + 1) as usize
    }
}

ledger_algorithm!(SlidingWindow, SlidingWindowState);

impl Bytes for SlidingWindow {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.buckets);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, buckets) = (from.rate()?, from.u64()?);
        Self::new(rate, buckets).map_err(|_| DecodeError::Value { field: "buckets" })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::rate::timeline;

    #[test]
    fn a_timeline() {
        let limit = SlidingWindow::new(Rate::new(3, Duration::from_secs(1)).unwrap(), 4).unwrap();
        let rows = [
            (600, 1, 0, Ok(0), 2), // bucket 500..750, counts until 1750
            (900, 2, 0, Ok(0), 0), // bucket 750..1000, counts until 2000
            (900, 1, 0, Err(850), 0),
            (900, 2, 0, Err(1100), 0),
            (100, 1, 0, Err(850), 0), // a step back stands still at 900
            (1749, 1, 0, Err(1), 0),
            (1750, 1, 0, Ok(0), 0),
            (1750, 1, 250, Ok(250), 0),
            (2000, 1, 0, Ok(0), 0),
            (2100, 3, 0, Err(1150), 0), // those of 2000 count until 3250
        ];
        timeline::holds(&limit, &rows);
    }

    #[test]
    fn buckets_that_do_not_divide_the_window_do_not_drift() {
        let limit = SlidingWindow::new(Rate::new(1, Duration::from_nanos(10)).unwrap(), 3).unwrap();
        let edges: Vec<u128> = (0..7).map(|slot| limit.begins(slot)).collect();
        assert_eq!(edges, [0, 4, 7, 10, 14, 17, 20]);
        for slot in (0..1000).chain(u64::MAX / 10 * 3 - 5..u64::MAX / 10 * 3) {
            let begins = Tick::from_nanos(u64::try_from(limit.begins(slot)).unwrap());
            assert_eq!(limit.slot(begins), slot);
            if slot > 0 {
                assert_eq!(limit.slot(Tick::from_nanos(begins.as_nanos() - 1)), slot - 1);
            }
        }
    }
}

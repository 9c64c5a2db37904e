//! The leaky bucket as a meter: a level that rises with every cost and drains at the rate; a cost that would make it
//! overflow is refused. It grants exactly what a token bucket or [`Gcra`](super::Gcra) with the same numbers grants;
//! it exists for users who think in a fill level, or come from nginx, where it is the only form. For a bucket that
//! *delays* work to a constant outflow see [`LeakyQueue`](super::LeakyQueue). The level is kept as the tick at which
//! the bucket runs dry, in the scaled time of [`schedule`](super::schedule): that number does not change while the
//! level falls.

use super::schedule::{Pace, Schedule, kept_as_schedule};
use crate::algorithm::Algorithm;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Standing, Transition};
use crate::error::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick};

/// A bucket of limited capacity that drains at a rate and refuses to overflow.
///
/// # Source
/// ITU-T Recommendation I.371, the continuous-state leaky bucket: the twin of the virtual scheduling form. Capacity here
/// counts the first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    rate: Rate,
    pub(crate) pace: Pace,
}

/// The state of [`LeakyBucket`] for one key; sizes as of [`GcraState`](super::GcraState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakyBucketState(Schedule);

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
        Ok(Self { rate, pace: Pace::new(rate, burst_in_range(capacity)?) })
    }

    /// Returns the rate at which the bucket drains.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns how many units the bucket holds.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.pace.at_once
    }

    /// Returns the state last changed at `last`, from which on `spent` scaled time passes until the bucket is dry.
    pub(crate) fn owing(&self, last: Tick, spent: u128) -> LeakyBucketState {
        LeakyBucketState(Schedule::new(self.pace.scaled(last).saturating_add(spent), last))
    }
}

kept_as_schedule!(LeakyBucket, LeakyBucketState, |limit, line, ask| limit.pace.decide(line, ask));

impl Bytes for LeakyBucket {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.capacity());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, capacity) = (from.rate()?, from.u64()?);
        Self::new(rate, capacity).map_err(|_| DecodeError::Value { field: "capacity" })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::decision::Cost;

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
}

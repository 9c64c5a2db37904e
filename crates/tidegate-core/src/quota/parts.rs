//! Limits and charges in parts, for users that take units ahead of time and hand them out one by one.

use super::Quota;
use crate::decision::{Cost, Receipt};
use crate::rate::{Bandwidth, Gcra, LeakyBucket, Refill, TokenBucket};
use crate::time::{Rate, Tick};

impl Quota {
    /// Returns the rate and the burst of a limit that consists of just these two: GCRA, a leaky bucket as a meter, or
    /// a token bucket of one bandwidth that refills evenly. Such a limit admits at most `burst + rate · span` units
    /// in every span. `None` for all others.
    #[must_use]
    pub fn flow(&self) -> Option<(Rate, u64)> {
        match self {
            Self::Gcra(limit) => Some((limit.rate(), limit.burst())),
            Self::LeakyBucket(limit) => Some((limit.rate(), limit.capacity())),
            Self::TokenBucket(limit) => {
                let one = even(limit)?;
                Some((one.rate(), one.capacity()))
            }
            _ => None,
        }
    }

    /// Returns the same limit with a smaller burst. `None`: the limit is not a [flow](Quota::flow), or `burst` is 0 or
    /// above its burst. A bucket that starts with fewer tokens than its capacity then starts with at most the new capacity.
    #[must_use]
    pub fn with_less_burst(&self, burst: u64) -> Option<Self> {
        let (rate, has) = self.flow()?;
        if burst > has {
            return None;
        }
        match self {
            Self::Gcra(_) => Gcra::new(rate, burst).ok().map(Self::from),
            Self::LeakyBucket(_) => LeakyBucket::new(rate, burst).ok().map(Self::from),
            Self::TokenBucket(limit) => {
                let bandwidth = Bandwidth::new(rate, burst).ok()?;
                let bandwidth = bandwidth.initial(even(limit)?.initial.min(burst)).ok()?;
                Some(TokenBucket::new(bandwidth).into())
            }
            _ => None,
        }
    }

    /// Splits the receipt of one charge into those of two charges made at the same tick, the second after the first,
    /// so that each part can be settled by itself. `None`: `first` is not less than the whole, or the limit is
    /// neither a [flow](Quota::flow) nor a fixed window. The rest that is left when other parts have been split off
    /// is always the last in the line, and has the mark of the whole.
    #[must_use]
    pub fn split(&self, receipt: &Receipt, first: Cost) -> Option<(Receipt, Receipt)> {
        let rest = receipt.cost.units().checked_sub(first.units()).and_then(Cost::new)?;
        let (one, other) = match self {
            // One part opens the window, and the other joins it.
            Self::FixedWindow(_) => (receipt.mark, Receipt::mark(0, receipt.marks().1)),
            _ => {
                let (scale, unit) = self.pace()?;
                (earlier(receipt, u128::from(rest.units()) * u128::from(unit), scale), receipt.mark)
            }
        };
        Some((
            Receipt { cost: first, mark: one, ..*receipt },
            Receipt { cost: rest, mark: other, ..*receipt },
        ))
    }
}

impl Quota {
    /// Returns the scaled time of a nanosecond, and that of a unit; `None` if the limit is not a flow.
    fn pace(&self) -> Option<(u64, u64)> {
        match self {
            Self::Gcra(limit) => Some((limit.pace.scale, limit.pace.unit)),
            Self::LeakyBucket(limit) => Some((limit.pace.scale, limit.pace.unit)),
            Self::TokenBucket(limit) => even(limit).map(Bandwidth::pace),
            _ => None,
        }
    }
}

fn even(limit: &TokenBucket) -> Option<&Bandwidth> {
    match limit.bandwidths() {
        [one] if one.refill == Refill::Continuous => Some(one),
        _ => None,
    }
}

/// Returns the mark of a charge that ends by the scaled time `by` before another one on the same line.
fn earlier(receipt: &Receipt, by: u128, scale: u64) -> [u64; 4] {
    let (first, position) = receipt.marks();
    let arrival = Tick::from_nanos((first >> 64) as u64);
    if arrival == Tick::EPOCH {
        // The position tells when the charge runs out.
        return Receipt::mark(first, position.saturating_sub(by));
    }
    // The tick was rounded up, so one nanosecond more is subtracted. The receipt then never runs out too late.
    let spans = by.div_ceil(u128::from(scale)).saturating_add(1);
    let arrival = arrival.as_nanos().saturating_sub(u64::try_from(spans).unwrap_or(u64::MAX)).max(1);
    Receipt::mark(u128::from(arrival) << 64 | u128::from(first as u64), position.saturating_sub(by))
}

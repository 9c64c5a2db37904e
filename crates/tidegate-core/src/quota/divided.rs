//! Limits and charges in parts: division of a limit into parts, each granted by its own holder; and smaller bursts and
//! split receipts, for users that take units ahead of time and hand them out one by one.

use core::time::Duration;

use super::Quota;
use crate::concurrency::Concurrency;
use crate::decision::{Cost, Receipt};
use crate::rate::exact::common_divisor;
use crate::rate::{
    Bandwidth, FixedWindow, Gcra, LeakyBucket, Refill, SlidingCounter, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::time::{Rate, Tick};

impl Quota {
    /// Returns the same limit with `part` of `whole` of its rate, its burst, its count per window or its places, each
    /// rounded down: parts that add up to the whole grant together at most as much as the limit. `None`: nothing
    /// would be left to grant at once, or the limit cannot be divided. Divisible limits are [flows](Quota::flow),
    /// windows other than calendar windows, and places that lapse.
    #[must_use]
    pub fn divided(&self, part: u32, whole: u32) -> Option<Self> {
        if part >= whole {
            return self.fills_within().map(|_| self.clone());
        }
        let down = |units: u64| {
            // Less than `units`, because `part` is less than `whole`.
            u64::try_from(u128::from(units) * u128::from(part) / u128::from(whole))
                .ok()
                .filter(|units| *units > 0)
        };
        let window = |rate: Rate| Rate::new(down(rate.count())?, rate.period()).ok();
        match self {
            Self::Gcra(limit) => {
                Gcra::new(slower(limit.rate(), part, whole)?, down(limit.burst())?).ok().map(Self::from)
            }
            Self::LeakyBucket(limit) => {
                LeakyBucket::new(slower(limit.rate(), part, whole)?, down(limit.capacity())?)
                    .ok()
                    .map(Self::from)
            }
            Self::TokenBucket(limit) => {
                let (rate, capacity) = self.flow()?;
                let capacity = down(capacity)?;
                let initial = limit.bandwidths().first()?.initial;
                let bandwidth = Bandwidth::new(slower(rate, part, whole)?, capacity).ok()?;
                let bandwidth = bandwidth.initial(down(initial).unwrap_or(0).min(capacity)).ok()?;
                Some(TokenBucket::new(bandwidth).into())
            }
            Self::FixedWindow(limit) if limit.calendar_parts().is_none() => {
                let rate = Rate::new(down(limit.limit())?, limit.period()).ok()?;
                Some(FixedWindow::rolling(rate).into())
            }
            Self::SlidingWindow(limit) => {
                SlidingWindow::new(window(limit.rate())?, limit.buckets()).ok().map(Self::from)
            }
            Self::SlidingCounter(limit) => Some(SlidingCounter::new(window(limit.rate())?).into()),
            Self::SlidingLog(limit) => SlidingLog::new(window(limit.rate())?).ok().map(Self::from),
            Self::Concurrency(limit) => {
                let ttl = limit.time_to_live()?;
                Concurrency::new(down(limit.max())?).ok()?.ttl(ttl).ok().map(Self::from)
            }
            _ => None,
        }
    }

    /// Returns the time after its last charge by which a limit that can be [divided](Quota::divided) is full again,
    /// whatever it was charged, debts excepted. `None` for all other limits.
    #[must_use]
    pub fn fills_within(&self) -> Option<Duration> {
        match self {
            Self::Gcra(_) | Self::LeakyBucket(_) | Self::TokenBucket(_) => {
                let (rate, burst) = self.flow()?;
                let nanos =
                    (u128::from(burst) * u128::from(rate.period_nanos())).div_ceil(u128::from(rate.count()));
                Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
            }
            Self::FixedWindow(limit) if limit.calendar_parts().is_none() => Some(limit.period()),
            // A charge counts until its bucket has left the window, which is up to a bucket longer than the window.
            Self::SlidingWindow(limit) => Some(limit.rate().period().saturating_mul(2)),
            // The window before counts until the current one ends.
            Self::SlidingCounter(limit) => Some(limit.rate().period().saturating_mul(2)),
            Self::SlidingLog(limit) => Some(limit.rate().period()),
            Self::Concurrency(limit) => limit.time_to_live(),
            _ => None,
        }
    }
}

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

/// From this many nanoseconds on, rounding a period to a nanosecond is precise enough: to a billionth.
const FINE: u128 = 1 << 30;

/// Returns a part of a rate, rounded down if it has no exact form; `None` if it is slower than the slowest rate.
fn slower(rate: Rate, part: u32, whole: u32) -> Option<Rate> {
    let (count, period) =
        (u128::from(rate.count()) * u128::from(part), u128::from(rate.period_nanos()) * u128::from(whole));
    let divisor = common_divisor(count, period);
    let (mut count, mut period) = (count / divisor, period / divisor);
    let longest = Rate::MAX_PERIOD.as_nanos();
    if period > longest && period / count.max(1) >= FINE {
        // One unit in a long period, which is rounded up to a nanosecond.
        (count, period) = (1, period.div_ceil(count.max(1)));
        if period > longest {
            return None;
        }
    }
    // Here both are large, or both in range. They are halved together, the count rounded down and the period up.
    while period > longest || count > u128::from(Rate::MAX_COUNT) {
        (count, period) = (count / 2, period.div_ceil(2));
    }
    let period = Duration::from_nanos(u64::try_from(period).ok()?);
    Rate::new(u64::try_from(count).ok()?, period).ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm as _;
    use crate::decision::{Ask, Transition};
    use crate::rate::ColdFactor;

    #[test]
    fn parts_are_rounded_down() {
        let whole = 1 << 20;
        for (count, period, part) in [
            (1, 1, 1),
            (7, 86_400, 349_525),
            (1 << 59, 1, whole - 1),
            (3, 31_536_000, 199_999),
            (999_999_937, 7, 524_287),
        ] {
            let rate = Rate::new(count, Duration::from_secs(period)).unwrap();
            let slow = slower(rate, part, whole).unwrap();
            let exact = |rate: Rate| rate.count() as f64 / rate.period_nanos() as f64;
            let (is, should) = (exact(slow), exact(rate) * f64::from(part) / f64::from(whole));
            assert!(
                is <= should * (1.0 + 1e-12) && is >= should * (1.0 - 1e-6),
                "{count} in {period} s: {is} of {should}"
            );
        }
    }

    #[test]
    fn what_is_slower_than_any_rate_is_none() {
        let rate = Rate::new(3, Duration::from_secs(31_536_000)).unwrap();
        assert_eq!(slower(rate, 1000, 1 << 20), None);
        assert_eq!(slower(rate, 0, 1 << 20), None);
    }

    #[test]
    fn a_limit_is_as_good_as_new_after_its_time() {
        let quotas = [
            Quota::per_second(7).burst(5).gcra(),
            Quota::per_day(3).leaky_bucket(),
            Quota::per_second(7).burst(4).token_bucket(),
            Quota::per_second(5).fixed_window(),
            Quota::per_second(6).sliding_window(7),
            Quota::per_second(6).sliding_counter(),
            Quota::per_second(6).sliding_log(),
            Quota::concurrency(5, Duration::from_secs(2)),
        ];
        for quota in quotas {
            let quota = quota.unwrap();
            let (mut state, mut now) = (quota.fresh(Tick::EPOCH), Tick::from_secs(1_000));
            for _ in 0..50 {
                let ask = Ask::allow(now, Cost::ONE);
                if let Transition::Allowed { next, .. } = quota.decide(&state, ask) {
                    state = next;
                }
                now = now.after(Duration::from_millis(37));
            }
            let span = quota.fills_within().unwrap();
            let standing = quota.standing(&state, now.after(span));
            assert_eq!(standing.remaining, standing.limit, "{quota:?}");
            assert_eq!(quota.divided(4, 4), Some(quota.clone()));
            assert_eq!(quota.divided(0, 4), None);
            assert!(quota.divided(2, 3).is_some_and(|part| part.capacity() < quota.capacity()));
        }
        assert_eq!(
            Quota::per_second(5).warm_up(Duration::from_secs(1), ColdFactor::THREE).unwrap().divided(1, 2),
            None
        );
    }
}

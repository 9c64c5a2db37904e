//! A limit in the form in which it is divided: a rate in whole tokens per interval, and a burst.

use std::time::Duration;

use tidegate::rate::TokenBucket;
use tidegate::{Cost, Quota, Rate, Tick};
use tidegate_core::{Algorithm as _, Ask, Transition};

use crate::active_config::most_of;

/// A rate in the form that proxies are told: a number of tokens in each interval.
///
/// Proxies count tokens in whole numbers, and intervals in whole seconds. So the interval must be long enough to divide
/// the limit finely: it is the shortest power of ten in seconds in which the limit has [`Pace::FINE`] tokens. Envoy
/// refills evenly, so nobody notices the length of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    pub(super) tokens: u32,
    /// The interval is 10 to this power seconds.
    pub(super) power: u8,
}

/// The limit of one key, in the form in which it is divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divided {
    /// The key in the store; it contains the policy's name.
    pub(super) key: Box<[u8]>,
    pub(super) limit: usize,
    pub(super) pace: Pace,
    pub(super) burst: u32,
}

impl Pace {
    /// Tokens per interval: each of a thousand parts is still accurate to a hundredth.
    const FINE: u128 = 100_000;
    /// The exponent of the longest interval: about three hundred years.
    pub(super) const LONGEST: u8 = 10;

    /// Returns the pace of `count` units per `period`.
    fn of(count: u64, period: Duration) -> Self {
        let tokens = |power: u8| {
            let interval = 10_u128.pow(u32::from(power)) * 1_000_000_000;
            u128::from(count).saturating_mul(interval) / period.as_nanos().max(1)
        };
        let power = (0..Self::LONGEST).find(|power| tokens(*power) >= Self::FINE).unwrap_or(Self::LONGEST);
        Self { tokens: u32::try_from(tokens(power).max(1)).unwrap_or(u32::MAX), power }
    }

    /// Returns the interval in seconds.
    pub(super) const fn seconds(self) -> u64 {
        10_u64.pow(self.power as u32)
    }
}

impl Divided {
    /// Returns the divided form of a key's limit; `None` for a limit that does not refill with time, such as places.
    pub(super) fn of(key: Vec<u8>, limit: usize, quota: &Quota, now: Tick) -> Option<Self> {
        let (count, period, burst) = even_fill(quota, now)?;
        let burst = u32::try_from(burst).unwrap_or(u32::MAX).max(1);
        Some(Self { key: key.into(), limit, pace: Pace::of(count, period), burst })
    }
}

/// Returns how many units come back to a limit in each period, evenly, and how many it grants at once.
///
/// A windowed limit counts as a bucket of the same size that refills in the length of a window; a queue, as a bucket of
/// the requests that need not wait; a warm-up, as if it were warm. Of several bandwidths, the slowest gives the rate
/// and the smallest gives the burst. `None` for guards.
fn even_fill(quota: &Quota, now: Tick) -> Option<(u64, Duration, u64)> {
    if quota.is_guard() {
        return None;
    }
    let burst = most_of(quota);
    let (count, period) = match quota {
        Quota::Gcra(limit) => parts(limit.rate()),
        Quota::LeakyBucket(limit) => parts(limit.rate()),
        Quota::LeakyQueue(limit) => parts(limit.rate()),
        Quota::WarmUp(limit) => parts(limit.rate()),
        Quota::TokenBucket(limit) => slowest(limit)?,
        Quota::SlidingCounter(limit) => parts(limit.rate()),
        Quota::SlidingWindow(limit) => parts(limit.rate()),
        Quota::SlidingLog(limit) => parts(limit.rate()),
        Quota::FixedWindow(limit) if limit.calendar_parts().is_none() => (limit.limit(), limit.period()),
        Quota::FixedWindow(limit) => {
            let (first, last) = limit.window_at(now);
            (limit.limit(), last.since(first))
        }
        other => return refilled(other, burst, now),
    };
    Some((count, period, burst))
}

fn parts(rate: Rate) -> (u64, Duration) {
    (rate.count(), rate.period())
}

/// Returns the slowest of the rates that refill a bucket.
fn slowest(limit: &TokenBucket) -> Option<(u64, Duration)> {
    let rates = limit.bandwidths().iter().map(|bandwidth| parts(bandwidth.rate()));
    rates.min_by(|(one, of_one), (other, of_other)| {
        let units = |count: u64, period: &Duration| u128::from(count).saturating_mul(period.as_nanos());
        units(*one, of_other).cmp(&units(*other, of_one))
    })
}

/// Measures, on the quota itself, how long an empty limit takes to refill.
fn refilled(quota: &Quota, burst: u64, now: Tick) -> Option<(u64, Duration, u64)> {
    let fresh = quota.fresh(now);
    match quota.decide(&fresh, Ask::within(now, Cost::new(burst)?, Duration::MAX)) {
        Transition::Allowed { next, .. } => Some((burst, quota.standing(&next, now).reset_after, burst)),
        Transition::Denied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use tidegate::rate::{Bandwidth, ColdFactor, LeakyQueue, WarmUp};

    use super::*;

    #[test]
    fn a_rate_is_told_finely_and_whole() {
        for (count, seconds, tokens, power) in [
            (100, 1, 100_000, 3),
            (1_000_000, 1, 1_000_000, 0),
            (20, 60, 333_333, 6),
            (5, 86_400, 578_703, 10),
            (u64::MAX, 1, u32::MAX, 0),
            (1, 10_u64.pow(12), 1, 10),
        ] {
            let pace = Pace::of(count, Duration::from_secs(seconds));
            assert_eq!(pace, Pace { tokens, power }, "{count} in {seconds} s");
        }
    }

    /// Returns the tokens per interval, the interval in seconds, and the burst.
    fn divided(quota: impl Into<Quota>) -> Option<(u32, u64, u32)> {
        let divided = Divided::of(vec![1], 0, &quota.into(), Tick::from_secs(1_800_000_000))?;
        Some((divided.pace.tokens, divided.pace.seconds(), divided.burst))
    }

    #[test]
    fn a_limit_is_told_as_a_bucket() {
        assert_eq!(divided(Quota::per_second(100).burst(20).gcra().unwrap()), Some((100_000, 1000, 20)));
        assert_eq!(divided(Quota::per_minute(60).fixed_window().unwrap()), Some((100_000, 100_000, 60)));
        assert_eq!(divided(Quota::concurrency(5, Duration::from_secs(1)).unwrap()), None);
    }

    #[test]
    fn no_rate_is_rounded_to_whole_seconds() {
        let tenth = Duration::from_millis(100);
        let ten_in_a_tenth = || Rate::new(10, tenth).unwrap();
        let several = TokenBucket::several([
            Bandwidth::new(Rate::new(50, tenth).unwrap(), 40).unwrap(),
            Bandwidth::new(ten_in_a_tenth(), 70).unwrap(),
        ]);
        for (quota, burst) in [
            (Quota::per(10, tenth).fixed_window().unwrap(), 10),
            (Quota::per(10, tenth).sliding_log().unwrap(), 10),
            (Quota::per(10, tenth).sliding_counter().unwrap(), 10),
            (LeakyQueue::new(ten_in_a_tenth(), 0, 50).unwrap().into(), 1),
            (WarmUp::new(ten_in_a_tenth(), Duration::from_secs(9), ColdFactor::THREE).unwrap().into(), 10),
            (several.unwrap().into(), 40),
        ] {
            assert_eq!(divided(quota.clone()), Some((100_000, 1000, burst)), "{quota:?}");
        }
    }
}

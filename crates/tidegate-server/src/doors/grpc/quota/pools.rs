//! The divided limits, for the buckets of all proxies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::limiter::Rate;
use tidegate::limiter::rate::TokenBucket;
use tidegate::{Cost, Quota, Tick};
use tidegate_core::division::Division;
use tidegate_core::{Algorithm as _, Ask, Transition};

use crate::active_config::most_of;

/// The bytes of a pool beside key and holders.
const POOL: usize = 1024;

/// The bytes of a holder.
const HOLDER: usize = 160;

/// The division of a limit. Several are locked in the order of their numbers.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) number: u64,
    pub(super) pace: TokenPace,
    pub(super) division: Mutex<Division>,
}

#[derive(Debug, Default)]
pub(in super::super) struct Pools {
    pools: Mutex<PoolTable>,
}

#[derive(Debug, Default)]
struct PoolTable {
    by_limit: HashMap<Divided, Arc<Pool>>,
    last: u64,
    /// A lower bound of the bytes that the pools and their holders take.
    bytes: usize,
    /// At how many bytes pools without holders are looked for.
    sweep_at: usize,
    swept: Tick,
}

impl Pools {
    /// Below this many bytes, pools are never swept.
    const FEW: usize = 1 << 20;
    /// The most bytes of all pools. A vanished bucket's assignment counts until its end, so a caller that opens and
    /// ends calls leaves pools behind.
    const MOST: usize = 256 << 20;
    /// The shortest time between two sweeps while there is no room.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Returns the pool of a limit, and counts one more holder unless `has_joined` returns true for the pool's
    /// number. A new pool has `left` of its burst, and divides all but the `kept_back` units that its holders may
    /// not use. `None` if all pools take too many bytes.
    pub(super) fn of(
        &self,
        limit: Divided,
        kept_back: u64,
        left: u64,
        has_joined: impl Fn(u64) -> bool,
        now: Tick,
    ) -> Option<Arc<Pool>> {
        let mut held = self.pools.lock();
        if let Some(pool) = held.by_limit.get(&limit).filter(|pool| has_joined(pool.number)) {
            return Some(Arc::clone(pool));
        }
        held.make_room(now);
        if held.bytes >= Self::MOST {
            return None;
        }
        held.bytes += HOLDER;
        if let Some(pool) = held.by_limit.get(&limit) {
            return Some(Arc::clone(pool));
        }
        held.bytes += POOL + limit.key.len();
        held.last += 1;
        let (pace, burst) = (limit.pace, u64::from(limit.burst).saturating_sub(kept_back));
        let left = left.saturating_sub(kept_back);
        let interval = Duration::from_secs(pace.seconds());
        let division = Mutex::new(Division::new(u64::from(pace.tokens), interval, burst, left, now));
        let pool = Arc::new(Pool { number: held.last, pace, division });
        held.by_limit.insert(limit, Arc::clone(&pool));
        Some(pool)
    }
}

impl PoolTable {
    /// Forgets pools without holders, if a sweep is due.
    fn make_room(&mut self, now: Tick) {
        let full = self.bytes >= Pools::MOST;
        if self.bytes < self.sweep_at.max(Pools::FEW) || full && now.since(self.swept) < Pools::PAUSE {
            return;
        }
        let mut bytes = 0;
        self.by_limit.retain(|limit, pool| {
            let holders = {
                let mut division = pool.division.lock();
                division.advance(now);
                division.holders()
            };
            // A pool that only this map refers to has no buckets, and none can join while the map is locked.
            let stays = Arc::strong_count(pool) > 1 || holders > 0;
            if stays {
                bytes += POOL + limit.key.len() + HOLDER * holders;
            }
            stays
        });
        (self.bytes, self.swept) = (bytes, now);
        self.sweep_at = (bytes * 2).min(Pools::MOST);
    }
}

/// A rate as proxies are told it: tokens per interval, both whole numbers (intervals in seconds). The interval is
/// the shortest power of ten in seconds in which the limit has [`TokenPace::FINE`] tokens, so that it can be divided
/// finely. Envoy refills evenly, so nobody notices its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenPace {
    pub(super) tokens: u32,
    /// The interval is 10 to this power seconds.
    pub(super) power: u8,
}

/// The limit of one key as it is divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divided {
    /// The key in the store; it has the policy's name.
    pub(super) key: Box<[u8]>,
    pub(super) limit: usize,
    pub(super) pace: TokenPace,
    pub(super) burst: u32,
}

impl TokenPace {
    /// Tokens per interval: each of a thousand parts is accurate to a hundredth.
    const FINE: u128 = 100_000;
    /// The exponent of the longest interval, about three hundred years.
    pub(super) const LONGEST: u8 = 10;

    fn of(count: u64, period: Duration) -> Self {
        let tokens = |power: u8| {
            let interval = 10_u128.pow(u32::from(power)) * 1_000_000_000;
            u128::from(count).saturating_mul(interval) / period.as_nanos().max(1)
        };
        let power = (0..Self::LONGEST).find(|power| tokens(*power) >= Self::FINE).unwrap_or(Self::LONGEST);
        Self { tokens: u32::try_from(tokens(power).max(1)).unwrap_or(u32::MAX), power }
    }

    pub(super) const fn seconds(self) -> u64 {
        10_u64.pow(self.power as u32)
    }
}

impl Divided {
    /// Returns the divided form of a key's limit; `None` for one that does not refill with time, such as places.
    pub(super) fn of(key: Vec<u8>, limit: usize, quota: &Quota, now: Tick) -> Option<Self> {
        let (count, period, burst) = even_fill(quota, now)?;
        let burst = u32::try_from(burst).unwrap_or(u32::MAX).max(1);
        Some(Self { key: key.into(), limit, pace: TokenPace::of(count, period), burst })
    }
}

/// How many units come back in each period, evenly, and how many are granted at once; `None` for guards.
///
/// A window counts as a bucket of its size that refills in its length, a queue as the requests that need not wait,
/// a warm-up as warm. Of several bandwidths, the slowest gives the rate and the smallest the burst. `None` for
/// guards.
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

// The memory budget for the pairs of all buckets: text of strangers that lives as long as they.

/// Reserved bytes.
#[derive(Debug, Default)]
pub(in super::super) struct Budget(Arc<AtomicUsize>);

/// Reserved bytes of the budget; returned when this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    all: Arc<AtomicUsize>,
    pub(super) bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// The most bytes of all pairs with their containers: a kilobyte for each of the most buckets. Pairs are stored
    /// twice.
    const MOST: usize = 256 << 20;

    /// Reserves this many bytes; `None` if the budget has fewer left.
    pub(super) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        // Relaxed: the number stands alone. A reservation that is too large is returned when it is dropped.
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let reserved = Reserved { all: Arc::clone(&self.0), bytes };
        (before.saturating_add(bytes) <= Self::MOST).then_some(reserved)
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;
    use tidegate::limiter::rate::{Bandwidth, ColdFactor, LeakyQueue, WarmUp};

    use super::*;

    #[test]
    fn pools_that_nobody_holds_are_forgotten_and_there_is_no_room_for_endless_ones() {
        let quota = Quota::per_second(100).burst(20).gcra().unwrap();
        let pools = Pools::default();
        let mut now = Tick::from_secs(1_800_000_000);
        let pool = |name: u32, now| {
            let key = [&name.to_le_bytes()[..], &[0; 4096]].concat();
            pools.of(Divided::of(key, 0, &quota, now).unwrap(), 0, 20, |_| false, now)
        };
        for name in 0..20_000 {
            assert!(pool(name, now).is_some());
            now = now.after(Duration::from_millis(1));
        }
        assert!(pools.pools.lock().by_limit.len() < 1000, "nobody holds any");
        let mut held = Vec::new();
        while let Some(pool) = pool(held.len() as u32, now) {
            held.push(pool);
        }
        let (least, most) = (Pools::MOST / (4100 + POOL + HOLDER), Pools::MOST / (4100 + POOL));
        assert!((least - 1..=most + 1).contains(&held.len()), "{}: {least} to {most}", held.len());
        assert!(pool(0, now).is_none(), "also the holders of a pool have to fit");
        let again = Divided::of([&[0; 4][..], &[0; 4096]].concat(), 0, &quota, now).unwrap();
        let bytes = pools.pools.lock().bytes;
        assert!(
            pools.of(again, 0, 20, |number| number == held[0].number, now).is_some(),
            "it is one of them"
        );
        assert_eq!(pools.pools.lock().bytes, bytes);
        held.clear();
        assert!(pool(0, now.after(Duration::from_secs(1))).is_some());
    }

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
            let pace = TokenPace::of(count, Duration::from_secs(seconds));
            assert_eq!(pace, TokenPace { tokens, power }, "{count} in {seconds} s");
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

    #[test]
    fn what_is_dropped_is_free_again() {
        let budget = Budget::default();
        let held = budget.reserve(Budget::MOST - 1).unwrap();
        assert!(budget.reserve(2).is_none());
        let last = budget.reserve(1).unwrap();
        assert!(budget.reserve(1).is_none());
        drop((held, last));
        assert!(budget.reserve(Budget::MOST).is_some());
    }
}

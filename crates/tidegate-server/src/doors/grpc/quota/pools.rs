//! The limits that are divided, for the buckets of all proxies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::http_answer::server_parts::Window;
use tidegate::{Quota, Tick};
use tidegate_core::division::Division;

use crate::live::most_of;

/// A rate in the form in which proxies are told it: so many tokens in each interval.
///
/// Proxies count tokens as whole numbers, and the interval in whole seconds. So the interval is as long as it takes to divide the limit finely: a
/// power of ten, the shortest in which the limit has [`Pace::FINE`] tokens. Envoy fills evenly, so the length of the interval is nothing that
/// anybody would notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    pub(super) tokens: u32,
    /// The interval has 10 to this power seconds.
    pub(super) power: u8,
}

/// A limit of one key, as it is divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Divided {
    /// The key in the store, which has the policy's name in it.
    pub(super) key: Box<[u8]>,
    pub(super) limit: usize,
    pub(super) pace: Pace,
    pub(super) burst: u32,
}

/// What a pool takes beside its key, and what each holder takes, in bytes.
const POOL: usize = 1024;
const HOLDER: usize = 160;

/// The division of one limit. Several are locked in the order of their numbers.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) number: u64,
    pub(super) pace: Pace,
    pub(super) division: Mutex<Division>,
}

/// All divisions.
#[derive(Debug, Default)]
pub(in super::super) struct Pools {
    pools: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    by_limit: HashMap<Divided, Arc<Pool>>,
    last: u64,
    /// At least how many bytes the pools and their holders take.
    bytes: usize,
    /// Pools that nobody holds are looked for when it is this many.
    sweep_at: usize,
    swept: Tick,
}

impl Pace {
    /// Each part of a thousand is told to a hundredth.
    const FINE: u128 = 100_000;
    /// Three hundred years.
    pub(super) const LONGEST: u8 = 10;

    /// Returns the pace of `count` units in each period.
    fn of(count: u64, period: Duration) -> Self {
        let tokens = |power: u8| {
            let interval = 10_u128.pow(u32::from(power)) * 1_000_000_000;
            u128::from(count).saturating_mul(interval) / period.as_nanos().max(1)
        };
        let power = (0..Self::LONGEST).find(|power| tokens(*power) >= Self::FINE).unwrap_or(Self::LONGEST);
        Self { tokens: u32::try_from(tokens(power).max(1)).unwrap_or(u32::MAX), power }
    }

    /// Returns its interval in seconds.
    pub(super) const fn seconds(self) -> u64 {
        10_u64.pow(self.power as u32)
    }
}

impl Divided {
    /// Returns how the limit of a key is divided; `None` for one that time gives nothing back to, as places.
    ///
    /// A limit by windows becomes a bucket of the same number that fills in the length of a window.
    pub(super) fn of(key: Vec<u8>, limit: usize, quota: &Quota, now: Tick) -> Option<Self> {
        let (count, period, burst) = match quota.flow() {
            Some((rate, burst)) => (rate.count(), rate.period(), burst),
            None if quota.is_guard() => return None,
            None => {
                let (burst, seconds) = (most_of(quota), Window::of(quota).seconds(quota, now)?);
                (burst, Duration::from_secs(seconds), burst)
            }
        };
        let burst = u32::try_from(burst).unwrap_or(u32::MAX).max(1);
        Some(Self { key: key.into(), limit, pace: Pace::of(count, period), burst })
    }
}

impl Pools {
    /// Few enough to look at all of them at once.
    const FEW: usize = 1 << 20;
    /// The most bytes of all pools. What a vanished bucket was assigned counts until its time is over, so whoever opens calls and ends them again
    /// leaves pools behind.
    const MOST: usize = 256 << 20;
    /// How often pools that nobody holds are looked for at most, once there is no room.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Returns the pool of a limit, for one more holder; a new one has `left` of its burst, and divides all but what is `kept_back` from requests of
    /// its holders. `None` where all pools together have too many.
    pub(super) fn of(&self, limit: Divided, kept_back: u64, left: u64, now: Tick) -> Option<Arc<Pool>> {
        let mut held = self.pools.lock();
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

impl Held {
    /// Forgets pools that nobody holds, where that is due.
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
            // A pool of which only this map knows has no buckets, and nobody gets hold of it meanwhile.
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

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_limit_is_told_as_a_bucket() {
        let bucket = |quota: Result<Quota, _>| {
            let told = Divided::of(vec![1], 0, &quota.unwrap(), Tick::from_secs(1_800_000_000))?;
            Some((told.pace.tokens, told.pace.seconds(), told.burst))
        };
        assert_eq!(bucket(Quota::per_second(100).burst(20).gcra()), Some((100_000, 1000, 20)));
        assert_eq!(bucket(Quota::per_minute(60).fixed_window()), Some((100_000, 100_000, 60)));
    }

    #[test]
    fn pools_that_nobody_holds_are_forgotten_and_there_is_no_room_for_endless_ones() {
        let quota = Quota::per_second(100).burst(20).gcra().unwrap();
        let pools = Pools::default();
        let mut now = Tick::from_secs(1_800_000_000);
        let pool = |name: u32, now| {
            let key = [&name.to_le_bytes()[..], &[0; 4096]].concat();
            pools.of(Divided::of(key, 0, &quota, now).unwrap(), 0, 20, now)
        };
        for name in 0..200_000 {
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
        held.clear();
        assert!(pool(0, now.after(Duration::from_secs(1))).is_some());
    }
}

//! The limits that are divided, for the buckets of all proxies.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::Tick;
use tidegate_core::division::Division;

use super::limit::{Divided, Pace};

/// The bytes that a pool takes beside its key and its holders.
const POOL: usize = 1024;
/// The bytes that each holder of a pool takes.
const HOLDER: usize = 160;

/// The division of one limit. Several pools must be locked in the order of their numbers.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) number: u64,
    pub(super) pace: Pace,
    pub(super) division: Mutex<Division>,
}

/// All divisions.
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
    /// The number of bytes at which pools without holders are looked for.
    sweep_at: usize,
    swept: Tick,
}

impl Pools {
    /// Below this many bytes, pools are never swept.
    const FEW: usize = 1 << 20;
    /// The most bytes of all pools. The assignment of a vanished bucket counts until its end, so a caller that keeps
    /// opening and ending calls leaves pools behind.
    const MOST: usize = 256 << 20;
    /// The shortest time between two sweeps while there is no room.
    const PAUSE: Duration = Duration::from_secs(1);

    /// Returns the pool of a limit, and counts one more holder unless `has_joined` returns true for the pool's number.
    /// A new pool has `left` of its burst, and divides all but the `kept_back` units that its holders' requests may not
    /// use. `None` if all pools together take too many bytes.
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
    /// Forgets pools without holders, when a sweep is due.
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

#[cfg(test)]
mod tests {
    use tidegate::Quota;

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
}

//! Threads that use every operation at once, while another thread moves the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Precision, Replace};
use tidegate::store::{Charge, MemoryStore, Op, Step, Store};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota};

use super::{Random, cost, steps};

const PRECISIONS: [Precision; 3] = [Precision::Shared, Precision::Exact, Precision::Leased];

/// Runs `turn` on four threads, while another thread moves the clock. Returns how much the threads report as spent, and
/// how far the clock moved.
fn race(
    clock: Option<&ManualClock>,
    turns: u64,
    turn: impl Fn(&mut Random) -> i64 + Sync,
) -> (i64, Duration) {
    let (spent, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut passed = Duration::ZERO;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let (turn, spent) = (&turn, &spent);
                scope.spawn(move || {
                    let mut random = Random::seeded(seed + 1);
                    let sum: i64 = (0..turns).map(|_| turn(&mut random)).sum();
                    spent.fetch_add(sum as u64, Ordering::Relaxed);
                })
            })
            .collect();
        let mover = scope.spawn(|| {
            let mut passed = Duration::ZERO;
            while let (Some(clock), false) = (clock, done.load(Ordering::Relaxed)) {
                // A thread that stood still for ten seconds between clock and limit counts as a clock set back.
                if passed < Duration::from_secs(9) {
                    clock.advance(Duration::from_micros(300));
                    passed += Duration::from_micros(300);
                }
                thread::yield_now();
            }
            passed
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        passed = mover.join().unwrap();
    });
    (spent.into_inner() as i64, passed)
}

/// Takes, reservations for now or later (each kept or cancelled), refunds, and changes to the same rate and burst in
/// another form: what was kept never exceeds the burst plus what the span gave.
#[test]
fn whatever_threads_do_no_more_is_kept_than_burst_and_rate_allow() {
    for mode in PRECISIONS {
        let clock = ManualClock::default();
        let limiter = Limiter::new(Quota::per_second(1000).burst(500))
            .unwrap()
            .with_clock(clock.clone())
            .with_precision(mode);
        let (kept, passed) = race(Some(&clock), steps(20_000), |random| {
            let units = 1 + random.below(3);
            match random.below(40) {
                0..30 => i64::from(limiter.allow_n(cost(units)).unwrap().is_allowed()) * units as i64,
                30..34 => limiter.reserve(cost(units), Duration::ZERO).map_or(0, |_| units as i64),
                34 => {
                    if let Ok(held) = limiter.reserve(cost(units), Duration::from_millis(3)) {
                        held.cancel();
                    }
                    0
                }
                35 => limiter.reserve(cost(units), Duration::ZERO).map_or(0, |held| {
                    held.settle(units / 2);
                    (units / 2) as i64
                }),
                36 if random.below(20) == 0 => {
                    let same = if random.below(2) == 0 {
                        Quota::per_second(1000)
                    } else {
                        Quota::per_minute(60_000)
                    };
                    limiter.change(same.burst(500), Replace::AsIs).unwrap();
                    0
                }
                37 => i64::from(limiter.standing().remaining > 500) * 1_000_000,
                _ => i64::from(limiter.peek_n(cost(units)).unwrap().remaining() > 500) * 1_000_000,
            }
        });
        let most = 500 + passed.as_nanos() as i64 / 1_000_000;
        assert!(kept <= most, "{mode:?}: {kept} kept, {most} in {passed:?}");
        // How far the clock moves meanwhile depends on the scheduler.
        assert!(kept >= 400, "{mode:?}: {kept} of {most}: the limit is used");
    }
}

#[test]
fn whatever_threads_do_with_keys_no_more_is_kept_than_burst_and_rate_allow() {
    for (mode, full) in [(Precision::Shared, false), (Precision::Exact, false), (Precision::Shared, true)] {
        let clock = ManualClock::default();
        let quota = Quota::per_second(1000).burst(500);
        let keys = KeyedLimiter::new(quota, 1000).unwrap().with_clock(clock.clone()).with_precision(mode);
        let keys = if full { keys.with_full_keys() } else { keys };
        let (kept, passed) = race(Some(&clock), steps(20_000), |random| {
            let (key, units) = ([random.below(5) as u8], 1 + random.below(3));
            match random.below(40) {
                0..25 => i64::from(keys.allow_n(key, cost(units)).unwrap().is_allowed()) * units as i64,
                25..30 => {
                    let mut kept = 0;
                    let names: Vec<_> = (0..4).map(|_| [random.below(5) as u8]).collect();
                    keys.allow_each(&names, |_, answer| kept += i64::from(answer.is_allowed()));
                    kept
                }
                30..33 => keys.reserve(key, cost(units), Duration::ZERO).map_or(0, |_| units as i64),
                33 => {
                    if let Ok(held) = keys.reserve(key, cost(units), Duration::from_millis(3)) {
                        held.cancel();
                    }
                    0
                }
                34 => keys.reserve(key, cost(units), Duration::ZERO).map_or(0, |held| {
                    held.settle(units / 2);
                    (units / 2) as i64
                }),
                35 if random.below(20) == 0 => {
                    let same =
                        if random.below(2) == 0 { quota } else { Quota::per_minute(60_000).burst(500) };
                    keys.change(same, Replace::AsIs).unwrap();
                    0
                }
                _ => i64::from(keys.peek(key).remaining() > 500) * 1_000_000,
            }
        });
        let most = 5 * (500 + passed.as_nanos() as i64 / 1_000_000);
        assert!(kept <= most, "{mode:?}: {kept} kept, {most} in {passed:?}");
    }
}

/// Eight slots and a few more keys, of one unit each. A permitted key has just been given an empty slot or another
/// key's, or was told that there is none. So the permits are exactly the keys held plus the keys evicted. A slot given
/// to two keys, or two slots for one key, would break the sum.
#[test]
fn in_a_crowded_table_every_permit_is_held_or_was_given_up() {
    for full in [false, true] {
        for several in [false, true] {
            let store = if full {
                MemoryStore::with_full_keys(1).unwrap()
            } else {
                MemoryStore::with_capacity(1).unwrap()
            };
            let quota = Arc::new(Quota::per_day(1).gcra().unwrap());
            let clock = ManualClock::default();
            let (permits, _) = race(None, steps(20_000), |random| {
                let keys = [random.below(12) as u8, 12 + random.below(4) as u8].map(|key| [key]);
                let count = if several { 1 + random.below(2) as usize } else { 1 };
                let charges: Vec<_> =
                    keys[..count].iter().map(|key| Charge::new(key, &quota, Cost::ONE)).collect();
                let step = Step::new(clock.now(), Op::Take, &charges);
                i64::from(store.blocking_execute(&step).unwrap().allowed) * count as i64
            });
            let occupancy = store.occupancy();
            let told = occupancy.used as u64 + occupancy.evicted;
            assert_eq!(permits as u64, told, "full keys: {full}, several: {several}, {occupancy:?}");
            assert!(occupancy.used <= occupancy.capacity && occupancy.evicted > 0, "{occupancy:?}");
        }
    }
}

/// The clock stands still and nothing is given back: every unit of the burst goes to exactly one caller. What leases
/// still hold comes back when their threads end.
#[test]
fn by_a_standing_clock_threads_take_the_burst_to_the_unit() {
    for mode in PRECISIONS {
        for burst in [7, 500, 20_011] {
            let clock = ManualClock::default();
            let quota = Quota::per_second(3).burst(burst);
            let limiter = Limiter::new(quota).unwrap().with_clock(clock.clone()).with_precision(mode);
            let keys = KeyedLimiter::new(quota, 100).unwrap().with_clock(clock.clone()).with_precision(mode);
            let both = |random: &mut Random| {
                let units = cost(1 + random.below(3));
                let one = match random.below(8) {
                    0 => limiter.reserve(units, Duration::ZERO).is_ok(),
                    _ => limiter.allow_n(units).unwrap().is_allowed(),
                };
                let other = match random.below(8) {
                    0 => keys.reserve("ann", units, Duration::ZERO).is_ok(),
                    _ => keys.allow_n("ann", units).unwrap().is_allowed(),
                };
                (i64::from(one) + (i64::from(other) << 32)) * units.units() as i64
            };
            let (spent, _) = race(None, burst / 8 + 1, both);
            let (mut one, mut other) = (spent as u64 & 0xFFFF_FFFF, spent as u64 >> 32);
            while limiter.allow().is_allowed() {
                one += 1;
            }
            while keys.allow("ann").is_allowed() {
                other += 1;
            }
            assert_eq!((one, other), (burst, burst), "{mode:?}");
        }
    }
}

//! The store as its callers see it: which keys are kept, which are evicted, and that keys do not affect each other.

use std::time::Duration;

use super::*;
use crate::store::{Ending, conformance};
use tidegate_core::{Cost, Finish, Receipt};

fn take(store: &MemoryStore, now: Tick, key: &[u8], quota: &Arc<Quota>) -> bool {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed
}

#[test]
fn a_step_without_receipts_differs_by_its_receipts_only() {
    let quota = Arc::new(Quota::per_minute(3).gcra().unwrap());
    let charges = [b"a", b"b", b"c"].map(|key| Charge::new(key, &quota, Cost::ONE));
    for many in 1..=charges.len() {
        let (one, other) = (MemoryStore::with_capacity(64).unwrap(), MemoryStore::with_capacity(64).unwrap());
        for turn in 0..5 {
            let step = Step::new(Tick::from_secs(1 + turn), Op::Take, &charges[..many]);
            let (mut with, mut without) = (Settled::default(), Settled::default());
            let for_good = Step { receipts: false, ..step };
            assert!(matches!(one.settle_into(&step, &mut with), Settling::Done(Ok(()))));
            assert!(matches!(other.settle_into(&for_good, &mut without), Settling::Done(Ok(()))));
            assert_eq!(with.allowed, turn < 3);
            assert!(with.lines.iter().all(|line| line.receipt.is_some() == with.allowed));
            with.lines.iter_mut().chain(&mut without.lines).for_each(|line| line.receipt = None);
            assert_eq!(with, without, "turn {turn} of {many}");
        }
    }
}

#[test]
fn a_flood_of_new_keys_neither_grows_the_table_nor_frees_a_key_over_its_limit() {
    let store = MemoryStore::with_capacity(64).unwrap();
    let quota = Arc::new(Quota::per_minute(2).gcra().unwrap());
    let now = Tick::from_secs(1);
    assert!(take(&store, now, b"abuser", &quota) && take(&store, now, b"abuser", &quota));
    for key in 0..50 * 64u32 {
        assert!(take(&store, now, &key.to_le_bytes(), &quota), "a new key starts full");
    }
    assert!(!take(&store, now, b"abuser", &quota), "still over its limit");
    let occupancy = store.occupancy();
    assert!(occupancy.used <= occupancy.capacity, "{occupancy:?}");
    assert_eq!(occupancy.evicted_over_limit, 0);
    assert!(occupancy.evicted > 1000, "the others had to go: {occupancy:?}");
}

/// A key of a limit of a hundred per second had one unit again after ten milliseconds, so it was not over its limit,
/// and it was full again before any key of a daily limit. When the time until full decided, it was evicted first:
/// invented keys of the other policy gave its caller a hundred units more each time.
#[test]
fn a_debt_is_not_washed_away_by_made_up_keys_of_a_slower_limit() {
    let fast = Arc::new(Quota::per_second(100).gcra().unwrap());
    let mut made_up = 0u64;
    for slow in [Quota::per_day(5).gcra().unwrap(), Quota::per_day(5).fixed_window().unwrap()] {
        let store = MemoryStore::with_capacity(64).unwrap();
        let slow = Arc::new(slow);
        let key = format!("{slow:?}");
        let mut taken = 0;
        for round in 0..20 {
            let now = Tick::from_secs(1000).after(Duration::from_millis(11 * round));
            taken += (0..100).filter(|_| take(&store, now, key.as_bytes(), &fast)).count();
            let later = now.after(Duration::from_millis(10));
            for _ in 0..2000 {
                made_up += 1;
                let _ = take(&store, later, &made_up.to_le_bytes(), &slow);
            }
        }
        assert_eq!(taken, 100 + 20, "what returns in 209 ms, and no more");
    }
}

/// Sixteen keys in a table of eight slots: keys that find no slot are counted as evicted, and nothing breaks.
#[test]
fn a_step_of_more_keys_than_slots_is_settled() {
    let store = MemoryStore::with_capacity(1).unwrap();
    let quota = Arc::new(Quota::per_minute(20).gcra().unwrap());
    let window = Arc::new(Quota::per_minute(20).fixed_window().unwrap());
    let keys: Vec<[u8; 1]> = (0..16).map(|key| [key]).collect();
    for (turn, quota) in [&quota, &window, &quota].into_iter().enumerate() {
        let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, quota, Cost::ONE)).collect();
        let now = Tick::from_secs(1 + turn as u64);
        assert!(store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
    }
    let occupancy = store.occupancy();
    assert_eq!((occupancy.used, occupancy.capacity), (8, 8));
    assert!(occupancy.evicted >= 8, "{occupancy:?}");
}

#[test]
fn memory_is_24_bytes_a_key_and_one_key_in_160_is_lost_to_crowding() {
    const KEYS: usize = 100_000;
    let store = MemoryStore::with_capacity(KEYS).unwrap();
    assert!(size_of::<cache_line::Slot>() * store.occupancy().capacity <= 24 * KEYS + 64);
    let quota = Arc::new(Quota::per_minute(2).gcra().unwrap());
    for key in 0..KEYS as u32 {
        assert!(take(&store, Tick::from_secs(1), &key.to_le_bytes(), &quota));
    }
    let occupancy = store.occupancy();
    assert_eq!(occupancy.used + occupancy.evicted as usize, KEYS);
    assert!(occupancy.evicted < KEYS as u64 / 140, "{occupancy:?}");
}

#[test]
fn forgettable_slots_are_reused_before_any_live_key_goes() {
    let store = MemoryStore::with_capacity(64).unwrap();
    let quota = Arc::new(Quota::per_second(1).gcra().unwrap());
    for second in 0..1000 {
        let now = Tick::from_nanos(0).after(Duration::from_secs(2 * second));
        assert!(take(&store, now, &second.to_le_bytes(), &quota));
    }
    assert_eq!(store.occupancy().evicted, 0, "each key was full again before the next came");
}

#[test]
fn full_keys_take_24_bytes_more() {
    let store = MemoryStore::with_full_keys(100_000).unwrap();
    let slots = store.occupancy().capacity;
    assert_eq!(store.shared.table.bytes(), 2 * 16 * slots);
    assert!(2 * 16 * slots <= 48 * 100_000 + 128);
    assert_eq!(MemoryStore::with_capacity(100_000).unwrap().shared.table.bytes(), 16 * slots);
}

/// Six keys with the same fingerprint, under all kinds of steps, against a plain map: each has its own limit. A table
/// of fingerprints takes them for one key.
#[test]
fn keys_of_one_fingerprint_are_told_apart_where_keys_are_kept() {
    let keys: [&[u8]; 6] = [b"", b"a", b"a\0", b"fifteen letters", b"sixteen  letters", b"seventeen letters"];
    let quotas: Vec<Arc<Quota>> = [
        Quota::per_second(1).burst(3).gcra(),
        Quota::per_second(1).burst(5).gcra(),
        Quota::per_second(2).fixed_window(),
    ]
    .map(|quota| Arc::new(quota.unwrap()))
    .into();
    let (full, blurred) = (MemoryStore::with_full_keys(6).unwrap(), MemoryStore::with_capacity(6).unwrap());
    let plain = crate::store::PlainStore::default();
    let mut random = conformance::Random::seeded(1);
    let mut below = |bound| random.below(bound);
    let (mut now, mut differ) = (Tick::from_secs(1000), 0);
    let mut last: [Option<(Arc<Quota>, Receipt)>; 6] = Default::default();
    for turn in 0..20_000 {
        now = now.after(Duration::from_millis(below(300)));
        let first = below(6) as usize;
        let many = if below(3) == 0 { 1 + below(3) as usize } else { 1 };
        let held = last[first].take().filter(|_| below(4) == 0);
        let ending = held.as_ref().map(|(_, receipt)| [Ending::new(*receipt, Finish::UNDONE)]);
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        for at in first..first + many {
            let quota = &quotas[if below(8) == 0 { below(3) as usize } else { at % 2 }];
            charges.push(Charge::new(keys[at % 6], quota, Cost::new(1 + below(2)).unwrap()));
        }
        if let Some((quota, receipt)) = &held {
            charges.truncate(1);
            charges[0] = Charge::new(keys[first], quota, receipt.cost);
        }
        let op = match below(12) {
            _ if held.is_some() => Op::Finish(ending.as_ref().unwrap()),
            1 => Op::Peek,
            2 if below(8) == 0 => Op::Reset,
            _ => Op::Take,
        };
        let step = Step::new(now, op, &charges);
        let settled = |store: &MemoryStore| {
            let table = &store.shared.table;
            let alike = |charge: &Charge<'_>| {
                table.sought(Fingerprint::default(), charge.key).with_fingerprint(7 << 30)
            };
            let alike: Vec<Sought> = charges.iter().map(alike).collect();
            let mut settled = Settled::default();
            table.settle_any(&step, &alike, &mut settled);
            settled.at = step.now;
            settled
        };
        let expected = plain.blocking_settle(&step).unwrap();
        assert_eq!(settled(&full), expected, "turn {turn}: {step:?}");
        if matches!(op, Op::Take) {
            last[first] = expected.lines[0].receipt.map(|receipt| (charges[0].quota.clone(), receipt));
        }
        differ += u32::from(charges.len() == 1 && settled(&blurred) != expected);
    }
    assert_eq!(full.occupancy().evicted, 0);
    assert!(differ > 1000, "the keys do meet");
}

/// Steps of one key are settled in place, and steps of two keys under the locks of their lines; no charge of either is
/// lost.
#[test]
fn states_beside_the_table_are_charged_once_by_steps_of_one_key_and_of_two() {
    const TURNS: u64 = 3_000;
    let store = MemoryStore::with_capacity(100).unwrap();
    let quota = Arc::new(Quota::per_hour(1_000_000).fixed_window().unwrap());
    let step = |keys: &[&[u8]]| {
        let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, &quota, Cost::ONE)).collect();
        assert!(store.settle(&Step::new(Tick::from_secs(1), Op::Take, &charges)).unwrap().allowed);
    };
    // So that other keys, which spend one unit each, are nearer to full and are evicted first.
    (0..10).for_each(|_| step(&[b"a", b"b"]));
    std::thread::scope(|scope| {
        for both in [[&b"a"[..], b"b"], [b"b", b"a"]] {
            scope.spawn(move || (0..TURNS).for_each(|_| step(&both)));
        }
        for one in [&b"a"[..], b"b"] {
            scope.spawn(move || (0..TURNS).for_each(|_| step(&[one])));
        }
        // Other keys come and are evicted.
        scope.spawn(move || (0..TURNS).for_each(|turn| step(&[&turn.to_le_bytes()])));
    });
    for key in [b"a", b"b"] {
        let charges = [Charge::new(key, &quota, Cost::ONE)];
        let seen = store.settle(&Step::new(Tick::from_secs(1), Op::Peek, &charges)).unwrap();
        assert_eq!(seen.lines[0].decision.standing.remaining, 1_000_000 - 10 - 3 * TURNS);
    }
}

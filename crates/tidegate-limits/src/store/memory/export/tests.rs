//! Tables that were exported and restored answer as if nothing had happened.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Cost, Finish, Outcome, Quota, Receipt, Tick};

use super::*;
use crate::store::{Charge, ChargeRules, Ending, Op, PlainStore, Seed, Settled, Step, Store, conformance};

const SEED: [u8; 32] = [7; 32];

fn exported(store: &MemoryStore) -> Vec<Vec<u8>> {
    store.export().unwrap().collect()
}

fn restored(keys: usize, pieces: &[Vec<u8>]) -> MemoryStore {
    MemoryStore::restore(keys, &Seed::from_bytes(SEED), pieces).unwrap()
}

fn settle(store: &dyn Store, now: Tick, op: Op<'_>, charge: Charge<'_>) -> Settled {
    store.blocking_settle(&Step::new(now, op, &[charge])).unwrap()
}

/// What one turn of a history does: its pause in ms, key, kind, cost, longest wait in ms, and a further random number.
type Turn = (u64, u8, u8, u64, u64, u64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Random histories over every algorithm, waits, endings out of order and resets among them, moved from store to store.
    #[test]
    fn a_restored_table_answers_as_the_plain_map(
        full in any::<bool>(),
        turns in prop::collection::vec((0u64..3_000, 0u8..14, 0u8..20, 1u64..4, 0u64..1_500, any::<u64>()), 1..150),
        sizes in prop::collection::vec(100usize..5_000, 1..6),
    ) {
        let (seed, quotas) = (Seed::from_bytes(SEED), conformance::quotas());
        let mut store = if full { MemoryStore::with_full_keys_and_seed(1000, &seed).unwrap() } else { MemoryStore::with_seed(1000, &seed).unwrap() };
        let (plain, mut sizes) = (PlainStore::default(), sizes.into_iter().cycle());
        let mut now = Tick::from_secs(1_600_000_000);
        let mut open: Vec<(Vec<u8>, Arc<Quota>, Receipt)> = Vec::new();
        for (pause, key, kind, cost, wait, other) in turns {
            let turn: Turn = (pause, key, kind, cost, wait, other);
            now = now.after(Duration::from_millis(pause));
            // Short keys, and keys longer than those that are kept as they are.
            let key = vec![key; usize::from(key) * 3];
            let quota = &quotas[key.len() / 3 % quotas.len()];
            let charge = Charge {
                max_wait: Duration::from_millis(if kind < 6 { wait } else { 0 }),
                rules: ChargeRules::new(u32::from(kind % 3)),
                inline_quota: kind == 11,
                ..Charge::new(&key, quota, Cost::new(cost).unwrap())
            };
            match kind {
                0 => store = restored(sizes.next().unwrap(), &exported(&store)),
                1 => prop_assert_eq!(settle(&store, now, Op::Reset, charge), settle(&plain, now, Op::Reset, charge)),
                2 => prop_assert_eq!(settle(&store, now, Op::Peek, charge), settle(&plain, now, Op::Peek, charge)),
                3..6 if !open.is_empty() => {
                    let (key, quota, receipt) = open.swap_remove(other as usize % open.len());
                    let finish = Finish { used: other / 7 % 5, outcome: Outcome::Success };
                    let endings = [Ending::new(receipt, finish)];
                    let charge = Charge::new(&key, &quota, receipt.cost);
                    let op = Op::Finish(&endings);
                    prop_assert_eq!(settle(&store, now, op, charge), settle(&plain, now, op, charge), "{:?}", turn);
                }
                _ => {
                    let settled = settle(&store, now, Op::Take, charge);
                    prop_assert_eq!(&settled, &settle(&plain, now, Op::Take, charge), "{:?}", turn);
                    open.extend(settled.lines[0].receipt.map(|receipt| (key.clone(), Arc::clone(quota), receipt)));
                }
            }
        }
        prop_assert_eq!(store.occupancy().evicted, 0);
    }

    /// Any byte of any piece changed, any piece cut, left out, or put elsewhere.
    #[test]
    fn a_damaged_export_is_an_error(at in any::<prop::sample::Index>(), piece in any::<prop::sample::Index>(), how in 0u8..5, by in 1u8..=255) {
        let pieces = exported(&some_keys(300));
        let mut damaged = pieces.clone();
        let piece = piece.index(pieces.len());
        let at = at.index(pieces[piece].len());
        match how {
            0 => damaged[piece][at] ^= by,
            1 => damaged[piece].truncate(at),
            2 => _ = damaged.remove(piece),
            3 => damaged.truncate(piece),
            _ => damaged.swap(piece, (piece + 1) % pieces.len()),
        }
        let restored = MemoryStore::restore(1000, &Seed::from_bytes(SEED), &damaged);
        prop_assert!(restored.is_err());
    }

    /// Arbitrary bytes in place of a piece are read to the end or to an error, without a panic.
    #[test]
    fn entries_of_any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), full_keys in any::<bool>()) {
        let entries = Entries { bytes: &bytes, full_keys };
        prop_assert!(entries.count() <= 300);
    }
}

/// A key that was reset, one whose limit changed its kind, and one settled out of order, each with a charge from before that is ended
/// after the table was restored.
#[test]
fn what_is_remembered_of_old_charges_is_exported() {
    let (store, plain) =
        (MemoryStore::with_seed(100, &Seed::from_bytes(SEED)).unwrap(), PlainStore::default());
    let schedule = Arc::new(Quota::per_minute(6).gcra().unwrap());
    let window = Arc::new(Quota::per_minute(6).fixed_window().unwrap());
    let (start, after) = (Tick::from_secs(1_600_000_000), |ms| Duration::from_millis(ms));
    let both = |store: &dyn Store, ms, op: Op<'_>, charge: Charge<'_>| {
        let settled = settle(store, start.after(after(ms)), op, charge);
        assert_eq!(settled, settle(&plain, start.after(after(ms)), op, charge));
        settled.lines[0].receipt
    };
    let two = Cost::new(2).unwrap();
    let charge = |key, quota| Charge::new(key, quota, two);
    let reset = both(&store, 0, Op::Take, charge(b"reset", &schedule)).unwrap();
    both(&store, 10, Op::Reset, charge(b"reset", &schedule));
    let changed = both(&store, 20, Op::Take, charge(b"changed", &window)).unwrap();
    both(&store, 30, Op::Take, charge(b"changed", &schedule));
    let first = both(&store, 40, Op::Take, charge(b"orders", &schedule)).unwrap();
    let second = both(&store, 50, Op::Take, charge(b"orders", &schedule)).unwrap();
    both(&store, 60, Op::Finish(&[Ending::new(first, Finish::UNDONE)]), charge(b"orders", &schedule));
    let next = restored(3, &exported(&store));
    for (ms, key, quota, receipt) in [
        (70, &b"reset"[..], &schedule, reset),
        (80, b"changed", &window, changed),
        (90, b"orders", &schedule, second),
    ] {
        both(&next, ms, Op::Take, Charge::new(key, &schedule, Cost::ONE));
        both(&next, ms + 5, Op::Finish(&[Ending::new(receipt, Finish::UNDONE)]), charge(key, quota));
        both(&next, ms + 6, Op::Peek, Charge::new(key, &schedule, Cost::ONE));
    }
}

fn some_keys(keys: u32) -> MemoryStore {
    let store = MemoryStore::with_seed(1000, &Seed::from_bytes(SEED)).unwrap();
    let quotas = conformance::quotas();
    for key in 0..keys {
        let quota = &quotas[key as usize % quotas.len()];
        settle(
            &store,
            Tick::from_secs(1_600_000_000),
            Op::Take,
            Charge::new(&key.to_le_bytes(), quota, Cost::ONE),
        );
    }
    store
}

#[test]
fn another_seed_and_a_store_without_one_are_told() {
    let pieces = exported(&some_keys(3));
    let other = MemoryStore::restore(1000, &Seed::from_bytes([8; 32]), &pieces);
    assert_eq!(other.err(), Some(RestoreError::Seed));
    assert!(MemoryStore::with_capacity(1000).unwrap().export().is_none());
    let none: [Vec<u8>; 0] = [];
    let empty = MemoryStore::restore(1000, &Seed::from_bytes(SEED), none);
    assert_eq!(empty.err(), Some(RestoreError::Missing { piece: 0 }));
}

/// If a tenth of the room is left, the keys over their limit stay.
#[test]
fn with_less_room_keys_over_their_limit_stay() {
    let store = MemoryStore::with_seed(10_000, &Seed::from_bytes(SEED)).unwrap();
    let quota = Arc::new(Quota::per_hour(3).gcra().unwrap());
    let now = Tick::from_secs(1000);
    let is_debtor = |key: u32| key.is_multiple_of(20);
    for key in 0..8_000u32 {
        let cost = Cost::new(if is_debtor(key) { 3 } else { 1 }).unwrap();
        assert!(settle(&store, now, Op::Take, Charge::new(&key.to_le_bytes(), &quota, cost)).allowed);
    }
    let small = restored(1_000, &exported(&store));
    let occupancy = small.occupancy();
    assert!(occupancy.used <= occupancy.capacity && occupancy.evicted > 5_000, "{occupancy:?}");
    assert_eq!(occupancy.evicted_over_limit, 0);
    for key in (0..8_000u32).filter(|key| is_debtor(*key)) {
        assert!(!settle(&small, now, Op::Peek, Charge::new(&key.to_le_bytes(), &quota, Cost::ONE)).allowed);
    }
}

/// Other threads take units while the table is exported again and again. Each key is charged by one thread only, so the
/// number of units allowed before and after an export bounds what that export must show.
#[test]
fn an_export_under_way_shows_all_that_was_charged_before_it() {
    let store = MemoryStore::with_seed(500, &Seed::from_bytes(SEED)).unwrap();
    let quota = Arc::new(Quota::per_day(1_000_000).gcra().unwrap());
    let now = Tick::from_secs(1000);
    let take = |store: &MemoryStore, key: u64, op: Op<'_>| {
        let settled = settle(store, now, op, Charge::new(&key.to_le_bytes(), &quota, Cost::ONE));
        1_000_000 - settled.lines[0].decision.standing.remaining
    };
    let charged: Vec<_> = (0..100).map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (store, charged) = (&store, &charged);
            scope.spawn(move || {
                for turn in 0..20_000u64 {
                    let key = turn % 50 * 2 + half;
                    let spent = take(store, key, Op::Take);
                    charged[key as usize].store(spent, Ordering::Release);
                }
            });
        }
        for _ in 0..20 {
            let before: Vec<u64> = charged.iter().map(|spent| spent.load(Ordering::Acquire)).collect();
            let copy = restored(700, &exported(&store));
            for (key, before) in before.into_iter().enumerate() {
                let shown = take(&copy, key as u64, Op::Peek);
                assert!(shown >= before && shown <= take(&store, key as u64, Op::Peek), "key {key}");
            }
        }
    });
}

/// Bytes from the first version that exported; they must stay readable for ever.
#[test]
fn the_byte_form_stays() {
    let store = MemoryStore::with_seed(1, &Seed::from_bytes(SEED)).unwrap();
    let quota = Arc::new(Quota::per_minute(3).gcra().unwrap());
    let (now, charge) = (
        Tick::from_secs(100),
        Charge { rules: ChargeRules::new(5), ..Charge::new(b"ann", &quota, Cost::ONE) },
    );
    assert!(settle(&store, now, Op::Take, charge).allowed);
    let hex = |piece: &Vec<u8>| piece.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(exported(&store).iter().map(hex).collect::<Vec<_>>(), GOLDEN);
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let read = restored(50, &GOLDEN.map(bytes));
    assert_eq!(settle(&read, now, Op::Peek, charge), settle(&store, now, Op::Peek, charge));
}

const GOLDEN: [&str; 3] = [
    "0102000000000000000000007415c381111d297200e8764817000000e31613aa3bb7b111",
    "0102010100000000000000d1dfb8416863900c0500000000350000000100010300000000000000005847f80d00000003000000000000000100e8764817\
     00000000b08ef01b00000000000000000000000095af214966e0f91a",
    "0102020200000000000000010000000000000000e8764817000000a7af9b21d8e66bea",
];

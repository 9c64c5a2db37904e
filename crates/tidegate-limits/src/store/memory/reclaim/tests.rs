//! Very many quotas, one after another, over few keys and over many.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Cost, Quota, Replace, Tick};

use super::super::MemoryStore;
use super::super::cache_line::WAYS;
use super::super::name::Class;
use super::super::table::Table;
use crate::store::{Charge, ChargeRules, Op, PlainStore, Settled, Step, Store};

/// Twice as many as there are numbers of quotas.
const QUOTAS: u64 = 2 * Class::MAX as u64;

fn quota(number: u64) -> Arc<Quota> {
    Arc::new(Quota::per_second(1 + number % 1000).burst(2 + number / 1000).gcra().unwrap())
}

fn take(store: &dyn Store, now: Tick, charge: Charge<'_>) -> Settled {
    store.blocking_settle(&Step::new(now, Op::Take, &[charge])).unwrap()
}

/// Returns whether a key's state is a word in the table.
fn is_word(table: &Table, key: &[u8]) -> bool {
    let sought = table.sought(table.fingerprint(key), key);
    let classes = table.lines_of(sought).map(|line| {
        let held = table.line(line).lock();
        held.find(sought.name(Class::WIDE), |_| true).map(|slot| held.name(slot).class())
    });
    classes.into_iter().flatten().next().is_some_and(|class| class != Class::WIDE)
}

/// Each quota on a key that had another quota before, with the same answer as the plain map.
#[test]
fn the_last_of_many_quotas_is_a_word_as_the_first_is() {
    let (store, plain) = (MemoryStore::with_capacity(1000).unwrap(), PlainStore::default());
    let mut now = Tick::from_secs(1000);
    for number in 0..QUOTAS {
        now = now.after(Duration::from_millis(1));
        let (quota, key) = (quota(number), (number % 300).to_le_bytes());
        let rules = ChargeRules { replace: Replace::Reset, ..ChargeRules::new(0) };
        let charge = Charge { rules, ..Charge::new(&key, &quota, Cost::ONE) };
        // A state written when the limit changes becomes a word only at its second use, because its book has to run out
        // first.
        let later = now.after(Duration::from_secs(2000));
        for now in [now, later] {
            assert_eq!(take(&store, now, charge), take(&plain, now, charge), "quota {number}");
        }
        now = later;
        assert!(is_word(&store.shared.table, &key), "quota {number}");
    }
    assert!(store.shared.table.classes.given() <= usize::from(Class::MAX));
}

/// Keys that never come again leave their quotas in slots that are not used any more.
#[test]
fn quotas_of_keys_that_are_full_again_are_reclaimed() {
    let store = MemoryStore::with_capacity(100_000).unwrap();
    for number in 0..QUOTAS {
        let now = Tick::from_secs(1000 + number);
        let (quota, key) = (quota(number), number.to_le_bytes());
        assert!(take(&store, now, Charge::new(&key, &quota, Cost::ONE)).allowed);
        assert!(is_word(&store.shared.table, &key), "quota {number}");
    }
    let occupancy = store.occupancy();
    assert_eq!(occupancy.evicted, 0);
    let table = &store.shared.table;
    let used = (0..table.slots() / WAYS).map(|line| {
        let held = table.line(line).lock();
        (0..WAYS).filter(|slot| held.name(*slot) != super::Name::EMPTY).count()
    });
    assert_eq!(used.sum::<usize>(), occupancy.used, "emptied slots are counted");
}

/// While more quotas than numbers are live, some keys are slower; afterwards they are not.
#[test]
fn more_live_quotas_than_numbers_are_settled_and_recover() {
    let store = MemoryStore::with_capacity(60_000).unwrap();
    let (now, hourly) =
        (Tick::from_secs(1000), |burst| Arc::new(Quota::per_hour(1).burst(burst).gcra().unwrap()));
    let live = 40_000u64;
    for number in 0..live {
        let key = number.to_le_bytes();
        let quota = hourly(2 + number);
        assert!(take(&store, now, Charge::new(&key, &quota, Cost::ONE)).allowed);
    }
    let words = |live: u64| (0..live).filter(|key| is_word(&store.shared.table, &key.to_le_bytes())).count();
    assert!(words(live) > 32_000);
    assert!(words(live) <= usize::from(Class::MAX));
    let later = now.after(Duration::from_secs(200_000));
    for number in live..live + 20_000 {
        let quota = hourly(2 + number);
        assert!(take(&store, later, Charge::new(&number.to_le_bytes(), &quota, Cost::ONE)).allowed);
    }
    assert!(is_word(&store.shared.table, &(live + 19_999).to_le_bytes()));
}

/// Quotas that are each used for one step only.
#[test]
fn passing_quotas_take_no_number_and_no_memory_of_their_own() {
    let (store, plain) = (MemoryStore::with_capacity(64).unwrap(), PlainStore::default());
    for number in 0..QUOTAS {
        let now = Tick::from_nanos(1_000_000_000_000 + number * 50_000_000);
        let burst = 1 + number % 10_000;
        let quota = Arc::new(Quota::per_second(1 + number / 10_000).burst(burst).gcra().unwrap());
        let key = (number % 7).to_le_bytes();
        let charge = Charge { inline_quota: true, ..Charge::new(&key, &quota, Cost::ONE) };
        assert_eq!(take(&store, now, charge).lines.len(), 1);
    }
    for number in 0..20_000u64 {
        let now = Tick::from_nanos(90_000_000_000_000 + number * 50_000_000);
        let quota = Arc::new(Quota::per_second(1 + number % 5).burst(1 + number % 900).gcra().unwrap());
        let key = (100 + number % 7).to_le_bytes();
        let charge = Charge { inline_quota: number % 3 > 0, ..Charge::new(&key, &quota, Cost::ONE) };
        let passing = Charge { inline_quota: true, ..charge };
        assert_eq!(take(&store, now, passing), take(&plain, now, charge), "quota {number}");
    }
    let table = &store.shared.table;
    assert_eq!(table.classes.given(), 0);
    assert!(store.occupancy().used <= 14, "{:?}", store.occupancy());
    assert!(table.overflow.kept() <= store.occupancy().used);
}

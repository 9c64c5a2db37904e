//! Every store of this crate passes the conformance suite, and so does compare-and-set over bytes with injected
//! conflicts.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::store::{CasStore, Charge, MemoryStore, Op, PlainStore, Step, Store, conformance};
use tidegate::{Cost, Tick};
use tidegate_core::Algorithm as _;
use tidegate_core::time::MAX_STEP_BACK;

use crate::byte_map::Bytes;
use crate::store::steps;
use tidegate::store::conformance::Random;

#[test]
fn the_plain_map_conforms() {
    conformance::run(PlainStore::default, &conformance::quotas(), steps(5_000));
}

#[test]
fn the_memory_table_conforms() {
    conformance::run(|| MemoryStore::with_capacity(10_000).unwrap(), &conformance::quotas(), steps(10_000));
}

#[test]
fn the_memory_table_that_keeps_keys_conforms() {
    conformance::run(|| MemoryStore::with_full_keys(10_000).unwrap(), &conformance::quotas(), steps(10_000));
}

/// The table is so small that eight keys share two lines and fill them; no key is ever evicted.
#[test]
fn a_table_of_two_full_lines_agrees_with_the_plain_map() {
    let quotas = conformance::quotas();
    for seed in 1..60u64 {
        let (table, plain) = (MemoryStore::with_capacity(1).unwrap(), PlainStore::default());
        let mut random = Random::seeded(seed);
        let mut below = |count: u64| random.below(count);
        let (mut now, mut unmoved) = (Tick::from_secs(1_000_000), Tick::EPOCH);
        for _ in 0..600 {
            now = now.after(Duration::from_millis(below(900)));
            // A thread may use a tick that it read a moment ago. The map's time is moved by refusals and looks, too.
            let late = Tick::from_nanos(now.as_nanos() - below(2) * 400_000_000).max(unmoved);
            let keys: BTreeSet<u8> = (0..=below(4)).map(|_| below(8) as u8).collect();
            let keys: Vec<[u8; 1]> = keys.into_iter().map(|key| [key]).collect();
            let charges: Vec<_> = keys
                .iter()
                .map(|key| Charge {
                    max_wait: Duration::from_millis(below(3) * 500),
                    binding: below(4) > 0,
                    ..Charge::new(key, &quotas[below(quotas.len() as u64) as usize], Cost::ONE)
                })
                .collect();
            let op = match below(12) {
                0..2 => Op::Reset,
                2 => Op::Peek,
                _ => Op::Take,
            };
            let step = Step::new(late, op, &charges);
            let answer = table.blocking_execute(&step);
            if let Ok(executed) = &answer
                && (!executed.allowed || matches!(step.op, Op::Peek))
            {
                unmoved = unmoved.max(executed.at);
            }
            assert_eq!(answer, plain.blocking_execute(&step), "seed {seed}: {step:?}");
        }
        assert_eq!(table.occupancy().evicted, 0);
    }
}

/// Steps over several sets, with keys in any order: steps do not deadlock, no charge is lost, and a step refused by one
/// key spends nothing of its other keys.
#[test]
fn threads_with_overlapping_steps_admit_exactly_the_limit() {
    let (threads, keys, limit) = (8u64, 24u64, 500u64);
    let store = MemoryStore::with_capacity(1000).unwrap();
    let quota = Arc::new(tidegate::Quota::per_hour(limit).sliding_window(10).unwrap());
    let now = Tick::from_secs(1_000_000);
    let spent: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, quota, spent) = (store.clone(), &quota, &spent);
            scope.spawn(move || {
                for round in 0..4000u64 {
                    let picked = [0, 1, 2].map(|n| (thread * 7 + round * (n + 1) + n * 8) % keys);
                    if picked[0] == picked[1] || picked[1] == picked[2] || picked[0] == picked[2] {
                        continue;
                    }
                    let names = picked.map(u64::to_le_bytes);
                    let charges = [0, 1, 2].map(|at: usize| Charge::new(&names[at], quota, Cost::ONE));
                    let step = Step::new(now, Op::Take, &charges);
                    if store.blocking_execute(&step).unwrap().allowed {
                        for key in picked {
                            spent[key as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    for key in 0..keys {
        let name = key.to_le_bytes();
        let charges = [Charge::new(&name, &quota, Cost::ONE)];
        let executed = store.blocking_execute(&Step::new(now, Op::Peek, &charges)).unwrap();
        let counted = spent[key as usize].load(Ordering::Relaxed);
        assert_eq!(executed.lines[0].decision.standing.remaining, limit - counted, "key {key}");
    }
}

/// A node with a clock that is an hour fast charged a key, and the other nodes use the right time. The key fills within
/// twice the usual time, since a key's clock is followed at half speed.
#[test]
fn a_node_with_a_fast_clock_freezes_no_key() {
    let now = Tick::from_secs(1_000_000);
    let at = |secs| now.after(Duration::from_secs(secs));
    for quota in conformance::quotas().iter().filter(|quota| !quota.is_guard()) {
        let bytes = Bytes::default();
        let (fast, right) = (CasStore::new(bytes.clone()), CasStore::new(bytes));
        let ask = |store: &CasStore<Bytes>, at, op| {
            let charges = [Charge::new(b"key", quota, Cost::ONE)];
            store.blocking_execute(&Step::new(at, op, &charges)).unwrap()
        };
        if quota.set_back(&quota.fresh(at(3600)), now).is_none() {
            continue;
        }
        while ask(&fast, at(3600), Op::Take).allowed {}
        // What a node with the right clock would have left after it had spent as much one second from now.
        let twin = CasStore::new(Bytes::default());
        while ask(&twin, at(1), Op::Take).allowed {}
        assert!(!ask(&right, at(1), Op::Take).allowed, "{quota:?}");
        let [ours, theirs] =
            [&right, &twin].map(|store| ask(store, at(1), Op::Peek).lines[0].decision.standing.reset_after);
        assert!(ours <= theirs + MAX_STEP_BACK, "{quota:?}: {ours:?} and {theirs:?}");
        let full = ask(&right, at(1).after(MAX_STEP_BACK + ours * 2), Op::Peek).lines[0].decision;
        assert!(full.is_allowed(), "{quota:?}: {full:?}");
    }
}

/// A key used up under an old limit and asked for under a new one stays under the old limit until it is allowed. The
/// wait of the refusal is exact: a request passes after it, and does not pass at 99 % of it.
#[test]
fn a_refusal_under_a_changed_limit_names_a_wait_that_is_right() {
    let at = Tick::from_secs(1_000_000);
    let rates: Vec<_> = conformance::quotas().into_iter().filter(|quota| !quota.is_guard()).collect();
    let mut refused = 0;
    // Also asked at times when the old limit has given part of its units back.
    let cases = rates
        .iter()
        .flat_map(|old| rates.iter().flat_map(move |new| [0, 1, 70, 1300].map(|ms| (old, new, ms))));
    for (old, new, later) in cases.filter(|(old, new, _)| old != new) {
        // A new store for each case, since time must not go back in one store.
        let store = MemoryStore::with_capacity(1).unwrap();
        let ask = |quota, at, op, cost| {
            let charges = [Charge::new(b"key", quota, Cost::new(cost).unwrap())];
            store.blocking_execute(&Step::new(at, op, &charges)).unwrap().lines[0].decision
        };
        for cost in (0..=10).rev().map(|bits| 1 << bits) {
            while ask(old, at, Op::Take, cost).is_allowed() {}
        }
        let now = at.after(Duration::from_millis(later));
        let decision = ask(new, now, Op::Peek, 1);
        let Some(wait) = decision.retry().after().filter(|_| !decision.is_allowed()) else { continue };
        refused += 1;
        let told = format!("{old:?} to {new:?}, after {later} ms: {wait:?}");
        let sooner = now.after(wait.mul_f64(0.99).saturating_sub(Duration::from_nanos(1)));
        assert!(!ask(new, sooner, Op::Peek, 1).is_allowed(), "too long: {told}");
        assert!(ask(new, now.after(wait), Op::Peek, 1).is_allowed(), "too short: {told}");
    }
    assert!(refused > 100, "{refused} refusals");
}

/// A long log is converted with each decision, so the wait is searched for with few conversions: it is never too short,
/// and never longer than the log lasts.
#[test]
fn the_wait_under_a_changed_long_log_is_not_too_short() {
    let [old, new] =
        [1000, 400].map(|count| Arc::new(tidegate::Quota::per_hour(count).sliding_log().unwrap()));
    let store = MemoryStore::with_capacity(1).unwrap();
    let ask = |quota, at, op| {
        let charges = [Charge::new(b"key", quota, Cost::ONE)];
        store.blocking_execute(&Step::new(at, op, &charges)).unwrap().lines[0].decision
    };
    let at = Tick::from_secs(1_000_000);
    for second in 0..1000 {
        assert!(ask(&old, at.after(Duration::from_secs(second)), Op::Take).is_allowed());
    }
    let now = at.after(Duration::from_secs(1000));
    let wait = ask(&new, now, Op::Peek).retry().after().unwrap();
    // 601 of the thousand entries have to be an hour old.
    let least = Duration::from_secs(3600 - 1000 + 600);
    assert!(least <= wait && wait <= Duration::from_secs(3600), "{wait:?}");
    assert!(ask(&new, now.after(wait), Op::Peek).is_allowed(), "{wait:?}");
}

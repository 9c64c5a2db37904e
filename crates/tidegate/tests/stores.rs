//! Every store of this crate passes the conformance suite; so does compare-and-set over bytes with conflicts injected.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

mod byte_map;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::store::{
    ByteMap, CasStore, Charge, Later, MemoryStore, Op, PlainStore, Read, Step, Store, StoreError, Write,
    conformance,
};
use tidegate::{Cost, Tick};

use byte_map::Bytes;
use tidegate::store::conformance::Random;

#[test]
fn the_plain_map_conforms() {
    conformance::run(PlainStore::default, &conformance::quotas(), 20_000);
}

#[test]
fn the_memory_table_conforms() {
    conformance::run(|| MemoryStore::with_capacity(10_000), &conformance::quotas(), 50_000);
}

#[test]
fn the_memory_table_that_keeps_keys_conforms() {
    conformance::run(|| MemoryStore::with_full_keys(10_000), &conformance::quotas(), 50_000);
}

#[test]
fn compare_and_set_over_bytes_conforms_although_every_third_write_loses() {
    conformance::run(|| CasStore::new(Conflicting::default()), &conformance::quotas(), 20_000);
}

#[test]
fn a_key_contended_for_ever_is_an_error_and_changes_nothing() {
    let map = Conflicting { every: 1, ..Conflicting::default() };
    let store = CasStore::new(map);
    let quotas = conformance::quotas();
    let charges = [Charge::new(b"k", &quotas[0], Cost::ONE)];
    let step = Step::new(Tick::from_secs(1), Op::Take, &charges);
    assert!(matches!(store.blocking_settle(&step), Err(StoreError::Contended { .. })));
    assert_eq!(store.occupancy().used, 0);
}

/// Bytes under versions, like an engine's; every so many writes it claims that somebody else was faster.
#[derive(Debug)]
struct Conflicting {
    bytes: Bytes,
    writes: AtomicU64,
    every: u64,
}

impl Default for Conflicting {
    fn default() -> Self {
        Self { bytes: Bytes::default(), writes: AtomicU64::new(0), every: 3 }
    }
}

impl ByteMap for Conflicting {
    fn read(&self, tag: u64, keys: &[Arc<[u8]>]) -> Later<Result<Read, StoreError>> {
        self.bytes.read(tag, keys)
    }

    fn write_if_unchanged(&self, tag: u64, writes: Vec<Write>) -> Later<Result<bool, StoreError>> {
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every) {
            return Box::pin(async { Ok(false) });
        }
        self.bytes.write_if_unchanged(tag, writes)
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Small enough that eight keys share two lines and fill them; none of them ever loses its place.
#[test]
fn a_table_of_two_full_lines_agrees_with_the_plain_map() {
    let quotas = conformance::quotas();
    for seed in 1..60u64 {
        let (table, plain) = (MemoryStore::with_capacity(1), PlainStore::default());
        let mut random = Random::seeded(seed);
        let mut below = |count: u64| random.below(count);
        let mut now = Tick::from_secs(1_000_000);
        for _ in 0..600 {
            now = now.after(Duration::from_millis(below(900)));
            // A thread may come with a tick that it read a moment ago.
            let late = Tick::from_nanos(now.as_nanos() - below(2) * 400_000_000);
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
            assert_eq!(table.blocking_settle(&step), plain.blocking_settle(&step), "seed {seed}: {step:?}");
        }
        assert_eq!(table.occupancy().evicted, 0);
    }
}

/// Steps over several sets, whose keys come in any order: no step waits for another in a circle, none loses a charge,
/// and whoever was refused by one key has spent nothing of the others.
#[test]
fn threads_that_settle_overlapping_steps_admit_exactly_the_limit() {
    let (threads, keys, limit) = (8u64, 24u64, 500u64);
    let store = MemoryStore::with_capacity(1000);
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
                    if store.blocking_settle(&step).unwrap().allowed {
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
        let settled = store.blocking_settle(&Step::new(now, Op::Peek, &charges)).unwrap();
        let counted = spent[key as usize].load(Ordering::Relaxed);
        assert_eq!(settled.lines[0].decision.standing.remaining, limit - counted, "key {key}");
    }
}

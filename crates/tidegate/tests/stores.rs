//! Every store of this crate passes the conformance suite; so does compare-and-set over bytes with conflicts injected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use tidegate::store::{ByteMap, CasStore, MemoryStore, PlainStore, StoreError, Versioned, conformance};

#[test]
fn the_plain_map_conforms() {
    conformance::run(PlainStore::default, &conformance::quotas(), 20_000);
}

#[test]
fn the_memory_table_conforms() {
    conformance::run(|| MemoryStore::with_capacity(10_000), &conformance::quotas(), 50_000);
}

#[test]
fn compare_and_set_over_bytes_conforms_although_every_third_write_loses() {
    conformance::run(|| CasStore::new(Conflicting::default()), &conformance::quotas(), 20_000);
}

#[test]
fn a_key_contended_for_ever_is_an_error_and_changes_nothing() {
    use tidegate::store::{Charge, Op, Step, Store};
    let map = Conflicting { every: 1, ..Conflicting::default() };
    let store = CasStore::new(map);
    let quotas = conformance::quotas();
    let charges = [Charge::new(b"k", &quotas[0], tidegate::Cost::ONE)];
    let step = Step { now: tidegate::Tick::from_secs(1), op: Op::Take, charges: &charges };
    assert!(matches!(store.settle(&step), Err(StoreError::Contended { .. })));
    assert_eq!(store.occupancy().used, 0);
}

/// Bytes under versions, like an engine's; every so many writes it claims that somebody else was faster.
#[derive(Debug)]
struct Conflicting {
    cells: Mutex<HashMap<Vec<u8>, Held>>,
    writes: AtomicU64,
    every: u64,
}

/// A version and the value at it.
type Held = (u64, Option<Vec<u8>>);

impl Default for Conflicting {
    fn default() -> Self {
        Self { cells: Mutex::default(), writes: AtomicU64::new(0), every: 3 }
    }
}

impl ByteMap for Conflicting {
    fn read(&self, keys: &[&[u8]]) -> Result<Vec<Versioned>, StoreError> {
        let cells = self.cells.lock();
        let read = |key: &&[u8]| {
            let (version, value) = cells.get(*key).cloned().unwrap_or_default();
            Versioned { value, version }
        };
        Ok(keys.iter().map(read).collect())
    }

    fn write_if_unchanged(
        &self,
        keys: &[&[u8]],
        versions: &[u64],
        values: &[Option<Vec<u8>>],
    ) -> Result<bool, StoreError> {
        if self.writes.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.every) {
            return Ok(false);
        }
        let mut cells = self.cells.lock();
        let unchanged =
            |(key, version): (&&[u8], &u64)| cells.get(*key).map_or(0, |(have, _)| *have) == *version;
        if !keys.iter().zip(versions).all(unchanged) {
            return Ok(false);
        }
        for (key, value) in keys.iter().zip(values) {
            let cell = cells.entry(key.to_vec()).or_default();
            *cell = (cell.0 + 1, value.clone());
        }
        Ok(true)
    }

    fn len(&self) -> usize {
        self.cells.lock().values().filter(|(_, value)| value.is_some()).count()
    }
}

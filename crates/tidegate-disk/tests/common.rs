//! Helpers for the tests of the store on disk.

#![allow(dead_code, reason = "each test uses some of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::store::{Charge, Durable, Op, Settled, Step, Store as _, StoreError};
use tidegate::{Cost, Quota, Tick};
use tidegate_disk::{DiskOptions, DiskStore};

/// An interval in which nothing is written unless a test asks for it.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

pub(crate) const NOW: Tick = Tick::from_secs(1_000_000);

/// Options for a small table that is written when the test says so.
pub(crate) fn options(folder: &Path) -> DiskOptions {
    DiskOptions::new(folder).keys(1000).interval(NEVER).retry(Duration::from_millis(20))
}

pub(crate) fn open(folder: &Path) -> DiskStore {
    DiskStore::open(options(folder)).unwrap()
}

pub(crate) fn daily(units: u64) -> Arc<Quota> {
    Arc::new(Quota::per_day(units).gcra().unwrap())
}

/// Charges one unit of a key.
pub(crate) fn take(
    store: &DiskStore,
    key: &[u8],
    quota: &Arc<Quota>,
    durable: Durable,
) -> Result<Settled, StoreError> {
    let charges = [Charge { durable, ..Charge::new(key, quota, Cost::ONE) }];
    store.blocking_settle(&Step::new(NOW, Op::Take, &charges))
}

/// Charges one unit of a key and says whether it was granted.
pub(crate) fn allowed(store: &DiskStore, key: &[u8], quota: &Arc<Quota>) -> bool {
    take(store, key, quota, Durable::Interval).unwrap().allowed
}

/// Returns a key's remaining units.
pub(crate) fn left(store: &DiskStore, key: &[u8], quota: &Arc<Quota>) -> u64 {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    let peeked = store.blocking_settle(&Step::new(NOW, Op::Peek, &charges)).unwrap();
    peeked.lines[0].decision.standing.remaining
}

/// Checks a condition repeatedly until it holds; for conditions that are sure to hold eventually.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
    }
    panic!("it did not come true that {what}");
}

//! Floors: only the steps that every limiter needs.

use std::cell::Cell;
use std::hash::BuildHasher as _;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use quanta::Clock;

use crate::measure::{Want, alone, wall};
use crate::traffic::Key;
use crate::workloads::permits::{PLACES, Permits};
use crate::workloads::{BATCH, Keyed, One};

pub(crate) fn empty() -> Result<f64> {
    alone(Want::Permitted, || true)
}

pub(crate) fn counter() -> Result<f64> {
    let clock = Clock::new();
    alone(Want::Permitted, || clock.raw() > 0)
}

pub(crate) fn scaled_counter() -> Result<f64> {
    let clock = Clock::new();
    alone(Want::Permitted, || clock.delta_as_nanos(0, clock.raw()) > 0)
}

pub(crate) fn instant() -> Result<f64> {
    let start = wall();
    alone(Want::Permitted, || wall() >= start)
}

pub(crate) fn tick() -> Result<f64> {
    let tick = AtomicU64::new(1);
    // Relaxed: no other memory depends on the tick.
    alone(Want::Permitted, || black_box(&tick).load(Ordering::Relaxed) > 0)
}

/// The steps that every shared guard needs: one increment, one decrement.
pub(crate) fn permit(run: &mut Permits<'_>) -> Result<()> {
    let inside = AtomicU64::new(0);
    run.shared(|| pass(&inside))
}

/// The same with an owned permit, which holds a reference to its guard.
pub(crate) fn owned_permit(run: &mut Permits<'_>) -> Result<()> {
    let inside = Arc::new(AtomicU64::new(0));
    run.shared(|| pass(black_box(&Arc::clone(&inside))))
}

fn pass(inside: &AtomicU64) -> bool {
    let entered = inside.fetch_add(1, Ordering::Acquire) < PLACES;
    inside.fetch_sub(1, Ordering::Release);
    entered
}

/// The generic cell rate algorithm in one word: the time at which the limit is full.
pub(crate) struct Word {
    full_at: AtomicU64,
    unit: u64,
    depth: u64,
}

impl Word {
    fn new(run: &One<'_>) -> Self {
        let (count, period) = run.limit();
        let depth = period.as_nanos() as u64;
        Self { full_at: AtomicU64::new(0), unit: depth / u64::from(count), depth }
    }

    /// Takes `units`. Relaxed throughout: no other memory depends on the word. The loop ends, because a failed exchange
    /// means that another thread's has succeeded.
    fn take(&self, now: u64, units: u64) -> bool {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let next = full_at.max(now) + self.unit * units;
            if next - now > self.depth {
                return false;
            }
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => full_at = seen,
            }
        }
    }
}

pub(crate) fn one_clock(run: &mut One<'_>) -> Result<()> {
    let (words, clock) = (run.place(|| Ok(Word::new(run)))?, Clock::new());
    let word = words.get();
    run.shared(|| word.take(clock.raw(), 1))
}

/// Uses a tick that stands still. If all checks are to pass, a unit has no weight, so that the burst lasts.
pub(crate) fn one(run: &mut One<'_>) -> Result<()> {
    let words = run.place(|| {
        let word = Word::new(run);
        Ok(if run.want == Want::Permitted { Word { unit: 0, ..word } } else { word })
    })?;
    let word = words.get();
    run.shared(|| word.take(black_box(1), 1))
}

/// The units that a thread draws from the shared word at once.
const LEASE: u64 = 64;

pub(crate) fn one_lease(run: &mut One<'_>) -> Result<()> {
    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(0) };
    }
    if run.want == Want::Denied {
        return Ok(());
    }
    let (word, clock) = (Word::new(run), Clock::new());
    run.shared(|| {
        LEFT.with(|left| match left.get() {
            0 => {
                word.take(clock.raw(), LEASE) && {
                    left.set(LEASE - 1);
                    true
                }
            }
            some => {
                left.set(some - 1);
                true
            }
        })
    })
}

// Floors for keyed limits: a hash, one slot, one compare-exchange. No eviction, no growth, no removal.

pub(crate) fn requests(run: &mut Keyed<'_>) -> Result<()> {
    run.shared(|key| black_box(key).as_bytes()[0] != 0)
}

/// Looks a fingerprint up in a general hash map, the obvious choice without a purpose-built table.
pub(crate) fn hash(run: &mut Keyed<'_>) -> Result<()> {
    let hasher = RandomState::default();
    let mut map: HashMap<u64, u64, RandomState> = HashMap::with_hasher(hasher.clone());
    for key in run.keys() {
        map.insert(fingerprint(&hasher, key), 1);
    }
    run.filled = true;
    run.shared(|key| map.contains_key(&fingerprint(&hasher, key)))
}

pub(crate) fn no_clock(run: &mut Keyed<'_>) -> Result<()> {
    let table = Table::new(run);
    run.shared(|key| table.take(table.fingerprint(key), black_box(1)))?;
    run.batches(|keys| table.take_each(keys, black_box(1)))
}

pub(crate) fn clock(run: &mut Keyed<'_>) -> Result<()> {
    let (table, clock) = (Table::new(run), Clock::new());
    run.shared(|key| table.take(table.fingerprint(key), clock.raw()))?;
    run.batches(|keys| table.take_each(keys, clock.raw()))
}

fn fingerprint(hasher: &RandomState, key: &Key) -> u64 {
    hasher.hash_one(key.as_bytes()).max(1)
}

/// A table of fingerprints, each with the time at which its limit is full, with linear probing.
struct Table {
    slots: Box<[Slot]>,
    hasher: RandomState,
    unit: u64,
    depth: u64,
}

#[derive(Default)]
#[repr(align(16))]
struct Slot {
    /// The fingerprint; zero while the slot is free.
    fingerprint: AtomicU64,
    full_at: AtomicU64,
}

impl Table {
    fn new(run: &Keyed<'_>) -> Self {
        let (period, burst) = run.limit();
        let unit = period.as_nanos() as u64;
        // At most two thirds full, so that probe sequences stay short.
        let size = (run.capacity() * 3 / 2).next_power_of_two();
        let slots = (0..size).map(|_| Slot::default()).collect();
        Self { slots, hasher: RandomState::default(), unit, depth: unit * u64::from(burst) }
    }

    fn fingerprint(&self, key: &Key) -> u64 {
        fingerprint(&self.hasher, key)
    }

    /// Finds the slot of a fingerprint, or takes a free one. Relaxed, because a slot's two words need no order: the
    /// time in a free slot is that of a full limit.
    fn slot(&self, fingerprint: u64) -> &Slot {
        let mask = self.slots.len() - 1;
        let mut at = fingerprint as usize & mask;
        loop {
            let slot = &self.slots[at];
            let seen = slot.fingerprint.load(Ordering::Relaxed);
            if seen == fingerprint {
                return slot;
            }
            if seen == 0 {
                let taken =
                    slot.fingerprint.compare_exchange(0, fingerprint, Ordering::Relaxed, Ordering::Relaxed);
                if taken.is_ok() || taken == Err(fingerprint) {
                    return slot;
                }
            }
            at = (at + 1) & mask;
        }
    }

    fn take(&self, fingerprint: u64, now: u64) -> bool {
        let slot = self.slot(fingerprint);
        let mut full_at = slot.full_at.load(Ordering::Relaxed);
        loop {
            let next = full_at.max(now) + self.unit;
            if next - now > self.depth {
                return false;
            }
            match slot.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => full_at = seen,
            }
        }
    }

    /// Reads all slots before it changes the first, so that their cache misses overlap: an exchange would delay the
    /// loads after it.
    ///
    /// Returns how many are permitted.
    fn take_each(&self, keys: &[&Key; BATCH], now: u64) -> usize {
        let fingerprints = keys.map(|key| self.fingerprint(key));
        for fingerprint in fingerprints {
            black_box(
                self.slots[fingerprint as usize & (self.slots.len() - 1)].full_at.load(Ordering::Relaxed),
            );
        }
        fingerprints.iter().filter(|&&fingerprint| self.take(fingerprint, now)).count()
    }
}

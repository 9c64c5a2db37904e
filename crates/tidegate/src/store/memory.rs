//! Bounded keyed state in memory: a table of cache lines that survives callers who never repeat a key.
//!
//! A key has a slot in one of two cache lines ([`line`]): a name and one word of state. Larger states lie in the [`overflow`]. Memory is
//! allocated once and does not grow with the number of keys. A state whose limit is full again is as good as no state, so its slot
//! counts as free: nothing is ever swept, and a table that is large enough loses nothing that matters. When all slots of a key's lines
//! are live, the key nearest to full is evicted and counted. What counts is the share of the limit that is spent, not the time until
//! it is full: a daily limit that was used once takes longer to be full again than a limit per second that is almost used up. A key
//! that is over its limit is evicted last, or an attacker could wash its own debt away with made-up keys.
//!
//! All policies of a gate share the table, and each has an even share of every eight slots, which the others cannot take from it
//! ([`eviction`]). Made-up keys of one policy therefore evict keys of that policy, even where its limit is one unit, so that each is over
//! its limit at once. The count of evictions says whether the table is large enough.
//!
//! # Fingerprints
//! Unless keys are kept in full ([`full_keys`]), they are held as 64-bit fingerprints under a seed of the process, so no caller's
//! address lies in memory. 48 bits stand in the slot, the others choose the lines, so two given keys are taken for one with odds of
//! about 2⁻⁴⁸ · 4 / lines. Of `n` live keys in a table made for `n`, which has `11n/30` lines, any two meet with odds of about
//! `n · 5.5 · 2⁻⁴⁸`: 2·10⁻⁸ for a million.
//!
//! Nobody outside can aim at a line, kept in full or not: keys that crowd another table, and patterns of keys, were tried and spread as
//! chance would have them (`table/flooding.rs`). The hash, foldhash, is keyed and fast and not cryptographic, which suffices
//! against callers who see a yes or a no. Whoever can time single checks to the nanosecond, on the same machine, might come to
//! know the seed. They could then have a victim's key evicted (last, where it is over its limit), and share a victim's limit where keys
//! are not kept in full.
//!
//! # Time
//! Words do not tell when they were last changed, so a store's ticks must not step back: an earlier tick than the latest one counts as that
//! one. Where ticks stay more than five minutes behind, after a clock has jumped forward and back, time goes on at half their speed
//! until they are ten seconds behind at most: limits refill at half their rate meanwhile, a wait or retry that was told takes
//! up to twice as long, and nothing is granted twice (`clock/held.rs`).
//!
//! # Quotas
//! A word is read by a limit that its slot names by number ([`classes`]). 32,767 limits, each once for each owner, can be in use at once;
//! numbers that no live key needs are given again ([`reclaim`]). The state of a charge whose quota is passing ([`Charge::passing`]) lies
//! in the overflow, without a number.

mod batch;
mod capacity;
mod cell_path;
mod changes;
mod classes;
mod eviction;
mod export;
mod full_keys;
mod in_place;
mod limit;
mod line;
mod lines;
mod marks;
mod name;
mod overflow;
mod piece;
mod prefault;
mod reading;
mod reclaim;
mod seed;
mod sweep;
mod table;
mod tracked;
mod word_path;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::{Quota, Retry, Tick};

use super::step::{Charge, DecidedBy, Op, Settled, Step, StepClock};
use super::{Answer, Caps, Home, Later, Occupancy, Settling, Store, StoreError};
use crate::clock::HeldTime;
pub use capacity::CapacityError;
use capacity::{MAX_KEYS, in_range};
pub use export::Export;
pub(crate) use in_place::Absent;
pub(crate) use limit::{First, KeptClass, Limit};
use name::Class;
pub use piece::RestoreError;
pub(crate) use reading::{Reading, Taken};
pub use seed::Seed;
pub(crate) use table::Print;
use table::{Keep, Sought, Table};
pub use tracked::{Recorder, TrackedStore};

/// Keeps the state of a bounded number of keys.
///
/// Memory is set aside when the store is made and never grows: 24 bytes per key of the capacity, 48 where keys are kept in full. Where
/// that is more than a megabyte, a thread touches all of it and ends, after some 13 ms for a million keys: so no check waits for the
/// system to hand out memory, and a machine that has too little shows it at the start. States that do not fit a word (all but GCRA's:
/// logs, windows of many buckets) add their own size as they come.
///
/// A check of one known key is one locked instruction on its cache line. A step over several keys seizes all their slots: it first tries
/// each once, and if one cannot be had, it seizes them in ascending order, so steps never wait for each other in a circle. A clone
/// shares the table.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    table: Table,
    time: HeldTime,
    home: Home,
}

impl AsRef<Table> for Shared {
    fn as_ref(&self) -> &Table {
        &self.table
    }
}

impl MemoryStore {
    /// The most keys that a store has room for: 2³², in about 100 GB.
    pub const MAX_KEYS: u64 = MAX_KEYS;

    /// Makes an empty store with room for `keys` live keys, 1 to [`MemoryStore::MAX_KEYS`].
    ///
    /// Up to that many live keys, one is lost to crowding with odds of about 0.6 %; beyond, the nearest to full go first.
    ///
    /// # Errors
    /// [`CapacityError`] for a number out of range, or where the system hands out no memory for so many.
    pub fn with_capacity(keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, Keep::Fingerprints))
    }

    /// Makes an empty store that tells keys apart by the keys and not by their fingerprints. Among a million keys, two have the same
    /// fingerprint with odds of one in fifty million; this is for limits where that is too much.
    ///
    /// Takes 48 bytes per key of the capacity. A check has a second miss of the cache, and takes about twice as long among a million
    /// keys. Keys of up to 15 bytes are kept as they are; of longer ones, 120 bits beside the fingerprint, so that memory does not grow
    /// with what callers send: among `n` of them two are taken for one with odds of about `n² · 2⁻¹⁶⁹`.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::store::{MemoryStore, Store};
    ///
    /// let store = MemoryStore::with_full_keys(1_000_000)?;
    /// assert!(store.occupancy().capacity >= 1_000_000);
    /// # Ok::<(), tidegate::store::CapacityError>(())
    /// ```
    pub fn with_full_keys(keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, Keep::Keys))
    }

    /// Makes an empty store whose keys are hashed under a seed that is handed in, so that it may be exported and restored in another
    /// process ([`MemoryStore::export`]). Takes 27 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, Keep::Fingerprints, seed))
    }

    /// Makes an empty store that tells keys apart by themselves, as [`MemoryStore::with_full_keys`], and may be exported, as
    /// [`MemoryStore::with_seed`]. Takes 51 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, Keep::Keys, seed))
    }

    /// Makes a store of a table that a caller asks for.
    fn made(keys: usize, table: impl FnOnce(usize) -> Option<Table>) -> Result<Self, CapacityError> {
        let table = table(in_range(keys)?).ok_or(CapacityError::NoMemory { keys })?;
        Ok(Self::of(table))
    }

    fn of(table: Table) -> Self {
        let shared = Arc::new(Shared { table, time: HeldTime::default(), home: Home::of_process() });
        prefault::soon(&shared);
        Self { shared }
    }

    /// Returns an empty store of the same kind, for so many keys.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub(crate) fn again(&self, keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, self.shared.table.keep()))
    }

    /// Returns the fingerprint of a key.
    #[inline(always)]
    pub(crate) fn print(&self, key: &[u8]) -> Print {
        self.shared.table.print(key)
    }

    /// Reads from the line of a key, so that it is fetched from memory while others are looked at. The result only keeps the compiler from
    /// leaving the reading out.
    #[inline]
    pub(crate) fn touch(&self, print: Print) -> u64 {
        self.shared.table.touch(print)
    }

    /// Returns the class of a quota without an owner; `None` where its states do not fit a word.
    pub(crate) fn class(&self, quota: &Arc<Quota>, tick: Tick) -> Option<KeptClass> {
        self.shared.table.reclaim(tick);
        Some(self.shared.table.classes.of(quota, 0, tick)?.kept())
    }

    /// Returns the limit of a class that was kept between checks; `None` where its number has been given to another limit since, or is
    /// about to be.
    #[inline]
    pub(crate) fn limit(&self, class: KeptClass) -> Option<Limit<'_>> {
        self.shared.table.classes.kept(class)
    }

    /// Returns the limit of a class, if it is one of the first few, which are found without a list.
    #[inline(always)]
    pub(crate) fn limit_at_hand(&self, class: Class) -> Option<&First> {
        self.shared.table.classes.at_hand(class)
    }

    /// Spends units of a key by its word, if that is in its first line and not seized, and returns the new word. `None` where that did not
    /// succeed, whatever the reason. Makes no call.
    #[inline(always)]
    pub(crate) fn permit(&self, print: Print, first: &First, now: u64, units: u64) -> Option<u64> {
        self.shared.table.permit(print, first, now, units)
    }

    /// As [`MemoryStore::permit`], by any limit.
    #[inline(always)]
    pub(crate) fn permit_by(&self, print: Print, by: &Reading<'_>, units: u64) -> Option<u64> {
        self.shared.table.permit_by(print, by, units)
    }

    /// As [`MemoryStore::permit`], in both lines; for a key that would be refused, it returns the word that was seen.
    #[inline]
    pub(crate) fn permit_or_see(&self, print: Print, by: &Reading<'_>, units: u64) -> Taken {
        self.shared.table.permit_or_see(print, by, units)
    }

    /// Spends units of a key by its word; waits for a slot that is seized. Ticks must come from a clock that does not step back.
    pub(crate) fn take(&self, print: Print, key: &[u8], by: &Reading<'_>, units: u64) -> Taken {
        self.shared.table.take(print, key, by, units)
    }
}

impl Store for MemoryStore {
    #[inline]
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        Settling::Done(match step.receipts {
            true => self.settle_step::<true, false>(step, out),
            false => self.settle_step::<false, false>(step, out),
        })
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        self.settle_batch::<false>(steps, out);
        None
    }

    fn fetch(&self, keys: &[&[u8]]) {
        self.touch_each(keys);
    }

    fn occupancy(&self) -> Occupancy {
        let table = &self.shared.table;
        Occupancy {
            capacity: table.slots(),
            // Relaxed, all three: counts for people, ordered with nothing.
            used: table.used.load(Ordering::Relaxed),
            evicted: table.evicted.load(Ordering::Relaxed),
            evicted_over_limit: table.evicted_over_limit.load(Ordering::Relaxed),
        }
    }

    fn caps(&self) -> Caps {
        Caps { always_decides: true, ..Caps::default() }
    }

    fn home(&self) -> Home {
        self.shared.home
    }
}

impl MemoryStore {
    /// Settles one step, on the spot.
    ///
    /// # Errors
    /// [`StoreError::RepeatedKey`].
    pub fn settle(&self, step: &Step<'_>) -> Answer {
        let mut settled = Settled::default();
        self.settle_step::<true, false>(step, &mut settled).map(|()| settled)
    }

    /// Settles a step; without receipts, where nobody wants them, only as far as that saves work. `TRACK` notes which slots change.
    #[inline(always)]
    fn settle_step<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let print = |_: usize, charge: &Charge<'_>| self.shared.table.print(charge.key);
        self.settle_prints::<RECEIPTS, TRACK>(step, print, settled)
    }

    /// Settles a step whose keys have these fingerprints, by their places.
    #[inline(always)]
    fn settle_prints<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        print: impl Fn(usize, &Charge<'_>) -> Print,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        (settled.at, settled.by) = (time.hold(step.now), DecidedBy::Local);
        if table.settle_at_once::<RECEIPTS, TRACK>(step, settled.at, &print, settled).is_some() {
            return Ok(());
        }
        let mut step = Step { now: settled.at, ..*step };
        // Perhaps a refusal: decided by a fresh clock, if the step has one.
        if let StepClock::Fresh(clock) = step.clock {
            step.now = time.hold(clock.now());
        }
        let sought = |(at, charge): (usize, &Charge<'_>)| table.sought(print(at, charge), charge.key);
        let keys: SmallVec<[Sought; 16]> = step.charges.iter().enumerate().map(sought).collect();
        // Two keys of one step that the table takes for one would be settled on one slot twice. Different keys are taken for one with odds
        // of 2^-48, and the step is refused then too.
        let repeated = |(at, key): (usize, &Sought)| keys[..at].iter().any(|other| other.is_as(*key));
        if keys.iter().enumerate().any(repeated) {
            return Err(StoreError::RepeatedKey);
        }
        loop {
            table.settle_any(&step, &keys, settled);
            settled.at = step.now;
            // What was settled by cells is noted already, a refusal that had to be kept included.
            if TRACK && settled.allowed && matches!(step.op, Op::Take) {
                keys.iter().for_each(|key| table.mark_key(*key));
            }
            // Another step may have come with a later tick between here and the lock, and have charged by that tick. So a refusal stands
            // only if it holds at the later tick too. The loop ends: each turn takes the wait that the last one told.
            let later = time.latest();
            if settled.allowed || later == step.now || !waited(&step, settled, later) {
                return Ok(());
            }
            step.now = later;
        }
    }
}

/// Says whether every binding refusal of a step is over by a later tick.
fn waited(step: &Step<'_>, settled: &Settled, later: Tick) -> bool {
    let passed = later.since(step.now);
    let over = |retry: Retry| retry <= Retry::After(passed);
    let mut lines = step.charges.iter().zip(&settled.lines);
    let binds = |charge: &Charge<'_>| charge.binding || matches!(step.op, Op::Finish(_));
    lines.all(|(charge, line)| !binds(charge) || over(line.decision.retry()))
}

impl Table {
    /// Settles a step: on words where that is possible, else on cells, of one known key where its cell lies.
    fn settle_any(&self, step: &Step<'_>, keys: &[Sought], settled: &mut Settled) {
        self.reclaim(step.now);
        if let ([charge], [key]) = (step.charges, keys)
            && (self.settle_in_place(step, charge, *key, settled)
                || self.settle_word(step, charge, *key, settled))
        {
            return;
        }
        if self.settle_words(step, keys, settled).is_none() {
            *settled = self.settle_cells(step, keys);
        }
    }
}

#[cfg(test)]
mod tests;

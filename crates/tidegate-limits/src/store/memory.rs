//! Keeps the states of a bounded number of keys in memory: a table of cache lines that withstands callers who never
//! repeat a key.
//!
//! A key has a slot in one of two cache lines ([`mod@line`]): a name and one word of state. Larger states lie in the
//! [`overflow`]. Memory is allocated once and does not grow with the number of keys. A state whose limit is full again
//! is equivalent to no state, so its slot counts as free: no sweep is needed, and a table that is large enough loses
//! nothing that matters. When all slots of a key's two lines are live, the key nearest to full is evicted and counted.
//! "Nearest" is measured by the share of the limit that is spent, not by the time until it is full: a daily limit that
//! was used once takes longer to be full again than a limit per second that is almost used up. A key that is over its
//! limit is evicted last; otherwise an attacker could wash away its own debt with invented keys.
//!
//! All policies of a gate share the table, and each has an even share of every eight slots, which the others cannot
//! take from it ([`eviction`]). So invented keys of one policy evict keys of that policy, even where its limit is one
//! unit, so that each key is over its limit at once. The count of evictions shows whether the table is large enough.
//!
//! # Fingerprints
//! Unless keys are kept in full ([`full_keys`]), they are kept as 64-bit fingerprints under a seed of the process, so
//! no caller's address lies in memory. The slot holds 48 of the bits, and the others choose the lines, so two given
//! keys are taken for the same key with odds of about 2⁻⁴⁸ · 4 / lines. Among `n` live keys in a table made for `n`,
//! which has `11n/30` lines, the odds that any two collide are about `n · 5.5 · 2⁻⁴⁸`: 2·10⁻⁸ for a million.
//!
//! An outsider cannot choose keys that meet in one line, whether keys are kept in full or not: tests with keys that
//! collide under another seed, and with patterns of keys, found them spread as random keys are (`table/flooding.rs`).
//! The hash, foldhash, is keyed and fast but not cryptographic, which suffices against callers who only see whether
//! they are allowed. An attacker who can time single checks to the nanosecond, on the same machine, might learn the
//! seed. That attacker could then have a victim's key evicted (last, where it is over its limit), and could share a
//! victim's limit where keys are not kept in full.
//!
//! # Time
//! Words do not record when they were last changed, so a store's ticks must not step back: an earlier tick than the
//! latest one counts as that one. If ticks stay more than five minutes behind, after a clock has jumped forward and
//! back, time goes on at half their speed until they are at most ten seconds behind: meanwhile limits refill at half
//! their rate, a wait or retry that was reported takes up to twice as long, and nothing is granted twice
//! (`clock/monotonic.rs`).
//!
//! # Quotas
//! A slot names the limit of its word by number ([`classes`]). 32,767 limits, counted once for each owner, can be in
//! use at once; numbers that no live key needs are reused ([`reclaim`]). The state of a charge whose quota holds for
//! one step only ([`Charge::inline_quota`]) lies in the overflow, without a number.

mod batch;
mod cache_line;
mod cache_lines;
mod capacity;
mod cell_path;
mod changed_slots;
mod changes;
mod classes;
mod eviction;
mod export;
mod export_form;
mod full_keys;
mod in_place;
mod limit;
mod name;
mod overflow;
mod prefault;
mod reading;
mod reclaim;
mod seed;
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
pub use export_form::RestoreError;
pub(crate) use in_place::Absent;
pub(crate) use limit::{CachedClass, Limit, PermanentLimit};
use name::Class;
pub(crate) use reading::{Reading, WordOutcome};
pub use seed::Seed;
pub(crate) use table::Fingerprint;
use table::{Keep, Sought, Table};
pub use tracked::{Recorder, TrackedStore};

/// Keeps the state of a bounded number of keys.
///
/// Memory is allocated when the store is made and does not grow: 24 bytes per key of the capacity, 48 where keys are
/// kept in full. If that is more than a megabyte, a background thread touches all of it once, for about 13 ms for a
/// million keys: so no check waits for the system to provide memory, and a machine that has too little shows it at the
/// start. States that do not fit a word (all but GCRA's: logs, windows of many buckets) allocate their own size as they
/// come.
///
/// A check of one known key is one locked instruction on its cache line. A step over several keys seizes all their
/// slots: it first tries each slot once; if one is taken, it seizes all in ascending order, so steps never deadlock. A
/// clone shares the table.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<MemoryShared>,
}

#[derive(Debug)]
struct MemoryShared {
    table: Table,
    time: HeldTime,
    home: Home,
}

impl AsRef<Table> for MemoryShared {
    fn as_ref(&self) -> &Table {
        &self.table
    }
}

impl MemoryStore {
    /// The most keys that a store has room for: 2³², in about 100 GB.
    pub const MAX_KEYS: u64 = MAX_KEYS;

    /// Makes an empty store with room for `keys` live keys, 1 to [`MemoryStore::MAX_KEYS`].
    ///
    /// With up to that many live keys, a new key finds all its slots taken with odds of about 0.6 %, and a key is then
    /// evicted. With more keys, those nearest to full are evicted first.
    ///
    /// # Errors
    /// [`CapacityError`] if the number is out of range, or the system has not enough memory for so many keys.
    pub fn with_capacity(keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, Keep::Fingerprints))
    }

    /// Makes an empty store that compares whole keys and not only their fingerprints. Among a million keys, two have
    /// the same fingerprint with odds of one in fifty million; this is for limits where that is too much.
    ///
    /// Takes 48 bytes per key of the capacity. A check has a second cache miss, and takes about twice as long among a
    /// million keys. Keys of up to 15 bytes are kept as they are; of longer keys, 120 bits are kept besides the
    /// fingerprint, so that memory does not grow with the keys that callers send: among `n` of them, two are taken for
    /// the same key with odds of about `n² · 2⁻¹⁶⁹`.
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

    /// Makes an empty store whose keys are hashed under the given seed, so that it can be exported and restored in
    /// another process ([`MemoryStore::export`]). Takes 27 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, Keep::Fingerprints, seed))
    }

    /// Makes an empty store that compares whole keys, as [`MemoryStore::with_full_keys`], and can be exported, as
    /// [`MemoryStore::with_seed`]. Takes 51 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, Keep::Keys, seed))
    }

    /// Checks the number of keys, makes the table, and wraps it in a store.
    fn made(keys: usize, table: impl FnOnce(usize) -> Option<Table>) -> Result<Self, CapacityError> {
        let table = table(in_range(keys)?).ok_or(CapacityError::NoMemory { keys })?;
        Ok(Self::of(table))
    }

    fn of(table: Table) -> Self {
        let shared = Arc::new(MemoryShared { table, time: HeldTime::default(), home: Home::of_process() });
        prefault::start(&shared);
        Self { shared }
    }

    /// Returns an empty store of the same kind, with room for `keys` keys.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub(crate) fn new_like(&self, keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, self.shared.table.keep()))
    }

    /// Returns the fingerprint of a key.
    #[inline(always)]
    pub(crate) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        self.shared.table.fingerprint(key)
    }

    /// Reads from the line of a key, to prefetch it while others are looked at. The result only keeps the compiler from
    /// removing the read.
    #[inline]
    pub(crate) fn touch(&self, fingerprint: Fingerprint) -> u64 {
        self.shared.table.touch(fingerprint)
    }

    /// Returns the class of a quota for owner 0; `None` where its states do not fit a word.
    pub(crate) fn class(&self, quota: &Arc<Quota>, tick: Tick) -> Option<CachedClass> {
        self.shared.table.reclaim(tick);
        Some(self.shared.table.classes.of(quota, 0, tick)?.kept())
    }

    /// Returns the limit of a class that was kept between checks; `None` where its number has since been given to
    /// another limit, or is about to be.
    #[inline]
    pub(crate) fn limit(&self, class: CachedClass) -> Option<Limit<'_>> {
        self.shared.table.classes.kept(class)
    }

    /// Returns the limit of a class, if it is one of the first few, which are found without searching a list.
    #[inline(always)]
    pub(crate) fn cached_limit(&self, class: Class) -> Option<&PermanentLimit> {
        self.shared.table.classes.at_hand(class)
    }

    /// Spends units of a key whose word is in its first line and not seized, and returns the new word. `None` where
    /// that did not succeed, for whatever reason. Makes no function call.
    #[inline(always)]
    pub(crate) fn permit(
        &self,
        fingerprint: Fingerprint,
        first: &PermanentLimit,
        now: u64,
        units: u64,
    ) -> Option<u64> {
        self.shared.table.permit(fingerprint, first, now, units)
    }

    /// As [`MemoryStore::permit`], for any limit.
    #[inline(always)]
    pub(crate) fn permit_by(&self, fingerprint: Fingerprint, by: &Reading<'_>, units: u64) -> Option<u64> {
        self.shared.table.permit_by(fingerprint, by, units)
    }

    /// As [`MemoryStore::permit`], in both lines. For a key that would be refused, it returns the word that was seen.
    #[inline]
    pub(crate) fn permit_or_read(
        &self,
        fingerprint: Fingerprint,
        by: &Reading<'_>,
        units: u64,
    ) -> WordOutcome {
        self.shared.table.permit_or_read(fingerprint, by, units)
    }

    /// Spends units of a key in its word; waits for a slot that is seized. Ticks must come from a clock that does not
    /// step back.
    pub(crate) fn take(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
    ) -> WordOutcome {
        self.shared.table.take(fingerprint, key, by, units)
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
            // Relaxed, all three: statistics, with no ordering to other data.
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
    /// [`StoreError::RepeatedKey`] if two charges of the step name the same key.
    pub fn settle(&self, step: &Step<'_>) -> Answer {
        let mut settled = Settled::default();
        self.settle_step::<true, false>(step, &mut settled).map(|()| settled)
    }

    /// Settles a step. Without `RECEIPTS`, receipts are left out only where that saves work. `TRACK` notes which slots
    /// change.
    #[inline(always)]
    fn settle_step<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let fingerprint = |_: usize, charge: &Charge<'_>| self.shared.table.fingerprint(charge.key);
        self.settle_fingerprints::<RECEIPTS, TRACK>(step, fingerprint, settled)
    }

    /// Settles a step; `fingerprint` returns the fingerprint of the key of a charge, given its index.
    #[inline(always)]
    fn settle_fingerprints<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        fingerprint: impl Fn(usize, &Charge<'_>) -> Fingerprint,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        (settled.at, settled.by) = (time.hold(step.now), DecidedBy::Local);
        if table.settle_at_once::<RECEIPTS, TRACK>(step, settled.at, &fingerprint, settled).is_some() {
            return Ok(());
        }
        let mut step = Step { now: settled.at, ..*step };
        // The step may be refused: it is decided by a fresh clock, if it has one.
        if let StepClock::Fresh(clock) = step.clock {
            step.now = time.hold(clock.now());
        }
        let sought = |(at, charge): (usize, &Charge<'_>)| table.sought(fingerprint(at, charge), charge.key);
        let keys: SmallVec<[Sought; 16]> = step.charges.iter().enumerate().map(sought).collect();
        // Two keys of one step that the table cannot tell apart would be settled on one slot twice. Different keys
        // collide with odds of 2^-48, and the step is refused then too.
        let repeated = |(at, key): (usize, &Sought)| keys[..at].iter().any(|other| other.is_as(*key));
        if keys.iter().enumerate().any(repeated) {
            return Err(StoreError::RepeatedKey);
        }
        loop {
            table.settle_any(&step, &keys, settled);
            settled.at = step.now;
            // Steps that were settled on cells are noted already, including a refusal that had to be kept.
            if TRACK && settled.allowed && matches!(step.op, Op::Take) {
                keys.iter().for_each(|key| table.mark_key(*key));
            }
            // Another step may have come with a later tick between here and the lock, and have charged at that tick. So
            // a refusal stands only if it also holds at the later tick. The loop ends: each turn requires that the wait
            // of the last refusal is over.
            let later = time.latest();
            if settled.allowed || later == step.now || !waited(&step, settled, later) {
                return Ok(());
            }
            step.now = later;
        }
    }
}

/// Returns whether every binding refusal of a step is over by a later tick.
fn waited(step: &Step<'_>, settled: &Settled, later: Tick) -> bool {
    let passed = later.since(step.now);
    let over = |retry: Retry| retry <= Retry::After(passed);
    let mut lines = step.charges.iter().zip(&settled.lines);
    lines.all(|(charge, line)| !charge.binding || over(line.decision.retry()))
}

impl Table {
    /// Settles a step: on words where possible, otherwise on cells; a step of one known key is settled where its cell
    /// lies.
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

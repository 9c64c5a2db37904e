//! Keeps the states of a bounded number of keys in memory: a table of cache lines that withstands callers who never
//! repeat a key.
//!
//! A key has a slot in one of two cache lines ([`cache_line`]): a name and one word of state. Larger states lie in the
//! overflow. Memory is allocated once and does not grow with the number of keys. A state whose limit is full again is
//! equivalent to no state, so its slot counts as free: no sweep is needed, and a table that is large enough loses
//! nothing that matters. When all slots of a key's two lines are live, the key nearest to full is evicted and counted.
//! "Nearest" is measured by the share of the limit that is spent, not by the time until it is full: a daily limit that
//! was used once takes longer to be full again than a limit per second that is almost used up. A key that is over its
//! limit is evicted last; otherwise an attacker could wash away its own debt with invented keys.
//!
//! All policies of a gate share the table, and each has an even share of every eight slots, which the others cannot
//! take from it ([`eviction`]). The count of evictions shows whether the table is large enough.
//!
//! # Fingerprints
//! Unless keys are kept in full, they are kept as 64-bit fingerprints under a seed of the process, so no caller's
//! address lies in memory. The slot holds 48 of the bits, and the others choose the lines, so two given keys are taken
//! for the same key with odds of about 2⁻⁴⁸ · 4 / lines. Among `n` live keys in a table made for `n`, which has
//! `11n/30` lines, the odds that any two collide are about `n · 5.5 · 2⁻⁴⁸`: 2·10⁻⁸ for a million.
//!
//! An outsider cannot choose keys that meet in one line, whether keys are kept in full or not: tests with keys that
//! collide under another seed, and with patterns of keys, found them spread as random keys are (`table.rs`). The hash,
//! foldhash, is keyed and fast but not cryptographic, which suffices against callers who only see whether they are
//! allowed. An attacker who can time single checks to the nanosecond, on the same machine, might learn the seed. That
//! attacker could then have a victim's key evicted (last, where it is over its limit), and could share a victim's limit
//! where keys are not kept in full.
//!
//! # Time
//! Words do not record when they were last changed, so a store's ticks must not step back: an earlier tick than the
//! latest one counts as that one. A tick that only refuses, or only looks, is no such tick: it changes no word, and is not
//! kept. If ticks stay more than five minutes behind, time goes on at half their speed until they have nearly caught up
//! (`clock/monotonic.rs`): meanwhile a wait or retry that was reported takes up to twice as long, and nothing is granted
//! twice.
//!
//! # Quotas
//! A slot names the limit of its word by number ([`classes`]). 32,767 limits, counted once for each owner, can be in
//! use at once; numbers that no live key needs are reused. The state of a charge whose quota holds for one step only
//! ([`Charge::inline_quota`]) lies in the overflow, without a number.

mod cache_line;
mod cell_path;
mod changes;
mod classes;
mod eviction;
mod export;
mod limit;
mod seed;
mod table;
mod tracked;
mod word_path;
#[cfg(all(test, not(tidegate_loom)))]
mod write_tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use cell_path::Absent;
pub use export::{Export, RestoreError};
use limit::Class;
pub(crate) use limit::{CachedClass, Limit, PermanentLimit};
pub use seed::Seed;
use smallvec::SmallVec;
pub(crate) use table::Fingerprint;
use table::{KeyForm, Sought, Table};
use tidegate_core::{Quota, QuotaError, Retry, Tick};
pub use tracked::{Recorder, TrackedStore};
pub(crate) use word_path::{Reading, WordOutcome};

use super::step::{Charge, DecidedBy, Executed, Op, Step, StepClock};
use super::{Caps, Execution, Home, Later, Occupancy, StepAnswer, Store, StoreError};
use crate::clock::HeldTime;

/// Keeps the state of a bounded number of keys.
///
/// Memory is allocated when the store is made and does not grow: 24 bytes per key of the capacity, 48 where keys are
/// kept in full. Beyond a megabyte a background thread touches all of it once (13 ms for a million keys), so that no
/// check waits for the system to provide memory, and a machine that has too little shows it at the start. States that
/// do not fit a word (all but GCRA's: logs, windows of many buckets) allocate their own size as they come.
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
        Self::made(keys, |keys| Table::new(keys, KeyForm::Fingerprints))
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
        Self::made(keys, |keys| Table::new(keys, KeyForm::Keys))
    }

    /// Makes an empty store whose keys are hashed under the given seed, so that it can be exported and restored in
    /// another process ([`MemoryStore::export`]). Takes 27 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, KeyForm::Fingerprints, seed))
    }

    /// Makes an empty store that compares whole keys, as [`MemoryStore::with_full_keys`], and can be exported, as
    /// [`MemoryStore::with_seed`]. Takes 51 bytes per key of the capacity.
    ///
    /// # Errors
    /// As [`MemoryStore::with_capacity`].
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::seeded(keys, KeyForm::Keys, seed))
    }

    fn made(keys: usize, table: impl FnOnce(usize) -> Option<Table>) -> Result<Self, CapacityError> {
        let table = table(in_range(keys)?).ok_or(CapacityError::NoMemory { keys })?;
        Ok(Self::of(table))
    }

    fn of(table: Table) -> Self {
        let shared = Arc::new(MemoryShared { table, time: HeldTime::default(), home: Home::of_process() });
        cache_line::start_prefault(&shared);
        Self { shared }
    }

    pub(crate) fn new_like(&self, keys: usize) -> Result<Self, CapacityError> {
        Self::made(keys, |keys| Table::new(keys, self.shared.table.key_form()))
    }

    #[inline(always)]
    pub(crate) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        self.shared.table.fingerprint(key)
    }

    /// Prefetches the line of a key; the result only keeps the compiler from removing the read.
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

    /// The limit, if it is one of the first few, which are found without searching a list.
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

    #[inline(always)]
    pub(crate) fn permit_by(&self, fingerprint: Fingerprint, by: &Reading<'_>, units: u64) -> Option<u64> {
        self.shared.table.permit_by(fingerprint, by, units)
    }

    /// Returns the word of a key under this limit, which no thread has seized; `None` where there is none, or it cannot be
    /// read so. Writes nothing.
    #[inline]
    pub(crate) fn word(&self, fingerprint: Fingerprint, class: Class) -> Option<u64> {
        self.shared.table.word(fingerprint, class)
    }

    /// As [`MemoryStore::permit`], in both lines. Of a refused key, returns the word that was seen.
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
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        Execution::Done(match step.receipts {
            true => self.execute_step::<true, false>(step, &[], out),
            false => self.execute_step::<false, false>(step, &[], out),
        })
    }

    fn execute_each(&self, steps: &[Step<'_>], out: &mut Vec<StepAnswer>) -> Option<Later<Vec<StepAnswer>>> {
        self.execute_batch::<false>(steps, out);
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
    /// Executes one step, on the spot.
    ///
    /// # Errors
    /// [`StoreError::RepeatedKey`] if two charges of the step name the same key.
    pub fn execute(&self, step: &Step<'_>) -> StepAnswer {
        let mut executed = Executed::default();
        self.execute_step::<true, false>(step, &[], &mut executed).map(|()| executed)
    }

    /// Executes a step. Without `RECEIPTS`, receipts are left out only where that saves work. `TRACK` notes which slots
    /// change. `known` are the fingerprints of the step's keys, or none.
    #[inline(always)]
    fn execute_step<const RECEIPTS: bool, const TRACK: bool>(
        &self,
        step: &Step<'_>,
        known: &[Fingerprint],
        executed: &mut Executed,
    ) -> Result<(), StoreError> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        let fingerprint = |at: usize, charge: &Charge<'_>| {
            known.get(at).copied().unwrap_or_else(|| table.fingerprint(charge.key))
        };
        // A refusal does not move the time of the store: if it did, all threads that refuse would write to one line. A permit
        // moves it before it changes a word, so that no word holds a charge of a later tick than the latest one.
        let (asked, at) = (step.now, time.glimpse(step.now));
        (executed.at, executed.by, executed.breaker) = (at, DecidedBy::Local, None);
        executed.moved.clear();
        executed.cells.clear();
        if table.execute_at_once::<RECEIPTS, TRACK>(step, at, time, &fingerprint, executed).is_some() {
            return Ok(());
        }
        let mut step = Step { now: at, ..*step };
        // The step may be refused: it is decided by a fresh clock, if it has one.
        let glimpse = || match step.clock {
            StepClock::Fresh(clock) => time.glimpse(clock.now().max(asked)),
            _ => step.now,
        };
        if table.execute_unspent(&step, glimpse, fingerprint, executed).is_some() {
            let later = time.latest();
            if executed.allowed || later <= executed.at || !waited(&step, executed, later) {
                return Ok(());
            }
        }
        if let StepClock::Fresh(clock) = step.clock {
            step.now = time.glimpse(clock.now().max(asked));
        }
        let sought = |(at, charge): (usize, &Charge<'_>)| table.sought(fingerprint(at, charge), charge.key);
        let keys: SmallVec<[Sought; 16]> = step.charges.iter().enumerate().map(sought).collect();
        // Two keys of one step that the table cannot tell apart would be executed on one slot twice. Different keys
        // collide with odds of 2^-48, and the step is refused then too.
        let repeated = |(at, key): (usize, &Sought)| keys[..at].iter().any(|other| other.is_as(*key));
        if keys.iter().enumerate().any(repeated) {
            return Err(StoreError::RepeatedKey);
        }
        loop {
            table.execute_any(&step, &keys, time, executed);
            executed.at = step.now;
            // Steps that were executed on cells are noted already, including a refusal that had to be kept.
            if TRACK && executed.allowed && matches!(step.op, Op::Take) {
                keys.iter().for_each(|key| table.mark_key(*key));
            }
            // Another step may have come with a later tick between here and the lock, and have charged at that tick. So
            // a refusal stands only if it also holds at the later tick. The loop ends: each turn requires that the wait
            // of the last refusal is over.
            let later = time.latest();
            if executed.allowed && !matches!(step.op, Op::Peek) {
                // Even where that has changed nothing, as for a shadow that is refused by itself.
                time.reach(step.now);
            }
            if executed.allowed || later <= step.now || !waited(&step, executed, later) {
                return Ok(());
            }
            step.now = later;
        }
    }
}

fn waited(step: &Step<'_>, executed: &Executed, later: Tick) -> bool {
    let passed = later.since(executed.at);
    let over = |retry: Retry| retry <= Retry::After(passed);
    let mut lines = step.charges.iter().zip(&executed.lines);
    lines.all(|(charge, line)| !charge.binding || over(line.decision.retry()))
}

impl Table {
    /// Executes a step by its tick, which the store's time reaches only if something changes: before the slots that change
    /// are released, so that who sees the change also sees the tick.
    fn execute_any(&self, step: &Step<'_>, keys: &[Sought], time: &HeldTime, executed: &mut Executed) {
        // By the latest tick, since a slot that is emptied is full for the callers of every earlier tick, too.
        self.reclaim(time.latest());
        if let ([charge], [key]) = (step.charges, keys)
            && (self.execute_in_place(step, charge, *key, time, executed)
                || self.execute_word(step, charge, *key, time, executed))
        {
            return;
        }
        if self.execute_words(step, keys, time, executed).is_none() {
            *executed = self.execute_cells(step, keys, time);
        }
    }
}

const MAX_KEYS: u64 = 1 << 32;

/// Why a table for so many keys cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapacityError {
    /// Zero, or more than [`MemoryStore::MAX_KEYS`].
    #[error("a table cannot have room for {keys} keys; use 1 to {}", MAX_KEYS)]
    OutOfRange {
        /// The number of keys given.
        keys: usize,
    },
    /// The system has not enough memory.
    #[error("the system has no memory for a table of {keys} keys; use fewer")]
    NoMemory {
        /// The number of keys given.
        keys: usize,
    },
}

/// For limiters, which report all their parameters as a quota's.
impl From<CapacityError> for QuotaError {
    fn from(error: CapacityError) -> Self {
        let (keys, want) = match error {
            CapacityError::OutOfRange { keys } => (keys, "is not a number of keys; use 1 to 4294967296"),
            CapacityError::NoMemory { keys } => (keys, "takes more memory than the system has; use fewer"),
        };
        Self::Parameter { name: "capacity", value: keys.to_string(), want }
    }
}

fn in_range(keys: usize) -> Result<usize, CapacityError> {
    match keys {
        0 => Err(CapacityError::OutOfRange { keys }),
        // The cast is exact: no platform has a `usize` of more than 64 bits.
        _ if keys as u64 > MAX_KEYS => Err(CapacityError::OutOfRange { keys }),
        _ => Ok(keys),
    }
}

#[cfg(test)]
mod capacity_tests {
    use super::*;

    #[test]
    fn none_and_too_many_are_refused_with_what_would_work() {
        assert_eq!(in_range(1), Ok(1));
        for keys in [0, usize::MAX] {
            let error = in_range(keys).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a table cannot have room for {keys} keys; use 1 to 4294967296")
            );
            let error = QuotaError::from(error).to_string();
            assert_eq!(error, format!("capacity {keys} is not a number of keys; use 1 to 4294967296"));
        }
    }
}

#[cfg(test)]
mod tests {
    //! The store as its callers see it: which keys are kept, which are evicted, and that keys do not affect each other.

    use std::time::Duration;

    use super::*;
    use crate::store::{Ending, conformance};
    use tidegate_core::{Cost, Finish, Receipt};

    fn take(store: &MemoryStore, now: Tick, key: &[u8], quota: &Arc<Quota>) -> bool {
        let charges = [Charge::new(key, quota, Cost::ONE)];
        store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed
    }

    #[test]
    fn a_step_without_receipts_differs_by_its_receipts_only() {
        let quota = Arc::new(Quota::per_minute(3).gcra().unwrap());
        let charges = [b"a", b"b", b"c"].map(|key| Charge::new(key, &quota, Cost::ONE));
        for many in 1..=charges.len() {
            let (one, other) =
                (MemoryStore::with_capacity(64).unwrap(), MemoryStore::with_capacity(64).unwrap());
            for turn in 0..5 {
                let step = Step::new(Tick::from_secs(1 + turn), Op::Take, &charges[..many]);
                let (mut with, mut without) = (Executed::default(), Executed::default());
                let for_good = Step { receipts: false, ..step };
                assert!(matches!(one.execute_into(&step, &mut with), Execution::Done(Ok(()))));
                assert!(matches!(other.execute_into(&for_good, &mut without), Execution::Done(Ok(()))));
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
    fn a_step_of_more_keys_than_slots_is_executed() {
        let store = MemoryStore::with_capacity(1).unwrap();
        let quota = Arc::new(Quota::per_minute(20).gcra().unwrap());
        let window = Arc::new(Quota::per_minute(20).fixed_window().unwrap());
        let keys: Vec<[u8; 1]> = (0..16).map(|key| [key]).collect();
        for (turn, quota) in [&quota, &window, &quota].into_iter().enumerate() {
            let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, quota, Cost::ONE)).collect();
            let now = Tick::from_secs(1 + turn as u64);
            assert!(store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
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
        let keys: [&[u8]; 6] =
            [b"", b"a", b"a\0", b"fifteen letters", b"sixteen  letters", b"seventeen letters"];
        let quotas: Vec<Arc<Quota>> = [
            Quota::per_second(1).burst(3).gcra(),
            Quota::per_second(1).burst(5).gcra(),
            Quota::per_second(2).fixed_window(),
        ]
        .map(|quota| Arc::new(quota.unwrap()))
        .into();
        let (full, blurred) =
            (MemoryStore::with_full_keys(6).unwrap(), MemoryStore::with_capacity(6).unwrap());
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
            let executed = |store: &MemoryStore| {
                let table = &store.shared.table;
                let alike = |charge: &Charge<'_>| {
                    table.sought(Fingerprint::default(), charge.key).with_fingerprint(7 << 30)
                };
                let alike: Vec<Sought> = charges.iter().map(alike).collect();
                let mut executed = Executed::default();
                table.execute_any(&step, &alike, &store.shared.time, &mut executed);
                executed.at = step.now;
                executed
            };
            let expected = plain.blocking_execute(&step).unwrap();
            assert_eq!(executed(&full), expected, "turn {turn}: {step:?}");
            if matches!(op, Op::Take) {
                last[first] = expected.lines[0].receipt.map(|receipt| (charges[0].quota.clone(), receipt));
            }
            differ += u32::from(charges.len() == 1 && executed(&blurred) != expected);
        }
        assert_eq!(full.occupancy().evicted, 0);
        assert!(differ > 1000, "the keys do meet");
    }

    /// Steps of one key are executed in place, and steps of two keys under the locks of their lines; no charge of either is
    /// lost.
    #[test]
    fn states_beside_the_table_are_charged_once_by_steps_of_one_key_and_of_two() {
        const TURNS: u64 = 3_000;
        let store = MemoryStore::with_capacity(100).unwrap();
        let quota = Arc::new(Quota::per_hour(1_000_000).fixed_window().unwrap());
        let step = |keys: &[&[u8]]| {
            let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, &quota, Cost::ONE)).collect();
            assert!(store.execute(&Step::new(Tick::from_secs(1), Op::Take, &charges)).unwrap().allowed);
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
            let seen = store.execute(&Step::new(Tick::from_secs(1), Op::Peek, &charges)).unwrap();
            assert_eq!(seen.lines[0].decision.standing.remaining, 1_000_000 - 10 - 3 * TURNS);
        }
    }
}

//! Bounded keyed state in memory: a table of cache lines that survives callers who never repeat a key.
//!
//! A key lives in one of two cache lines ([`line`]), as a name and one word of state; whatever needs more lies beside the table
//! ([`overflow`]). Memory is allocated once and never grows with the keys. A state whose limit is full again is as good as no
//! state, so its slot *is* a free slot: nothing sweeps, nothing pauses, and a table that is large enough forgets nothing that
//! matters. When all slots of a key's lines are live, the one nearest to full is given up and counted: by the share of its
//! limit that is spent, since a day's limit that was touched once is longer from full than a second's that is all but used
//! up. A key that is over its limit goes last, or an attacker could wash its own debt away with made-up keys.
//!
//! All policies of a gate share the table, and each has an even share of every eight slots that it does not lose to others
//! ([`eviction`]): made-up keys of one policy, each over its limit at once where that is one unit, push out keys of that policy.
//! What the table counts as evicted says whether it is large enough.
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
//! know the seed; they could then make a victim's lines lose keys, those over their limit last, and share a victim's limit where
//! keys are not kept in full.
//!
//! # Time
//! Words do not tell when they were last changed, so a store's ticks must not step back: an earlier tick than the latest one
//! counts as that one.

mod batch;
mod cell_path;
mod classes;
mod eviction;
mod export;
mod full_keys;
mod limit;
mod line;
mod lines;
mod overflow;
mod piece;
mod prefault;
mod reclaim;
mod seed;
mod table;
mod word_path;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::{Quota, Retry, Tick};

use super::step::{Charge, DecidedBy, Op, Settled, Step, StepClock};
use super::{Answer, Home, Later, Occupancy, Settling, Store, StoreError};
use crate::clock::HeldTime;
pub use export::Export;
pub(crate) use limit::{KeptClass, Limit};
use line::Class;
pub use piece::RestoreError;
pub use seed::Seed;
use table::{Keep, Sought, Table};
pub(crate) use table::{Print, Reading, Taken};

/// Keeps the state of a bounded number of keys.
///
/// Memory is set aside when the store is made and never grows: 24 bytes per key of the capacity, 48 where keys are kept in full. Where
/// that is more than a megabyte, a thread has the system hand all of it out and ends, after some 13 ms for a million keys: so no
/// check waits for that, and a system that has too little shows it at the start. Larger states (all but GCRA's; logs, windows of
/// many buckets) add their own size, as they come.
///
/// A check of one known key is one locked instruction on its cache line. A step over several has the slots of all its keys in hand at
/// once: it tries them, and where one cannot be had seizes them in ascending order, so steps never wait for each other in a circle.
/// A clone shares the table.
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

impl MemoryStore {
    /// Makes an empty store with room for `keys` live keys: zero counts as one.
    ///
    /// Up to that many live keys, one is lost to crowding with odds of about 0.6 %; beyond, the nearest to full go first.
    #[must_use]
    pub fn with_capacity(keys: usize) -> Self {
        Self::of(Table::new(keys, Keep::Fingerprints))
    }

    /// Makes an empty store that tells keys apart by themselves and not by their fingerprints: for limits where odds of one in
    /// fifty million, that any two of a million keys share one, are too many. Zero keys count as one.
    ///
    /// Takes 48 bytes per key of the capacity; a check takes a second miss of the cache and about twice as long among a
    /// million keys. Keys of up to 15 bytes are kept as they are; of longer ones, 120 bits more than the fingerprint, so that memory does not grow with what callers send: `n` of
    /// them hold two that are taken for one with odds of about `n² · 2⁻¹⁶⁹`.
    ///
    /// # Examples
    /// ```
    /// use tidegate::store::{MemoryStore, Store};
    ///
    /// let store = MemoryStore::with_full_keys(1_000_000);
    /// assert!(store.occupancy().capacity >= 1_000_000);
    /// ```
    #[must_use]
    pub fn with_full_keys(keys: usize) -> Self {
        Self::of(Table::new(keys, Keep::Keys))
    }

    /// Makes an empty store whose keys are hashed under a seed that is handed in, so that it may be exported and restored in another process
    /// ([`MemoryStore::export`]). Takes 27 bytes per key of the capacity; zero counts as one.
    #[must_use]
    pub fn with_seed(keys: usize, seed: &Seed) -> Self {
        Self::of(Table::seeded(keys, Keep::Fingerprints, seed))
    }

    /// Makes an empty store that tells keys apart by themselves, as [`MemoryStore::with_full_keys`], and may be exported, as
    /// [`MemoryStore::with_seed`]. Takes 51 bytes per key of the capacity.
    #[must_use]
    pub fn with_full_keys_and_seed(keys: usize, seed: &Seed) -> Self {
        Self::of(Table::seeded(keys, Keep::Keys, seed))
    }

    fn of(table: Table) -> Self {
        let shared = Arc::new(Shared { table, time: HeldTime::default(), home: Home::of_process() });
        prefault::soon(&shared);
        Self { shared }
    }

    /// Returns an empty store of the same kind, for so many keys.
    pub(crate) fn again(&self, keys: usize) -> Self {
        Self::of(Table::new(keys, self.shared.table.keep()))
    }

    /// Returns the fingerprint of a key.
    #[inline(always)]
    pub(crate) fn print(&self, key: &[u8]) -> Print {
        self.shared.table.print(key)
    }

    /// Touches the memory of a key, so that it is on its way while others are looked at. The result only keeps it from being
    /// left out.
    #[inline]
    pub(crate) fn touch(&self, print: Print) -> u64 {
        self.shared.table.touch(print)
    }

    /// Returns the class of a quota without an owner; `None` where its states do not fit a word.
    pub(crate) fn class(&self, quota: &Arc<Quota>, tick: Tick) -> Option<KeptClass> {
        self.shared.table.reclaim(tick);
        Some(self.shared.table.classes.of(quota, 0, tick)?.kept())
    }

    /// Returns the limit of a class that was kept between checks; `None` where its number was given to another since, or is about to be.
    #[inline]
    pub(crate) fn limit(&self, class: KeptClass) -> Option<Limit<'_>> {
        self.shared.table.classes.kept(class)
    }

    /// Returns the limit of a class, if that is one of those found soonest.
    #[inline(always)]
    pub(crate) fn limit_at_hand(&self, class: Class) -> Option<Limit<'_>> {
        self.shared.table.classes.at_hand(class)
    }

    /// Spends units of a key now by its word, if that is in its preferred line and in nobody's hands, and returns the word that
    /// stands then. `None` says nothing. Calls nothing.
    #[inline(always)]
    pub(crate) fn permit(&self, print: Print, by: &Reading<'_>, units: u64) -> Option<u64> {
        self.shared.table.permit(print, by, units)
    }

    /// As [`MemoryStore::permit`], wherever the key is; of one that would be refused, it tells the word that was seen.
    #[inline]
    pub(crate) fn permit_or_see(&self, print: Print, by: &Reading<'_>, units: u64) -> Taken {
        self.shared.table.permit_or_see(print, by, units)
    }

    /// Spends units of a key by its word, for certain. Ticks must come from a clock that does not step back.
    pub(crate) fn take(&self, print: Print, key: &[u8], by: &Reading<'_>, units: u64) -> Taken {
        self.shared.table.take(print, key, by, units)
    }
}

impl Store for MemoryStore {
    #[inline]
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        Settling::Done(match step.receipts {
            true => self.settle_step::<true>(step, out),
            false => self.settle_step::<false>(step, out),
        })
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        self.settle_batch(steps, out);
        None
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
        self.settle_step::<true>(step, &mut settled).map(|()| settled)
    }

    /// Settles a step; without receipts, where nobody wants them, only as far as that saves work.
    #[inline(always)]
    fn settle_step<const RECEIPTS: bool>(
        &self,
        step: &Step<'_>,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let print = |_: usize, charge: &Charge<'_>| self.shared.table.print(charge.key);
        self.settle_prints::<RECEIPTS>(step, print, settled)
    }

    /// Settles a step whose keys have these fingerprints, by their places.
    #[inline(always)]
    fn settle_prints<const RECEIPTS: bool>(
        &self,
        step: &Step<'_>,
        print: impl Fn(usize, &Charge<'_>) -> Print,
        settled: &mut Settled,
    ) -> Result<(), StoreError> {
        let (table, time) = (&self.shared.table, &self.shared.time);
        (settled.at, settled.by) = (time.hold(step.now), DecidedBy::Local);
        let mut step = Step { now: settled.at, ..*step };
        if table.settle_at_once::<RECEIPTS>(&step, &print, settled).is_some() {
            return Ok(());
        }
        // Perhaps a refusal: decided by a fresh clock, if the step has one.
        if let StepClock::Fresh(clock) = step.clock {
            step.now = time.hold(clock.now());
        }
        let sought = |(at, charge): (usize, &Charge<'_>)| table.sought(print(at, charge), charge.key);
        let keys: SmallVec<[Sought; 16]> = step.charges.iter().enumerate().map(sought).collect();
        // Two keys of one step that the table takes for one would be settled on one slot twice. That they are not the same has odds
        // of 2^-48, and is refused all the same.
        let repeated = |(at, key): (usize, &Sought)| keys[..at].iter().any(|other| other.is_as(*key));
        if keys.iter().enumerate().any(repeated) {
            return Err(StoreError::RepeatedKey);
        }
        loop {
            table.settle_any(&step, &keys, settled);
            settled.at = step.now;
            // Another step may have come with a later tick between here and the lock, and have charged by that. Refused is
            // only who would be by it too; ends, for each turn takes the wait that the last one told.
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
    /// Settles a step, by the shortest way it can go.
    fn settle_any(&self, step: &Step<'_>, keys: &[Sought], settled: &mut Settled) {
        self.reclaim(step.now);
        if let ([charge], [key]) = (step.charges, keys)
            && self.settle_word(step, charge, *key, settled)
        {
            return;
        }
        if self.settle_words(step, keys, settled).is_none() {
            *settled = self.settle_cells(step, keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Ending;
    use tidegate_core::{Cost, Finish, Receipt};

    fn take(store: &MemoryStore, now: Tick, key: &[u8], quota: &Arc<Quota>) -> bool {
        let charges = [Charge::new(key, quota, Cost::ONE)];
        store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed
    }

    #[test]
    fn a_step_without_receipts_differs_by_its_receipts_only() {
        let quota = Arc::new(Quota::per_minute(3).gcra().unwrap());
        let charges = [b"a", b"b", b"c"].map(|key| Charge::new(key, &quota, Cost::ONE));
        for many in 1..=charges.len() {
            let (one, other) = (MemoryStore::with_capacity(64), MemoryStore::with_capacity(64));
            for turn in 0..5 {
                let step = Step::new(Tick::from_secs(1 + turn), Op::Take, &charges[..many]);
                let (mut with, mut without) = (Settled::default(), Settled::default());
                let for_good = Step { receipts: false, ..step };
                assert!(matches!(one.settle_into(&step, &mut with), Settling::Done(Ok(()))));
                assert!(matches!(other.settle_into(&for_good, &mut without), Settling::Done(Ok(()))));
                assert_eq!(with.allowed, turn < 3);
                assert!(with.lines.iter().all(|line| line.receipt.is_some() == with.allowed));
                with.lines.iter_mut().chain(&mut without.lines).for_each(|line| line.receipt = None);
                assert_eq!(with, without, "turn {turn} of {many}");
            }
        }
    }

    #[test]
    fn a_flood_of_new_keys_neither_grows_the_table_nor_frees_a_key_over_its_limit() {
        let store = MemoryStore::with_capacity(64);
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

    /// A key of a hundred a second had one unit again after ten milliseconds, so it was not over its limit, and it was full
    /// again before any key of a day's limit was. By time alone it went first: made-up keys of the other policy brought
    /// it a hundred more each time.
    #[test]
    fn a_debt_is_not_washed_away_by_made_up_keys_of_a_slower_limit() {
        let fast = Arc::new(Quota::per_second(100).gcra().unwrap());
        let mut made_up = 0u64;
        for slow in [Quota::per_day(5).gcra().unwrap(), Quota::per_day(5).fixed_window().unwrap()] {
            let store = MemoryStore::with_capacity(64);
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

    /// Sixteen keys in a table of eight slots: those that find none are counted as given up, and nothing breaks.
    #[test]
    fn a_step_of_more_keys_than_slots_is_settled() {
        let store = MemoryStore::with_capacity(1);
        let quota = Arc::new(Quota::per_minute(20).gcra().unwrap());
        let window = Arc::new(Quota::per_minute(20).fixed_window().unwrap());
        let keys: Vec<[u8; 1]> = (0..16).map(|key| [key]).collect();
        for (turn, quota) in [&quota, &window, &quota].into_iter().enumerate() {
            let charges: Vec<_> = keys.iter().map(|key| Charge::new(key, quota, Cost::ONE)).collect();
            let now = Tick::from_secs(1 + turn as u64);
            assert!(store.blocking_settle(&Step::new(now, Op::Take, &charges)).unwrap().allowed);
        }
        let occupancy = store.occupancy();
        assert_eq!((occupancy.used, occupancy.capacity), (8, 8));
        assert!(occupancy.evicted >= 8, "{occupancy:?}");
    }

    #[test]
    fn memory_is_24_bytes_a_key_and_one_key_in_160_is_lost_to_crowding() {
        const KEYS: usize = 100_000;
        let store = MemoryStore::with_capacity(KEYS);
        assert!(size_of::<line::Slot>() * store.occupancy().capacity <= 24 * KEYS + 64);
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
        let store = MemoryStore::with_capacity(64);
        let quota = Arc::new(Quota::per_second(1).gcra().unwrap());
        for second in 0..1000 {
            let now = Tick::from_nanos(0).after(Duration::from_secs(2 * second));
            assert!(take(&store, now, &second.to_le_bytes(), &quota));
        }
        assert_eq!(store.occupancy().evicted, 0, "each key was full again before the next came");
    }

    #[test]
    fn full_keys_take_24_bytes_more() {
        let store = MemoryStore::with_full_keys(100_000);
        let slots = store.occupancy().capacity;
        assert_eq!(store.shared.table.bytes(), 2 * 16 * slots);
        assert!(2 * 16 * slots <= 48 * 100_000 + 128);
        assert_eq!(MemoryStore::with_capacity(100_000).shared.table.bytes(), 16 * slots);
    }

    /// Six keys of one fingerprint, over all that a step can be, against a plain map: each has its own limit. A table of
    /// fingerprints takes them for one.
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
        let (full, blurred) = (MemoryStore::with_full_keys(6), MemoryStore::with_capacity(6));
        let plain = crate::store::PlainStore::default();
        let mut random = 1u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
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
            let settled = |store: &MemoryStore| {
                let table = &store.shared.table;
                let alike =
                    |charge: &Charge<'_>| table.sought(Print::default(), charge.key).with_print(7 << 30);
                let alike: Vec<Sought> = charges.iter().map(alike).collect();
                let mut settled = Settled::default();
                table.settle_any(&step, &alike, &mut settled);
                settled.at = step.now;
                settled
            };
            let expected = plain.blocking_settle(&step).unwrap();
            assert_eq!(settled(&full), expected, "turn {turn}: {step:?}");
            if matches!(op, Op::Take) {
                last[first] = expected.lines[0].receipt.map(|receipt| (charges[0].quota.clone(), receipt));
            }
            differ += u32::from(charges.len() == 1 && settled(&blurred) != expected);
        }
        assert_eq!(full.occupancy().evicted, 0);
        assert!(differ > 1000, "the keys do meet");
    }
}

//! The list of the limits whose states fit a word, by number.
//!
//! A slot has no room for its limit and its owner, only for a number of 15 bits; this list holds the limits, once for
//! each owner. Equal limits share a number. The first few numbers are assigned permanently; the others are reused when
//! no slot carries them any more, which a sweep finds out ([`Table::reclaim`], in this file). So 32,767 limits can be in
//! use at once; the states of further limits go into the overflow, which is slower and equally exact.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use tidegate_core::rate::{Gcra, GcraWord};
use tidegate_core::{Quota, Tick};

use super::limit::{CachedClass, Class, Limit, Name, PermanentLimit, StoredLimit};
use super::table::Table;
use crate::sync::unexplored::Mutex;

pub(super) const FEW: usize = 8;

/// A sweep begins when fewer numbers than this are left: a quarter of them, more than are used up while any table is
/// swept.
pub(super) const LOW: usize = Class::MAX as usize / 4;

#[derive(Debug, Default)]
pub(super) struct Classes {
    few: [OnceLock<PermanentLimit>; FEW],
    /// Both lists are read without a lock.
    pub(super) more: boxcar::Vec<StoredLimit>,
    /// Protects the assignment of numbers. While it is held, no lock is taken except those of quotas.
    pub(super) numbers: RwLock<Numbers>,
    /// The sweep under way. Locked before lines and numbers, and only by `try_lock`.
    pub(super) sweep: Mutex<Sweep>,
    /// Whether a number was assigned while few were left, and the part of a sweep that is due for it was not done yet.
    pub(super) owes_sweep: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) known: HashMap<(Gcra, u32), u16, RandomState>,
    pub(super) free: Vec<u16>,
}

impl Classes {
    /// Returns a limit; `None` for [`Class::WIDE`].
    #[inline(always)]
    pub(super) fn get(&self, class: Class) -> Option<Limit<'_>> {
        let at = usize::from(class.number()).checked_sub(1)?;
        match self.few.get(at) {
            Some(first) => first.get().map(|first| first.entry.read()),
            None => self.more(at),
        }
    }

    #[inline(never)]
    fn more(&self, at: usize) -> Option<Limit<'_>> {
        self.more.get(at.checked_sub(FEW)?).map(StoredLimit::read)
    }

    pub(super) fn entry(&self, number: u16) -> Option<&StoredLimit> {
        self.more.get(usize::from(number).checked_sub(1 + FEW)?)
    }

    #[inline(always)]
    pub(super) fn at_hand(&self, class: Class) -> Option<&PermanentLimit> {
        self.few.get(usize::from(class.number()).checked_sub(1)?)?.get()
    }

    #[inline(always)]
    pub(super) fn kept(&self, kept: CachedClass) -> Option<Limit<'_>> {
        self.get(kept.class()?).filter(|limit| limit.kept() == kept)
    }

    /// Returns the limit of a quota and owner, with a form that can still be read for a while after `now`; assigns a
    /// number if it has none. `None` for quotas whose states do not fit a word, and where all numbers are in use.
    pub(super) fn of(&self, quota: &Arc<Quota>, owner: u32, now: Tick) -> Option<Limit<'_>> {
        let Quota::Gcra(limit) = &**quota else { return None };
        let owned = (*limit, owner);
        {
            // Read under the lock: the number cannot be given to another limit meanwhile.
            let numbers = self.numbers.read();
            let known = numbers.known.get(&owned).copied();
            if let Some(found) = known.and_then(|number| self.usable(number, now)).filter(Limit::admits) {
                return Some(found);
            }
        }
        let form = GcraWord::new(limit, now)?;
        let mut numbers = self.numbers.write();
        // Another thread may have assigned one meanwhile.
        let known = numbers.known.get(&owned).copied();
        if let Some(found) = known.and_then(|number| self.usable(number, now)) {
            if let Some(entry) = self.entry(found.class().number()).filter(|entry| !entry.is_given()) {
                // A sweep was about to free it.
                entry.turn();
            }
            return self.get(found.class());
        }
        let number = self.next_number(&mut numbers)?;
        let class = Class::new(number)?;
        match (self.few.get(usize::from(number) - 1), self.entry(number)) {
            (Some(first), _) => {
                _ = first.set(PermanentLimit { entry: StoredLimit::new(class, owner, quota, &form), form });
            }
            (None, Some(entry)) => entry.give(owner, quota, &form),
            (None, None) => _ = self.more.push(StoredLimit::new(class, owner, quota, &form)),
        }
        numbers.known.insert(owned, number);
        self.get(class)
    }

    /// Returns a number that no limit has; `None` when all are in use. Notes that a sweep is due when few are left.
    fn next_number(&self, numbers: &mut Numbers) -> Option<u16> {
        let given = self.given();
        let left = usize::from(Class::MAX) - given + numbers.free.len();
        if left < LOW {
            // Relaxed: a hint; the sweep has a lock of its own.
            self.owes_sweep.store(true, Ordering::Relaxed);
        }
        // Numbers that were never used come first: reusing a number makes readers of the old limit start over.
        match u16::try_from(given + 1).ok().filter(|number| *number <= Class::MAX) {
            Some(fresh) => Some(fresh),
            None => numbers.free.pop(),
        }
    }

    /// How many numbers were ever assigned; they are the lowest ones.
    pub(super) fn given(&self) -> usize {
        self.few.iter().filter(|first| first.get().is_some()).count() + self.more.count()
    }

    fn usable(&self, number: u16, now: Tick) -> Option<Limit<'_>> {
        let limit = self.get(Class::new(number)?)?;
        // A form is usable for the first half of its lifetime, so that it does not expire between here and its use.
        (now.since(limit.form().origin()) <= limit.form().lasts() / 2).then_some(limit)
    }
}

// Reclaims the numbers of limits that no slot carries any more.
//
// A sweep has three phases. First, all numbers except the first few *retire*: their stamps become odd, and from then on
// no new slot may carry them; a request for such a limit by its quota makes its number valid again. Second, every line
// is locked once, and the numbers in it are noted; slots whose limits are full again are equivalent to empty ones, and
// are emptied. Last, retired numbers that were not seen are freed. Checks of keys in the table continue with retired
// numbers during all phases.
//
// No thread waits for a whole sweep: it is done in parts, one for each limit that asks for a new number while few are
// left. A part is at most [`LINES`] lines or a four-thousandth of the table, which takes some microseconds.
//
// A number that a slot carries is never freed: a slot gets its number under the lock of its line, and only while the
// stamp is even ([`Limit::admits`]). If that was before the sweep locked the line, the sweep has seen the number there,
// unless the slot was given to another key in between. If it was after, the stamp was odd already.

const LINES: usize = 64;

const NUMBERS: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Sweep {
    phase: Phase,
    seen: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Retire(usize),
    Look(usize),
    GiveUp(usize),
}

impl Sweep {
    fn see(&mut self, class: Class) {
        let number = usize::from(class.number());
        if let Some(bits) = self.seen.get_mut(number / 64) {
            *bits |= 1 << (number % 64);
        }
    }

    fn has_seen(&self, number: usize) -> bool {
        self.seen.get(number / 64).is_none_or(|bits| bits >> (number % 64) & 1 > 0)
    }
}

impl Table {
    /// Does a part of a sweep, if one is due. The caller must not hold the lock of a line.
    #[inline]
    pub(super) fn reclaim(&self, now: Tick) {
        // Relaxed: a hint.
        if self.classes.owes_sweep.load(Ordering::Relaxed) {
            self.reclaim_some(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn reclaim_some(&self, now: Tick) {
        // If the lock is held, another thread is doing a part.
        let Some(mut sweep) = self.classes.sweep.try_lock() else { return };
        self.classes.owes_sweep.store(false, Ordering::Relaxed);
        sweep.phase = match sweep.phase {
            Phase::Idle => {
                sweep.seen = vec![0; usize::from(Class::MAX) / 64 + 1];
                Phase::Retire(FEW + 1)
            }
            Phase::Retire(from) => match self.classes.retire(from) {
                Some(next) => Phase::Retire(next),
                None => Phase::Look(0),
            },
            Phase::Look(from) => {
                let lines = self.lines.count();
                let end = (from + LINES.max(lines / (LOW / 2) + 1)).min(lines);
                (from..end).for_each(|line| self.look(line, now, &mut sweep));
                if end < lines { Phase::Look(end) } else { Phase::GiveUp(FEW + 1) }
            }
            Phase::GiveUp(from) => match self.classes.give_up(from, &sweep) {
                Some(next) => Phase::GiveUp(next),
                None => {
                    sweep.seen = Vec::new();
                    Phase::Idle
                }
            },
        };
    }

    fn look(&self, line: usize, now: Tick, sweep: &mut Sweep) {
        let held = self.line(line).lock();
        for slot in 0..super::cache_line::WAYS {
            let class = held.name(slot).class();
            let Some(limit) = self.classes.get(class).filter(|_| usize::from(class.number()) > FEW) else {
                continue;
            };
            // A form that does not reach `now` is at least an hour old; such a slot is left for a new key to take.
            let full =
                |word: &u64| limit.form().scaled(now).is_some_and(|now| limit.form().is_full(*word, now));
            let seized = held.word(slot).filter(full).and_then(|word| held.try_seize(slot, word));
            match seized {
                Some(mut seized) => {
                    seized.rename(&held, Name::EMPTY);
                    seized.word = 0;
                    self.used.fetch_sub(1, Ordering::Relaxed);
                }
                None => sweep.see(class),
            }
        }
    }
}

impl Classes {
    fn retire(&self, from: usize) -> Option<usize> {
        let _numbers = self.numbers.write();
        let (last, mut retired) = (self.given(), 0);
        for number in from..=last {
            // The cast is exact: numbers have at most 15 bits.
            let Some(entry) = self.entry(number as u16) else { continue };
            if entry.is_given() {
                entry.turn();
            }
            retired += 1;
            if retired == NUMBERS {
                return Some(number + 1);
            }
        }
        None
    }

    fn give_up(&self, from: usize, sweep: &Sweep) -> Option<usize> {
        let mut numbers = self.numbers.write();
        let end = (from + NUMBERS).min(self.given() + 1);
        for number in from..end {
            // The cast is exact: numbers have at most 15 bits.
            let short = number as u16;
            let Some(entry) = self.entry(short) else { continue };
            if entry.is_given() || !entry.is_taken() {
                continue;
            }
            if sweep.has_seen(number) {
                entry.turn();
                continue;
            }
            if let Some(owned) = entry.free()
                && numbers.known.get(&owned) == Some(&short)
            {
                numbers.known.remove(&owned);
            }
            numbers.free.push(short);
        }
        (end <= self.given()).then_some(end)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn limits_keep_their_numbers_however_many_there_are() {
        let classes = Classes::default();
        let quotas: Vec<Arc<Quota>> =
            (1..=3 * FEW as u64).map(|rate| Arc::new(Quota::per_second(rate).gcra().unwrap())).collect();
        let now = Tick::from_secs(1);
        for turn in 0..2 {
            for (at, quota) in quotas.iter().enumerate() {
                let limit = classes.of(quota, 0, now).unwrap();
                assert_eq!(usize::from(limit.class().number()), at + 1, "turn {turn}");
                assert!(classes.get(limit.class()).unwrap().is_of(quota));
            }
        }
        let another = classes.of(&quotas[0], 7, now).unwrap();
        assert_eq!((another.owner(), usize::from(another.class().number())), (7, quotas.len() + 1));
        assert!(another.is_of(&quotas[0]));
        assert_eq!(classes.kept(another.kept()).map(|limit| limit.class()), Some(another.class()));
        assert!(classes.get(Class::WIDE).is_none());
        assert!(classes.get(Class::new(Class::MAX).unwrap()).is_none());
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod reclaim_tests {
    //! Very many quotas, one after another, over few keys and over many.

    #![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_core::{Cost, Quota, Replace, Tick};

    use super::super::MemoryStore;
    use super::super::cache_line::WAYS;
    use super::super::limit::Class;
    use super::super::table::Table;
    use crate::store::{Charge, ChargeRules, Executed, Op, PlainStore, Step, Store};

    /// Twice as many as there are numbers of quotas.
    const QUOTAS: u64 = 2 * Class::MAX as u64;

    fn quota(number: u64) -> Arc<Quota> {
        Arc::new(Quota::per_second(1 + number % 1000).burst(2 + number / 1000).gcra().unwrap())
    }

    fn take(store: &dyn Store, now: Tick, charge: Charge<'_>) -> Executed {
        store.blocking_execute(&Step::new(now, Op::Take, &[charge])).unwrap()
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
        let words =
            |live: u64| (0..live).filter(|key| is_word(&store.shared.table, &key.to_le_bytes())).count();
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
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    //! A check that races with the freeing of its limit's number, through all interleavings.

    use std::sync::Arc as Shared;

    use loom::sync::Arc;
    use tidegate_core::rate::GcraWord;
    use tidegate_core::{Quota, Tick};

    use crate::store::memory::cache_line::{CacheLine, Slot, WAYS};
    use crate::store::memory::limit::{Class, Name, StoredLimit};
    use crate::store::memory::word_path::{Reading, WordOutcome};
    use crate::sync::{explore, short_or_long};

    fn quota(burst: u64) -> (Shared<Quota>, GcraWord) {
        let quota = Quota::per_hour(1).burst(burst).gcra().unwrap();
        let Quota::Gcra(gcra) = &quota else { unreachable!() };
        let form = GcraWord::new(gcra, Tick::EPOCH).unwrap();
        (Shared::new(quota), form)
    }

    /// Ann has used up her limit of one. Her slot is emptied, the number is swept and given to a limit of three, and Ann
    /// comes under that limit with two units spent. A check that read the old limit never decides by it on the new word, and
    /// vice versa.
    #[test]
    fn a_check_never_decides_by_a_limit_that_lost_its_number() {
        explore(short_or_long(Some(1), Some(2)), || {
            let class = Class::new(9).unwrap();
            let ann = Name::new(1 << 20, class);
            let ((small, small_form), (large, large_form)) = (quota(1), quota(3));
            let slots = Arc::new(<[Slot; WAYS]>::default());
            let entry = Arc::new(StoredLimit::new(class, 0, &small, &small_form));
            let tick = Tick::from_secs(1);
            let spent =
                move |form: &GcraWord, units| form.take(0, form.scaled(tick).unwrap(), units).unwrap();
            {
                let held = CacheLine::of(&slots).lock();
                (0..WAYS).for_each(|at| CacheLine::of(&slots).seize(at).rename(&held, Name::EMPTY));
                let mut seized = CacheLine::of(&slots).seize(0);
                seized.rename(&held, ann);
                seized.word = spent(&small_form, 1);
            }
            // Reads each number, so that loom creates it before the threads start.
            let before = entry.read();
            assert!(
                before.holds() && before.owner() == 0 && before.is_of(&small) && before.form().burst() == 1
            );
            let reclaim = {
                let (slots, entry, large) = (Arc::clone(&slots), Arc::clone(&entry), Shared::clone(&large));
                loom::thread::spawn(move || {
                    let line = CacheLine::of(&slots);
                    {
                        let held = line.lock();
                        let mut seized = line.seize(0);
                        seized.rename(&held, Name::EMPTY);
                        seized.word = 0;
                    }
                    // The sweep: the number is retired, searched for, and freed if no slot carries it.
                    entry.turn();
                    if (0..WAYS).any(|at| line.lock().name(at).class() == class) {
                        return false;
                    }
                    entry.free();
                    entry.give(0, &large, &large_form);
                    let held = line.lock();
                    let mut seized = line.seize(0);
                    seized.rename(&held, ann);
                    // Another word than that of the small limit, which would refuse on it.
                    seized.word = spent(&large_form, 2);
                    true
                })
            };
            let limit = entry.read();
            let is_large = limit.form().burst() == 3;
            let line = CacheLine::of(&slots);
            let taken = Reading::at(limit, tick).and_then(|by| {
                line.permit_or_read(ann, &by, 1)
                    .filter(|taken| matches!(taken, WordOutcome::Permitted(_)))
                    .or_else(|| line.take(ann, |_| true, &by, 1))
            });
            // A new key, as the table adds it: with the line locked.
            let admitted = {
                let held = line.lock();
                let place = held.find(ann, |_| true).is_none() && limit.admits();
                if place {
                    line.seize(1).rename(&held, Name::new(2 << 20, class));
                }
                place
            };
            let given = reclaim.join().unwrap();
            match taken {
                Some(WordOutcome::Permitted(word)) => {
                    assert!(given && is_large, "the small limit was used up");
                    assert_eq!(line.seize(0).word, word);
                }
                Some(WordOutcome::Refused(word)) => assert!(!is_large && word == spent(&small_form, 1)),
                Some(WordOutcome::Undecided) | None => {}
            }
            if admitted && !is_large {
                assert!(!given, "a number that a slot carries is not given up");
            }
        });
    }
}

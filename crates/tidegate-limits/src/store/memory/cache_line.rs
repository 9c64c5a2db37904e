//! One cache line of the table: four slots of sixteen bytes, and the locks that protect them.
//!
//! A slot is a name and a word. The [`Name`] says whose state the word is, and how to read it.
//!
//! # Locks
//! A slot is *seized* by exchanging its word for [`SEIZED`], and released by writing a word. A check of a known key
//! takes no other locked instruction than this one, on a line that it has to fetch anyway. The new word is computed
//! before the exchange, because a processor that waits for a locked instruction starts little of what follows. A
//! compare-exchange from the old word to the new one would save the release, but could not detect that the slot was
//! meanwhile given to another key.
//!
//! A line is *locked* by the lowest bit of its first name, to add keys or to remove them. A name changes only while its
//! line is locked and its slot seized, so it is stable for a thread that holds either of them.
//!
//! Lines are locked before slots are seized, both in ascending order, and a slot out of order is tried once without
//! waiting: so there is no deadlock. Both are held for a few instructions, and never across a call of code outside this
//! table.

use std::hint::select_unpredictable;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use tidegate_core::rate::GcraWord;

use super::limit::{LOCK, Name};
use super::table::Table;
use super::word_path::{Reading, WordOutcome};
use crate::sync::{AtomicU64, Ordering, fence, spin_loop, yield_now};

/// Slots per line: what 64 bytes hold.
pub(super) const WAYS: usize = 4;

/// The word of a seized slot. A limit always refuses on it, so a check has to compare with it only when it is refused.
const SEIZED: u64 = GcraWord::NONE;

/// The number of tries after which a waiting thread yields to others: one of them may be the holder.
const SPINS: u32 = 100;

/// A name and a word; a slot of all zeros is empty.
#[derive(Debug, Default)]
#[cfg_attr(not(tidegate_loom), derive(bytemuck::Zeroable))]
pub(super) struct Slot {
    name: AtomicU64,
    word: AtomicU64,
}

impl Slot {
    /// Makes the system provide the memory, as a write does, without changing the slot.
    pub(super) fn prefault(&self) {
        // Relaxed: publishes nothing. A zero word is exchanged for itself; any other stays as it is.
        let _ = self.word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Reads the word without seizing the slot; [`SEIZED`] while another thread holds it.
    #[inline]
    pub(super) fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Returns the word that refuses `units` to the key with this name; `None` where it does not, or cannot be read.
    #[inline]
    fn refused(&self, name: Name, is: impl Fn() -> bool, by: &Reading<'_>, units: u64) -> Option<u64> {
        let word = self.read(name, is).filter(|word| by.form.take(*word, by.now, units).is_none());
        word.filter(|_| by.limit.holds())
    }

    /// Reads the word of the key with this name, and writes nothing; `None` while another thread holds the slot, or where
    /// the slot is another key's. `is` returns whether a slot with the key's name is that key's.
    ///
    /// The name is read before the word and after it, and then the word once more. If the slot is given to another key in
    /// between, one of the two names differs, or one of the words: whoever renames a slot has seized it before, and
    /// releases it afterwards. Not noticed is only a slot that goes to another key, back, and again to a key with that
    /// word, all between these loads.
    #[inline]
    pub(super) fn read(&self, name: Name, is: impl Fn() -> bool) -> Option<u64> {
        // Acquire, with the Release of `rename`: the word of the slot's former key is not seen any more.
        if self.name.load(Ordering::Acquire) & !LOCK != name.0 || !is() {
            return None;
        }
        // The key, which `is` reads, is read before the word as the name is.
        fence(Ordering::Acquire);
        // Acquire, with the Release of `drop`: the name and the key that belong to the word are seen.
        let word = self.word.load(Ordering::Acquire);
        let same = word != SEIZED && self.name() == name && is();
        // As above: if the slot is this key's, and the word is still here, the word is this key's own.
        fence(Ordering::Acquire);
        (same && self.word() == word).then_some(word)
    }

    /// Says whether another thread holds the slot.
    pub(super) fn is_seized(&self) -> bool {
        self.word() == SEIZED
    }

    /// Seizes the slot if it still has this word and no thread holds it.
    #[inline(always)]
    pub(super) fn try_seize(&self, word: u64) -> Option<Seized<'_>> {
        // A limit refuses on `SEIZED`, but a form that mixes the numbers of two limits may not.
        if word == SEIZED {
            return None;
        }
        // Acquire, with the Release of `drop`: makes the last holder's writes visible.
        self.word.compare_exchange(word, SEIZED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Seized { slot: self, word })
    }

    #[inline]
    fn name(&self) -> Name {
        // Relaxed: the result is relied on only after the line was locked or the slot seized, which provide the
        // ordering.
        Name(self.name.load(Ordering::Relaxed) & !LOCK)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLine<'t> {
    slots: &'t [Slot; WAYS],
}

impl<'t> CacheLine<'t> {
    #[inline]
    pub(super) const fn of(slots: &'t [Slot; WAYS]) -> Self {
        Self { slots }
    }

    /// Finds the slot with exactly this name. A hint: the slot may have another name before it is seized.
    ///
    /// Compares all four names without a branch: no predictor can know which one matches, and a misprediction would
    /// keep the memory of the next checks from being fetched meanwhile. Only the first name has a lock bit to be
    /// masked. Fewer instructions help, because all of them wait for the line to come from memory, and a processor has
    /// few places for waiting instructions. Both together save half of the time of a check among a million keys.
    #[inline(always)]
    fn glance(self, name: Name) -> Option<&'t Slot> {
        let [first, rest @ ..] = self.slots;
        // Relaxed: only a hint.
        let is = first.name.load(Ordering::Relaxed) & !LOCK == name.0;
        let mut found = select_unpredictable(is, Some(first), None);
        for slot in rest {
            found = select_unpredictable(slot.name.load(Ordering::Relaxed) == name.0, Some(slot), found);
        }
        found
    }

    /// Spends units of the key with this name, if that needs no waiting, and returns the new word. `None` where that
    /// did not succeed, for whatever reason.
    #[inline(always)]
    pub(super) fn permit(self, name: Name, form: &GcraWord, now: u64, units: u64) -> Option<u64> {
        let slot = self.glance(name)?;
        let seen = slot.word();
        let next = form.take(seen, now, units)?;
        match slot.try_seize(seen) {
            Some(seized) if slot.name() == name => {
                seized.leave(next);
                Some(next)
            }
            _ => None,
        }
    }

    /// Reads the word of the key with this name; `None` where no slot has the name, or its word cannot be read.
    #[inline]
    pub(super) fn read(self, name: Name) -> Option<u64> {
        self.glance(name)?.read(name, || true)
    }

    /// As [`CacheLine::permit`]; a key is refused by what its slot holds, and nothing is written. `None` where no slot of
    /// the line has the name.
    #[inline(always)]
    pub(super) fn permit_or_read(self, name: Name, by: &Reading<'_>, units: u64) -> Option<WordOutcome> {
        let slot = self.glance(name)?;
        let seen = slot.word();
        let Some(next) = by.form.take(seen, by.now, units) else {
            let refused = slot.refused(name, || true, by, units);
            return Some(refused.map_or(WordOutcome::Undecided, WordOutcome::Refused));
        };
        match slot.try_seize(seen) {
            Some(seized) if slot.name() == name && by.limit.holds() => {
                seized.leave(next);
                Some(WordOutcome::Permitted(next))
            }
            _ => Some(WordOutcome::Undecided),
        }
    }

    /// Spends units of the key with this name, or refuses, which writes nothing; waits for a seized slot. `None` where no
    /// slot has the name.
    pub(super) fn take(
        self,
        name: Name,
        is: impl Fn(usize) -> bool,
        by: &Reading<'_>,
        units: u64,
    ) -> Option<WordOutcome> {
        let (at, _) = self.glance_key(name).filter(|(_, seen)| *seen == name)?;
        let slot = &self.slots[at];
        if by.form.take(slot.word(), by.now, units).is_none()
            && let Some(word) = slot.refused(name, || is(at), by, units)
        {
            return Some(WordOutcome::Refused(word));
        }
        let mut seized = self.seize(at);
        if seized.name() != name || !is(at) {
            return None;
        }
        if !by.limit.holds() {
            return Some(WordOutcome::Undecided);
        }
        let Some(next) = by.form.take(seized.word, by.now, units) else {
            return Some(WordOutcome::Refused(seized.word));
        };
        seized.word = next;
        Some(WordOutcome::Permitted(next))
    }

    /// Finds the slot of a key under any limit, and its name there. Without a branch, as [`CacheLine::glance`].
    #[inline]
    pub(super) fn glance_key(self, key: Name) -> Option<(usize, Name)> {
        let mut found = WAYS;
        for (at, slot) in self.slots.iter().enumerate() {
            found = select_unpredictable(slot.name().is_key_of(key), at, found);
        }
        Some((found, self.slots.get(found)?.name()))
    }

    #[inline]
    pub(super) fn touch(self) -> u64 {
        self.slots[0].name.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn slot(self, at: usize) -> &'t Slot {
        &self.slots[at]
    }

    pub(super) fn seize(self, at: usize) -> Seized<'t> {
        let slot = &self.slots[at];
        wait_for(|| slot.try_seize(slot.word()))
    }

    #[inline]
    pub(super) fn lock(self) -> LockedLine<'t> {
        let first = &self.slots[0].name;
        wait_for(|| {
            let name = first.load(Ordering::Relaxed);
            if name & LOCK != 0 {
                return None;
            }
            // Acquire, with the Release of `drop`: makes the last holder's writes visible.
            first.compare_exchange(name, name | LOCK, Ordering::Acquire, Ordering::Relaxed).ok()?;
            Some(LockedLine { line: self })
        })
    }
}

#[inline]
fn wait_for<R>(attempt: impl Fn() -> Option<R>) -> R {
    let mut turn = 0u32;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        turn = turn.wrapping_add(1);
        if turn.is_multiple_of(SPINS) { yield_now() } else { spin_loop() }
    }
}

/// A seized slot. Dropping it releases the slot with `word`: the former word, unless it was changed.
#[derive(Debug)]
pub(super) struct Seized<'l> {
    slot: &'l Slot,
    pub(super) word: u64,
}

impl Seized<'_> {
    #[inline]
    pub(super) fn name(&self) -> Name {
        self.slot.name()
    }

    #[inline(always)]
    pub(super) fn leave(mut self, word: u64) {
        self.word = word;
    }

    pub(super) fn rename(&mut self, held: &LockedLine<'_>, name: Name) {
        let lock = if std::ptr::eq(self.slot, &held.line.slots[0]) { LOCK } else { 0 };
        // Release, with the Acquire in `Slot::read`: who sees the name also sees the slot seized, or a later word.
        self.slot.name.store(name.0 | lock, Ordering::Release);
    }
}

impl Drop for Seized<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.word.store(self.word, Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct LockedLine<'l> {
    line: CacheLine<'l>,
}

impl<'l> LockedLine<'l> {
    pub(super) fn name(&self, at: usize) -> Name {
        self.line.slots[at].name()
    }

    /// Returns a slot's present word; `None` while the slot is seized.
    pub(super) fn word(&self, at: usize) -> Option<u64> {
        // Acquire, with the Release of `Seized::drop`: a cell that was put into the overflow before is visible then,
        // too.
        Some(self.line.slots[at].word.load(Ordering::Acquire)).filter(|word| *word != SEIZED)
    }

    pub(super) fn try_seize(&self, at: usize, word: u64) -> Option<Seized<'l>> {
        self.line.slots[at].try_seize(word)
    }

    pub(super) fn seize(&self, at: usize) -> Seized<'l> {
        self.line.seize(at)
    }

    /// Finds the slot of a key under any limit. `is` returns whether a slot with the key's name is that key's.
    pub(super) fn find(&self, key: Name, is: impl Fn(usize) -> bool) -> Option<usize> {
        let named = |at: usize| self.name(at).is_key_of(key) && self.name(at) != Name::EMPTY;
        (0..WAYS).find(|at| named(*at) && is(*at))
    }
}

impl Drop for LockedLine<'_> {
    #[inline]
    fn drop(&mut self) {
        let first = &self.line.slots[0].name;
        // The load is Relaxed: no other thread writes the name while the line is locked.
        first.store(first.load(Ordering::Relaxed) & !LOCK, Ordering::Release);
    }
}

/// The size of a page of memory, in bytes. Where pages are larger, prefaulting writes to some of them more often than
/// needed.
pub(super) const PAGE: usize = 4096;

#[derive(Debug)]
pub(super) struct Lines<T> {
    cells: Box<[T]>,
    /// The index of the cell where the first line starts: the allocation begins anywhere, lines at multiples of 64
    /// bytes.
    start: usize,
    count: usize,
}

impl<T: Blank> Lines<T> {
    /// Makes blank lines; `None` if the system has not enough memory.
    pub(super) fn new(count: usize) -> Option<Self> {
        let cells = blank((count + 1) * WAYS - 1)?;
        Some(Self { start: aligned(&cells), cells, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn number(&self, cell: &T) -> usize {
        let from_first = std::ptr::from_ref(cell).addr() - self.cells.as_ptr().addr();
        from_first / size_of::<T>() - self.start
    }

    /// Returns one cell of each page in the given range; fewer at the end of the memory, and none beyond it.
    pub(super) fn pages(&self, pages: Range<usize>) -> impl Iterator<Item = &T> {
        const CELLS: usize = PAGE / 16;
        self.cells.iter().step_by(CELLS).skip(pages.start).take(pages.len())
    }

    #[inline(always)]
    pub(super) fn get(&self, line: usize) -> &[T; WAYS] {
        let cells = &self.cells[self.start + line * WAYS..];
        cells.first_chunk().expect("there are as many cells as the lines need")
    }
}

#[cfg(not(tidegate_loom))]
pub(super) trait Blank: Default + bytemuck::Zeroable {}

#[cfg(not(tidegate_loom))]
impl<T: Default + bytemuck::Zeroable> Blank for T {}

/// Loom's atomics cannot be zeroed, so they are made one by one.
#[cfg(tidegate_loom)]
pub(super) trait Blank: Default {}

#[cfg(tidegate_loom)]
impl<T: Default> Blank for T {}

/// Returns blank cells, in memory that the system provides when it is first touched: so making a table for a million
/// keys takes no time, and its pages are touched afterwards ([`start_prefault`]). `None` if there is not enough memory.
#[cfg(not(tidegate_loom))]
pub(super) fn blank<T: Blank>(cells: usize) -> Option<Box<[T]>> {
    // Not allocated as whole lines: with an alignment of 64 bytes, the allocator would write zeros instead of returning
    // blank memory.
    bytemuck::try_zeroed_slice_box(cells).ok()
}

#[cfg(tidegate_loom)]
pub(super) fn blank<T: Blank>(cells: usize) -> Option<Box<[T]>> {
    Some((0..cells).map(|_| T::default()).collect())
}

/// Returns the index of the first cell that starts a cache line; 0 if there is none, which only costs speed.
fn aligned<T>(cells: &[T]) -> usize {
    Some(cells.as_ptr().align_offset(64)).filter(|start| *start < WAYS).unwrap_or(0)
}

// Prefaults the memory of a large table: a background thread makes the system provide it before checks need it.
//
// A new table is blank memory: the system provides each page at the first write to it. On a virtual machine whose host
// has to find the page in turn, such a write has been measured at 25 to 50 µs; a table of a million keys has some 5,700
// pages, and a flood of new keys touches them all. Touching them while the table is made would delay the caller
// instead, by 13 ms for a million keys. So a background thread touches them as soon as the table is made, and then
// ends. A check that reaches a page before it pays for it as without the thread.

/// Tables of fewer slots are not prefaulted.
const FEW: usize = (1 << 20) / size_of::<Slot>();

/// The number of pages, about ten microseconds' worth, after which the thread yields the core and checks whether the
/// table still exists.
const STRETCH: usize = 8;

/// Starts the thread, unless the table is small. If no thread can be started, checks touch the pages.
pub(super) fn start_prefault<T: AsRef<Table> + Send + Sync + 'static>(shared: &Arc<T>) {
    if (**shared).as_ref().slots() < FEW {
        return;
    }
    let weak = Arc::downgrade(shared);
    let through = move || {
        let more = |page| {
            // Threads with other work run first.
            yield_now();
            weak.upgrade().is_some_and(|shared| (*shared).as_ref().prefault(page) > 0)
        };
        (0..).step_by(STRETCH).all(more)
    };
    let _ = thread::Builder::new().name("tidegate-prefault".to_owned()).spawn(through);
}

impl Table {
    /// Returns how many pages it touched.
    fn prefault(&self, page: usize) -> usize {
        let pages = page..page + STRETCH;
        let kept = self.full_keys.as_ref().map_or(0, |full_keys| full_keys.prefault(pages.clone()));
        self.lines.pages(pages).map(Slot::prefault).count() + kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::limit::Class;
    use super::*;

    #[test]
    fn a_line_is_a_cache_line() {
        assert_eq!(size_of::<[Slot; WAYS]>(), 64);
    }

    #[test]
    fn names_keep_tag_and_class_apart_and_are_never_empty() {
        let class = Class::new(Class::MAX).unwrap();
        for fingerprint in [0, 1, 0xFFFF, 0x1_0000, u64::MAX] {
            let name = Name::new(fingerprint, class);
            assert_ne!(name, Name::EMPTY);
            assert_eq!(name.class(), class);
            assert!(name.is_key_of(Name::new(fingerprint, Class::WIDE)));
        }
        assert_eq!(Class::new(0), None);
        assert_eq!(Class::new(1 << 15), None);
    }

    /// Names change while the line is locked and the slot seized; words change while the slot is seized.
    #[test]
    fn what_is_written_in_hand_is_whole() {
        let slots = <[Slot; WAYS]>::default();
        let line = CacheLine::of(&slots);
        let (one, two) = (Name::new(1 << 20, Class(3)), Name::new(2 << 20, Class(4)));
        thread::scope(|scope| {
            for name in [one, two] {
                scope.spawn(move || {
                    for turn in 0..50_000 {
                        let held = (turn % 4 == 0).then(|| line.lock());
                        for at in 0..WAYS {
                            let mut seized = line.seize(at);
                            seized.word += 1;
                            if let Some(held) = &held {
                                seized.rename(held, name);
                            }
                        }
                    }
                });
            }
        });
        let held = line.lock();
        assert!((0..WAYS).all(|at| held.word(at) == Some(100_000)), "no turn was lost");
        assert!((0..WAYS).all(|at| held.name(at) == held.name(0)));
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    //! The locks of a line, through all their interleavings.

    use std::sync::Arc as Shared;

    use loom::sync::Arc;
    use tidegate_core::{Quota, Tick};

    use super::*;
    use crate::store::memory::limit::{Class, StoredLimit};
    use crate::store::memory::seed::{FullKey, FullKeys};
    use crate::sync::explore;

    const CLASS: Class = Class(1);
    const ANN: Name = Name::new(1 << 20, CLASS);
    const BOB: Name = Name::new(2 << 20, CLASS);

    fn limit(burst: u64) -> StoredLimit {
        let quota = Quota::per_hour(1).burst(burst).gcra().unwrap();
        let Quota::Gcra(gcra) = &quota else { unreachable!() };
        let form = GcraWord::new(gcra, Tick::EPOCH).unwrap();
        StoredLimit::new(CLASS, 0, &Shared::new(quota), &form)
    }

    fn reading(limit: &StoredLimit) -> Reading<'_> {
        Reading::at(limit.read(), Tick::from_secs(1)).unwrap()
    }

    /// A line with Ann in it. Reads every cell, so that loom creates it before the threads start.
    fn line(at: usize) -> Arc<[Slot; WAYS]> {
        let slots = Arc::new(<[Slot; WAYS]>::default());
        let line = CacheLine::of(&slots);
        {
            let held = line.lock();
            (0..WAYS).for_each(|at| line.seize(at).rename(&held, Name::EMPTY));
            line.seize(at).rename(&held, ANN);
        }
        slots
    }

    /// As a table asks: on the fast path, and on the slow path where that does not decide.
    fn ask(slots: &[Slot; WAYS], name: Name, by: &Reading<'_>) -> Option<WordOutcome> {
        let line = CacheLine::of(slots);
        match line.permit_or_read(name, by, 1) {
            Some(permitted @ WordOutcome::Permitted(_)) => Some(permitted),
            _ => line.take(name, |_| true, by, 1),
        }
    }

    /// Two threads ask for four units, and three are there.
    #[test]
    fn permits_are_neither_lost_nor_doubled() {
        explore(Some(3), || {
            let slots = line(0);
            let both = |slots: &[Slot; WAYS]| {
                let limit = limit(3);
                let permitted =
                    |_| matches!(ask(slots, ANN, &reading(&limit)), Some(WordOutcome::Permitted(_)));
                (0..2).filter(|turn| permitted(*turn)).count()
            };
            let other = Arc::clone(&slots);
            let other = loom::thread::spawn(move || both(&other));
            let permits = both(&slots) + other.join().unwrap();
            assert_eq!(permits, 3);
        });
    }

    /// Prefaulting exchanges a word for itself, while another thread spends units of it.
    #[test]
    fn prefaulting_takes_nothing_back() {
        explore(None, || {
            let slots = line(0);
            let other = Arc::clone(&slots);
            let other = loom::thread::spawn(move || other.iter().chain(&*other).for_each(Slot::prefault));
            let limit = limit(2);
            let by = reading(&limit);
            let permitted = |_: &usize| matches!(ask(&slots, ANN, &by), Some(WordOutcome::Permitted(_)));
            assert_eq!((0..3).filter(permitted).count(), 2);
            other.join().unwrap();
            assert!(matches!(ask(&slots, ANN, &by), Some(WordOutcome::Refused(_))));
        });
    }

    /// A check finds its slot without seizing it, and seizes it afterwards. In between, the slot goes to another key, whose
    /// word is equal to the one that was read.
    #[test]
    fn a_check_never_spends_of_the_key_that_got_its_slot() {
        for at in 0..2 {
            explore(None, move || {
                let limit = limit(5);
                let by = reading(&limit);
                let slots = line(at);
                let Some(WordOutcome::Permitted(word)) = ask(&slots, ANN, &by) else { unreachable!() };
                let other = {
                    let slots = Arc::clone(&slots);
                    loom::thread::spawn(move || {
                        let held = CacheLine::of(&slots).lock();
                        let Some(mut seized) = held.word(at).and_then(|seen| held.try_seize(at, seen)) else {
                            return false;
                        };
                        seized.rename(&held, BOB);
                        seized.word = word;
                        true
                    })
                };
                let taken = ask(&slots, ANN, &by);
                let gone = other.join().unwrap();
                let line = CacheLine::of(&slots);
                let (held, seized) = (line.lock(), line.seize(at));
                assert_eq!(held.name(at), if gone { BOB } else { ANN });
                if gone {
                    assert_eq!(seized.word, word, "{taken:?}");
                } else {
                    assert_eq!(taken, Some(WordOutcome::Permitted(seized.word)), "not told to be elsewhere");
                }
            });
        }
    }

    /// A refused check reads its slot without seizing it. Meanwhile the slot goes from one key to another, and only Bob has
    /// used up his unit: his word never refuses Ann.
    #[test]
    fn a_check_is_never_refused_by_the_word_of_another_key() {
        for (from, to) in [(BOB, ANN), (ANN, BOB)] {
            explore(None, move || {
                let limit = limit(1);
                let by = reading(&limit);
                let spent = by.form.take(0, by.now, 1).unwrap();
                let word = move |name| if name == BOB { spent } else { 0 };
                let slots = line(0);
                {
                    let held = CacheLine::of(&slots).lock();
                    let mut seized = held.seize(0);
                    seized.rename(&held, from);
                    seized.word = word(from);
                }
                let other = {
                    let slots = Arc::clone(&slots);
                    loom::thread::spawn(move || {
                        let held = CacheLine::of(&slots).lock();
                        if let Some(mut seized) = held.word(0).and_then(|seen| held.try_seize(0, seen)) {
                            seized.rename(&held, to);
                            seized.word = word(to);
                        }
                    })
                };
                let taken = CacheLine::of(&slots).permit_or_read(ANN, &by, 1);
                assert!(!matches!(taken, Some(WordOutcome::Refused(_))), "{taken:?}");
                other.join().unwrap();
            });
        }
    }

    /// The same where keys are kept in full, and both have one name: the key is told from the other before and after the
    /// word.
    #[test]
    fn nor_by_that_of_a_key_with_its_name() {
        const OURS: u8 = 1;
        const THEIRS: u8 = 2;
        let full = |key: u8| FullKey::from_bytes([key; 16]);
        for (from, to) in [(THEIRS, OURS), (OURS, THEIRS)] {
            explore(None, move || {
                let limit = limit(1);
                let by = reading(&limit);
                let spent = by.form.take(0, by.now, 1).unwrap();
                let word = move |key| if key == THEIRS { spent } else { 0 };
                let slots = line(0);
                let full_keys = Arc::new(FullKeys::new(1).unwrap());
                (0..WAYS).for_each(|at| full_keys.keep(0, at, full(from)));
                CacheLine::of(&slots).seize(0).leave(word(from));
                let other = {
                    let (slots, full_keys) = (Arc::clone(&slots), Arc::clone(&full_keys));
                    loom::thread::spawn(move || {
                        let held = CacheLine::of(&slots).lock();
                        if let Some(mut seized) = held.word(0).and_then(|seen| held.try_seize(0, seen)) {
                            full_keys.keep(0, 0, full(to));
                            seized.rename(&held, ANN);
                            seized.word = word(to);
                        }
                    })
                };
                let is = || full_keys.holds(0, 0, full(OURS));
                assert_eq!(slots[0].refused(ANN, is, &by, 1), None);
                other.join().unwrap();
            });
        }
    }

    /// A permit moves the store's time before it changes the word, and a refusal reads the time after the word. So it finds
    /// out if a charge in the word has a later tick than its own, and is decided again.
    #[test]
    fn a_refusal_learns_the_tick_of_the_charge_that_refuses_it() {
        explore(None, || {
            let (slots, latest) = (line(0), Arc::new(AtomicU64::new(1)));
            // Loom makes the number at its first access.
            assert_eq!(latest.load(Ordering::Relaxed), 1);
            let other = {
                let (slots, latest) = (Arc::clone(&slots), Arc::clone(&latest));
                loom::thread::spawn(move || {
                    let limit = limit(1);
                    let by = Reading::at(limit.read(), Tick::from_secs(2)).unwrap();
                    latest.store(2, Ordering::Relaxed);
                    ask(&slots, ANN, &by)
                })
            };
            let limit = limit(1);
            let by = reading(&limit);
            if slots[0].refused(ANN, || true, &by, 1).is_some() {
                assert_eq!(latest.load(Ordering::Relaxed), 2);
            }
            assert!(matches!(other.join().unwrap(), Some(WordOutcome::Permitted(_))));
        });
    }

    /// Two threads seize two slots in ascending order, beside a third that seizes one: changes are all or nothing, and
    /// there is no deadlock.
    #[test]
    fn two_slots_in_hand_are_changed_as_one() {
        explore(Some(2), || {
            let slots = line(0);
            let turn = |slots: &[Slot; WAYS]| {
                let (mut first, mut second) = (CacheLine::of(slots).seize(0), CacheLine::of(slots).seize(1));
                assert_eq!(first.word, second.word, "nobody is between the two");
                first.word += 1;
                second.word += 1;
            };
            let other = Arc::clone(&slots);
            let other = loom::thread::spawn(move || turn(&other));
            turn(&slots);
            other.join().unwrap();
            assert_eq!(CacheLine::of(&slots).seize(1).word, 2);
        });
    }

    /// Two threads add the same key at once: it gets one slot.
    #[test]
    fn a_key_that_two_bring_gets_one_slot() {
        explore(Some(3), || {
            let slots = line(0);
            let bring = |slots: &[Slot; WAYS]| {
                let held = CacheLine::of(slots).lock();
                if held.find(BOB, |_| true).is_none() {
                    let word = held.word(1).unwrap();
                    held.try_seize(1, word).unwrap().rename(&held, BOB);
                    return 1;
                }
                0
            };
            let other = Arc::clone(&slots);
            let other = loom::thread::spawn(move || bring(&other));
            assert_eq!(bring(&slots) + other.join().unwrap(), 1);
        });
    }
}

#[cfg(test)]
mod prefault_tests {
    use super::super::table::KeyForm;
    use super::{PAGE, *};

    #[test]
    fn each_page_is_met_once() {
        for (keep, sorts) in [(KeyForm::Fingerprints, 1), (KeyForm::Keys, 2)] {
            let table = Table::new(1_000_000, keep).unwrap();
            let met: usize =
                (0..).step_by(STRETCH).map(|page| table.prefault(page)).take_while(|n| *n > 0).sum();
            let pages = sorts * table.slots() * size_of::<Slot>() / PAGE;
            assert!((pages..=pages + 4).contains(&met), "{met} of {pages}");
        }
    }
}

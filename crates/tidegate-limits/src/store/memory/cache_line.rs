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

use tidegate_core::rate::GcraWord;

use super::name::{LOCK, Name};
use super::reading::{Reading, WordOutcome};
use crate::sync::{AtomicU64, Ordering, spin_loop, yield_now};

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
    /// Makes the system provide the memory of the slot, as a write does, without changing the slot.
    pub(super) fn prefault(&self) {
        // Relaxed: publishes nothing. A zero word is exchanged for itself; any other stays as it is.
        let _ = self.word.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Reads the word without seizing the slot; [`SEIZED`] while another thread holds it.
    #[inline]
    pub(super) fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Seizes the slot if it still has this word, which must not be [`SEIZED`].
    #[inline(always)]
    pub(super) fn try_seize(&self, word: u64) -> Option<Seized<'_>> {
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

/// Four slots in one cache line; the table aligns them.
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

    /// As [`CacheLine::permit`]; for a key that would be refused, it returns the word that was seen. `None` where no
    /// slot of the line has the name.
    #[inline(always)]
    pub(super) fn permit_or_read(self, name: Name, by: &Reading<'_>, units: u64) -> Option<WordOutcome> {
        let slot = self.glance(name)?;
        let seen = slot.word();
        let Some(next) = by.form.take(seen, by.now, units) else {
            // The slot may have been given to another key; then the word is not this key's.
            let told = seen != SEIZED && slot.name() == name;
            return Some(if told { WordOutcome::Refused(seen) } else { WordOutcome::Undecided });
        };
        match slot.try_seize(seen) {
            Some(seized) if slot.name() == name && by.limit.holds() => {
                seized.leave(next);
                Some(WordOutcome::Permitted(next))
            }
            _ => Some(WordOutcome::Undecided),
        }
    }

    /// Spends units of the key with this name, or refuses; waits for a seized slot. `None` where no slot has the name.
    pub(super) fn take(
        self,
        name: Name,
        is: impl FnOnce(usize) -> bool,
        by: &Reading<'_>,
        units: u64,
    ) -> Option<WordOutcome> {
        let (at, _) = self.glance_key(name).filter(|(_, seen)| *seen == name)?;
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

    /// Reads from the line, to prefetch it while others are looked at.
    #[inline]
    pub(super) fn touch(self) -> u64 {
        self.slots[0].name.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn slot(self, at: usize) -> &'t Slot {
        &self.slots[at]
    }

    /// Seizes a slot. Waits until its present holder releases it.
    pub(super) fn seize(self, at: usize) -> Seized<'t> {
        let slot = &self.slots[at];
        wait_for(|| {
            let word = slot.word();
            if word == SEIZED { None } else { slot.try_seize(word) }
        })
    }

    /// Locks the line. Waits until its present holder unlocks it.
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

/// Tries until the attempt succeeds.
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

/// A seized slot. Dropping it releases the slot with the word in `word`: the former word, unless it was changed.
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

    /// Releases the slot with this word.
    #[inline(always)]
    pub(super) fn leave(mut self, word: u64) {
        self.word = word;
    }

    /// Gives the slot to another key; `held` is the lock of its line.
    pub(super) fn rename(&mut self, held: &LockedLine<'_>, name: Name) {
        let lock = if std::ptr::eq(self.slot, &held.line.slots[0]) { LOCK } else { 0 };
        self.slot.name.store(name.0 | lock, Ordering::Relaxed);
    }
}

impl Drop for Seized<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.word.store(self.word, Ordering::Release);
    }
}

/// A locked line; dropping it unlocks the line.
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

    /// Seizes a slot if it still has this word.
    pub(super) fn try_seize(&self, at: usize, word: u64) -> Option<Seized<'l>> {
        self.line.slots[at].try_seize(word)
    }

    /// Seizes a slot. Waits until its present holder releases it.
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

#[cfg(test)]
mod tests {
    use super::super::name::Class;
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
        std::thread::scope(|scope| {
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
mod loom_model;

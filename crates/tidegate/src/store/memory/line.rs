//! One cache line of the table: four slots of sixteen bytes, and the lock that holds them together.
//!
//! A slot is a *name* and a *word*. The name says whose state the word is and how to read it:
//!
//! ```text
//! 63                      16 15             1   0
//! ┌─────────────────────────┬────────────────┬──────┐
//! │ tag: 48 bits of the     │ class: which   │ lock │   0 is an empty slot
//! │ key's keyed fingerprint │ limit, or wide │      │
//! └─────────────────────────┴────────────────┴──────┘
//! ```
//!
//! The lowest bit of the first slot's name locks the whole line. So taking the lock is the one locked instruction of a check, on
//! a line that it has to fetch anyway; a compare-exchange on the word would cost the same and could not tell that the slot has
//! meanwhile been given to another key. The lock is held for a few instructions, never across a call that is not this table's
//! own, and given back by a plain store.

use std::hint::select_unpredictable;

use super::table::{Reading, Taken};
use crate::sync::{AtomicU64, Ordering, spin_loop, yield_now};

/// Slots per line: what 64 bytes hold.
pub(super) const WAYS: usize = 4;

const LOCK: u64 = 1;
const TAG: u64 = !0 << 16;

/// So often a thread looks at a taken lock before it lets others run: its holder may be one of those.
const SPINS: u32 = 100;

/// Whose slot it is, and how its word is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name(u64);

/// Which limit gives a word its meaning; [`Class::WIDE`] where the state lies beside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u16);

impl Class {
    /// The state does not fit a word.
    pub(super) const WIDE: Self = Self(0);
    /// The largest number: 15 bits.
    pub(super) const MAX: u16 = (1 << 15) - 1;

    /// Makes a class of a number from 1 to [`Class::MAX`].
    #[inline]
    pub(crate) const fn new(number: u16) -> Option<Self> {
        if number == 0 || number > Self::MAX { None } else { Some(Self(number)) }
    }

    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

impl Name {
    pub(super) const EMPTY: Self = Self(0);

    /// Makes the name of a key. The lower 16 bits of a fingerprint are for choosing lines, so its upper 48 are the tag.
    #[inline]
    pub(super) const fn new(fingerprint: u64, class: Class) -> Self {
        // No tag is zero, which is how empty slots look: one in 2⁴⁸ keys shares its tag with another then.
        let tag = if fingerprint & TAG == 0 { 1 << 16 } else { fingerprint & TAG };
        Self(tag | (class.0 as u64) << 1)
    }

    /// Says whether it is the same key, under whatever limit.
    #[inline]
    pub(super) const fn is_key_of(self, other: Self) -> bool {
        (self.0 ^ other.0) & TAG == 0
    }

    pub(super) const fn class(self) -> Class {
        Class((self.0 >> 1) as u16 & Class::MAX)
    }
}

/// A name and a word; all zeros are an empty one.
#[derive(Debug, Default)]
#[cfg_attr(not(tidegate_loom), derive(zerocopy::FromZeros))]
pub(super) struct Slot {
    name: AtomicU64,
    word: AtomicU64,
}

/// Four slots that lie in one cache line, as the table sees to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'t> {
    slots: &'t [Slot; WAYS],
}

impl<'t> Line<'t> {
    #[inline]
    pub(super) const fn of(slots: &'t [Slot; WAYS]) -> Self {
        Self { slots }
    }

    /// Finds the slot of exactly this name. A glance: what is found may be gone before the line is locked.
    ///
    /// All four are compared and none is branched on: which of them it is nobody can predict, and a wrong guess would keep
    /// the memory of the next checks from being fetched meanwhile. Worth half of a check among a million keys.
    #[inline]
    pub(super) fn glance(self, name: Name) -> Option<usize> {
        let mut found = WAYS;
        for (at, slot) in self.slots.iter().enumerate() {
            // Relaxed: only a hint, looked at again under the lock, which only the first name has.
            let seen = slot.name.load(Ordering::Relaxed);
            let seen = if at == 0 { seen & !LOCK } else { seen };
            found = select_unpredictable(seen == name.0, at, found);
        }
        (found < WAYS).then_some(found)
    }

    /// Spends units of the key that has this name here; `None` where none has. `is` says, under the lock, whether a slot of this
    /// name is that key's.
    #[inline]
    pub(super) fn take(
        self,
        name: Name,
        is: impl FnOnce(usize) -> bool,
        by: &Reading<'_>,
        units: u64,
    ) -> Option<Taken> {
        let slot = self.glance(name)?;
        let held = self.lock();
        if held.name(slot) != name || !is(slot) {
            return None;
        }
        let word = held.word(slot);
        let Some(next) = by.limit.form.take(word, by.now, units) else { return Some(Taken::Refused(word)) };
        held.set_word(slot, next);
        Some(Taken::Permitted(next))
    }

    /// Finds the name under which a key has a slot, at a glance.
    #[inline]
    pub(super) fn glance_key(self, key: Name) -> Option<Name> {
        let names = self.slots.iter().map(|slot| Name(slot.name.load(Ordering::Relaxed) & !LOCK));
        names.into_iter().find(|name| name.is_key_of(key))
    }

    /// Touches the line, so that it is on its way from memory while others are looked at.
    #[inline]
    pub(super) fn touch(self) -> u64 {
        self.slots[0].name.load(Ordering::Relaxed)
    }

    /// Locks the line. Ends as soon as whoever holds it lets go, which takes them a few instructions of their own.
    #[inline]
    pub(super) fn lock(self) -> Held<'t> {
        let first = &self.slots[0].name;
        let name = first.load(Ordering::Relaxed) & !LOCK;
        // Acquire, with the Release of `drop`: what the last holder wrote is seen.
        if first.compare_exchange(name, name | LOCK, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slowly();
        }
        Held { line: self }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(self) {
        let first = &self.slots[0].name;
        for turn in 1u32.. {
            let name = first.load(Ordering::Relaxed);
            if name & LOCK == 0 {
                let taken =
                    first.compare_exchange_weak(name, name | LOCK, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return;
                }
            }
            if turn % SPINS == 0 { yield_now() } else { spin_loop() }
        }
    }
}

/// A locked line; dropping it unlocks.
// All accesses below are Relaxed: the lock orders them.
#[derive(Debug)]
pub(super) struct Held<'l> {
    line: Line<'l>,
}

impl Held<'_> {
    #[inline]
    pub(super) fn name(&self, slot: usize) -> Name {
        Name(self.line.slots[slot].name.load(Ordering::Relaxed) & !LOCK)
    }

    #[inline]
    pub(super) fn word(&self, slot: usize) -> u64 {
        self.line.slots[slot].word.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_word(&self, slot: usize, word: u64) {
        self.line.slots[slot].word.store(word, Ordering::Relaxed);
    }

    pub(super) fn set(&self, slot: usize, name: Name, word: u64) {
        let lock = if slot == 0 { LOCK } else { 0 };
        self.set_word(slot, word);
        self.line.slots[slot].name.store(name.0 | lock, Ordering::Relaxed);
    }

    /// Finds the slot of a key, under whatever limit. `is` says whether a slot of its name is that key's.
    pub(super) fn find(&self, key: Name, is: impl Fn(usize) -> bool) -> Option<usize> {
        let named = |slot: usize| self.name(slot).is_key_of(key) && self.name(slot) != Name::EMPTY;
        (0..WAYS).find(|slot| named(*slot) && is(*slot))
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        let first = &self.line.slots[0].name;
        first.store(first.load(Ordering::Relaxed) & !LOCK, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_is_written_under_the_lock_is_whole() {
        let slots = <[Slot; WAYS]>::default();
        let line = Line::of(&slots);
        let (one, two) = (Name::new(1 << 20, Class(3)), Name::new(2 << 20, Class(4)));
        std::thread::scope(|scope| {
            for name in [one, two] {
                scope.spawn(move || {
                    for _ in 0..50_000 {
                        let held = line.lock();
                        for slot in 0..WAYS {
                            held.set(slot, name, held.word(0) + u64::from(slot == 0));
                        }
                    }
                });
            }
        });
        let held = line.lock();
        assert_eq!(held.word(0), 100_000, "no turn was lost");
        assert!((0..WAYS).all(|slot| held.name(slot) == held.name(0)));
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    use loom::sync::Arc;

    use super::*;
    use crate::sync::explore;

    /// Looks at every cell, so that it is there before the threads are.
    fn line() -> Arc<[Slot; WAYS]> {
        let slots = Arc::new(<[Slot; WAYS]>::default());
        {
            let held = Line::of(&slots).lock();
            (0..WAYS).for_each(|slot| held.set(slot, Name::EMPTY, 0));
        }
        slots
    }

    /// The first slot's name carries the lock and is written under it, the other slot's is not: both ways to lose a turn.
    #[test]
    fn turns_under_the_lock_are_whole_and_none_is_lost() {
        explore(Some(2), || {
            let line = line();
            let turn = |slots: &[Slot; WAYS], number: u64| {
                let held = Line::of(slots).lock();
                let (first, second) = (held.word(0), held.word(1));
                assert_eq!(first, second, "nobody is between the two writes");
                assert_eq!(held.name(0), held.name(1));
                let name = Name::new(number << 20, Class(3));
                held.set(0, name, first + 1);
                held.set(1, name, second + 1);
            };
            let other = Arc::clone(&line);
            let other = loom::thread::spawn(move || {
                turn(&other, 1);
                turn(&other, 2);
            });
            turn(&line, 3);
            other.join().unwrap();
            assert_eq!(Line::of(&line).lock().word(0), 3);
        });
    }

    /// A check finds its slot at a glance and locks afterwards; meanwhile the slot goes to another key.
    #[test]
    fn a_check_never_spends_of_the_key_that_got_its_slot() {
        use std::sync::Arc as Shared;
        use tidegate_core::{Quota, Tick, rate::GcraWord};

        explore(None, || {
            let quota = Quota::per_second(1).burst(5).gcra().unwrap();
            let Quota::Gcra(gcra) = &quota else { unreachable!() };
            let form = GcraWord::new(gcra, Tick::EPOCH).unwrap();
            let class = Class(1);
            let limit = crate::store::memory::classes::Limit::of_test(class, Shared::new(quota), form);
            let (ann, bob) = (Name::new(1 << 20, class), Name::new(2 << 20, class));
            let line = line();
            Line::of(&line).lock().set(0, ann, 0);
            let other = {
                let line = Arc::clone(&line);
                loom::thread::spawn(move || Line::of(&line).lock().set(0, bob, 7))
            };
            let by = Reading::at(&limit, Tick::from_secs(1)).unwrap();
            let taken = Line::of(&line).take(ann, |_| true, &by, 1);
            other.join().unwrap();
            let held = Line::of(&line).lock();
            assert_eq!((held.name(0), held.word(0)), (bob, 7), "{taken:?}");
        });
    }
}

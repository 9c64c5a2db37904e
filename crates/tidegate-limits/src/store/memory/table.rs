//! The table of slots: finds the slot of a key, and gives slots to new keys.
//!
//! The fingerprint of a key selects two lines, and the key has a slot in one of them. A new key takes the first line
//! while two or more slots are free there, and otherwise the emptier of the two. With 22 slots for 15 keys, 1 key in
//! 160 finds all eight slots live, and 1 in 7 is in its second line. (If it always took the emptier line: 1 in 600, and
//! 2 in 7. With one line only: 1 in 12.) A step on a key that has a slot seizes that slot. To give a slot to a new key,
//! both lines are locked, the lower first: so there is no deadlock, and no key gets two slots.

use std::hint::black_box;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};

use super::cache_line::{CacheLine, LockedLine, Seized, Slot, WAYS};
use super::cache_lines::{Lines, blank};
use super::changed_slots::Marks;
use super::classes::Classes;
use super::full_keys::{FullKey, FullKeys};
use super::limit::PermanentLimit;
use super::name::{Class, Name};
use super::overflow::Overflow;
use super::reading::{Reading, WordOutcome};
use super::seed::{Hashing, Seed};

/// The ratio of slots to keys of the capacity: 23.5 bytes a key.
const SLOTS: (usize, usize) = (22, 15);

/// A key's fingerprint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Returns the name of a slot that holds a state of this class for the key.
    #[inline]
    pub(super) const fn name(self, class: Class) -> Name {
        Name::new(self.0, class)
    }
}

/// A key that is searched for: its fingerprint, and in a table of full keys also the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sought {
    fingerprint: Fingerprint,
    full_key: Option<FullKey>,
}

impl Sought {
    #[cfg(test)]
    pub(super) const fn with_fingerprint(self, bits: u64) -> Self {
        Self { fingerprint: Fingerprint(bits), ..self }
    }

    pub(super) const fn of_parts(fingerprint: u64, full_key: Option<FullKey>) -> Self {
        Self { fingerprint: Fingerprint(fingerprint), full_key }
    }

    pub(super) const fn fingerprint(self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns whether the table cannot tell the two keys apart where they meet in a line.
    pub(super) fn is_as(self, other: Self) -> bool {
        self.name(Class::WIDE).is_key_of(other.name(Class::WIDE)) && self.full_key == other.full_key
    }

    /// Returns the name of a slot that holds a state of this class for the key.
    #[inline]
    pub(super) const fn name(self, class: Class) -> Name {
        self.fingerprint.name(class)
    }
}

/// The part of each key that a table keeps to tell keys apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Fingerprints,
    Keys,
}

/// A place in the table. Places are seized in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TablePlace {
    pub(super) line: usize,
    pub(super) slot: usize,
}

#[derive(Debug)]
pub(super) struct Table {
    hashing: Hashing,
    pub(super) lines: Lines<Slot>,
    /// The keys of all slots, in a table of full keys.
    pub(super) full_keys: Option<FullKeys>,
    pub(super) classes: Classes,
    pub(super) overflow: Overflow,
    /// The lower 16 bits of the fingerprint of each slot, which its name lacks; only in a table that can be exported.
    /// Written and read under the lock of the line.
    pub(super) low_bits: Option<Box<[AtomicU16]>>,
    /// Which slots have changed; only in a tracked table, whose changes are stored elsewhere. Such a table also has
    /// `low_bits`.
    pub(super) marks: Option<Marks>,
    pub(super) used: AtomicUsize,
    pub(super) evicted: AtomicU64,
    pub(super) evicted_over_limit: AtomicU64,
}

impl Table {
    /// Makes a table; `keys` is at most [`MemoryStore::MAX_KEYS`](super::MemoryStore::MAX_KEYS). `None` where there is no memory for it.
    pub(super) fn new(keys: usize, keep: Keep) -> Option<Self> {
        Self::with(keys, keep, &Seed::random())
    }

    /// Makes a table that can be exported: two bytes more for each slot.
    pub(super) fn seeded(keys: usize, keep: Keep, seed: &Seed) -> Option<Self> {
        let mut table = Self::with(keys, keep, seed)?;
        table.low_bits = Some(blank(table.slots())?);
        Some(table)
    }

    /// Makes a table that can be exported and notes which of its slots change: 17 bits more for each slot than the
    /// plain table.
    pub(super) fn tracked(keys: usize, keep: Keep, seed: &Seed) -> Option<Self> {
        let mut table = Self::seeded(keys, keep, seed)?;
        table.marks = Some(Marks::new(table.slots())?);
        Some(table)
    }

    fn with(keys: usize, keep: Keep, seed: &Seed) -> Option<Self> {
        let slots = keys.max(1).saturating_mul(SLOTS.0).div_ceil(SLOTS.1);
        let lines = slots.div_ceil(WAYS).max(2);
        let full_keys = match keep {
            Keep::Fingerprints => None,
            Keep::Keys => Some(FullKeys::new(lines)?),
        };
        Some(Self {
            hashing: Hashing::new(seed),
            lines: Lines::new(lines)?,
            full_keys,
            classes: Classes::default(),
            overflow: Overflow::new(lines),
            low_bits: None,
            marks: None,
            used: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            evicted_over_limit: AtomicU64::new(0),
        })
    }

    pub(super) fn slots(&self) -> usize {
        self.lines.count() * WAYS
    }

    /// Returns the bytes of all slots, full keys included.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let slot = size_of::<Slot>() + self.full_keys.as_ref().map_or(0, |_| size_of::<FullKey>());
        self.slots() * slot
    }

    /// Returns which part of each key the table keeps.
    pub(super) fn keep(&self) -> Keep {
        if self.full_keys.is_some() { Keep::Keys } else { Keep::Fingerprints }
    }

    /// Returns the fingerprint of a key. It is seeded, so an outsider cannot find keys that meet in a line and crowd
    /// out a victim's.
    #[inline(always)]
    pub(super) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        Fingerprint(self.hashing.fingerprint(key))
    }

    /// Returns a number that is the same for every table that hashes as this one does.
    pub(super) fn probe(&self) -> u64 {
        self.hashing.probe()
    }

    /// Returns the form of a key by which the table is searched.
    pub(super) fn sought(&self, fingerprint: Fingerprint, key: &[u8]) -> Sought {
        Sought { fingerprint, full_key: self.full_keys.as_ref().map(|_| FullKey::of(key, &self.hashing)) }
    }

    /// Returns the first line of a key.
    #[inline(always)]
    pub(super) fn first(&self, fingerprint: Fingerprint) -> usize {
        // The 16 bits that are not in the tag are moved to the top, so that line and tag together use the whole
        // fingerprint.
        spread(fingerprint.0.rotate_right(16), self.lines.count())
    }

    /// Returns the second line of a key.
    #[inline]
    pub(super) fn second(&self, fingerprint: Fingerprint) -> usize {
        // A second hash from the same fingerprint (the multiplier of Fibonacci hashing), whose upper bits depend on all
        // its bits.
        let number = (fingerprint.0 ^ fingerprint.0 >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let lines = self.lines.count();
        let other = self.first(fingerprint) + 1 + spread(number, lines - 1);
        if other < lines { other } else { other - lines }
    }

    /// Returns the two lines of a key in the order in which they are locked.
    pub(super) fn lines_of(&self, key: Sought) -> [usize; 2] {
        let (first, second) = (self.first(key.fingerprint), self.second(key.fingerprint));
        [first.min(second), first.max(second)]
    }

    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> CacheLine<'_> {
        CacheLine::of(self.lines.get(line))
    }

    /// Reads from a key's first line, to prefetch it while others are looked at.
    #[inline]
    pub(super) fn touch(&self, fingerprint: Fingerprint) -> u64 {
        let line = self.first(fingerprint);
        let kept = self.full_keys.as_ref().map_or(0, |full_keys| full_keys.touch(line));
        self.line(line).touch() ^ kept
    }

    /// Returns whether a slot with a key's name is that key's; the line must be locked or the slot seized. In a table
    /// of fingerprints the name alone decides.
    #[inline]
    pub(super) fn holds_key(&self, place: TablePlace, key: Sought) -> bool {
        match (&self.full_keys, key.full_key) {
            (Some(full_keys), Some(full_key)) => full_keys.holds(place.line, place.slot, full_key),
            _ => true,
        }
    }

    /// Finds the place of a key under any limit.
    pub(super) fn place(&self, both: &Both<'_>, key: Sought) -> Option<TablePlace> {
        let find = |(line, held): (usize, &LockedLine<'_>)| {
            let slot =
                held.find(key.name(Class::WIDE), |slot| self.holds_key(TablePlace { line, slot }, key))?;
            Some(TablePlace { line, slot })
        };
        both.lines.into_iter().find_map(find)
    }

    /// Gives a seized slot to a key.
    pub(super) fn give(
        &self,
        both: &Both<'_>,
        place: TablePlace,
        seized: &mut Seized<'_>,
        key: Sought,
        class: Class,
    ) {
        if let (Some(full_keys), Some(full_key)) = (&self.full_keys, key.full_key) {
            full_keys.keep(place.line, place.slot, full_key);
        }
        if let Some(low_bits) = &self.low_bits {
            // The lower 16 bits.
            low_bits[place.line * WAYS + place.slot].store(key.fingerprint.0 as u16, Ordering::Relaxed);
            self.mark(place);
        }
        seized.rename(both.at(place), key.name(class));
    }

    /// Notes that a slot has changed, or is about to be changed by the thread that has seized it.
    pub(super) fn mark(&self, place: TablePlace) {
        if let Some(marks) = &self.marks {
            marks.mark(place.line * WAYS + place.slot);
        }
    }

    /// Spends units of a key whose word is in its first line and not seized, and returns the new word. `None` where
    /// that did not succeed, for whatever reason; always `None` in a table of full keys, where the keys have to be
    /// compared first, see [`Table::holds_key`].
    #[inline(always)]
    pub(super) fn permit(
        &self,
        fingerprint: Fingerprint,
        first: &PermanentLimit,
        now: u64,
        units: u64,
    ) -> Option<u64> {
        if self.full_keys.is_some() {
            return None;
        }
        self.line(self.first(fingerprint)).permit(
            fingerprint.name(first.entry.class),
            &first.form,
            now,
            units,
        )
    }

    /// As [`Table::permit`], for any limit.
    #[inline(always)]
    pub(super) fn permit_by(&self, fingerprint: Fingerprint, by: &Reading<'_>, units: u64) -> Option<u64> {
        if self.full_keys.is_some() {
            return None;
        }
        match self.line(self.first(fingerprint)).permit_or_read(fingerprint.name(by.limit.class()), by, units)
        {
            Some(WordOutcome::Permitted(word)) => Some(word),
            _ => None,
        }
    }

    /// As [`Table::permit`], in both lines: in a table with as many keys as it is made for, one key in seven is in its
    /// second line. For a key that would be refused, it returns the word that was seen.
    #[inline]
    pub(super) fn permit_or_read(
        &self,
        fingerprint: Fingerprint,
        by: &Reading<'_>,
        units: u64,
    ) -> WordOutcome {
        if self.full_keys.is_some() {
            return WordOutcome::Undecided;
        }
        let name = fingerprint.name(by.limit.class());
        let see = |line: usize| self.line(line).permit_or_read(name, by, units);
        see(self.first(fingerprint))
            .or_else(|| see(self.second(fingerprint)))
            .unwrap_or(WordOutcome::Undecided)
    }

    /// Spends units of a key where the fast path did not decide: refusals, slots that others have seized, new keys, and
    /// every key in a table of full keys.
    #[inline(never)]
    pub(super) fn take(
        &self,
        fingerprint: Fingerprint,
        key: &[u8],
        by: &Reading<'_>,
        units: u64,
    ) -> WordOutcome {
        if let Some(full_keys) = &self.full_keys {
            // Read now, so that both cache misses overlap; the slot is needed first.
            black_box(full_keys.touch(self.first(fingerprint)));
        }
        let key = self.sought(fingerprint, key);
        let take = |line| {
            let is = |slot| self.holds_key(TablePlace { line, slot }, key);
            self.line(line).take(key.name(by.limit.class()), is, by, units)
        };
        if let Some(taken) = take(self.first(fingerprint)) {
            return taken;
        }
        take(self.second(fingerprint)).unwrap_or_else(|| self.admit(key, by, units))
    }

    /// Gives a slot to a key that was in neither line, and spends its units.
    fn admit(&self, key: Sought, by: &Reading<'_>, units: u64) -> WordOutcome {
        let [low, high] = self.lines_of(key);
        let (first, second) = (self.line(low).lock(), self.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        if self.place(&both, key).is_some() {
            // Another thread has added the key meanwhile, or it has a slot under another limit.
            return WordOutcome::Undecided;
        }
        if !by.limit.admits() {
            return WordOutcome::Undecided;
        }
        let Some(next) = by.form.take(0, by.now, units) else { return WordOutcome::Refused(0) };
        if let Some((place, mut seized)) = self.claim(&both, key, by.limit.owner(), by.tick, Some(by), None) {
            self.give(&both, place, &mut seized, key, by.limit.class());
            seized.word = next;
        }
        WordOutcome::Permitted(next)
    }
}

/// Maps a number evenly to `0..count`, by its upper bits and without a division.
#[inline]
fn spread(number: u64, count: usize) -> usize {
    ((u128::from(number) * count as u128) >> 64) as usize
}

/// The two lines of one key, locked, with their numbers in ascending order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<'h> {
    pub(super) lines: [(usize, &'h LockedLine<'h>); 2],
}

impl<'h> Both<'h> {
    /// Returns the line of a place in one of them.
    pub(super) fn at(&self, place: TablePlace) -> &'h LockedLine<'h> {
        let [(low, first), (_, second)] = self.lines;
        if place.line == low { first } else { second }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod flooding;

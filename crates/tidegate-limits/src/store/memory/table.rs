//! The table of slots: finds the slot of a key, and gives slots to new keys.
//!
//! The fingerprint of a key selects two lines, and the key has a slot in one of them. A new key takes the first line
//! while two or more slots are free there, and otherwise the emptier of the two. With 22 slots for 15 keys, 1 key in
//! 160 finds all eight slots live, and 1 in 7 is in its second line. (If it always took the emptier line: 1 in 600, and
//! 2 in 7. With one line only: 1 in 12.) A step on a key that has a slot seizes that slot. To give a slot to a new key,
//! both lines are locked, the lower first: so there is no deadlock, and no key gets two slots.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use super::cache_line::{CacheLine, Lines, LockedLine, Seized, Slot, WAYS, blank};
use super::changes::Marks;
use super::classes::Classes;
use super::limit::{Class, Name, PermanentLimit};
use super::seed::{FullKey, FullKeys, Hashing, Seed};
use super::word_path::{Reading, WordOutcome};
use crate::store::Cell;
use crate::sync::unexplored::{AtomicU64, AtomicUsize, Mutex};

/// The ratio of slots to keys of the capacity: 23.5 bytes a key.
const SLOTS: (usize, usize) = (22, 15);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    #[inline]
    pub(super) const fn name(self, class: Class) -> Name {
        Name::new(self.0, class)
    }
}

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

    #[inline]
    pub(super) const fn name(self, class: Class) -> Name {
        self.fingerprint.name(class)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyForm {
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
    /// Makes a table for at most [`MemoryStore::MAX_KEYS`](super::MemoryStore::MAX_KEYS) keys; `None` where there is no
    /// memory for it.
    pub(super) fn new(keys: usize, form: KeyForm) -> Option<Self> {
        Self::with(keys, form, &Seed::random())
    }

    /// Makes a table that can be exported: two bytes more for each slot.
    pub(super) fn seeded(keys: usize, form: KeyForm, seed: &Seed) -> Option<Self> {
        let mut table = Self::with(keys, form, seed)?;
        table.low_bits = Some(blank(table.slots())?);
        Some(table)
    }

    /// Makes a table that can be exported and notes which of its slots change: 17 bits more for each slot than the
    /// plain table.
    pub(super) fn tracked(keys: usize, form: KeyForm, seed: &Seed) -> Option<Self> {
        let mut table = Self::seeded(keys, form, seed)?;
        table.marks = Some(Marks::new(table.slots())?);
        Some(table)
    }

    fn with(keys: usize, form: KeyForm, seed: &Seed) -> Option<Self> {
        let slots = keys.max(1).saturating_mul(SLOTS.0).div_ceil(SLOTS.1);
        let lines = slots.div_ceil(WAYS).max(2);
        let full_keys = match form {
            KeyForm::Fingerprints => None,
            KeyForm::Keys => Some(FullKeys::new(lines)?),
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

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let slot = size_of::<Slot>() + self.full_keys.as_ref().map_or(0, |_| size_of::<FullKey>());
        self.slots() * slot
    }

    pub(super) fn key_form(&self) -> KeyForm {
        if self.full_keys.is_some() { KeyForm::Keys } else { KeyForm::Fingerprints }
    }

    /// Returns the fingerprint of a key. It is seeded, so an outsider cannot find keys that meet in a line and crowd
    /// out a victim's.
    #[inline(always)]
    pub(super) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        Fingerprint(self.hashing.fingerprint(key))
    }

    pub(super) fn probe(&self) -> u64 {
        self.hashing.probe()
    }

    pub(super) fn sought(&self, fingerprint: Fingerprint, key: &[u8]) -> Sought {
        Sought { fingerprint, full_key: self.full_keys.as_ref().map(|_| FullKey::of(key, &self.hashing)) }
    }

    #[inline(always)]
    pub(super) fn first(&self, fingerprint: Fingerprint) -> usize {
        // The 16 bits that are not in the tag are moved to the top, so that line and tag together use the whole
        // fingerprint.
        spread(fingerprint.0.rotate_right(16), self.lines.count())
    }

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

    #[inline]
    pub(super) fn touch(&self, fingerprint: Fingerprint) -> u64 {
        let line = self.first(fingerprint);
        let kept = self.full_keys.as_ref().map_or(0, |full_keys| full_keys.touch(line));
        self.line(line).touch() ^ kept
    }

    /// Returns whether a slot with a key's name is that key's. The line must be locked or the slot seized; in a table
    /// of fingerprints the name alone decides.
    #[inline]
    pub(super) fn holds_key(&self, place: TablePlace, key: Sought) -> bool {
        match (&self.full_keys, key.full_key) {
            (Some(full_keys), Some(full_key)) => full_keys.holds(place.line, place.slot, full_key),
            _ => true,
        }
    }

    pub(super) fn place(&self, both: &Both<'_>, key: Sought) -> Option<TablePlace> {
        let find = |(line, held): (usize, &LockedLine<'_>)| {
            let slot =
                held.find(key.name(Class::WIDE), |slot| self.holds_key(TablePlace { line, slot }, key))?;
            Some(TablePlace { line, slot })
        };
        both.lines.into_iter().find_map(find)
    }

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
    /// that did not succeed; always so in a table of full keys, where the keys have to be compared first
    /// ([`Table::holds_key`]).
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

    /// Reads the word of a key under this limit; always `None` in a table of full keys.
    #[inline]
    pub(super) fn word(&self, fingerprint: Fingerprint, class: Class) -> Option<u64> {
        if self.full_keys.is_some() {
            return None;
        }
        let name = fingerprint.name(class);
        let read = |line: usize| self.line(line).read(name);
        read(self.first(fingerprint)).or_else(|| read(self.second(fingerprint)))
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

    /// Decides refusals, slots that others have seized, new keys, and every key in a table of full keys.
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

#[inline]
fn spread(number: u64, count: usize) -> usize {
    ((u128::from(number) * count as u128) >> 64) as usize
}

/// The two lines of one key, locked, in ascending order of their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<'h> {
    pub(super) lines: [(usize, &'h LockedLine<'h>); 2],
}

impl<'h> Both<'h> {
    pub(super) fn at(&self, place: TablePlace) -> &'h LockedLine<'h> {
        let [(low, first), (_, second)] = self.lines;
        if place.line == low { first } else { second }
    }
}

// Keeps the states that do not fit a word: it has a place for a whole cell for each slot of the table.
//
// Cells lie in small groups, each with its own lock, at places that belong to the table's slots: so there is no search,
// and nothing large is ever moved, however many cells there are. Nothing is allocated before the first cell comes.

/// The number of lines in a group: a group's cells, 32 of 64 bytes, are allocated together.
const LINES: usize = 8;

type Group = Mutex<Vec<Option<(Cell, u32)>>>;

#[derive(Debug)]
pub(super) struct Overflow {
    lines: usize,
    groups: OnceLock<Box<[Group]>>,
}

impl Overflow {
    pub(super) const fn new(lines: usize) -> Self {
        Self { lines, groups: OnceLock::new() }
    }

    pub(super) fn take(&self, line: usize, slot: usize) -> Option<Cell> {
        let mut group = self.groups.get()?[line / LINES].lock();
        group.get_mut(line % LINES * WAYS + slot)?.take().map(|(cell, _)| cell)
    }

    pub(super) fn put(&self, line: usize, slot: usize, cell: Cell, owner: u32) {
        let make = || (0..self.lines.div_ceil(LINES)).map(|_| Group::default()).collect();
        let mut group = self.groups.get_or_init(make)[line / LINES].lock();
        if group.is_empty() {
            group.resize(LINES * WAYS, None);
        }
        group[line % LINES * WAYS + slot] = Some((cell, owner));
    }

    pub(super) fn change<R>(
        &self,
        line: usize,
        slot: usize,
        change: impl FnOnce(&mut Option<(Cell, u32)>) -> R,
    ) -> Option<R> {
        let mut group = self.groups.get()?[line / LINES].lock();
        group.get_mut(line % LINES * WAYS + slot).map(change)
    }

    pub(super) fn with<R>(&self, line: usize, slot: usize, look: impl FnOnce(&Cell, u32) -> R) -> Option<R> {
        let group = self.groups.get()?[line / LINES].lock();
        group.get(line % LINES * WAYS + slot)?.as_ref().map(|(cell, owner)| look(cell, *owner))
    }

    #[cfg(all(test, not(tidegate_loom)))]
    pub(super) fn kept(&self) -> usize {
        let groups = self.groups.get().into_iter().flatten();
        groups.map(|group| group.lock().iter().flatten().count()).sum()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod flooding {
    //! Hash-flooding attempts: keys that were chosen to meet in the same lines.
    //!
    //! An attacker has the code and can choose keys that collide in any table except the victim's, whose seed is drawn when
    //! it is made. Keys that crowd one line there must not meet here, and no pattern of keys may crowd lines under any
    //! seed.

    use std::collections::{HashMap, HashSet};

    use super::{KeyForm, Table, WAYS};

    const KEYS: usize = 50_000;

    /// More keys than a line has room for.
    const CROWD: usize = WAYS + 1;

    /// Returns how many of the keys share their first line with so many others that it is crowded, and whether any two have
    /// the same fingerprint.
    fn crowded<K: AsRef<[u8]>>(table: &Table, keys: &[K]) -> (usize, bool) {
        let mut lines: HashMap<usize, usize> = HashMap::new();
        let mut fingerprints = HashSet::new();
        for key in keys {
            let fingerprint = table.fingerprint(key.as_ref());
            *lines.entry(table.first(fingerprint)).or_default() += 1;
            fingerprints.insert(fingerprint.0);
        }
        let crowd = lines.values().filter(|count| **count >= CROWD).sum();
        (crowd, fingerprints.len() < keys.len())
    }

    /// Families of keys that a weak hash maps to similar values.
    fn patterns() -> Vec<(&'static str, Vec<Vec<u8>>)> {
        let of = |make: &dyn Fn(usize) -> Vec<u8>| (0..KEYS).map(make).collect::<Vec<_>>();
        let beside = |at: usize, length: usize| {
            let mut key = vec![0; length];
            let place = at % (length - 3);
            // Three bytes of a number, somewhere among zeros.
            key[place..place + 3].copy_from_slice(&(at as u32 + 1).to_le_bytes()[..3]);
            key
        };
        vec![
            ("a counter", of(&|at| (at as u64).to_le_bytes().to_vec())),
            ("a counter in the upper half", of(&|at| ((at as u64) << 47).to_be_bytes().to_vec())),
            ("zeros of every length", (0..2000).map(|length| vec![0; length]).collect()),
            ("ones of every length", (0..2000).map(|length| vec![0xFF; length]).collect()),
            ("a number among 16 zeros", of(&|at| beside(at, 16))),
            ("a number among 17 zeros", of(&|at| beside(at, 17))),
            ("a number among 300 zeros", of(&|at| beside(at, 300))),
            ("one half twice", of(&|at| [(at as u64).to_le_bytes(); 2].concat())),
            ("eight bytes, four times", of(&|at| [(at as u64).to_le_bytes(); 4].concat())),
            ("after a long beginning", of(&|at| format!("{}:{at}", "tenant/".repeat(40)).into_bytes())),
            ("before a long end", of(&|at| format!("{at}:{}", "/tenant".repeat(40)).into_bytes())),
            ("addresses", of(&|at| format!("10.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255).into_bytes())),
        ]
    }

    /// Of 50,000 keys that fall by chance on 183,334 lines, nine are in crowded lines; a hundred are so with odds of 1 in
    /// 10¹⁴.
    #[test]
    fn no_pattern_of_keys_crowds_lines() {
        for _ in 0..crate::sync::short_or_long(1, 4) {
            let table = Table::new(10 * KEYS, KeyForm::Fingerprints).unwrap();
            for (name, keys) in patterns() {
                let keys: Vec<_> = keys.into_iter().collect::<HashSet<_>>().into_iter().collect();
                let (crowd, met) = crowded(&table, &keys);
                assert!(crowd < 100, "{name}: {crowd} keys in crowded lines");
                assert!(!met, "{name}: two keys of one fingerprint");
            }
        }
    }

    /// Keys that all lie in sixteen lines of an attacker's own table are spread over the victim's table: of 2,000 keys on
    /// 3,667 lines, five are in crowded lines by chance, and sixty with odds of 1 in 10¹⁰.
    #[test]
    fn keys_that_crowd_one_table_are_strangers_in_another() {
        let (theirs, ours) = (
            Table::new(10_000, KeyForm::Fingerprints).unwrap(),
            Table::new(10_000, KeyForm::Fingerprints).unwrap(),
        );
        let number = |at: u64| format!("user:{at}");
        let chosen: Vec<String> = (0..)
            .map(number)
            .filter(|key| theirs.first(theirs.fingerprint(key.as_bytes())) < 16)
            .take(2000)
            .collect();
        assert_eq!(crowded(&theirs, &chosen).0, chosen.len(), "they crowd there");
        let (crowd, _) = crowded(&ours, &chosen);
        assert!(crowd < 60, "{crowd} of {} keys are in crowded lines here", chosen.len());
    }
}

//! Where a key's slot is, and whose slot a new key gets.
//!
//! A key has two lines, both named by its fingerprint. It lives in one of them; a new key takes the first while that has two
//! places or more, then the emptier of the two. With half again as many slots as keys, 1 key in 200 finds all eight slots live,
//! and 1 in 7 is in its second line. (Always the emptier one: 1 in 700, and 2 in 7. One line of four: 1 in 12.) Who settles a key that is there locks one line; who brings a new one locks both,
//! the lower first, so that nobody waits in a circle and no key gets two slots.
//!
//! A slot whose limit is full again is as good as empty, so nothing is ever swept.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::quality::RandomState;
use tidegate_core::{Algorithm, Tick};

use super::classes::{Classes, Limit};
use super::line::{Class, Held, Line, Name, Slot, WAYS};
use super::lines::Lines;
use super::side::Side;
use super::whole::{Whole, Wholes};

/// Slots for each key of the capacity, as a ratio: three to two.
const SLOTS: (usize, usize) = (3, 2);

/// A key's fingerprint, and the key itself in a table that keeps those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Print {
    bits: u64,
    whole: Option<Whole>,
}

impl Print {
    #[cfg(test)]
    pub(super) const fn with_bits(self, bits: u64) -> Self {
        Self { bits, ..self }
    }

    /// Returns the name of a slot that holds a word of this limit for the key.
    #[inline]
    pub(super) const fn name(self, class: Class) -> Name {
        Name::new(self.bits, class)
    }
}

/// The outcome of a check on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Spent; the word that stands now.
    Permitted(u64),
    /// Not spent; the word that stands.
    Refused(u64),
    /// Not here: another limit, or a state that is no word.
    Elsewhere,
}

/// What words are read by: a limit, and the present in ticks and in the limit's scaled time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'t> {
    pub(crate) limit: &'t Limit,
    pub(crate) tick: Tick,
    pub(crate) now: u64,
}

impl<'t> Reading<'t> {
    /// Makes it; `None` where the limit's form has come to its end.
    #[inline]
    pub(crate) fn at(limit: &'t Limit, tick: Tick) -> Option<Self> {
        Some(Self { limit, tick, now: limit.form.scaled(tick)? })
    }
}

/// The free places of a line.
#[derive(Clone, Copy, Debug, Default)]
struct Free {
    count: usize,
    empty: Option<Place>,
    forgettable: Option<Place>,
}

impl Free {
    fn add(&mut self, place: Place, empty: bool) {
        self.count += 1;
        *(if empty { &mut self.empty } else { &mut self.forgettable }) = Some(place);
    }
}

/// What a table keeps of its keys, to tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Fingerprints,
    Keys,
}

/// A place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) slot: usize,
}

#[derive(Debug)]
pub(super) struct Table {
    hasher: RandomState,
    lines: Lines<Slot>,
    /// The keys of all slots, where they are kept.
    wholes: Option<Wholes>,
    pub(super) classes: Classes,
    pub(super) side: Side,
    pub(super) used: AtomicUsize,
    pub(super) evicted: AtomicU64,
    pub(super) evicted_over_limit: AtomicU64,
}

impl Table {
    pub(super) fn new(keys: usize, keep: Keep) -> Self {
        let slots = keys.max(1).saturating_mul(SLOTS.0).div_ceil(SLOTS.1);
        let lines = slots.div_ceil(WAYS).max(2);
        Self {
            hasher: RandomState::default(),
            lines: Lines::new(lines),
            wholes: (keep == Keep::Keys).then(|| Wholes::new(lines)),
            classes: Classes::default(),
            side: Side::new(lines),
            used: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            evicted_over_limit: AtomicU64::new(0),
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.lines.count() * WAYS
    }

    /// Returns the bytes of all slots, with what is kept of their keys.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let slot = size_of::<Slot>() + self.wholes.as_ref().map_or(0, |_| size_of::<Whole>());
        self.slots() * slot
    }

    /// Returns what the table keeps of its keys.
    pub(super) fn keep(&self) -> Keep {
        if self.wholes.is_some() { Keep::Keys } else { Keep::Fingerprints }
    }

    /// The seed hides which keys meet in a line, so that nobody can crowd a victim's.
    #[inline]
    pub(super) fn print(&self, key: &[u8]) -> Print {
        let whole = self.wholes.as_ref().map(|wholes| wholes.of(key));
        Print { bits: self.hasher.hash_one(key), whole }
    }

    /// Returns the line a key lives in by preference.
    #[inline]
    pub(super) fn first(&self, print: Print) -> usize {
        // The 16 bits that are not in the tag go first, so that tag and line together are as wide as the fingerprint.
        spread(print.bits.rotate_right(16), self.lines.count())
    }

    /// Returns the other line.
    #[inline]
    pub(super) fn second(&self, print: Print) -> usize {
        // Another number of the same fingerprint (the multiplier of Fibonacci hashing), whose upper bits depend on all of its.
        let number = (print.bits ^ print.bits >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let lines = self.lines.count();
        let other = self.first(print) + 1 + spread(number, lines - 1);
        if other < lines { other } else { other - lines }
    }

    /// Returns the two lines of a key in ascending order.
    pub(super) fn both(&self, print: Print) -> [usize; 2] {
        let (first, second) = (self.first(print), self.second(print));
        [first.min(second), first.max(second)]
    }

    #[inline]
    pub(super) fn line(&self, line: usize) -> Line<'_> {
        Line::of(self.lines.get(line))
    }

    /// Touches the memory of a key's preferred line.
    #[inline]
    pub(super) fn touch(&self, print: Print) -> u64 {
        let line = self.first(print);
        let kept = self.wholes.as_ref().map_or(0, |wholes| wholes.touch(line));
        self.line(line).touch() ^ kept
    }

    /// Says whether a slot with a key's name is that key's; the line must be locked. Always so by fingerprints alone.
    #[inline]
    pub(super) fn is(&self, line: usize, slot: usize, print: Print) -> bool {
        match (&self.wholes, print.whole) {
            (Some(wholes), Some(whole)) => wholes.is(line, slot, whole),
            _ => true,
        }
    }

    /// Finds the place of a key, under whatever limit.
    pub(super) fn place(&self, both: &Both<'_>, print: Print) -> Option<Place> {
        let key = print.name(Class::WIDE);
        let find = |(line, held): (usize, &Held<'_>)| {
            let slot = held.find(key, |slot| self.is(line, slot, print))?;
            Some(Place { line, slot })
        };
        both.lines.into_iter().find_map(find)
    }

    /// Writes a key's slot.
    pub(super) fn set(&self, both: &Both<'_>, place: Place, print: Print, class: Class, word: u64) {
        if let (Some(wholes), Some(whole)) = (&self.wholes, print.whole) {
            wholes.keep(place.line, place.slot, whole);
        }
        both.at(place).set(place.slot, print.name(class), word);
    }

    /// Spends units of a key by its word, if that is where its state is; a new key gets a slot.
    #[inline(always)]
    pub(super) fn take(&self, print: Print, by: &Reading<'_>, units: u64) -> Taken {
        match self.take_in(self.first(print), print, by, units) {
            Some(taken) => taken,
            None => self.take_elsewhere(print, by, units),
        }
    }

    #[inline(always)]
    fn take_in(&self, line: usize, print: Print, by: &Reading<'_>, units: u64) -> Option<Taken> {
        let is = |slot| self.is(line, slot, print);
        self.line(line).take(print.name(by.limit.class), is, by, units)
    }

    /// Spends units of a key that is not in its preferred line: one in seven of a table as full as it is made for, and every
    /// new one.
    #[inline(never)]
    fn take_elsewhere(&self, print: Print, by: &Reading<'_>, units: u64) -> Taken {
        let second = self.take_in(self.second(print), print, by, units);
        second.unwrap_or_else(|| self.admit(print, by, units))
    }

    /// Spends units of a key that was not there at a glance.
    fn admit(&self, print: Print, by: &Reading<'_>, units: u64) -> Taken {
        let [low, high] = self.both(print);
        let (first, second) = (self.line(low).lock(), self.line(high).lock());
        let both = Both { lines: [(low, &first), (high, &second)] };
        if self.place(&both, print).is_some() {
            // It came meanwhile, or is there under another limit.
            return Taken::Elsewhere;
        }
        let Some(next) = by.limit.form.take(0, by.now, units) else { return Taken::Refused(0) };
        if let Some(place) = self.claim(&both, self.first(print), by.tick, Some(by), &[]) {
            self.set(&both, place, print, by.limit.class, next);
        }
        Taken::Permitted(next)
    }

    /// Finds a slot for a new key: an empty one, a forgettable one, or that of the key nearest to full, which is counted.
    ///
    /// `by` is the limit most of them are likely to be under. Slots in hand belong to the same step and are not given away; `None`,
    /// counted like a key given up, when all of them are.
    pub(super) fn claim(
        &self,
        both: &Both<'_>,
        first: usize,
        tick: Tick,
        by: Option<&Reading<'_>>,
        in_hand: &[Place],
    ) -> Option<Place> {
        let mut free = [Free::default(); 2];
        let mut least: Option<((bool, u64), Place)> = None;
        for (free, (line, held)) in free.iter_mut().zip(both.lines) {
            for slot in 0..WAYS {
                let place = Place { line, slot };
                if in_hand.contains(&place) {
                    continue;
                }
                match self.rank(held, place, tick, by) {
                    None => free.add(place, held.name(slot) == Name::EMPTY),
                    Some(rank) if least.is_none_or(|(lowest, _)| rank < lowest) => {
                        least = Some((rank, place));
                    }
                    Some(_) => {}
                }
            }
        }
        // The preferred line while it has two places or more; then the emptier one.
        let [low, high] = if both.lines[0].0 == first { free } else { [free[1], free[0]] };
        let [one, other] =
            if low.count >= WAYS / 2 || low.count >= high.count { [low, high] } else { [high, low] };
        // What was never used before what is not needed any more: a state that is as good as none can still be a little better,
        // such as that of a limit that starts cold.
        if let Some(place) = one.empty.or(other.empty).or(one.forgettable).or(other.forgettable) {
            self.vacate(both, place);
            return Some(place);
        }
        // Relaxed, both: counts for people, ordered with nothing.
        self.evicted.fetch_add(1, Ordering::Relaxed);
        let ((over_limit, _), place) = least?;
        self.evicted_over_limit.fetch_add(u64::from(over_limit), Ordering::Relaxed);
        self.vacate(both, place);
        Some(place)
    }

    /// Makes a slot ready for another key.
    fn vacate(&self, both: &Both<'_>, place: Place) {
        let name = both.at(place).name(place.slot);
        if name == Name::EMPTY {
            self.used.fetch_add(1, Ordering::Relaxed);
        } else if name.class() == Class::WIDE {
            self.side.take(place.line, place.slot);
        }
    }

    /// Says how near to full the limit of a slot is: whether it is over its limit, and how much of it is spent out of 2³². `None`
    /// for a slot that nobody needs.
    fn rank(
        &self,
        held: &Held<'_>,
        place: Place,
        tick: Tick,
        by: Option<&Reading<'_>>,
    ) -> Option<(bool, u64)> {
        let (name, word) = (held.name(place.slot), held.word(place.slot));
        if name == Name::EMPTY {
            return None;
        }
        if let Some(by) = by.filter(|by| by.limit.class == name.class()) {
            let rank = || (by.limit.form.is_used_up(word, by.now), by.limit.form.spent_share(word, by.now));
            return (!by.limit.form.is_full(word, by.now)).then(rank);
        }
        if name.class() == Class::WIDE {
            // The word of a wide state is the tick from which it is as good as none.
            let look = |cell: &crate::store::Cell| {
                let standing = cell.quota.standing(&cell.state, tick);
                let spent = u128::from(standing.limit.saturating_sub(standing.remaining));
                // At most the whole, which is 2³².
                (standing.remaining == 0, ((spent << 32) / u128::from(standing.limit.max(1))) as u64)
            };
            return (word > tick.as_nanos()).then(|| self.side.with(place.line, place.slot, look)).flatten();
        }
        let form = &self.classes.get(name.class())?.form;
        // A form that has come to its end counts as it stood then; it is an hour old at least.
        let now = form.scaled(tick).unwrap_or(form.scaled(form.origin().after(form.lasts()))?);
        (!form.is_full(word, now)).then(|| (form.is_used_up(word, now), form.spent_share(word, now)))
    }
}

/// Spreads numbers evenly over `0..count`, by their upper bits and without a division.
#[inline]
fn spread(number: u64, count: usize) -> usize {
    ((u128::from(number) * count as u128) >> 64) as usize
}

/// The two lines of one key, locked, with their numbers in ascending order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Both<'h> {
    pub(super) lines: [(usize, &'h Held<'h>); 2],
}

impl<'h> Both<'h> {
    /// Returns the line of a place in one of them.
    pub(super) fn at(&self, place: Place) -> &'h Held<'h> {
        let [(low, first), (_, second)] = self.lines;
        if place.line == low { first } else { second }
    }
}

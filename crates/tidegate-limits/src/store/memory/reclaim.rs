//! Reclaims the numbers of limits that no slot carries any more.
//!
//! A sweep has three phases. First, all numbers except the first few *retire*: their stamps become odd, and from then
//! on no new slot may carry them; a request for such a limit by its quota makes its number valid again. Second, every
//! line is locked once, and the numbers in it are noted; slots whose limits are full again are equivalent to empty
//! ones, and are emptied. Last, retired numbers that were not seen are freed. Checks of keys in the table continue with
//! retired numbers during all phases.
//!
//! No thread waits for a whole sweep: it is done in parts, one for each limit that asks for a new number while few are
//! left. A part is at most [`LINES`] lines or a four-thousandth of the table, which takes some microseconds.
//!
//! A number that a slot carries is never freed: a slot gets its number under the lock of its line, and only while the
//! stamp is even ([`Limit::admits`](super::limit::Limit::admits)). If that was before the sweep locked the line, the
//! sweep has seen the number there, unless the slot was given to another key in between. If it was after, the stamp was
//! odd already.

use std::sync::atomic::Ordering;

use tidegate_core::Tick;

use super::classes::{Classes, FEW, LOW};
use super::name::{Class, Name};
use super::table::Table;

/// The least number of lines in a part of a sweep.
const LINES: usize = 64;

/// The number of numbers that a part of a sweep retires or frees.
const NUMBERS: usize = 512;

/// A sweep under way; by default, none.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    phase: Phase,
    /// One bit for each number that a slot carries.
    seen: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// Retires numbers; continues with this number.
    Retire(usize),
    /// Looks at lines; continues with this line.
    Look(usize),
    /// Frees numbers; continues with this number.
    GiveUp(usize),
}

impl Sweep {
    /// Notes that a slot carries a number.
    fn see(&mut self, class: Class) {
        let number = usize::from(class.number());
        if let Some(bits) = self.seen.get_mut(number / 64) {
            *bits |= 1 << (number % 64);
        }
    }

    /// Returns whether a slot was seen to carry a number.
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

    /// Notes which numbers the slots of a line carry, and empties slots whose limits are full again.
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
    /// Retires some numbers; returns the number to continue with.
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

    /// Frees some of the numbers that are still retired and were not seen; returns the number to continue with.
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
mod tests;

#[cfg(all(test, tidegate_loom))]
mod loom_model;

//! Reclaiming: numbers of limits that no slot carries any more are given again.
//!
//! A sweep has three phases. First all numbers but the first few *retire*: their stamps become odd, and from then on no new slot comes to
//! carry them; whoever asks for such a limit by its quota takes its number out of the sweep again. Then every line is locked once, and the numbers
//! in it are noted; slots whose limits are full again are as good as empty, and are emptied. Last, retired numbers that were
//! not seen are given up. Checks of keys that are there go on with retired numbers all the while.
//!
//! Nobody waits for a sweep: it is done in parts, one for each limit that asks for a new number while few are left. A part is at
//! most [`LINES`] lines or a four-thousandth of the table, some microseconds.
//!
//! That no number is given up which a slot carries: a slot gets its number under the lock of its line, and only with an even stamp
//! ([`Limit::admits`](super::limit::Limit::admits)). If that was before the sweep locked the line, it has seen the number there, or the
//! slot was given to another key since. If it was after, the stamp was odd already.

use std::sync::atomic::Ordering;

use tidegate_core::Tick;

use super::classes::{Classes, FEW, LOW};
use super::name::{Class, Name};
use super::sweep::{Phase, Sweep};
use super::table::Table;

/// Lines per part of a sweep, at least.
const LINES: usize = 64;

/// Numbers per part of a sweep: retired, or given up.
const NUMBERS: usize = 512;

impl Table {
    /// Does a part of a sweep, if one is due. No line may be locked by the caller.
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
        // Another thread does its part already.
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

    /// Notes which numbers the slots of a line carry, and empties those that are full again.
    fn look(&self, line: usize, now: Tick, sweep: &mut Sweep) {
        let held = self.line(line).lock();
        for slot in 0..super::line::WAYS {
            let class = held.name(slot).class();
            let Some(limit) = self.classes.get(class).filter(|_| usize::from(class.number()) > FEW) else {
                continue;
            };
            // A form that has come to its end is an hour old at least; its slot is left to whoever needs it.
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
    /// Retires some numbers and returns where to go on.
    fn retire(&self, from: usize) -> Option<usize> {
        let _numbers = self.numbers.write();
        let (last, mut retired) = (self.given(), 0);
        for number in from..=last {
            // At most the largest number, which is of 15 bits.
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

    /// Gives up some of the numbers that are retired still and were not seen, and returns where to go on.
    fn give_up(&self, from: usize, sweep: &Sweep) -> Option<usize> {
        let mut numbers = self.numbers.write();
        let end = (from + NUMBERS).min(self.given() + 1);
        for number in from..end {
            // At most the largest number, which is of 15 bits.
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

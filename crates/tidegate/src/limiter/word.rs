//! The short way through a limiter: its state in one word.
//!
//! A limiter of one GCRA quota keeps its arrival time in an atomic word, and the quota's numbers on a board beside it
//! ([`Posted`]). A check reads both, computes, and exchanges the word if it is still the one it read. Everything a word cannot
//! say goes the long way, under the limiter's lock: other algorithms, several quotas, reservations, refunds, changes. Whoever has
//! the lock takes the word [`AWAY`] first, turns it into a cell for [`crate::store::settle`], and puts a word back if the outcome
//! fits one. So there is one state at any moment, and both ways are the same arithmetic.
//!
//! # Why the order of reading matters
//! Before a refusal the clock is read *after* the word. Every charge that the word holds was made by a check that had read its
//! clock before it exchanged the word, so a clock that does not step back has by then come at least as far: a refusal is
//! never given for a charge that lies in the future of its own tick.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::rate::GcraWord;
use tidegate_core::{Quota, State, Tick};

use super::{Answer, Limits, Shared, Tell};
use crate::posted::Posted;
use crate::store::Cell;

/// No word: the state is in the hands of whoever holds the lock, or needs the general form.
const AWAY: u64 = u64::MAX;

/// A state in a word, with the numbers that give it meaning.
#[derive(Debug)]
pub(super) struct Word {
    word: Alone,
    /// The form of the quota; nothing while the limiter has none.
    form: Posted<6>,
}

/// What every permit writes, on cache lines of its own: what else a check reads would have to wait for the exchange before.
#[derive(Debug)]
// Two lines, for processors fetch them in pairs.
#[repr(align(128))]
struct Alone(AtomicU64);

impl Word {
    pub(super) const fn new() -> Self {
        Self { word: Alone(AtomicU64::new(AWAY)), form: Posted::nothing() }
    }

    #[inline]
    pub(super) fn form(&self) -> Option<GcraWord> {
        self.form.read(GcraWord::from_parts)?
    }

    #[inline]
    pub(super) fn load(&self) -> Option<u64> {
        // Acquire, with the Release of `exchange`: pairs the word with the clock readings before it; see the module.
        let word = self.word.0.load(Ordering::Acquire);
        (word != AWAY).then_some(word)
    }

    /// Returns a number that changes with the quota.
    #[inline]
    pub(super) fn terms(&self) -> u64 {
        self.form.version()
    }

    /// Puts `next` in the place of `word`, unless somebody was faster.
    ///
    /// A quota may be changed between reading its form and this; the word is [`AWAY`] meanwhile. A word that comes back the very same
    /// is charged by the form it was read with: as if the check had come just before the change.
    #[inline]
    pub(super) fn exchange(&self, word: u64, next: u64) -> bool {
        self.word.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Shared {
    /// Spends units by the shared tick; `None` where that does not decide: a refusal, a lost exchange, no word.
    #[inline]
    pub(super) fn permit_by_tick<T: Tell>(&self, units: u64) -> Option<T> {
        let form = self.word.form()?;
        let now = form.scaled(self.time.recent())?;
        let word = self.word.load()?;
        let next = form.take(word, now, units)?;
        if self.word.exchange(word, next) {
            return Some(T::permitted(form.report(next, now)));
        }
        self.permit_after_a_pause(units)
    }

    /// Spends units by the shared tick, after an exchange was lost.
    #[cold]
    #[inline(never)]
    fn permit_after_a_pause<T: Tell>(&self, units: u64) -> Option<T> {
        let form = self.word.form()?;
        for lost in 0.. {
            pause(lost);
            let now = form.scaled(self.time.recent())?;
            let word = self.word.load()?;
            let next = form.take(word, now, units)?;
            if self.word.exchange(word, next) {
                return Some(T::permitted(form.report(next, now)));
            }
        }
        None
    }

    /// Spends units or refuses, by the clock; `None` where the long way has to be gone.
    ///
    /// Lock-free: a lost exchange means that another check won it.
    #[inline]
    pub(super) fn decide_by_clock<T: Tell>(&self, units: u64) -> Option<T> {
        let form = self.word.form()?;
        for lost in 0.. {
            let word = self.word.load()?;
            let now = form.scaled(self.time.now())?;
            match form.take(word, now, units) {
                None => return Some(T::refused(form.report(word, now), units)),
                Some(next) if self.word.exchange(word, next) => {
                    return Some(T::permitted(form.report(next, now)));
                }
                Some(_) => pause(lost),
            }
        }
        None
    }

    /// Returns the answer to units that are not to be spent, by the word.
    pub(super) fn peek_by_clock(&self, units: u64) -> Option<Answer> {
        let form = self.word.form()?;
        let word = self.word.load()?;
        let now = form.scaled(self.time.now())?;
        Some(match form.take(word, now, units) {
            Some(_) => Answer::permitted(form.report(word, now)),
            None => Answer::refused(form.report(word, now), units),
        })
    }
}

/// Leaves the word to whoever has it, for as long as some dozens of checks take them.
///
/// A lost exchange says that another core asks as fast as this one. If both went on, each would wait for the cache line to come
/// over on every check; left alone, the other makes its checks at its own speed meanwhile. Longer after each loss in a row, up
/// to a few microseconds, so that many cores find room too.
#[cold]
fn pause(lost: u32) {
    for _ in 0..PAUSE << lost.min(4) {
        spin_loop();
    }
}

/// Turns of a first pause: about a fifth of a microsecond on the processors of these years.
const PAUSE: u32 = 16;

impl Limits {
    /// Turns the word into a cell. Called with the lock held, before the cells are looked at.
    pub(super) fn take_over(&mut self, word: &Word, now: Tick) {
        let held = word.word.0.swap(AWAY, Ordering::AcqRel);
        let (Some(form), [quota]) = (word.form(), self.quotas.as_slice()) else { return };
        if held != AWAY {
            let state = State::Gcra(form.widen(held, now));
            self.cells[0] = (held != 0).then(|| Cell { quota: quota.clone(), state });
        }
    }

    /// Puts a word back if the state fits one. Called with the lock held, after the cells have changed.
    pub(super) fn hand_back(&mut self, word: &Word, now: Tick) {
        let ([quota], [cell]) = (self.quotas.as_slice(), self.cells.as_slice()) else {
            return word.form.post(None);
        };
        let Quota::Gcra(limit) = &**quota else { return word.form.post(None) };
        // A form is good for years, or for an hour at least. Half of that is left to it before a new one takes its place, so
        // that checks between do not come to its end.
        let current = word.form().filter(|form| {
            let half = Tick::from_nanos(now.as_nanos().saturating_add(form.lasts().as_nanos() as u64 / 2));
            GcraWord::new(limit, form.origin()) == Some(*form) && form.scaled(half).is_some()
        });
        let form = match current {
            Some(form) => form,
            None => {
                let form = GcraWord::new(limit, now);
                word.form.post(form.map(|form| form.parts()));
                let Some(form) = form else { return };
                form
            }
        };
        let held = match cell {
            None => Some(0),
            Some(Cell { state: State::Gcra(state), .. }) => form.narrow(state, now),
            Some(_) => None,
        };
        // Release: the form was posted before.
        word.word.0.store(held.unwrap_or(AWAY), Ordering::Release);
    }
}

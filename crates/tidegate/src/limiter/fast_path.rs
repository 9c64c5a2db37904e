//! How a check is decided on the limiter's word, without a lock: first on the fast path of its precision and clock, then on slower
//! ones, and under the lock where the word cannot tell.
//!
//! A compare-exchange waits for all stores before it, and on some processors the next check waits for the exchange. So a fast
//! path stores nothing but the word: it keeps no number across a call, since a function that is called comes last and its
//! result is returned as it is.

use std::hint::{cold_path, spin_loop};
use std::sync::Arc;

use tidegate_core::Cost;

use super::lease;
use super::shared::{FastPath, Shared};
use super::word::Undecided;
use crate::answer::{Answer, Tell};
use crate::clock::SystemClock;
use crate::precision::Precision;

impl Shared {
    /// Decides a check: on the fast path, and where that does not decide, by a call that returns the answer.
    // Inlined, with the fast paths inlined into it. Nothing follows the calls, so a fast path keeps nothing across one.
    #[inline]
    pub(super) fn decide<T: Tell>(self: &Arc<Self>, cost: Cost) -> T {
        let units = cost.units();
        let decided = match self.fast_path {
            FastPath::Tick => self.permit_fast(units),
            FastPath::Lease => lease::spend_fast(self, units),
            FastPath::Clock => return self.decide_by_clock(cost),
        };
        match decided {
            Ok(told) => told,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(why) => self.decide_otherwise(cost, why, 0),
        }
    }

    /// Decides by the clock on every check. Not inlined: on some machines reading the clock is a call, and what has to be kept across
    /// it would slow the other paths down.
    #[inline(never)]
    fn decide_by_clock<T: Tell>(self: &Arc<Self>, cost: Cost) -> T {
        match self.decide_fast(cost.units()) {
            Ok(told) => told,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(_) => self.decide_otherwise(cost, Undecided::NotAsked, 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn decide_after_loss<T: Tell>(self: &Arc<Self>, cost: Cost) -> T {
        self.decide_otherwise(cost, Undecided::Lost, 1)
    }

    /// Decides what the fast paths do not: new leases, refusals by an old tick, other clocks, and all that takes the lock. `lost` is
    /// how many exchanges were lost until now.
    #[inline(never)]
    fn decide_otherwise<T: Tell>(self: &Arc<Self>, cost: Cost, why: Undecided, mut lost: u32) -> T {
        let units = cost.units();
        let by_tick = match self.precision {
            Precision::Shared if why != Undecided::ByClock => {
                self.permit_by_tick(units, std::mem::take(&mut lost))
            }
            Precision::Leased => lease::spend(self, units),
            _ => None,
        };
        if let Some(told) = by_tick {
            return told;
        }
        match self.spend_by_clock(units, lost) {
            Some(told) => told,
            None => T::of(self.allow_under_lock(cost)),
        }
    }
}

impl Shared {
    /// Spends units by the shared tick of the system's clock, where one is kept.
    #[inline]
    pub(super) fn permit_fast<T: Tell>(&self, units: u64) -> Result<T, Undecided> {
        let (form, word) = self.word.look().ok_or(Undecided::NotAsked)?;
        let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
        let now = form.scaled(tick).ok_or(Undecided::NotAsked)?;
        let next = form.take(word, now, units).ok_or(Undecided::ByClock)?;
        if !self.word.exchange(word, next) {
            return Err(Undecided::Lost);
        }
        Ok(T::permitted(form.report(next, now)))
    }

    /// Spends units or refuses, by the clock, where the processor's counter tells it.
    #[inline]
    pub(super) fn decide_fast<T: Tell>(&self, units: u64) -> Result<T, Undecided> {
        // The form last, so that less has to be kept across a call that reads the counter.
        let word = self.word.word().ok_or(Undecided::NotAsked)?;
        let tick = self.time.fast_tick().ok_or(Undecided::NotAsked)?;
        let form = self.word.form_of_word();
        let now = form.scaled(tick).ok_or(Undecided::NotAsked)?;
        let Some(next) = form.take(word, now, units) else {
            return if self.word.stays(word) {
                Ok(T::refused(form.report(word, now), units))
            } else {
                Err(Undecided::Lost)
            };
        };
        if !self.word.exchange(word, next) {
            return Err(Undecided::Lost);
        }
        Ok(T::permitted(form.report(next, now)))
    }

    /// Spends units by the shared tick, or whatever tick is recent; `None` where that does not decide: a refusal, no word.
    pub(super) fn permit_by_tick<T: Tell>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.look()?;
            let now = form.scaled(self.time.recent())?;
            let next = form.take(word, now, units)?;
            if self.word.exchange(word, next) {
                return Some(T::permitted(form.report(next, now)));
            }
        }
        None
    }

    /// Spends units or refuses, by the clock; `None` where the lock has to be taken.
    ///
    /// Lock-free: a word that did not stay means that another check has changed it.
    pub(super) fn spend_by_clock<T: Tell>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.look()?;
            let now = form.scaled(self.time.now())?;
            match form.take(word, now, units) {
                None if self.word.stays(word) => return Some(T::refused(form.report(word, now), units)),
                Some(next) if self.word.exchange(word, next) => {
                    return Some(T::permitted(form.report(next, now)));
                }
                _ => {}
            }
        }
        None
    }

    /// Returns the answer to units that are not to be spent, by the word; `None` where it has changed meanwhile, or is away.
    pub(super) fn peek_by_clock(&self, units: u64) -> Option<Answer> {
        let (form, word) = self.word.look()?;
        let now = form.scaled(self.time.now())?;
        let answer = match form.take(word, now, units) {
            Some(_) => Answer::permitted(form.report(word, now)),
            None => Answer::refused(form.report(word, now), units),
        };
        self.word.stays(word).then_some(answer)
    }
}

/// Leaves the word to whoever has it, for as long as some dozens of checks take them.
///
/// A lost exchange says that another core asks as fast as this one. If both went on, each would wait for the cache line to come
/// over on every check; left alone, the other makes its checks at its own speed meanwhile. Longer after each loss in a row, up
/// to a few microseconds, so that many cores find room too. No loss, no pause.
#[inline]
fn pause(lost: u32) {
    if lost > 0 {
        cold_path();
        for _ in 0..PAUSE << (lost - 1).min(4) {
            spin_loop();
        }
    }
}

/// Turns of a first pause: about a fifth of a microsecond on the processors of these years.
const PAUSE: u32 = 16;

//! Decides a check on the limiter's word, without a lock: first on the fast path of its precision and clock, then on
//! slower paths, and under the lock if the word cannot decide.
//!
//! A compare-exchange waits for all stores before it, and on some processors the next check waits for the exchange.
//! So a fast path stores nothing but the word. It also keeps no value across a call: any function that it calls comes
//! last, and its result is returned unchanged.

use std::hint::{cold_path, spin_loop};
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tidegate_core::{Cost, Receipt, Tick};

use super::lease;
use super::shared::{FastPath, LimiterState};
use super::word::Undecided;
use crate::answer::{Answer, CheckResult, Denied};
use crate::clock::SystemClock;
use crate::observer::Event;
use crate::precision::Precision;
use crate::reservation::HeldCharge;

impl LimiterState {
    /// Decides a check on the fast path. If that does not decide, calls a slower function for the answer.
    // Inlined, with the fast paths inlined into it. Nothing follows the calls, so a fast path keeps no value across
    // one.
    #[inline]
    pub(super) fn decide<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        let units = cost.units();
        let decided = match self.fast_path {
            FastPath::Tick => self.permit_fast(units),
            FastPath::Lease => lease::spend_fast(self, units),
            FastPath::Clock => return self.decide_by_clock(cost),
        };
        match decided {
            Ok(result) => result,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(why) => self.decide_otherwise(cost, why, 0),
        }
    }

    /// Decides by the clock on every check. Not inlined: on some machines reading the clock is a call, and values
    /// kept across it would slow the other paths down.
    #[inline(never)]
    fn decide_by_clock<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        match self.decide_fast(cost.units()) {
            Ok(result) => result,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(_) => self.decide_otherwise(cost, Undecided::NotAsked, 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn decide_after_loss<T: CheckResult>(self: &Arc<Self>, cost: Cost) -> T {
        self.decide_otherwise(cost, Undecided::Lost, 1)
    }

    /// Decides the checks that the fast paths leave undecided: new leases, refusals by an old tick, other clocks, and
    /// all that needs the lock. `lost` is the number of exchanges lost so far.
    #[inline(never)]
    fn decide_otherwise<T: CheckResult>(self: &Arc<Self>, cost: Cost, why: Undecided, mut lost: u32) -> T {
        let units = cost.units();
        let by_tick = match self.precision {
            Precision::Shared if why != Undecided::ByClock => {
                self.permit_by_tick(units, std::mem::take(&mut lost))
            }
            Precision::Leased => lease::spend(self, units),
            _ => None,
        };
        if let Some(result) = by_tick {
            return result;
        }
        match self.spend_by_clock(units, lost) {
            Some(result) => result,
            None => T::of(self.allow_under_lock(cost)),
        }
    }
}

impl LimiterState {
    /// Spends units by the shared tick of the system clock, while one is kept.
    #[inline]
    pub(super) fn permit_fast<T: CheckResult>(&self, units: u64) -> Result<T, Undecided> {
        let (form, word) = self.word.read().ok_or(Undecided::NotAsked)?;
        let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
        let now = form.scaled(tick).ok_or(Undecided::NotAsked)?;
        let next = form.take(word, now, units).ok_or(Undecided::ByClock)?;
        if !self.word.exchange(word, next) {
            return Err(Undecided::Lost);
        }
        Ok(T::permitted(form.report(next, now)))
    }

    /// Spends or refuses units by the clock, if the processor's counter has the time.
    #[inline]
    pub(super) fn decide_fast<T: CheckResult>(&self, units: u64) -> Result<T, Undecided> {
        // The form is loaded last, so that fewer values are kept across a call that reads the counter.
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

    /// Spends units by the shared tick, or by any recent tick. `None` if that does not decide: the units are refused,
    /// or there is no word.
    pub(super) fn permit_by_tick<T: CheckResult>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.read()?;
            let now = form.scaled(self.time.recent())?;
            let next = form.take(word, now, units)?;
            if self.word.exchange(word, next) {
                return Some(T::permitted(form.report(next, now)));
            }
        }
        None
    }

    /// Spends or refuses units, by the clock; `None` if the lock has to be taken.
    ///
    /// Lock-free: if the word has changed, another check has made progress.
    pub(super) fn spend_by_clock<T: CheckResult>(&self, units: u64, lost: u32) -> Option<T> {
        for lost in lost.. {
            pause(lost);
            let (form, word) = self.word.read()?;
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

    /// Charges a cost that may be settled later, by the word, or refuses it if it may not wait. `None` if the lock has to
    /// decide: the cost would have to wait, or there is no word.
    ///
    /// The receipt is the one that the general form would have made. Leases lower the word, and receipts find their
    /// position only in a word that was not lowered, so a limiter with leases charges under the lock.
    pub(super) fn charge_by_word(
        &self,
        mut now: Tick,
        cost: Cost,
        max_wait: Duration,
    ) -> Option<Result<HeldCharge, Denied>> {
        if self.precision == Precision::Leased {
            return None;
        }
        let terms = self.terms();
        let (mut lost, mut refused) = (0, false);
        loop {
            pause(lost);
            let (form, word) = self.word.read()?;
            if refused {
                // Only a tick that was read after the word may refuse: see the word's module.
                now = self.time.now();
            }
            let scaled = form.scaled(now)?;
            match form.take(word, scaled, cost.units()) {
                Some(next) if self.word.exchange(word, next) => {
                    let answer = Answer::permitted(form.report(next, scaled));
                    let (decision, binding) = (answer.decision(), answer.binding());
                    let event =
                        Event { at: now, cost, max_wait, decision, binding, key: None, shadow: false };
                    let receipt = Receipt { at: now, act: now, cost, mark: form.mark(next) };
                    return Some(Ok(HeldCharge { event, receipts: smallvec![receipt], terms, quota: None }));
                }
                None if !max_wait.is_zero() => return None,
                None if !refused => refused = true,
                None if self.word.stays(word) => {
                    return Some(Err(Answer::refused(form.report(word, scaled), cost.units()).into()));
                }
                _ => lost += 1,
            }
        }
    }

    /// Returns the answer for units without spending them, by the word; `None` if the word changed meanwhile, or the
    /// lock has to decide.
    pub(super) fn peek_by_clock(&self, units: u64) -> Option<Answer> {
        let (form, word) = self.word.read()?;
        let now = form.scaled(self.time.now())?;
        let answer = match form.take(word, now, units) {
            Some(_) => Answer::permitted(form.report(word, now)),
            None => Answer::refused(form.report(word, now), units),
        };
        self.word.stays(word).then_some(answer)
    }
}

/// Leaves the word to the core that has it, for as long as a few dozen checks take.
///
/// A lost exchange means that another core checks as fast as this one. If both went on, each would wait for the cache
/// line to move on every check; left alone, the other core makes its checks at full speed meanwhile. The pause grows
/// with each loss in a row, up to a few microseconds, so that many cores get a turn too. Without a loss there is no
/// pause.
#[inline]
fn pause(lost: u32) {
    if lost > 0 {
        cold_path();
        for _ in 0..PAUSE << (lost - 1).min(4) {
            spin_loop();
        }
    }
}

/// Spins of a first pause: about a fifth of a microsecond on current processors.
const PAUSE: u32 = 16;

//! The short way through a limiter: its state in one word.
//!
//! A limiter of one GCRA quota keeps its arrival time in an atomic word, and the quota's numbers on a board beside it
//! ([`SeqLock`]). A check reads both, computes, and exchanges the word if it is still the one it read. Everything a word cannot
//! say goes the long way, under the limiter's lock: other algorithms, several quotas, reservations, settlements, changes. Whoever has
//! the lock takes the word [`AWAY`] first, turns it into a cell for [`crate::store::settle`], and puts a word back if the outcome
//! fits one. So there is one state at any moment, and both ways are the same arithmetic.
//!
//! # Why the order of reading matters
//! Before a refusal the clock is read *after* the word. Every charge that the word holds was made by a check that had read its
//! clock before it exchanged the word, so a clock that does not step back has by then come at least as far: a refusal is
//! never given for a charge that lies in the future of its own tick.

use std::hint::{cold_path, spin_loop};

use tidegate_core::rate::GcraWord;
use tidegate_core::{Quota, State, Tick};

use super::{Answer, Limits, Shared, Tell};
use crate::clock::SystemClock;
use crate::seqlock::SeqLock;
use crate::store::Cell;
use crate::sync::{AtomicU64, Ordering, fence};

/// No word: the state is in the hands of whoever holds the lock, or needs the general form.
const AWAY: u64 = u64::MAX;

/// A state in a word, with the numbers that give it meaning.
#[derive(Debug)]
pub(super) struct Word {
    word: Alone,
    /// The form of the quota; nothing while the limiter has none.
    form: SeqLock<6>,
}

/// What every permit writes, on cache lines of its own: what else a check reads would have to wait for the exchange before.
#[derive(Debug)]
// Two lines, for processors fetch them in pairs.
#[repr(align(128))]
struct Alone(AtomicU64);

impl Word {
    pub(super) const fn new() -> Self {
        Self { word: Alone(AtomicU64::new(AWAY)), form: SeqLock::empty() }
    }

    fn form(&self) -> Option<GcraWord> {
        self.form.read(GcraWord::from_parts)
    }

    /// Returns the word and the form it is to be read by, which is right for as long as the word stays: a form is written only
    /// while the word is [`AWAY`]. So the form is not checked here; whoever decides by it asks [`Word::exchange`] or
    /// [`Word::stays`] whether it held.
    #[inline]
    pub(super) fn look(&self) -> Option<(GcraWord, u64)> {
        self.word().map(|word| (self.form_of_word(), word))
    }

    #[inline]
    fn word(&self) -> Option<u64> {
        // Acquire, with the Release of `exchange` and `hand_back`: the numbers read hereafter are those of this word's form or
        // later ones; and it pairs the word with the clock readings before it, see the module.
        let word = self.word.0.load(Ordering::Acquire);
        (word != AWAY).then_some(word)
    }

    /// Returns the form of a word that was read before, as [`Word::look`] does.
    #[inline]
    fn form_of_word(&self) -> GcraWord {
        GcraWord::from_parts(self.form.unchecked())
    }

    /// Says whether `word` is still there, and so whether its form was the right one.
    #[inline]
    pub(super) fn stays(&self, word: u64) -> bool {
        // The fence, with the one in `write`: whoever saw a number of a later form sees here that the word was taken.
        fence(Ordering::Acquire);
        self.word.0.load(Ordering::Relaxed) == word
    }

    /// Returns a number that changes with the quota.
    #[inline]
    pub(super) fn terms(&self) -> u64 {
        self.form.version()
    }

    /// Puts `next` in the place of `word`, unless somebody was faster.
    ///
    /// A quota may be changed between reading its form and this; the word is [`AWAY`] meanwhile, so this fails. That the very
    /// same word comes back under another form takes a coincidence of two times since two origins to the nanosecond, and full limits, which
    /// would be one often, are told apart; see [`Limits::hand_back`].
    #[inline]
    pub(super) fn exchange(&self, word: u64, next: u64) -> bool {
        // As in `stays`.
        fence(Ordering::Acquire);
        self.word.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Why a short way had no answer, and so where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undecided {
    /// There was no tick to ask by, or no word to ask.
    NotAsked,
    /// What was asked is for the clock to decide.
    ByClock,
    /// Another check has changed the word meanwhile.
    Lost,
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

    /// Spends units or refuses, by the clock; `None` where the long way has to be gone.
    ///
    /// Lock-free: a word that did not stay means that another check has changed it.
    pub(super) fn decide_by_clock<T: Tell>(&self, units: u64, lost: u32) -> Option<T> {
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

impl Limits {
    /// Turns the word into a cell. Called with the lock held, before the cells are looked at.
    pub(super) fn take_over(&mut self, word: &Word, now: Tick) {
        let held = word.word.0.swap(AWAY, Ordering::AcqRel);
        let (Some(form), [quota]) = (word.form(), self.quotas.as_slice()) else { return };
        if held != AWAY {
            let state = State::Gcra(form.widen(held, now));
            self.cells[0] = (held != 0).then(|| Cell::new(quota.clone(), state));
        }
    }

    /// Puts a word back if the state fits one. Called with the lock held, after the cells have changed.
    pub(super) fn hand_back(&mut self, word: &Word, now: Tick) {
        let ([quota], [cell]) = (self.quotas.as_slice(), self.cells.as_slice()) else {
            return word.form.write(None);
        };
        let Quota::Gcra(limit) = &**quota else { return word.form.write(None) };
        // A form is good for years, or for an hour at least. Half of that is left to it before a new one takes its place, so
        // that checks between do not come to its end.
        let current = word.form().filter(|form| {
            let half = Tick::from_nanos(now.as_nanos().saturating_add(form.lasts().as_nanos() as u64 / 2));
            GcraWord::new(limit, form.origin()) == Some(*form) && form.scaled(half).is_some()
        });
        let form = match current {
            Some(form) => form,
            None => {
                // Early enough for a mark that no other form has; see below.
                let mark = (word.terms() | 1) + 1;
                let form = GcraWord::new(limit, Tick::from_nanos(now.as_nanos().saturating_sub(mark)));
                word.form.write(form.map(|form| form.parts()));
                let Some(form) = form else { return };
                form
            }
        };
        let held = match cell {
            None => Some(0),
            Some(Cell { state: State::Gcra(state), .. }) => form.narrow(state, now),
            Some(_) => None,
        };
        // All words of the past say "full", and 0 would say so under every form: a check that read it before a change would
        // exchange it after. So what says "full" is the number of the form, which no other has.
        let full = form.scaled(now).map_or(0, |now| word.terms().min(now));
        let held = held.map(|held| held.max(full));
        // Release: the form was written before.
        word.word.0.store(held.unwrap_or(AWAY), Ordering::Release);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use crate::{Cost, KeyedLimiter, Limiter, ManualClock, Quota};

    /// Who goes the long way reads the clock before it has the lock. A check that came in between, a nanosecond later, used to
    /// count as lying in the future: the other was refused the last unit, with a `retry_after` of that nanosecond.
    #[test]
    fn a_charge_of_a_later_tick_does_not_refuse_what_is_there() {
        let (clock, quota) = (ManualClock::default(), Quota::per_second(1).burst(2));
        clock.advance(Duration::from_secs(1000));
        let limiter = Limiter::new(quota).unwrap().with_clock(clock.clone());
        let keys = KeyedLimiter::new(quota, 10).unwrap().with_clock(clock.clone());
        let read = limiter.now();
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.allow().is_allowed() && keys.allow("ann").is_allowed());
        assert!(limiter.reserve_at(read, Cost::ONE, Duration::ZERO).is_ok(), "two were there");
        assert!(keys.reserve_at(b"ann", read, Cost::ONE, Duration::ZERO).is_ok(), "two were there");
        let refused = limiter.reserve_at(read, Cost::ONE, Duration::ZERO).unwrap_err();
        assert!(refused.retry().after() >= Some(Duration::from_secs(1)));
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    use std::sync::Arc as Plain;
    use std::time::Duration;

    use loom::sync::{Arc, Mutex};
    use smallvec::smallvec;
    use tidegate_core::{Cost, Finish, Replace};

    use super::*;
    use crate::store::{Ending, Op};
    use crate::sync::explore;

    const BUILT: Tick = Tick::from_secs(1_700_000_000);
    /// A month later: who reads a word by the form of another origin is wrong by as much.
    const NOW: Tick = Tick::from_secs(1_702_592_000);

    /// A limiter without its clock: the word, and the lock that the long way takes. Loom knows its own locks only.
    struct Miniature {
        word: Word,
        limits: Mutex<Limits>,
    }

    impl Miniature {
        fn new(burst: u64) -> Arc<Self> {
            let quota = Plain::new(Quota::per_hour(1).burst(burst).gcra().unwrap());
            let limits = Limits { quotas: smallvec![quota], cells: smallvec![None], terms: 0 };
            let this = Arc::new(Self { word: Word::new(), limits: Mutex::new(limits) });
            this.limits.lock().unwrap().hand_back(&this.word, BUILT);
            this
        }

        /// As `Shared::with_cells`.
        fn long<R>(&self, then: impl FnOnce(&mut Limits) -> R) -> R {
            let mut limits = self.limits.lock().unwrap();
            limits.take_over(&self.word, NOW);
            let result = then(&mut limits);
            limits.hand_back(&self.word, NOW);
            result
        }

        /// As `Shared::decide_by_clock`, and the long way where that has no answer.
        fn take(&self) -> bool {
            while let Some((form, word)) = self.word.look() {
                // Of a form that did not hold this may be anything, also no time at all.
                let Some(now) = form.scaled(NOW) else { break };
                match form.take(word, now, 1) {
                    None if self.word.stays(word) => return false,
                    Some(next) if self.word.exchange(word, next) => return true,
                    _ => {}
                }
            }
            self.long(|limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO).allowed)
        }

        fn remaining(&self) -> u64 {
            self.long(|limits| {
                limits.settle(NOW, Op::Peek, Cost::ONE, Duration::ZERO).lines[0].decision.standing.remaining
            })
        }
    }

    fn race(
        bound: usize,
        threads: u64,
        burst: u64,
        long: impl Fn(&Miniature) -> u64 + Sync + Send + Copy + 'static,
    ) {
        explore(Some(bound), move || {
            let limiter = Miniature::new(burst);
            let takers: Vec<_> = (0..threads)
                .map(|_| {
                    let limiter = Arc::clone(&limiter);
                    loom::thread::spawn(move || u64::from(limiter.take()))
                })
                .collect();
            let total = long(&limiter);
            let taken: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
            assert_eq!(taken + limiter.remaining(), total, "{taken} were taken");
        });
    }

    #[test]
    fn permits_are_neither_lost_nor_doubled_while_the_word_is_away() {
        race(3, 2, 3, |limiter| {
            limiter.long(|limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO));
            2
        });
    }

    /// Two are spent and one is undone: whoever takes over meets words that were taken by others in between.
    #[test]
    fn a_charge_undone_between_two_checks_gives_back_what_it_says() {
        race(2, 2, 5, |limiter| {
            assert!(limiter.take());
            let take = |limits: &mut Limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO);
            let receipt = limiter.long(take).lines[0].receipt.expect("two of five");
            let undone = [Ending::new(receipt, Finish::UNDONE)];
            limiter.long(|limits| limits.settle(NOW, Op::Finish(&undone), Cost::ONE, Duration::ZERO));
            4
        });
    }

    /// A change puts another form up: a check goes by the old one wholly or by the new one wholly. A unit of the old limit is
    /// a unit of the new one, so the sum tells.
    #[test]
    fn a_change_between_two_checks_keeps_what_was_spent() {
        race(2, 1, 5, |limiter| {
            let quota = Plain::new(Quota::per_day(7).burst(5).gcra().unwrap());
            limiter.long(|limits| {
                if let Some(cell) = &mut limits.cells[0] {
                    use tidegate_core::Algorithm;
                    cell.state = quota.carry(&cell.quota, &cell.state, NOW, Replace::AsIs);
                    cell.quota = Plain::clone(&quota);
                }
                limits.quotas = smallvec![quota];
                limits.terms += 1;
            });
            5
        });
    }
}

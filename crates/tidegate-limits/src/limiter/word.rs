//! The state of a limiter in one atomic word.
//!
//! A limiter of one GCRA quota keeps its arrival time in the word, and the quota's numbers beside it in a
//! [`SeqLock`]. A check reads both, computes, and exchanges the word if it has not changed. Everything that a word
//! cannot hold is decided under the limiter's lock: other algorithms, several quotas, reservations that wait,
//! settlements, changes. The holder of the lock first replaces the word by [`NO_WORD`] and turns it into a cell for
//! [`crate::store::execute`]. Afterwards it writes a word back if the outcome fits one. So there is one state at any
//! moment, and both forms are decided by the same arithmetic.
//!
//! # Why the order of reading matters
//! Before a refusal the clock is read *after* the word. Every charge in the word was made by a check that had read
//! its clock before it exchanged the word. A clock that does not step back has therefore reached at least that tick,
//! so a refusal never depends on a charge in the future of its own tick.

use tidegate_core::rate::GcraWord;
use tidegate_core::{Quota, State, Tick};

use super::shared::Limits;
use crate::seqlock::SeqLock;
use crate::store::Cell;
use crate::sync::{AtomicU64, Ordering, fence};

/// Not a word: the holder of the lock has the state, or it does not fit a word.
const NO_WORD: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Word {
    word: CachePadded,
    /// The form of the quota; empty if the limiter has none.
    form: SeqLock<6>,
}

/// The memory that every permit writes, on cache lines of its own. A check that reads other memory on the same line
/// would have to wait for the exchange of an earlier check.
#[derive(Debug)]
// Two lines, because processors fetch them in pairs.
#[repr(align(128))]
struct CachePadded(AtomicU64);

impl Word {
    pub(super) const fn new() -> Self {
        Self { word: CachePadded(AtomicU64::new(NO_WORD)), form: SeqLock::empty() }
    }

    fn form(&self) -> Option<GcraWord> {
        self.form.read(GcraWord::from_parts)
    }

    /// Returns the word and the form to read it by. A form is written only while the word is [`NO_WORD`], so the form
    /// is right as long as the word has not changed. That is not checked here: the caller computes with the form and
    /// then calls [`Word::exchange`] or [`Word::stays`], which check the word.
    #[inline]
    pub(super) fn read(&self) -> Option<(GcraWord, u64)> {
        self.word().map(|word| (self.form_of_word(), word))
    }

    #[inline]
    pub(super) fn word(&self) -> Option<u64> {
        // Acquire, paired with the Release of `exchange` and `cell_to_word`: numbers read after this are those of this
        // word's form or later ones. It also orders the word after the clock readings before it, see the module.
        let word = self.word.0.load(Ordering::Acquire);
        (word != NO_WORD).then_some(word)
    }

    #[inline]
    pub(super) fn form_of_word(&self) -> GcraWord {
        GcraWord::from_parts(self.form.unchecked())
    }

    #[inline]
    pub(super) fn stays(&self, word: u64) -> bool {
        // The fence pairs with the one in `write`: a reader that saw a number of a later form sees here that the word
        // was taken.
        fence(Ordering::Acquire);
        self.word.0.load(Ordering::Relaxed) == word
    }

    #[inline]
    pub(super) fn terms(&self) -> u64 {
        self.form.version()
    }

    /// Replaces `word` by `next`, unless another check has changed it first.
    ///
    /// If the quota changes between reading its form and this, the word is [`NO_WORD`] meanwhile, and this fails. The
    /// same word could return under another form only if two times since two origins were equal to the nanosecond.
    /// For full limits they often would be, so the words of full limits are made different; see
    /// [`Limits::cell_to_word`].
    #[inline]
    pub(super) fn exchange(&self, word: u64, next: u64) -> bool {
        // As in `stays`.
        fence(Ordering::Acquire);
        self.word.0.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Why a fast path did not decide, which determines the next path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undecided {
    NotAsked,
    /// The available tick refuses; only the clock can refuse for certain.
    ByClock,
    Lost,
}

impl Limits {
    /// Turns the word into a cell. Called with the lock held, before the cells are read.
    pub(super) fn word_to_cell(&mut self, word: &Word, now: Tick) {
        // Only a holder of the lock puts a word where there is none, so none is taken away then: a limiter whose state fits
        // no word writes to its lock alone.
        if word.word().is_none() {
            return;
        }
        let held = word.word.0.swap(NO_WORD, Ordering::AcqRel);
        let (Some(form), [quota]) = (word.form(), self.quotas.as_slice()) else { return };
        let state = State::Gcra(form.widen(held, now));
        self.cells[0] = (held != 0).then(|| Cell::new(quota.clone(), state));
    }

    /// Puts a word back if the state fits one. Called with the lock held, after the cells have changed.
    pub(super) fn cell_to_word(&mut self, word: &Word, now: Tick) {
        let ([quota], [cell]) = (self.quotas.as_slice(), self.cells.as_slice()) else {
            return word.form.write(None);
        };
        let Quota::Gcra(limit) = &**quota else { return word.form.write(None) };
        // A form is valid for years, or for an hour at least. It is replaced once less than half of that is left, so
        // that checks in between do not reach its end.
        let current = word.form().filter(|form| {
            let half = Tick::from_nanos(now.as_nanos().saturating_add(form.lasts().as_nanos() as u64 / 2));
            GcraWord::new(limit, form.origin()) == Some(*form) && form.scaled(half).is_some()
        });
        let form = match current {
            Some(form) => form,
            None => {
                // The origin is early enough for a mark that no other form has; see below.
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
        // Any word in the past means "full". 0 would mean it under every form, so a check that read 0 before a change
        // could exchange it after. So the word for "full" is the version of the form, which is unique.
        let full = form.scaled(now).map_or(0, |now| word.terms().min(now));
        let held = held.map(|held| held.max(full));
        // Release: the form was written before.
        word.word.0.store(held.unwrap_or(NO_WORD), Ordering::Release);
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    //! The word against the lock, in all interleavings: permits are neither lost nor doubled while [`NO_WORD`] stands in
    //! place of the word.

    use std::sync::Arc as Plain;
    use std::time::Duration;

    use loom::sync::{Arc, Mutex};
    use smallvec::smallvec;
    use tidegate_core::{Algorithm, Cost, Finish, Receipt, Replace};

    use super::*;
    use crate::store::{Ending, Op};
    use crate::sync::explore;

    const BUILT: Tick = Tick::from_secs(1_700_000_000);
    /// A month later: reading a word by a form with another origin is wrong by that much.
    const NOW: Tick = Tick::from_secs(1_702_592_000);

    /// A limiter without its clock: the word, and the lock for the general form. Loom only tracks its own locks.
    struct Miniature {
        word: Word,
        terms: AtomicU64,
        limits: Mutex<Limits>,
    }

    impl Miniature {
        fn new(burst: u64) -> Arc<Self> {
            let quota = Plain::new(Quota::per_hour(1).burst(burst).gcra().unwrap());
            let limits = Limits { quotas: smallvec![quota], cells: smallvec![None] };
            let this =
                Arc::new(Self { word: Word::new(), terms: AtomicU64::new(0), limits: Mutex::new(limits) });
            this.limits.lock().unwrap().cell_to_word(&this.word, BUILT);
            // Loom makes an atomic at its first access, which has to come before the threads.
            this.terms.load(Ordering::Relaxed);
            this
        }

        /// As `LimiterState::with_cells`.
        fn under_lock<R>(&self, then: impl FnOnce(&mut Limits) -> R) -> R {
            let mut limits = self.limits.lock().unwrap();
            limits.word_to_cell(&self.word, NOW);
            let result = then(&mut limits);
            limits.cell_to_word(&self.word, NOW);
            result
        }

        /// As `LimiterState::spend_by_clock`, and under the lock if that does not decide.
        fn take(&self) -> bool {
            while let Some((form, word)) = self.word.read() {
                // While no form holds, this may be any value, even none.
                let Some(now) = form.scaled(NOW) else { break };
                match form.take(word, now, 1) {
                    None if self.word.stays(word) => return false,
                    Some(next) if self.word.exchange(word, next) => return true,
                    _ => {}
                }
            }
            self.under_lock(|limits| limits.execute(NOW, Op::Take, Cost::ONE, Duration::ZERO).allowed)
        }

        /// As `LimiterState::charge_by_word`: the receipt of a charge, with the count of changes that it was made under.
        /// `None` while the word is away.
        fn charge(&self) -> Option<(Receipt, u64)> {
            let terms = self.terms.load(Ordering::Acquire);
            while let Some((form, word)) = self.word.read() {
                let next = form.take(word, form.scaled(NOW)?, 1)?;
                if self.word.exchange(word, next) {
                    return Some((
                        Receipt { at: NOW, act: NOW, cost: Cost::ONE, mark: form.mark(next) },
                        terms,
                    ));
                }
            }
            None
        }

        /// As `LimiterState::settle`: undoes a charge, unless the limit was changed since. Returns whether it did.
        fn undo(&self, (receipt, terms): (Receipt, u64)) -> bool {
            self.under_lock(|limits| {
                let same = self.terms.load(Ordering::Acquire) == terms;
                if same {
                    let undone = [Ending::new(receipt, Finish::UNDONE)];
                    limits.execute(NOW, Op::Finish(&undone), Cost::ONE, Duration::ZERO);
                }
                same
            })
        }

        /// As `Limiter::change`.
        fn change(&self, quota: Quota) {
            let quota = Plain::new(quota);
            self.under_lock(|limits| {
                if let Some(cell) = &mut limits.cells[0] {
                    cell.state = quota.carry(&cell.quota, &cell.state, NOW, Replace::AsIs);
                    cell.quota = Plain::clone(&quota);
                }
                limits.quotas = smallvec![quota];
                self.terms.fetch_add(1, Ordering::Release);
            });
        }

        fn remaining(&self) -> u64 {
            self.under_lock(|limits| {
                limits.execute(NOW, Op::Peek, Cost::ONE, Duration::ZERO).lines[0].decision.standing.remaining
            })
        }
    }

    fn race(
        bound: usize,
        threads: u64,
        burst: u64,
        other: impl Fn(&Miniature) -> u64 + Sync + Send + Copy + 'static,
    ) {
        explore(Some(bound), move || {
            let limiter = Miniature::new(burst);
            let takers: Vec<_> = (0..threads)
                .map(|_| {
                    let limiter = Arc::clone(&limiter);
                    loom::thread::spawn(move || u64::from(limiter.take()))
                })
                .collect();
            let total = other(&limiter);
            let taken: u64 = takers.into_iter().map(|taker| taker.join().unwrap()).sum();
            assert_eq!(taken + limiter.remaining(), total, "{taken} were taken");
        });
    }

    #[test]
    fn permits_are_neither_lost_nor_doubled_while_the_word_is_away() {
        race(3, 2, 3, |limiter| {
            limiter.under_lock(|limits| limits.execute(NOW, Op::Take, Cost::ONE, Duration::ZERO));
            2
        });
    }

    /// Two are spent and one is undone. The lock holder meets words that other checks changed in between.
    #[test]
    fn a_charge_undone_between_two_checks_gives_back_what_it_says() {
        race(2, 2, 5, |limiter| {
            assert!(limiter.take());
            let take = |limits: &mut Limits| limits.execute(NOW, Op::Take, Cost::ONE, Duration::ZERO);
            let receipt = limiter.under_lock(take).lines[0].receipt.expect("two of five");
            let undone = [Ending::new(receipt, Finish::UNDONE)];
            limiter.under_lock(|limits| limits.execute(NOW, Op::Finish(&undone), Cost::ONE, Duration::ZERO));
            4
        });
    }

    /// One unit is charged by the word and undone under the lock. Checks in between find it spent or given back.
    #[test]
    fn a_charge_by_the_word_is_given_back_once() {
        race(2, 2, 4, |limiter| {
            let undone = limiter.charge().is_some_and(|charge| limiter.undo(charge));
            assert!(undone, "there are four, and nobody takes the word away");
            4
        });
    }

    /// The charge gives back to the limit that it was made under, or nothing.
    #[test]
    fn a_charge_by_the_word_gives_nothing_back_to_a_changed_limit() {
        explore(Some(3), || {
            let limiter = Miniature::new(3);
            let changing = Arc::clone(&limiter);
            let change =
                loom::thread::spawn(move || changing.change(Quota::per_day(7).burst(3).gcra().unwrap()));
            let charge = limiter.charge();
            let (charged, undone) = (charge.is_some(), charge.is_some_and(|charge| limiter.undo(charge)));
            change.join().unwrap();
            let kept = u64::from(charged && !undone);
            assert_eq!(limiter.remaining(), 3 - kept, "charged: {charged}, undone: {undone}");
        });
    }

    /// A change installs another form. A check uses either the old one or the new one as a whole. A unit of the old limit
    /// is a unit of the new one, so the sum shows it.
    #[test]
    fn a_change_between_two_checks_keeps_what_was_spent() {
        race(2, 1, 5, |limiter| {
            limiter.change(Quota::per_day(7).burst(5).gcra().unwrap());
            5
        });
    }
}

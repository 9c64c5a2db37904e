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
        let this = Arc::new(Self { word: Word::new(), terms: AtomicU64::new(0), limits: Mutex::new(limits) });
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
        self.under_lock(|limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO).allowed)
    }

    /// As `LimiterState::charge_by_word`: the receipt of a charge, with the count of changes that it was made under.
    /// `None` while the word is away.
    fn charge(&self) -> Option<(Receipt, u64)> {
        let terms = self.terms.load(Ordering::Acquire);
        while let Some((form, word)) = self.word.read() {
            let next = form.take(word, form.scaled(NOW)?, 1)?;
            if self.word.exchange(word, next) {
                return Some((Receipt { at: NOW, act: NOW, cost: Cost::ONE, mark: form.mark(next) }, terms));
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
                limits.settle(NOW, Op::Finish(&undone), Cost::ONE, Duration::ZERO);
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
            limits.settle(NOW, Op::Peek, Cost::ONE, Duration::ZERO).lines[0].decision.standing.remaining
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
        limiter.under_lock(|limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO));
        2
    });
}

/// Two are spent and one is undone. The lock holder meets words that other checks changed in between.
#[test]
fn a_charge_undone_between_two_checks_gives_back_what_it_says() {
    race(2, 2, 5, |limiter| {
        assert!(limiter.take());
        let take = |limits: &mut Limits| limits.settle(NOW, Op::Take, Cost::ONE, Duration::ZERO);
        let receipt = limiter.under_lock(take).lines[0].receipt.expect("two of five");
        let undone = [Ending::new(receipt, Finish::UNDONE)];
        limiter.under_lock(|limits| limits.settle(NOW, Op::Finish(&undone), Cost::ONE, Duration::ZERO));
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
        let change = loom::thread::spawn(move || changing.change(Quota::per_day(7).burst(3).gcra().unwrap()));
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

//! The short ways to settle: on words, where they are.
//!
//! Most steps ask for units at once of keys that are there as words of the very limits asked about. Those need no cells, no
//! counting of references and no arithmetic in 128 bits. Whatever else comes, a new key among several, a wait, another
//! limit, goes the long way; both are the same arithmetic and the same rule of all or nothing.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Outcome;
use tidegate_core::{Decision, Receipt, Standing, Tick};

use super::classes::Limit;
use super::line::{Class, Held, Name};
use super::table::{Print, Reading, Table, Taken};
use crate::store::settle::{Hand, take};
use crate::store::{Charge, Op, Settled, Settlement, Step};

/// A word in hand, with what it is read by.
struct Word<'t> {
    limit: &'t Limit,
    now: u64,
    word: u64,
}

impl Word<'_> {
    fn receipt(&self, charge: &Charge<'_>, tick: Tick) -> Receipt {
        Receipt { at: tick, act: tick, cost: charge.cost, mark: self.limit.form.mark(self.now) }
    }
}

impl Hand for Word<'_> {
    type Next = u64;

    fn decide(&self, charge: &Charge<'_>, tick: Tick) -> (Outcome, Option<(u64, Receipt)>) {
        let (form, units) = (&self.limit.form, charge.cost.units());
        match form.take(self.word, self.now, units) {
            Some(next) => {
                (Outcome::Allowed { wait: Duration::ZERO }, Some((next, self.receipt(charge, tick))))
            }
            None => (Outcome::Denied { retry_after: form.retry_after(self.word, self.now, units) }, None),
        }
    }

    fn standing(&self, _: &Charge<'_>, next: Option<&u64>, _: Tick) -> Standing {
        self.limit.form.standing(*next.unwrap_or(&self.word), self.now)
    }

    fn keep(&mut self, _: &Charge<'_>, next: u64) {
        self.word = next;
    }
}

impl Table {
    /// Settles a step of one charge that asks for units at once, in one visit to the key's line; `false` where it does not. A new
    /// key gets a slot.
    pub(super) fn settle_word(
        &self,
        step: &Step<'_>,
        charge: &Charge<'_>,
        print: Print,
        settled: &mut Settled,
    ) -> bool {
        let plain = charge.max_wait.is_zero() && charge.binding && charge.spends;
        if !plain || !matches!(step.op, Op::Take) {
            return false;
        }
        let known = self.name(print).and_then(|(_, name)| self.classes.get(name.class()));
        let limit =
            known.filter(|limit| limit.is(charge.quota)).or_else(|| self.classes.of(charge.quota, step.now));
        let Some(by) = limit.and_then(|limit| Reading::at(limit, step.now)) else { return false };
        let taken = self.take(print, &by, charge.cost.units());
        let (Taken::Permitted(word) | Taken::Refused(word)) = taken else { return false };
        let hand = Word { limit: by.limit, now: by.now, word };
        let (outcome, receipt) = if matches!(taken, Taken::Permitted(_)) {
            (Outcome::Allowed { wait: Duration::ZERO }, Some(hand.receipt(charge, step.now)))
        } else {
            (hand.decide(charge, step.now).0, None)
        };
        let decision = Decision { outcome, standing: hand.standing(charge, None, step.now) };
        (settled.allowed, settled.wait) = (receipt.is_some(), Duration::ZERO);
        settled.lines.clear();
        settled.lines.push(Settlement { decision, receipt });
        true
    }

    /// Settles a step whose keys are all there, as words of the limits it names; `None`, and nothing is changed, where that is not
    /// so.
    pub(super) fn settle_words(
        &self,
        step: &Step<'_>,
        prints: &[Print],
        settled: &mut Settled,
    ) -> Option<()> {
        let spend = match step.op {
            Op::Take => true,
            Op::Peek => false,
            _ => return None,
        };
        // First at a glance and without a lock: in which line each key is, and under which name.
        let mut seats: SmallVec<[(usize, Name); 16]> = SmallVec::new();
        let mut words: SmallVec<[Word<'_>; 16]> = SmallVec::new();
        for (charge, print) in step.charges.iter().zip(prints) {
            let (line, name) = self.name(*print).filter(|_| charge.max_wait.is_zero())?;
            let limit = self.classes.get(name.class()).filter(|limit| limit.is(charge.quota))?;
            words.push(Word { limit, now: Reading::at(limit, step.now)?.now, word: 0 });
            seats.push((line, name));
        }
        // Then the lines are locked, in ascending order, and looked at again.
        let mut order: SmallVec<[usize; 16]> = seats.iter().map(|(line, _)| *line).collect();
        order.sort_unstable();
        order.dedup();
        let locked: SmallVec<[Held<'_>; 16]> = order.iter().map(|line| self.line(*line).lock()).collect();
        let mut slots: SmallVec<[(usize, usize); 16]> = SmallVec::new();
        for (((line, name), word), print) in seats.iter().zip(&mut words).zip(prints) {
            let held = order.binary_search(line).ok()?;
            let slot = self.line(*line).glance(*name).filter(|slot| self.is(*line, *slot, *print))?;
            word.word = locked[held].word(slot);
            slots.push((held, slot));
        }
        if take(step, &mut words, spend, settled) {
            for ((held, slot), word) in slots.iter().zip(&words) {
                locked[*held].set_word(*slot, word.word);
            }
        }
        Some(())
    }

    /// Finds the line in which a key is and the name it has there, at a glance.
    fn name(&self, print: Print) -> Option<(usize, Name)> {
        let key = print.name(Class::WIDE);
        let lines = [self.first(print), self.second(print)];
        lines.into_iter().find_map(|line| Some((line, self.line(line).glance_key(key)?)))
    }
}

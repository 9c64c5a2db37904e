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
use super::line::{Class, Name, Seized};
use super::table::{Place, Reading, Sought, Table, Taken};
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
        key: Sought,
        settled: &mut Settled,
    ) -> bool {
        let plain = charge.max_wait.is_zero() && charge.binding && charge.spends;
        if !plain || !matches!(step.op, Op::Take) {
            return false;
        }
        let known = self.seat(key).and_then(|(_, name)| self.classes.get(name.class()));
        let limit =
            known.filter(|limit| limit.is(charge.quota)).or_else(|| self.classes.of(charge.quota, step.now));
        let Some(by) = limit.and_then(|limit| Reading::at(limit, step.now)) else { return false };
        let taken = self.take(key.print(), charge.key, by, charge.cost.units());
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
    pub(super) fn settle_words(&self, step: &Step<'_>, keys: &[Sought], settled: &mut Settled) -> Option<()> {
        let spend = match step.op {
            Op::Take => true,
            Op::Peek => false,
            _ => return None,
        };
        // First at a glance: where each key is, and under which name.
        let mut seats: SmallVec<[(Place, Name, usize); 16]> = SmallVec::new();
        let mut words: SmallVec<[Word<'_>; 16]> = SmallVec::new();
        for (at, (charge, key)) in step.charges.iter().zip(keys).enumerate() {
            let (place, name) = self.seat(*key).filter(|_| charge.max_wait.is_zero())?;
            let limit = self.classes.get(name.class()).filter(|limit| limit.is(charge.quota))?;
            words.push(Word { limit, now: Reading::at(limit, step.now)?.now, word: 0 });
            seats.push((place, name, at));
        }
        // Then the slots are seized, in ascending order, and looked at again.
        seats.sort_unstable_by_key(|(place, ..)| *place);
        if seats.windows(2).any(|two| two[0].0 == two[1].0) {
            // Keys of one fingerprint, in a table that tells them apart.
            return None;
        }
        let mut hands: SmallVec<[Seized<'_>; 16]> = SmallVec::new();
        for (place, name, at) in &seats {
            let seized = self.line(place.line).seize(place.slot);
            if seized.name() != *name || !self.is(*place, keys[*at]) {
                return None;
            }
            words[*at].word = seized.word;
            hands.push(seized);
        }
        if take(step, &mut words, spend, settled) {
            for ((.., at), seized) in seats.iter().zip(&mut hands) {
                seized.word = words[*at].word;
            }
        }
        Some(())
    }

    /// Finds where a key is and the name it has there, at a glance.
    fn seat(&self, key: Sought) -> Option<(Place, Name)> {
        let look = |line: usize| {
            let (slot, name) = self.line(line).glance_key(key.name(Class::WIDE))?;
            Some((Place { line, slot }, name))
        };
        self.lines_of(key).into_iter().find_map(look)
    }
}

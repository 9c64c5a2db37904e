//! The second half of a check: what becomes of what it charged.
//!
//! It speaks of the charges that were made and of nothing else: policies that came since are neither charged nor credited, and
//! of a limit that has changed since nothing comes back, for what the charge holds of it cannot be told. Limits settle by what was
//! spent. What `charge: on-failure` took is decided by the outcome: a failure of the caller keeps it, a success forgets all that is held
//! against the key, and work that nobody knows the end of gives it back.

use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Finish, Outcome, Standing};

use super::charged::{Charged, ChargedLine, Made, Part};
use super::{Gate, GateDecision};
use crate::policy::{Among, ChargeOn, Descriptor};
use crate::store::{Charge, Ending, Op, Settled, Step, StoreError};

/// What became of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Followed<'c> {
    /// The policy it was made for.
    pub policy: &'c str,
    /// The limit's place in its policy.
    pub limit: usize,
    /// What was charged.
    pub charged: Cost,
    /// What was spent in the end, as far as this limit counts it.
    pub used: u64,
    /// What became of it.
    pub fate: Fate,
    /// How the limit stands afterwards.
    pub standing: Standing,
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// So many units or places came back, in whole ones; 0 where time has returned them already, or the limit has changed since.
    Returned(u64),
    /// The key was forgotten: its limit is full again.
    Forgotten,
    /// It stays.
    Kept,
    /// It stays, and so many units more were booked.
    Owed(u64),
}

/// All that was settled at once, in the order of the policies.
pub type Finished<'c> = SmallVec<[Followed<'c>; 2]>;

impl Gate {
    /// Decides like [`Gate::check`], and keeps in `charged` what was charged, for [`Gate::finish`]. Where the admission is finished
    /// in the same place, [`Gate::admit`] is shorter.
    ///
    /// `charged` is emptied first, and stays empty when the request is refused. Costs a check and two allocations.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made; nothing was charged then.
    pub fn charge(
        &self,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        charged: &mut Charged,
    ) -> Result<GateDecision, StoreError> {
        charged.clear();
        self.decide(request, cost, Op::Take, None, charged)
    }

    /// Decides like [`Gate::charge`] by some policies only, and by the lists that hold for all; the others are not charged.
    ///
    /// Goes by the set of `among`, whichever is in force.
    ///
    /// # Errors
    /// As [`Gate::charge`].
    pub fn charge_among(
        &self,
        among: &Among,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        charged: &mut Charged,
    ) -> Result<GateDecision, StoreError> {
        charged.clear();
        self.decide(request, cost, Op::Take, Some(among), charged)
    }

    /// Settles what a check charged, or a part of it: each limit with what `used` says was spent of it, `None` being what was
    /// charged. Less than that comes back as far as the charge still holds it, more is booked as a debt.
    ///
    /// Of policies that charge failures only, the outcome decides: [`Outcome::CallersFault`] keeps the charge; [`Outcome::Success`]
    /// forgets all that is held against the key, as long as the policy still charges failures only, else it undoes the charge; every
    /// other outcome undoes it. A charge that is kept, and that somebody else's success has forgotten meanwhile, is booked anew,
    /// if the policy still has that limit: else a guesser with one right password had wrong ones beside it for free.
    ///
    /// One step of the store, all or nothing. Settle every charge once: [`super::Admission`] and tickets see to that.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it: nothing was given back or booked, and it may be told again. Only of
    /// [`StoreError::Unavailable`] nobody can say which: what is told again then might count twice. A ticket counts once all the same.
    pub fn finish<'c>(
        &self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        self.finish_each(charged, charged.of(part), outcome, used)
    }

    pub(super) fn finish_each<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c Made>,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        // Nothing refuses but marks.
        Ok(self.finish_once(&[], charged, lines, outcome, used)?.unwrap_or_default())
    }

    /// Settles charges, and takes some marks in the same step; `None`, and nothing has changed, where one of these is refused.
    pub(super) fn finish_once<'c>(
        &self,
        marks: &[Charge<'_>],
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c Made>,
        outcome: Outcome,
        mut used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Option<Finished<'c>>, StoreError> {
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::from_slice(marks);
        let mut endings: SmallVec<[Ending; 4]> = marks.iter().map(|_| Ending::Once).collect();
        let mut finished = Finished::new();
        for made in lines {
            let line = charged.line(made);
            let (ending, fate) = self.ending(charged, made, outcome, used(&line));
            let used = if let Ending::Finish { finish, .. } = ending { finish.used } else { 0 };
            charges.push(charged.charge(made));
            endings.push(ending);
            let ChargedLine { policy, limit, charged, .. } = line;
            // Known when the store has settled it.
            let standing = Standing { limit: 0, remaining: 0, debt: 0, reset_after: Duration::ZERO };
            finished.push(Followed { policy, limit, charged, used, fate, standing });
        }
        if charges.is_empty() {
            return Ok(Some(finished));
        }
        let settled = self.step(&charges, Op::Finish(&endings))?;
        if !settled.allowed {
            return Ok(None);
        }
        for (one, settlement) in finished.iter_mut().zip(&settled.lines[marks.len()..]) {
            one.standing = settlement.decision.standing;
            if let Fate::Returned(units) = &mut one.fate {
                *units = settlement.receipt.map_or(0, |back| back.cost.units());
            }
        }
        Ok(Some(finished))
    }

    /// Forgets the keys of these charges: their limits are full again, and of what was charged before nothing comes back, as
    /// [`Op::Reset`] has it. Keys are distinct.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it; it may be told again.
    pub fn reset_charges(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        if charges.is_empty() {
            return Ok(());
        }
        self.step(charges, Op::Reset).map(drop)
    }

    fn step(&self, charges: &[Charge<'_>], op: Op<'_>) -> Result<Settled, StoreError> {
        self.store.settle(&Step { now: self.time.now(), op, charges })
    }

    /// Returns how a charge ends, and what becomes of it by that.
    fn ending(&self, charged: &Charged, made: &Made, outcome: Outcome, used: Option<u64>) -> (Ending, Fate) {
        if made.is_place() {
            // What was used says nothing of a place, nor does the policy: it is left.
            let finish = Finish { used: 0, outcome };
            return (Ending::new(made.receipt, finish), Fate::Returned(0));
        }
        let units = made.receipt.cost.units();
        let used = match outcome {
            Outcome::Success if made.on_failure && self.charges_failures(charged, made) => {
                return (Ending::Forget, Fate::Forgotten);
            }
            Outcome::CallersFault => used.unwrap_or(units),
            _ if made.on_failure => 0,
            _ => used.unwrap_or(units),
        };
        let kept = made.on_failure && used > 0 && self.still_has(charged, made);
        let finish = Finish { used, outcome };
        let renew = kept.then_some(made.full_at);
        let fate = match used {
            _ if used < units => Fate::Returned(0),
            _ if used > units => Fate::Owed(used - units),
            _ => Fate::Kept,
        };
        (Ending::Finish { receipt: made.receipt, finish, renew }, fate)
    }

    /// Says whether the policy of a charge, as it is now, charges failures only.
    fn charges_failures(&self, charged: &Charged, made: &Made) -> bool {
        let policies = self.policies.load();
        policies.find(charged.policy(made)).is_some_and(|(_, policy)| policy.charge == ChargeOn::Failure)
    }

    /// Says whether the policy of a charge has, among others, the limit it was made under.
    fn still_has(&self, charged: &Charged, made: &Made) -> bool {
        let policies = self.policies.load();
        let Some((_, policy)) = policies.find(charged.policy(made)) else { return false };
        policy.charge == ChargeOn::Failure
            && policy
                .limit(made.limit as usize)
                .is_some_and(|limit| limit.all_terms().any(|terms| terms.quota.as_ref() == Some(&made.quota)))
    }
}

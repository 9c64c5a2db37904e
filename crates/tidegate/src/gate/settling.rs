//! The second half of a check: a refund or a report of what it charged.
//!
//! Both speak of the charges that were made and of nothing else: policies that came since are neither charged nor credited, and a
//! limit that has changed since gets nothing back, for what the charge holds of it cannot be told. A refund gives back what a
//! check spends; a report decides about what `charge: on-failure` took at the check. No charge is both.

use smallvec::SmallVec;
use tidegate_core::{Cost, Tick};

use super::charged::{Charged, Keeping, Made};
use super::{Gate, GateDecision, Report};
use crate::policy::{Among, ChargeOn, Descriptor};
use crate::store::{Charge, Op, Step, StoreError};

/// What became of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed<'c> {
    /// The policy it was made for.
    pub policy: &'c str,
    /// What was charged.
    pub charged: Cost,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// So many units were given back, rounded up to whole ones; 0 where time has returned them already, or the limit has changed since.
    Returned(u64),
    /// The key was forgotten: its limit is full again.
    Forgotten,
    /// It stays.
    Kept,
}

impl Gate {
    /// Decides like [`Gate::check`], and keeps in `charged` what was charged: for [`Gate::refund`] and [`Gate::report`].
    ///
    /// `charged` is emptied first, and stays empty when the request is refused. Costs a check and two allocations.
    ///
    /// # Errors
    /// [`StoreError`] when no decision could be made; nothing was charged then.
    ///
    /// # Examples
    /// ```
    /// use tidegate::gate::Charged;
    /// use tidegate::policy::{ChargeOn, Limit, Policy};
    /// use tidegate::{Descriptor, Gate, PolicySet, Quota, Report};
    ///
    /// let mut login = Policy::new("login", Limit::new(Quota::per_hour(3).sliding_log()?, "3/h"));
    /// login.charge = ChargeOn::Failure;
    /// let gate = Gate::in_memory(PolicySet::new(vec![login])?, 1000);
    /// let (request, mut charged) = (Descriptor::new(), Charged::default());
    /// for _ in 0..3 {
    ///     assert!(gate.charge(&request, None, &mut charged)?.allowed);
    ///     gate.report(&charged, Report::Failure)?;
    /// }
    /// assert!(!gate.check(&request, None)?.allowed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge(
        &self,
        request: &Descriptor<'_>,
        cost: Option<Cost>,
        charged: &mut Charged,
    ) -> Result<GateDecision, StoreError> {
        charged.clear();
        self.decide(request, cost, Op::Take, None, &mut Keeping { charged, marks: SmallVec::new() })
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
        self.decide(request, cost, Op::Take, Some(among), &mut Keeping { charged, marks: SmallVec::new() })
    }

    /// Gives back what was charged, or of each charge at most `cost`: work that was not done, or turned out cheaper.
    ///
    /// Each limit gets back no more than it was charged, and no more than the charge still holds: no limit is fuller than if it had
    /// never been charged. Left alone are charges that wait for a report. Call it once for what a check charged; one refund at a time
    /// is settled.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it; nothing was given back.
    pub fn refund<'c>(
        &self,
        charged: &'c Charged,
        cost: Option<Cost>,
    ) -> Result<SmallVec<[Followed<'c>; 2]>, StoreError> {
        self.give_back(charged, charged.of(false), |made| cost.map_or(made.cost, |cost| cost.min(made.cost)))
    }

    /// Tells how the work ended, and so what becomes of the charges of policies that charge failures only: a failure keeps them, a
    /// success forgets all that is held against their keys, and work of which neither is known gives back what it took. Empty where
    /// nothing waited for a report.
    ///
    /// A success forgets keys as long as the policy still charges failures only, whatever its limit is now; else the charge is
    /// given back. A failure of which the charge was forgotten meanwhile, by the success of another, is charged anew where there is
    /// room and the policy still has that limit. Call it once for what a check charged.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it; it may be told again.
    pub fn report<'c>(
        &self,
        charged: &'c Charged,
        report: Report,
    ) -> Result<SmallVec<[Followed<'c>; 2]>, StoreError> {
        let waiting = charged.of(true);
        match report {
            Report::Ignored => self.give_back(charged, waiting, |made| made.cost),
            Report::Failure => self.keep(charged, waiting),
            Report::Success => {
                let (forgotten, changed): (SmallVec<[&Made; 2]>, SmallVec<[&Made; 2]>) =
                    waiting.partition(|made| self.charges_failures(charged, made));
                let keys: SmallVec<[Charge<'_>; 2]> =
                    forgotten.iter().map(|made| charged.charge(made)).collect();
                self.reset_charges(&keys)?;
                let mut all = self.give_back(charged, changed.into_iter(), |made| made.cost)?;
                all.extend(forgotten.iter().map(|made| followed(charged, made, Fate::Forgotten)));
                Ok(all)
            }
        }
    }

    /// Forgets the keys of these charges: their limits are full again, and what was charged before cannot be given back. Keys are
    /// distinct.
    ///
    /// # Errors
    /// [`StoreError`] when the store did not settle it.
    pub fn reset_charges(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        if charges.is_empty() {
            return Ok(());
        }
        self.store.settle(&Step { now: self.time.now(), op: Op::Reset, charges })?;
        charges.iter().for_each(|charge| self.marks.forgot(charge.key));
        Ok(())
    }

    fn give_back<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c Made>,
        cost: impl Fn(&Made) -> Cost,
    ) -> Result<SmallVec<[Followed<'c>; 2]>, StoreError> {
        let lines: SmallVec<[&Made; 2]> = lines.collect();
        if lines.is_empty() {
            return Ok(SmallVec::new());
        }
        let charge = |made: &&'c Made| Charge { cost: cost(made), ..charged.charge(made) };
        let charges: SmallVec<[Charge<'_>; 2]> = lines.iter().map(charge).collect();
        let _turn = self.marks.turn();
        let untils: SmallVec<[Tick; 2]> = lines
            .iter()
            .map(|made| made.mark.moved(made.full_at, self.marks.of(charged.key(made))))
            .collect();
        let settled = self.store.settle(&Step {
            now: self.time.now(),
            op: Op::GiveBack(&untils),
            charges: &charges,
        })?;
        let each = lines.iter().zip(settled.lines).map(|(made, settlement)| {
            let Some(receipt) = settlement.receipt else { return followed(charged, made, Fate::Returned(0)) };
            self.marks.returned(charged.key(made), receipt.mark[3]);
            followed(charged, made, Fate::Returned(receipt.cost.units()))
        });
        Ok(each.collect())
    }

    /// Keeps charges; those whose key was forgotten since are made anew, each for itself: the failure has happened, so a limit
    /// that is used up keeps it from no other.
    fn keep<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c Made> + Clone,
    ) -> Result<SmallVec<[Followed<'c>; 2]>, StoreError> {
        let lost = lines.clone().filter(|made| {
            made.mark.is_forgotten(self.marks.of(charged.key(made))) && self.still_has(charged, made)
        });
        let charges: SmallVec<[Charge<'_>; 2]> = lost.map(|made| charged.charge(made)).collect();
        if !charges.is_empty() {
            self.store.settle(&Step { now: self.time.now(), op: Op::Take, charges: &charges })?;
        }
        Ok(lines.map(|made| followed(charged, made, Fate::Kept)).collect())
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

fn followed<'c>(charged: &'c Charged, made: &Made, fate: Fate) -> Followed<'c> {
    Followed { policy: charged.policy(made), charged: made.cost, fate }
}

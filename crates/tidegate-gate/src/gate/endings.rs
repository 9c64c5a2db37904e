//! Works out how charges end, from what was spent and from the outcome, before a store is asked.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Cost, Finish, Outcome, Quota, Receipt, Standing, Tick};

use super::Gate;
use super::charged::{Charged, ChargedLine, MadeCharge};
use crate::policy::ChargeOn;
use tidegate_limits::store::{Charge, ChargeAnswer, Ending, StoreError};

/// What happened to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettledCharge<'c> {
    /// The name of the policy.
    pub policy: &'c str,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The units or places that were charged.
    pub charged: Cost,
    /// The units that were really spent, as far as this limit counts them.
    pub used: u64,
    /// What happened to the charge.
    pub fate: Fate,
    /// The standing of the limit afterwards.
    pub standing: Standing,
}

/// What happened to a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// This many whole units or places were given back; 0 if time has returned them already, or the limit has changed
    /// since. For a breaker: the whole charge if the outcome of the call counts or its place as a probe was given back;
    /// otherwise 0, for example after its time to live.
    Returned(u64),
    /// The key was forgotten, so its limit is full again.
    Forgotten,
    /// The charge stays.
    Kept,
    /// The charge stays, and this many more units were booked.
    Owed(u64),
}

/// All charges settled at once, in the order of the policies.
pub type Finished<'c> = SmallVec<[SettledCharge<'c>; 2]>;

/// The endings of charges, worked out but not yet settled.
#[derive(Default)]
pub(super) struct Endings<'c> {
    pub(super) finished: Finished<'c>,
    pub(super) parts: Parts<'c>,
}

/// The steps that settle some charges, one per store and tag.
pub(super) type Parts<'c> = SmallVec<[PartEndings<'c>; 1]>;

/// The endings of one step.
#[derive(Default)]
pub(super) struct PartEndings<'c> {
    pub(super) store: usize,
    pub(super) tag: u64,
    pub(super) claimed: Claimed<'c>,
    pub(super) charges: SmallVec<[Charge<'c>; 2]>,
    pub(super) endings: SmallVec<[Ending; 2]>,
    /// Charges that end under another limit than they were made under.
    pub(super) changed: Vec<ChangedLimit>,
    /// The indices of these endings in `Endings::finished`.
    places: SmallVec<[usize; 2]>,
}

/// A charge whose limit was changed since, and that used more than it had charged: the excess counts under the limit
/// that the key has now, whether or not its cell is still there.
pub(super) struct ChangedLimit {
    /// The index of the charge in [`PartEndings::charges`].
    pub(super) charge: usize,
    pub(super) quota: Arc<Quota>,
}

/// The charges for which a store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settles {
    /// For all charges, because the caller wants the standing of their limits.
    All,
    /// Only for charges that settling changes. Units that were spent exactly as charged stay as they are.
    Changes,
}

/// How it is ensured that a charge is settled only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claims {
    /// The charge itself, which remembers that it was settled.
    Yes,
    /// Marks in the stores.
    #[cfg(feature = "ticket")]
    No,
}

/// Charges that this settlement has claimed. Those still in it when it is dropped may be claimed by another settlement.
#[derive(Default)]
pub(super) struct Claimed<'c>(pub(super) SmallVec<[&'c MadeCharge; 2]>);

impl PartEndings<'_> {
    /// Makes an empty step for a store and a tag.
    pub(super) fn of(store: usize, tag: u64) -> Self {
        Self { store, tag, ..Self::default() }
    }

    /// Copies the store's answer for each charge into `finished`. A key that has nothing spent is a new key, and shows the
    /// limit that `changed` returns for it.
    pub(super) fn fill_in(
        &self,
        lines: &[ChargeAnswer],
        at: Tick,
        finished: &mut Finished<'_>,
        changed: impl Fn(&Charge<'_>) -> Option<Arc<Quota>>,
    ) {
        for ((place, charge_answer), charge) in self.places.iter().zip(lines).zip(&self.charges) {
            let one = &mut finished[*place];
            one.standing = charge_answer.decision.standing;
            if one.standing.remaining == one.standing.limit
                && let Some(quota) = changed(charge)
            {
                one.standing = quota.standing(&quota.fresh(at), at);
            }
            if let Fate::Returned(units) = &mut one.fate {
                *units = charge_answer.receipt.map_or(0, |back| back.cost.units());
            }
        }
    }
}

impl<'c> PartEndings<'c> {
    /// Returns each charge of the step with what has happened to it.
    pub(super) fn each<'f, 'd>(
        &'f self,
        finished: &'f Finished<'d>,
    ) -> impl Iterator<Item = (&'f Charge<'c>, &'f SettledCharge<'d>)> {
        self.charges.iter().zip(&self.places).map(|(charge, place)| (charge, &finished[*place]))
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|made| made.settled.reopen());
    }
}

impl Gate {
    /// Works out how charges end, grouped by the stores that hold them.
    pub(super) fn endings<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c MadeCharge>,
        outcome: Outcome,
        mut used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
        claims: Claims,
        settles: Settles,
    ) -> Result<Endings<'c>, StoreError> {
        let mut endings = Endings::default();
        for made in lines {
            let mut claimed = Claimed::default();
            if claims == Claims::Yes {
                if !made.settled.claim() {
                    continue;
                }
                claimed.0.push(made);
            }
            let place = endings.finished.len();
            let line = charged.line(made);
            let (ending, fate) = self.ending(charged, made, outcome, used(&line));
            if settles == Settles::Changes && fate == Fate::Kept && !made.rules.on_failure {
                // This counts as settled: no other settlement may end the charge differently.
                claimed.0.clear();
                continue;
            }
            let used = if let Ending::Finish { finish, .. } = ending { finish.used } else { 0 };
            let store = self.routes.of(made.rules.share)?;
            let tag = self.routes.tag(store, charged.key(made));
            let part = match endings.parts.iter_mut().position(|part| part.store == store && part.tag == tag)
            {
                Some(at) => &mut endings.parts[at],
                None => {
                    endings.parts.push(PartEndings::of(store, tag));
                    endings.parts.last_mut().expect("pushed just now")
                }
            };
            part.claimed.0.append(&mut claimed.0);
            if let Fate::Owed(_) = fate
                && let Some(quota) = self.changed_limit(&charged.charge(made))
            {
                part.changed.push(ChangedLimit { charge: part.charges.len(), quota });
            }
            part.charges.push(charged.charge(made));
            part.endings.push(ending);
            part.places.push(place);
            let ChargedLine { policy, limit, charged, .. } = line;
            // Filled in once the store has settled the charge.
            let standing = Standing { limit: 0, remaining: 0, debt: 0, reset_after: Duration::ZERO };
            endings.finished.push(SettledCharge { policy, limit, charged, used, fate, standing });
        }
        Ok(endings)
    }

    /// Returns the limit that the key of a charge has now, if its policy was changed since, or its canary got or lost the
    /// key; that of callers without a plan, as a charge does not tell the plan. `None` if the policy is gone, or brings no
    /// limit of its own.
    pub(super) fn changed_limit(&self, charge: &Charge<'_>) -> Option<Arc<Quota>> {
        if charge.inline_quota || charge.quota.is_guard() {
            return None;
        }
        let policies = self.policies.load();
        let (policy, limit) = policies.deciding_limit(charge.key)?;
        let limit = policies.policies()[policy].limit(limit)?;
        if limit.all_terms().any(|terms| terms.quota.as_ref() == Some(charge.quota)) {
            return None;
        }
        limit.terms.quota.clone().filter(|quota| !quota.is_guard())
    }

    /// Returns how a charge ends, and what that does to it.
    fn ending(
        &self,
        charged: &Charged,
        made: &MadeCharge,
        outcome: Outcome,
        used: Option<u64>,
    ) -> (Ending, Fate) {
        if made.is_place() {
            // A place is left, whatever was used and whatever the policy says.
            let finish = Finish { used: 0, outcome };
            let receipt = Receipt { act: made.receipt.at.after(charged.delay), ..made.receipt };
            return (Ending::new(receipt, finish), Fate::Returned(0));
        }
        let units = made.receipt.cost.units();
        let used = match outcome {
            Outcome::Success if made.rules.on_failure && self.charges_failures(charged, made) => {
                return (Ending::Forget, Fate::Forgotten);
            }
            Outcome::CallersFault => used.unwrap_or(units),
            _ if made.rules.on_failure => 0,
            _ => used.unwrap_or(units),
        };
        let kept = made.rules.on_failure && used > 0 && self.still_has(charged, made);
        let finish = Finish { used, outcome };
        let renew = kept.then_some(made.full_at);
        let fate = match used {
            _ if used < units => Fate::Returned(0),
            _ if used > units => Fate::Owed(used - units),
            _ => Fate::Kept,
        };
        (Ending::Finish { receipt: made.receipt, finish, renew }, fate)
    }

    /// Reports whether the policy of a charge, in its present form, charges failures only.
    fn charges_failures(&self, charged: &Charged, made: &MadeCharge) -> bool {
        let policies = self.policies.load();
        policies.find(charged.policy(made)).is_some_and(|(_, policy)| policy.charge == ChargeOn::Failure)
    }

    /// Reports whether the policy of a charge still charges failures only and has the limit that was charged.
    fn still_has(&self, charged: &Charged, made: &MadeCharge) -> bool {
        let policies = self.policies.load();
        let Some((policy, limit)) = policies.deciding_limit(charged.key(made)) else { return false };
        let policy = &policies.policies()[policy];
        policy.charge == ChargeOn::Failure
            && policy
                .limit(limit)
                .is_some_and(|limit| limit.all_terms().any(|terms| terms.quota.as_ref() == Some(&made.quota)))
    }
}

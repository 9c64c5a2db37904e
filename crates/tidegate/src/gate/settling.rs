//! The second half of a check: what becomes of what it charged.
//!
//! It speaks of the charges that were made and of nothing else: policies that came since are neither charged nor credited, and
//! of a limit that has changed since nothing comes back, for what the charge holds of it cannot be told. Limits settle by what was
//! spent. What `charge: on-failure` took is decided by the outcome: a failure of the caller keeps it, a success forgets all that is held
//! against the key, and work that nobody knows the end of gives it back.

use std::mem;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Finish, Outcome, Standing};

use super::Gate;
use super::charged::{Charged, ChargedLine, Made, Part};
use super::several_stores::whole;
use super::waits::{Waits, now};
use crate::policy::ChargeOn;
use crate::store::{Charge, Ending, Op, Step, StepClock, StoreError};

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
    /// This many units or places came back, in whole ones; 0 where time has returned them already, or the limit has changed since.
    Returned(u64),
    /// The key was forgotten: its limit is full again.
    Forgotten,
    /// The charge stays.
    Kept,
    /// The charge stays, and this many further units were booked.
    Owed(u64),
}

/// How charges end, worked out and not yet settled.
#[derive(Default)]
pub(super) struct Endings<'c> {
    finished: Finished<'c>,
    parts: SmallVec<[PartEndings<'c>; 1]>,
}

/// The endings of one step.
#[derive(Default)]
struct PartEndings<'c> {
    store: usize,
    tag: u64,
    claimed: Claimed<'c>,
    charges: SmallVec<[Charge<'c>; 2]>,
    endings: SmallVec<[Ending; 2]>,
    /// The places of these endings in `Endings::finished`.
    places: SmallVec<[usize; 2]>,
}

/// For which charges a store is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settles {
    /// For all: somebody wants to know how their limits stand.
    All,
    /// For those that settling changes. Units of which as many were spent as were charged stay as they are.
    Changes,
}

/// What ensures that a charge is settled once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claims {
    /// The charge itself, which remembers that it was settled.
    Yes,
    /// Marks in the stores.
    #[cfg(feature = "ticket")]
    No,
}

/// Charges that this settlement has claimed; those that are left when it is dropped may be claimed by another.
#[derive(Default)]
struct Claimed<'c>(SmallVec<[&'c Made; 2]>);

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|made| made.settled.reopen());
    }
}

/// All that was settled at once, in the order of the policies.
pub type Finished<'c> = SmallVec<[Followed<'c>; 2]>;

impl Gate {
    /// Settles what a check charged, or a part of it: each limit with what `used` says was spent of it, `None` being what was
    /// charged. Less than that comes back as far as the charge still holds it, more is booked as a debt.
    ///
    /// Of policies that charge failures only, the outcome decides: [`Outcome::CallersFault`] keeps the charge; [`Outcome::Success`]
    /// forgets all that is held against the key, as long as the policy still charges failures only, else it undoes the charge; every
    /// other outcome undoes it. A charge that is kept, and that somebody else's success has forgotten meanwhile, is booked anew,
    /// if the policy still has that limit: else a guesser with one right password had wrong ones beside it for free.
    ///
    /// One step of each store, all or nothing by itself. What this value has settled is not settled by it again, and is not among what
    /// is returned then.
    ///
    /// # Errors
    /// [`StoreError`] when a store did not settle its part: of that part nothing was given back or booked, and the parts of other stores
    /// are settled all the same. Call again, and the rest is settled. Only after [`StoreError::Unavailable`] nobody can say whether the
    /// part was settled, and settling it twice might give back what others hold: so this value does not settle that part again. A ticket
    /// can be tried again.
    pub fn finish<'c>(
        &self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        let endings = self.endings((charged, charged.of(part)), outcome, used, Claims::Yes, Settles::All)?;
        // Only marks can refuse a settlement, and there are none here.
        Ok(now(self.settle_endings(endings, &[], Waits::No))?.unwrap_or_default())
    }

    /// Settles like [`Gate::finish`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::finish`].
    ///
    /// # Cancel safety
    /// If dropped before it ends, an engine that is being asked settles its part in the background (see [`Gate::with_background`]), and the
    /// parts of stores that were not asked yet stay unsettled. Call again, and those are settled; no part is settled twice.
    pub async fn finish_async<'c>(
        &self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        let endings = self.endings((charged, charged.of(part)), outcome, used, Claims::Yes, Settles::All)?;
        Ok(self.settle_endings(endings, &[], Waits::Yes).await?.unwrap_or_default())
    }

    /// Settles like [`Gate::finish`], and asks no store where that would change nothing.
    pub(super) fn finish_changes(
        &self,
        charged: &Charged,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let lines = (charged, charged.of(Part::All));
        let endings = self.endings(lines, outcome, used, Claims::Yes, Settles::Changes)?;
        now(self.settle_endings(endings, &[], Waits::No)).map(drop)
    }

    /// Settles like [`Gate::finish_changes`], and waits for engines that answer later.
    pub(super) async fn finish_changes_async(
        &self,
        charged: &Charged,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let lines = (charged, charged.of(Part::All));
        let endings = self.endings(lines, outcome, used, Claims::Yes, Settles::Changes)?;
        self.settle_endings(endings, &[], Waits::Yes).await.map(drop)
    }

    /// Undoes what a check charged although nobody waits for the result: for callers who have gone. If an engine has to be told, that
    /// happens in the background ([`Gate::with_background`]).
    ///
    /// What a store does not settle stays charged until time returns it.
    pub fn undo_unwatched(&self, charged: &Charged) {
        self.finish_unwatched(charged, charged.of(Part::All), |_| Some(0));
    }

    /// Settles charges although nobody waits for the result.
    pub(super) fn finish_unwatched<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c Made>,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) {
        // Nobody is there to be told of an error: what the store has not settled stays charged.
        let lines = (charged, lines);
        if let Ok(endings) = self.endings(lines, Outcome::Ignored, used, Claims::Yes, Settles::Changes) {
            let _ = now(self.settle_endings(endings, &[], Waits::Unwatched));
        }
    }

    /// Works out how charges end, by the stores that keep them.
    pub(super) fn endings<'c>(
        &self,
        (charged, lines): (&'c Charged, impl Iterator<Item = &'c Made>),
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
            if settles == Settles::Changes && fate == Fate::Kept && !made.on_failure {
                // Settled by that: nobody else may settle it otherwise.
                claimed.0.clear();
                continue;
            }
            let used = if let Ending::Finish { finish, .. } = ending { finish.used } else { 0 };
            let store = self.routes.of(made.share)?;
            let tag = self.routes.tag(store, charged.key(made));
            let part = match endings.parts.iter_mut().position(|part| part.store == store && part.tag == tag)
            {
                Some(at) => &mut endings.parts[at],
                None => {
                    endings.parts.push(PartEndings { store, tag, ..PartEndings::default() });
                    endings.parts.last_mut().expect("pushed just now")
                }
            };
            part.claimed.0.append(&mut claimed.0);
            part.charges.push(charged.charge(made));
            part.endings.push(ending);
            part.places.push(place);
            let ChargedLine { policy, limit, charged, .. } = line;
            // Filled in when the store has settled the charge.
            let standing = Standing { limit: 0, remaining: 0, debt: 0, reset_after: Duration::ZERO };
            endings.finished.push(Followed { policy, limit, charged, used, fate, standing });
        }
        Ok(endings)
    }

    /// Settles charges, and takes some marks in the same steps: each store is one step, all or nothing, with marks of its own. `None` where
    /// the marks are refused everywhere; then nothing has changed.
    ///
    /// # Errors
    /// That of a store which has failed, [`StoreError::Unavailable`] before others. All stores were asked.
    pub(super) async fn settle_endings<'c>(
        &self,
        endings: Endings<'c>,
        marks: &[Charge<'_>],
        waits: Waits,
    ) -> Result<Option<Finished<'c>>, StoreError> {
        let Endings { mut finished, mut parts } = endings;
        if parts.is_empty() && !marks.is_empty() {
            parts.push(PartEndings::default());
        }
        let (mut failed, mut allowed) = (None, parts.is_empty());
        for mut part in parts {
            let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::from_slice(marks);
            for charge in &part.charges {
                charges.push(*charge);
            }
            let mut all: SmallVec<[Ending; 4]> = marks.iter().map(|_| Ending::Once).collect();
            all.extend(part.endings);
            let step = Step {
                tag: part.tag,
                clock: StepClock::Engine,
                ..Step::new(self.time.now(), Op::Finish(&all), &charges)
            };
            // Claimed for good from here on, even if the caller goes away: the store may have settled the charges by then.
            let claimed = mem::take(&mut part.claimed.0);
            let Some(answer) = self.ask(part.store, &step, waits).await else { continue };
            let settled = match answer.and_then(|settled| whole(settled, charges.len())) {
                Ok(settled) => settled,
                Err(error) => {
                    let unknown = matches!(error, StoreError::Unavailable { .. });
                    if !unknown {
                        drop(Claimed(claimed));
                    }
                    if failed.is_none() || unknown {
                        failed = Some(error);
                    }
                    continue;
                }
            };
            allowed |= settled.allowed;
            for (place, settlement) in part.places.into_iter().zip(&settled.lines[marks.len()..]) {
                let one = &mut finished[place];
                one.standing = settlement.decision.standing;
                if let Fate::Returned(units) = &mut one.fate {
                    *units = settlement.receipt.map_or(0, |back| back.cost.units());
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(allowed.then_some(finished)),
        }
    }

    /// Forgets the keys of these charges: their limits are full again, and of what was charged before nothing comes back, as
    /// [`Op::Reset`] has it. Keys are distinct.
    ///
    /// # Errors
    /// [`StoreError`] when a store did not settle it; the others were asked all the same, and it may be told again.
    pub fn reset_charges(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        now(self.reset_parts(charges, Waits::No))
    }

    /// Forgets keys like [`Gate::reset_charges`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::reset_charges`].
    pub async fn reset_charges_async(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        self.reset_parts(charges, Waits::Yes).await
    }

    /// Asks every store: a key is forgotten wherever it is.
    async fn reset_parts(&self, charges: &[Charge<'_>], waits: Waits) -> Result<(), StoreError> {
        if charges.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for store in 0..self.routes.len() {
            let mut left: SmallVec<[Charge<'_>; 4]> = SmallVec::from_slice(charges);
            while let Some(first) = left.first() {
                let tag = self.routes.tag(store, first.key);
                let alike = |charge: &Charge<'_>| self.routes.tag(store, charge.key) == tag;
                let (together, others): (SmallVec<[Charge<'_>; 4]>, _) = left.into_iter().partition(alike);
                // By the engine's clock, which has dated the charges: by another clock some of them would come after their reset.
                let clock = StepClock::Engine;
                let step = Step { tag, clock, ..Step::new(self.time.now(), Op::Reset, &together) };
                if let Some(Err(error)) = self.ask(store, &step, waits).await {
                    failed = failed.or(Some(error));
                }
                left = others;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Returns how a charge ends, and what becomes of it by that.
    fn ending(&self, charged: &Charged, made: &Made, outcome: Outcome, used: Option<u64>) -> (Ending, Fate) {
        if made.is_place() {
            // A place is left, whatever was used and whatever the policy says.
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

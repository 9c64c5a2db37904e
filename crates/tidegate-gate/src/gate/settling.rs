//! Settles the charges of a check, once its work has ended.
//!
//! Settlement concerns only the charges that were made: newer policies are neither charged nor credited, and a limit
//! that has changed since gives nothing back, since it is unknown what the charge still holds of it. Limits settle by
//! what was spent. The outcome decides about charges of `charge: on-failure`: a failure of the caller keeps the charge,
//! a success forgets everything held against the key, and any other outcome gives the charge back.

use std::mem;

use smallvec::SmallVec;
use tidegate_core::Outcome;

use super::Gate;
use super::charged::{Charged, ChargedLine, MadeCharge, Part};
use super::endings::{ChangedLimit, Claimed, Claims, Finished, PartEndings, Parts, Settles};
use super::several_stores::whole;
use super::waits::{Waits, run_without_waiting};
use tidegate_limits::store::{Charge, Ending, Op, Step, StepAnswer, StepClock, StoreError};

/// The marks that a settlement takes in the stores, each a key of one unit.
pub(super) struct Marks<'m> {
    /// Taken in the step of each store. A step that finds one of them taken is refused.
    pub(super) once: &'m [Charge<'m>],
    /// Taken in the step of `store` and `tag` only, and not binding: they refuse nothing.
    pub(super) notes: &'m [Charge<'m>],
    /// The store of the step that takes the notes, and of the only step if nothing is charged.
    pub(super) store: usize,
    /// The tag of that step.
    pub(super) tag: u64,
    /// Whether each of the notes was free, and is taken now; empty if no store has answered that.
    pub(super) noted: SmallVec<[bool; 2]>,
}

impl<'m> Marks<'m> {
    /// Returns the marks and the notes of one step.
    fn of(&self, part: &PartEndings<'_>) -> (&'m [Charge<'m>], &'m [Charge<'m>]) {
        let notes = if (part.store, part.tag) == (self.store, self.tag) { self.notes } else { &[] };
        (self.once, notes)
    }
}

impl Gate {
    /// Settles like [`Gate::finish`], but asks no store for charges that would not change.
    pub(super) fn finish_changes(
        &self,
        charged: &Charged,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let mut endings =
            self.endings(charged, charged.of(Part::All), outcome, used, Claims::Yes, Settles::Changes)?;
        run_without_waiting(self.settle_parts(&mut endings.finished, &mut endings.parts, None, Waits::No))
            .map(drop)
    }

    /// Settles like [`Gate::finish_changes`], and waits for engines that answer later.
    pub(super) async fn finish_changes_async(
        &self,
        charged: &Charged,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let mut endings =
            self.endings(charged, charged.of(Part::All), outcome, used, Claims::Yes, Settles::Changes)?;
        self.settle_parts(&mut endings.finished, &mut endings.parts, None, Waits::Yes).await.map(drop)
    }

    /// Settles charges without reporting the result.
    pub(super) fn finish_unwatched<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c MadeCharge>,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) {
        // An error cannot be reported to anybody: what the store has not settled stays charged.
        let _ = self.settle_unwatched(charged, lines, Outcome::Ignored, used);
    }

    /// Settles charges without waiting: what an engine must be asked for is settled in the background.
    ///
    /// # Errors
    /// The error of a store that answered at once.
    pub(super) fn settle_unwatched<'c>(
        &self,
        charged: &'c Charged,
        lines: impl Iterator<Item = &'c MadeCharge>,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        let mut endings = self.endings(charged, lines, outcome, used, Claims::Yes, Settles::Changes)?;
        let settled = self.settle_parts(&mut endings.finished, &mut endings.parts, None, Waits::Unwatched);
        run_without_waiting(settled).map(drop)
    }

    /// Settles charges, and takes some marks in the same steps. Each step is all or nothing and has the marks in it.
    /// The result of each charge is written into `finished`, and whether each note was free into `marks`. Returns
    /// `false` if every step refused the marks; in that case nothing has changed.
    ///
    /// Works on data that its caller holds, so that the future of a request that waits for an engine stays small.
    ///
    /// # Errors
    /// The error of a store that failed, [`StoreError::Unavailable`] before others. All stores were asked, and `marks`
    /// has the notes that one of them took.
    pub(super) async fn settle_parts(
        &self,
        finished: &mut Finished<'_>,
        parts: &mut Parts<'_>,
        mut marks: Option<&mut Marks<'_>>,
        waits: Waits,
    ) -> Result<bool, StoreError> {
        if let (true, Some(marks)) = (parts.is_empty(), &marks) {
            parts.push(PartEndings::of(marks.store, marks.tag));
        }
        let (mut failed, mut allowed) = (None, parts.is_empty());
        for part in parts {
            let (once, notes) = marks.as_deref().map_or_else(Default::default, |marks| marks.of(part));
            let Some(answer) = self.settle_part(part, once, notes, waits).await else { continue };
            match answer {
                Ok(executed) => {
                    allowed |= executed.allowed;
                    let (noted, lines) = executed.lines[once.len()..].split_at(notes.len());
                    if let Some(marks) = &mut marks {
                        marks.noted.extend(noted.iter().map(|note| note.receipt.is_some()));
                    }
                    part.fill_in(lines, executed.at, finished, |charge| self.changed_limit(charge));
                    if executed.allowed {
                        self.tell_finished(part, finished, executed.at);
                    }
                }
                Err(error) => {
                    if failed.is_none() || matches!(error, StoreError::Unavailable { .. }) {
                        failed = Some(error);
                    }
                }
            }
        }
        failed.map_or(Ok(allowed), Err)
    }

    /// Settles the charges of one step, after some marks; `None` if no caller waits for the answer.
    pub(super) async fn settle_part(
        &self,
        part: &mut PartEndings<'_>,
        once: &[Charge<'_>],
        notes: &[Charge<'_>],
        waits: Waits,
    ) -> Option<StepAnswer> {
        let marks = once.iter().chain(notes);
        part.endings.insert_many(0, marks.clone().map(|_| Ending::Once));
        let joined: Vec<Charge<'_>>;
        let mut charges: &[Charge<'_>] = &part.charges;
        if !once.is_empty() || !part.changed.is_empty() {
            let mut all: Vec<Charge<'_>> = marks.chain(charges).copied().collect();
            let first = all.len() - charges.len();
            for ChangedLimit { charge, quota } in &part.changed {
                all[first + charge].quota = quota;
            }
            joined = all;
            charges = &joined;
        }
        let step = Step {
            tag: part.tag,
            clock: StepClock::Engine,
            watched: self.is_observed(),
            ..Step::new(self.time.now(), Op::Finish(&part.endings), charges)
        };
        // From here on the claim is final, even if the caller goes away, since the store may have settled the charges
        // by then.
        let claimed = mem::take(&mut part.claimed.0);
        let answer = self.ask(part.store, &step, waits).await?;
        let answer = answer.and_then(|executed| whole(executed, charges.len()));
        if answer.as_ref().is_err_and(|error| !matches!(error, StoreError::Unavailable { .. })) {
            drop(Claimed(claimed));
        }
        Some(answer)
    }
}

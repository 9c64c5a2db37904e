//! An admission as a value, which is finished, cancelled, handed on as a ticket, or dropped.

#[cfg(feature = "ticket")]
mod into_ticket;
mod unwatched;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tidegate_core::{Outcome, Tick};

use super::charged::{Charged, ChargedLine, Part};
use super::endings::Finished;
use super::load::CountedAdmission;
use super::{Check, Gate, GateDecision};
use tidegate_limits::store::{DecidedBy, StoreError};

/// The answer to [`Gate::admit`]: an admission, or the decision that refused it.
#[derive(Debug)]
#[must_use = "an admission that is dropped at once gives its places back"]
#[allow(clippy::large_enum_variant, reason = "a decision is in both; moved once, to where it is used")]
pub enum Entry<G: Deref<Target = Gate>> {
    /// The request may pass, now or after [`GateDecision::wait`].
    Admitted(Admission<G>),
    /// The request may not pass; nothing was charged.
    Refused(GateDecision),
}

impl<G: Deref<Target = Gate>> Entry<G> {
    /// Returns the admission, if it is one.
    #[must_use]
    pub fn admitted(self) -> Option<Admission<G>> {
        match self {
            Self::Admitted(admission) => Some(admission),
            Self::Refused(_) => None,
        }
    }

    /// Returns the decision.
    pub const fn decision(&self) -> &GateDecision {
        match self {
            Self::Admitted(admission) => &admission.decision,
            Self::Refused(decision) => decision,
        }
    }
}

/// Work that a gate has admitted. Dereferences to its [`GateDecision`], and is ended exactly once.
///
/// * [`finish`](Admission::finish): the work was done; limits settle what it spent, and guards and `charge: on-failure` use the outcome;
/// * [`cancel`](Admission::cancel): the work was not done, and nothing was spent;
/// * `into_ticket`: another party reports the end later;
/// * dropped: places of guards are left without an outcome; limits keep what was charged, because the work may have been
///   done. [`undo_if_dropped`](Admission::undo_if_dropped) changes that: dropping then means cancelling.
///
/// `G` dereferences to the gate: `&Gate` from [`Gate::admit`], `Arc<Gate>` from [`Gate::admit_owned`], which may be stored and spawned. Takes about
/// a kilobyte, mostly the decision. Ending it takes one step of each store in which something changes: where places are left, where the outcome
/// decides about a charge, and where more or less was spent than was charged. Other stores are not asked.
///
/// # A store that fails
/// If a store does not settle an ending, the call returns an error, and the parts of other stores are settled all the same. Steps that can be
/// repeated safely are tried once more: leaving places, and cancelling. In all other cases the charges of limits stay, even after
/// `undo_if_dropped`, because the work was done. A store that fails the second time too keeps what it holds; places stay until their time to live
/// is over. The same holds for a store that was [`StoreError::Unavailable`]: it may have settled its part, and giving back twice could give back
/// what others hold.
///
/// # Examples
/// A call to a language model is admitted on an estimate and settled with its real usage:
/// ```
/// use tidegate::gate::{Check, Entry};
/// use tidegate::policy::Limit;
/// use tidegate::{Cost, Descriptor, Gate, ManualClock, Outcome, Policy, PolicySet, Quota};
///
/// let tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
/// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
/// let request = Descriptor::new();
/// let Entry::Admitted(admission) = gate.admit(Check::of(&request).cost(800))? else { panic!("800 of 1000") };
/// admission.finish_with(Outcome::Success, |_| Some(300))?;
/// assert_eq!(gate.peek(&request)?.limits[0].decision.standing.remaining, 700);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an admission that is dropped at once gives its places back"]
pub struct Admission<G: Deref<Target = Gate>> {
    gate: G,
    decision: GateDecision,
    charged: Charged,
    /// When the decision was returned, by the gate's clock.
    made: Tick,
    undo: bool,
    /// Set if policies use the number in flight or the latency.
    counted: Option<CountedAdmission>,
    /// Whether nothing is left to do on drop.
    ended: bool,
}

impl Gate {
    /// Decides like [`Gate::check`], and returns the admission as a value that must be ended once; see [`Admission`].
    ///
    /// Costs a check and two allocations, and one step of the store at the end if something changes there.
    ///
    /// # Errors
    /// [`StoreError`] if no decision could be made; nothing was charged then.
    pub fn admit<'a, 'd: 'a>(&self, check: impl Into<Check<'a, 'd>>) -> Result<Entry<&Self>, StoreError> {
        Admission::ask(self, check)
    }

    /// Decides like [`Gate::admit`]. The admission holds the gate, so it may be stored and sent to other threads.
    ///
    /// # Errors
    /// As [`Gate::admit`].
    pub fn admit_owned<'a, 'd: 'a>(
        self: &Arc<Self>,
        check: impl Into<Check<'a, 'd>>,
    ) -> Result<Entry<Arc<Self>>, StoreError> {
        Admission::ask(Arc::clone(self), check)
    }
}

impl Gate {
    /// Decides like [`Gate::admit`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// As [`Gate::check_async`].
    pub async fn admit_async<'a, 'd: 'a>(
        &self,
        check: impl Into<Check<'a, 'd>>,
    ) -> Result<Entry<&Self>, StoreError> {
        Admission::ask_async(self, check).await
    }

    /// Decides like [`Gate::admit_owned`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// As [`Gate::check_async`].
    pub async fn admit_owned_async<'a, 'd: 'a>(
        self: &Arc<Self>,
        check: impl Into<Check<'a, 'd>>,
    ) -> Result<Entry<Arc<Self>>, StoreError> {
        Admission::ask_async(Arc::clone(self), check).await
    }
}

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Asks a gate through `G`. A check that only peeks charges nothing, so its admission leaves nothing to settle.
    ///
    /// # Errors
    /// As [`Gate::admit`].
    pub fn ask<'a, 'd: 'a>(gate: G, check: impl Into<Check<'a, 'd>>) -> Result<Entry<G>, StoreError> {
        let mut charged = Charged::default();
        let decision = gate.decide(&check.into(), &mut charged)?;
        Ok(Self::entry(gate, decision, charged))
    }

    /// Asks a gate like [`Admission::ask`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Gate::check_async`].
    ///
    /// # Cancel safety
    /// As [`Gate::check_async`].
    pub async fn ask_async<'a, 'd: 'a>(
        gate: G,
        check: impl Into<Check<'a, 'd>>,
    ) -> Result<Entry<G>, StoreError> {
        let mut charged = Charged::default();
        let decision = gate.decide_async(&check.into(), &mut charged).await?;
        Ok(Self::entry(gate, decision, charged))
    }

    fn entry(gate: G, decision: GateDecision, charged: Charged) -> Entry<G> {
        if !decision.allowed {
            return Entry::Refused(decision);
        }
        let (made, counted) = (gate.now(), gate.begin(&decision));
        Entry::Admitted(Self { gate, decision, charged, made, undo: false, counted, ended: false })
    }

    /// Returns what was charged.
    pub const fn charged(&self) -> &Charged {
        &self.charged
    }

    /// Sets what a drop does: `true` cancels the admission; `false`, the default, leaves its places and keeps its
    /// charges.
    ///
    /// Use `true` until the work begins: then a caller that hangs up before that has spent nothing.
    pub fn undo_if_dropped(mut self, undo: bool) -> Self {
        self.undo = undo;
        self
    }

    /// Waits as long as the decision says, by the gate's clock, and returns the admission. Only queues delay.
    ///
    /// # Cancel safety
    /// Dropping the future before it completes cancels the admission, polled or not: a caller that hangs up while delayed has spent nothing, and
    /// later requests wait that much less. Ticks that were promised to other requests stay.
    pub fn delayed(self) -> impl Future<Output = Self> + use<G> {
        let undo = self.undo;
        let held = self.undo_if_dropped(true);
        async move {
            // The wait counts from a tick of this gate's clock, since an engine dates its decision by its own clock.
            let at = match held.decision.by {
                DecidedBy::Local | DecidedBy::Lease => held.decision.at,
                DecidedBy::Engine | DecidedBy::Fallback => held.made,
            };
            let act = at.after(held.decision.wait);
            while held.gate.now() < act {
                held.gate.time.clock().sleep_until(act).await;
            }
            held.undo_if_dropped(undo)
        }
    }

    /// Ends the admission: the work was done, and every limit keeps what it was charged.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not settle the ending: limits keep what they were charged, and places are left if possible.
    pub fn finish(self, outcome: Outcome) -> Result<(), StoreError> {
        self.finish_with(outcome, |_| None)
    }

    /// Ends the admission. `used` returns the units really spent of each charge; `None`: the units charged. See [`Gate::finish`] for what is
    /// given back, what is owed, and what the outcome decides.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not settle the ending: limits keep what they were charged, and places are left if possible.
    pub fn finish_with(
        self,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<(), StoreError> {
        self.end(outcome, used, false)
    }

    /// Ends the admission like [`Admission::finish_with`], and passes to `report` what happened to each charge. Asks the
    /// stores of all charges.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not settle the ending: limits keep what they were charged, and places are left if possible.
    pub fn finish_and_tell<T>(
        mut self,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
        report: impl FnOnce(&Finished<'_>) -> T,
    ) -> Result<T, StoreError> {
        self.is_done(true);
        match self.gate.finish(&self.charged, Part::All, outcome, used) {
            Ok(finished) => {
                // Set before `report` is called, since `report` is the caller's code and may panic.
                self.ended = true;
                Ok(report(&finished))
            }
            Err(error) => {
                // The work was done, so dropping leaves places and keeps charges.
                self.undo = false;
                Err(error)
            }
        }
    }

    /// Cancels the admission: the limits are as if it had never been made.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not settle it; see [A store that fails](Admission#a-store-that-fails).
    pub fn cancel(self) -> Result<(), StoreError> {
        self.end(Outcome::Ignored, |_| Some(0), true)
    }

    /// Ends the admission like [`Admission::finish`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Admission::finish`].
    ///
    /// # Cancel safety
    /// If dropped before completion, the places are left, an engine that is being asked settles its part in the background, and charges in stores
    /// that were not asked yet stay. [`Admission::cancel_async`] gives those back too.
    pub fn finish_async(self, outcome: Outcome) -> impl Future<Output = Result<(), StoreError>> {
        self.finish_with_async(outcome, |_| None)
    }

    /// Ends the admission like [`Admission::finish_with`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Admission::finish_with`].
    ///
    /// # Cancel safety
    /// As [`Admission::finish_async`].
    pub fn finish_with_async(
        self,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> impl Future<Output = Result<(), StoreError>> {
        self.end_async(outcome, used, false)
    }

    /// Cancels the admission like [`Admission::cancel`], and waits for engines that answer later.
    ///
    /// # Errors
    /// As [`Admission::cancel`].
    ///
    /// # Cancel safety
    /// As [`Admission::finish_async`].
    pub fn cancel_async(self) -> impl Future<Output = Result<(), StoreError>> {
        self.end_async(Outcome::Ignored, |_| Some(0), true)
    }

    /// Notes whether the work was done, so that its duration counts for the latency.
    fn is_done(&mut self, done: bool) {
        if let Some(counted) = &mut self.counted {
            counted.finished = done;
        }
    }

    /// Notes whether the admission has ended; if not, `cancel_on_drop` says whether dropping cancels it.
    fn has_ended(&mut self, ended: bool, cancel_on_drop: bool) {
        (self.ended, self.undo) = (ended, cancel_on_drop);
    }

    /// Ends the admission.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn keeps the admission twice: as its argument and as a variable"
    )]
    fn end_async(
        mut self,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
        cancel_on_drop: bool,
    ) -> impl Future<Output = Result<(), StoreError>> {
        async move {
            // If the caller stops waiting, the engine settles what it was just asked, and that is not settled again. Parts that no store was asked
            // for yet are undone on drop if `cancel_on_drop` says so.
            self.has_ended(false, cancel_on_drop);
            self.is_done(!cancel_on_drop);
            let ended = self.gate.finish_changes_async(&self.charged, outcome, used).await;
            self.has_ended(ended.is_ok(), cancel_on_drop);
            ended
        }
    }

    /// Ends the admission. If that fails, `cancel_on_drop` says whether dropping cancels it.
    fn end(
        mut self,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
        cancel_on_drop: bool,
    ) -> Result<(), StoreError> {
        self.is_done(!cancel_on_drop);
        let ended = self.gate.finish_changes(&self.charged, outcome, used);
        self.has_ended(ended.is_ok(), cancel_on_drop);
        ended
    }
}

impl<G: Deref<Target = Gate>> Deref for Admission<G> {
    type Target = GateDecision;

    fn deref(&self) -> &GateDecision {
        &self.decision
    }
}

impl<G: Deref<Target = Gate>> Drop for Admission<G> {
    fn drop(&mut self) {
        if let Some(counted) = &self.counted {
            self.gate.end(counted, || self.charged.duration(self.made, self.gate.now()));
        }
        if self.ended {
            return;
        }
        let charged = &self.charged;
        match self.undo {
            true => self.gate.finish_unwatched(charged, charged.of(Part::All), |_| Some(0)),
            false => self.gate.finish_unwatched(charged, charged.places(), |_| None),
        }
    }
}

impl<G: Deref<Target = Gate>> fmt::Debug for Admission<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("decision", &self.decision)
            .field("charged", &self.charged)
            .field("undo", &self.undo)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;

//! The end of work that was charged: what it used, and who waits for it to be settled.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tidegate_core::{Outcome, Tick};

use super::charged::{Charged, ChargedLine, Part};
use super::endings::{Claims, Endings, Finished, Settles};
use super::load::CountedAdmission;
use super::waits::{Progress, Waits, run_without_waiting};
use super::{Gate, InForce};
#[cfg(feature = "ticket")]
use crate::policy::CostError;
use crate::policy::{PolicySet, RealCost, Usage};
use tidegate_limits::store::StoreError;

/// What a [`Finishing`] goes by without [`used`](Finishing::used): as much was spent as was charged, and nothing if the
/// work was cancelled.
pub type AsCharged = fn(&ChargedLine<'_>) -> Option<u64>;

/// The end of an admission, settled when that is asked for: at once by [`Finishing::now`], or awaited as a future, which
/// also waits for engines that answer later. See [`Admission::finish`](super::Admission::finish) and
/// [`Admission::cancel`](super::Admission::cancel).
///
/// # Errors
/// [`StoreError`] if a store did not settle the ending: limits keep what they were charged, and places are left if
/// possible; see [A store that fails](super::Admission#a-store-that-fails).
///
/// # Cancel safety
/// Dropped before it was polled, it is an admission that is dropped. If the future is dropped before completion, the places
/// are left, an engine that is being asked settles its part in the background, and charges in stores that were not asked
/// yet stay; after a [`cancel`](super::Admission::cancel) those are given back too. Nothing is learned then.
#[must_use = "an admission that is not settled keeps its charges: call `now`, or await it"]
pub struct Finishing<'f, G: Deref<Target = Gate>, U = AsCharged> {
    /// `None` once it is with the future that awaits engines, or settled.
    work: Option<Work<G, U>>,
    progress: Progress<'f, ()>,
}

/// Admitted work that ends.
struct Work<G: Deref<Target = Gate>, U> {
    held: Held<G>,
    /// The policies that the work was admitted under.
    policies: InForce,
    outcome: Outcome,
    used: U,
    /// What was really spent under each policy, if usage was reported; then nobody is asked what was used.
    real: Option<RealCosts>,
    cancels: bool,
}

/// What an admission holds until it has ended.
pub(super) struct Held<G: Deref<Target = Gate>> {
    pub(super) gate: G,
    pub(super) charged: Charged,
    /// When the decision was returned, by the gate's clock.
    pub(super) made: Tick,
    pub(super) undo: bool,
    /// Set if policies use the number in flight or the latency.
    pub(super) counted: Option<CountedAdmission>,
    /// Whether nothing is left to do on drop.
    pub(super) ended: bool,
}

impl<G: Deref<Target = Gate>> Held<G> {
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
}

impl<G: Deref<Target = Gate>> Drop for Held<G> {
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

impl<G: Deref<Target = Gate>> Finishing<'_, G> {
    pub(super) fn of(held: Held<G>, policies: InForce, outcome: Outcome, cancels: bool) -> Self {
        let used: AsCharged = if cancels { |_| Some(0) } else { |_| None };
        let work = Work { held, policies, outcome, used, real: None, cancels };
        Self { work: Some(work), progress: Progress::Asked }
    }
}

impl<'f, G, U> Finishing<'f, G, U>
where
    G: Deref<Target = Gate>,
    U: FnMut(&ChargedLine<'_>) -> Option<u64>,
{
    /// Settles what was really spent: `used` returns the units of each charge; `None`: the units charged. Work that is
    /// cancelled has spent nothing, whatever this says.
    pub fn used<V>(self, used: V) -> Finishing<'f, G, V>
    where
        V: FnMut(&ChargedLine<'_>) -> Option<u64>,
    {
        let work = self.work.map(|work| {
            let Work { held, policies, outcome, cancels, .. } = work;
            Work { held, policies, outcome, used, real: None, cancels }
        });
        Finishing { work, progress: Progress::Asked }
    }

    /// Settles by the usage that the work reported, such as `llm.output`, if it reported any and is not cancelled. Each
    /// policy computes its real cost from the usage ([`Policy::real_cost`](crate::Policy::real_cost)) and settles it, under
    /// the policies of the admission; policies that learn an estimate learn it once that is done. A charge stays as it was
    /// made if no usage for its policy was reported, or if the usage yields no valid cost.
    /// [`PolicySet::check_usage`](crate::PolicySet::check_usage) reports names that no policy uses.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::gate::{Check, Entry};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule, Usage};
    /// use tidegate::{Gate, Outcome, Quota};
    ///
    /// let requests = Policy::new("requests", Limit::new(Quota::per_minute(60).gcra()?, "60/min"));
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Value("llm.output".to_owned())));
    /// let gate = Gate::in_memory(PolicySet::new(vec![requests, tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let Entry::Admitted(call) = gate.admit(&Descriptor::new()).now()? else { panic!("a full limit") };
    /// call.finish(Outcome::Success).usage(&Usage::default().with("llm.output", 300)).now()?;
    /// let left = |limit: usize| gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits[limit].decision.standing.remaining;
    /// assert_eq!([left(0), left(1)], [59, 700]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn usage<'u, 'v: 'u>(mut self, usage: impl Into<Option<&'u Usage<'v>>>) -> Self {
        let ends = self.work.as_mut().filter(|work| !work.cancels);
        if let (Some(usage), Some(work)) = (usage.into(), ends) {
            work.real = Some(RealCosts::of(&work.policies, usage, work.held.charged.lines()));
        }
        self
    }

    /// Settles without waiting.
    ///
    /// # Errors
    /// As [`Finishing`] says; [`StoreError::MustWait`] for the part of an engine that would have to be awaited.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> Result<(), StoreError> {
        self.work.expect("not polled before").now()
    }

    /// Settles like [`Finishing::now`], and passes to `report` what happened to each charge. Asks the stores of all
    /// charges, also of those that stay as they are.
    ///
    /// # Errors
    /// As [`Finishing::now`].
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn tell<T>(self, report: impl FnOnce(&Finished<'_>) -> T) -> Result<T, StoreError> {
        self.work.expect("not polled before").tell(report)
    }

    /// Settles without waiting: what an engine must be asked for is settled in the background ([`Gate::with_background`]).
    /// For work whose end nobody awaits: an answer that is streamed, or work that is dropped because its time is up.
    ///
    /// With [`Outcome::Ignored`] it is unknown how the work ended, as for an admission that is dropped: places are left
    /// without an outcome, and charges of policies that charge failures only stay, because a caller could otherwise undo
    /// them by hanging up. Unlike a drop, this settles what was used.
    ///
    /// # Errors
    /// The [`StoreError`] of a store that answered at once. A failure in the background is told to nobody: the charges
    /// then stay until time returns them, and places until their time to live is over.
    ///
    /// # Panics
    /// If the future was polled before.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::gate::{Check, Entry};
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet, SettleBy, SettleRule, Usage};
    /// use tidegate::{Gate, Outcome, Quota};
    ///
    /// let mut tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
    /// tokens.settle = Some(SettleRule::new(SettleBy::Cost));
    /// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
    /// let request = Descriptor::new();
    /// let Entry::Admitted(stream) = gate.admit(Check::of(&request).cost(800)).now()? else { panic!("800 of 1000") };
    /// stream.finish(Outcome::Ignored).usage(&Usage::cost(300)).unwatched()?; // its reader hung up after 300 tokens
    /// assert_eq!(gate.check(Check::of(&request).peek()).now()?.limits[0].decision.standing.remaining, 700);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unwatched(self) -> Result<(), StoreError> {
        self.work.expect("not polled before").unwatched()
    }
}

/// Returns what was used: nothing by work that is cancelled.
fn unless(
    cancels: bool,
    used: &mut impl FnMut(&ChargedLine<'_>) -> Option<u64>,
) -> impl FnMut(&ChargedLine<'_>) -> Option<u64> {
    move |line| if cancels { Some(0) } else { used(line) }
}

impl<G, U> Work<G, U>
where
    G: Deref<Target = Gate>,
    U: FnMut(&ChargedLine<'_>) -> Option<u64>,
{
    fn now(mut self) -> Result<(), StoreError> {
        let Self { held, outcome, used, real, cancels, .. } = &mut self;
        held.is_done(!*cancels);
        let ended = match real {
            Some(real) => held.gate.finish_changes(&held.charged, *outcome, real.used()),
            None => held.gate.finish_changes(&held.charged, *outcome, unless(*cancels, used)),
        };
        held.has_ended(ended.is_ok(), *cancels);
        ended?;
        self.teach();
        Ok(())
    }

    async fn later(mut self) -> Result<(), StoreError> {
        let Self { held, outcome, used, real, cancels, .. } = &mut self;
        // If the caller stops waiting, the engine settles what it was just asked, and that is not settled again. Parts that no store was asked
        // for yet are undone on drop if the admission is cancelled.
        held.has_ended(false, *cancels);
        held.is_done(!*cancels);
        let ended = match real {
            Some(real) => held.gate.finish_changes_async(&held.charged, *outcome, real.used()).await,
            None => held.gate.finish_changes_async(&held.charged, *outcome, unless(*cancels, used)).await,
        };
        held.has_ended(ended.is_ok(), *cancels);
        ended?;
        self.teach();
        Ok(())
    }

    fn tell<T>(mut self, report: impl FnOnce(&Finished<'_>) -> T) -> Result<T, StoreError> {
        let Self { held, outcome, used, real, cancels, .. } = &mut self;
        held.is_done(!*cancels);
        let finished = match real {
            Some(real) => held.gate.settle_now(&held.charged, Part::All, *outcome, real.used()),
            None => held.gate.settle_now(&held.charged, Part::All, *outcome, unless(*cancels, used)),
        };
        let told = finished.map(|finished| {
            // Set before `report` is called, since `report` is the caller's code and may panic.
            held.ended = true;
            report(&finished)
        });
        match &told {
            Ok(_) => self.teach(),
            // The work was done, so dropping leaves places and keeps charges.
            Err(_) => self.held.undo = self.cancels,
        }
        told
    }

    fn unwatched(mut self) -> Result<(), StoreError> {
        let Self { held, outcome, used, real, cancels, .. } = &mut self;
        let part = if *outcome == Outcome::Ignored && !*cancels { Part::Spent } else { Part::All };
        held.is_done(*outcome != Outcome::Ignored);
        // The work was done, or may have been, so a drop leaves places and keeps charges.
        held.undo = *cancels;
        let charged = &held.charged;
        match real {
            Some(real) => {
                real.keep_only(charged, part);
                held.gate.settle_unwatched(charged, charged.of(part), *outcome, real.used())?;
            }
            None => {
                held.gate.settle_unwatched(charged, charged.of(part), *outcome, unless(*cancels, used))?;
            }
        }
        self.teach();
        Ok(())
    }

    /// Teaches the policies what was settled by usage.
    fn teach(&self) {
        if let Some(real) = &self.real {
            real.teach(&self.policies);
        }
    }
}

impl<'f, G, U> Future for Finishing<'f, G, U>
where
    G: Deref<Target = Gate> + Unpin + Send + 'f,
    U: FnMut(&ChargedLine<'_>) -> Option<u64> + Unpin + Send + 'f,
{
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { work, progress } = self.get_mut();
        if let Some(work) = work.take() {
            let charged = &work.held.charged;
            if !work.held.gate.may_wait_for(charged, Part::All) {
                *progress = Progress::Over;
                return Poll::Ready(work.now());
            }
            *progress = Progress::Waits(Box::pin(work.later()));
        }
        progress.poll(cx)
    }
}

impl<G: Deref<Target = Gate>, U> fmt::Debug for Finishing<'_, G, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = self.work.as_ref();
        f.debug_struct("Finishing")
            .field("charged", &work.map(|work| &work.held.charged))
            .field("outcome", &work.map(|work| work.outcome))
            .finish_non_exhaustive()
    }
}

/// The real cost of the work under the policy of each charge, in the order of the charges.
pub(super) struct RealCosts {
    /// The policy's index in the set, if the policy still exists.
    costs: SmallVec<[(Option<usize>, RealCost); 4]>,
}

impl RealCosts {
    pub(super) fn of<'c>(
        policies: &PolicySet,
        usage: &Usage<'_>,
        lines: impl Iterator<Item = ChargedLine<'c>>,
    ) -> Self {
        let cost = |line: ChargedLine<'c>| match policies.find(line.policy) {
            Some((at, policy)) => (Some(at), policy.real_cost(usage)),
            None => (None, RealCost::AsCharged),
        };
        Self { costs: lines.map(cost).collect() }
    }

    /// Forgets the costs of charges that are in no part to be settled.
    pub(super) fn keep_only(&mut self, charged: &Charged, part: Part) {
        let mut is_wanted = charged.lines.iter().map(|made| made.is_in(part));
        self.costs.retain(|_| is_wanted.next().unwrap_or_default());
    }

    /// Returns the callback for [`Gate::finish`], which calls it once per charge, in order.
    pub(super) fn used(&self) -> impl FnMut(&ChargedLine<'_>) -> Option<u64> {
        let mut costs = self.costs.iter();
        move |_| match costs.next() {
            Some((_, RealCost::Units(units))) => Some(*units),
            Some((_, RealCost::AsCharged | RealCost::Unknown(_))) | None => None,
        }
    }

    /// Returns, for each charge in order, the reason if its real cost could not be computed.
    #[cfg(feature = "ticket")]
    pub(super) fn unknown(&self) -> impl Iterator<Item = Option<CostError>> {
        self.costs
            .iter()
            .map(|(_, cost)| if let RealCost::Unknown(why) = cost { Some(why.clone()) } else { None })
    }

    /// Teaches each policy the cost of the work under it, once per policy, however many limits it has: the charges of a
    /// policy are adjacent. Counts the costs that could not be computed.
    pub(super) fn teach(&self, policies: &PolicySet) {
        for (at, cost) in &self.costs {
            if let (Some(at), RealCost::Unknown(why)) = (at, cost) {
                policies.note_unsettled(*at, why);
            }
        }
        for costs in self.costs.chunk_by(|one, next| one.0 == next.0) {
            if let Some((Some(at), RealCost::Units(units))) = costs.first() {
                policies.learn(*at, *units);
            }
        }
    }
}

/// The settlement of charges that the caller keeps, made when that is asked for: at once by [`FinishingCharges::now`], or
/// awaited as a future, which also waits for engines that answer later. See [`Gate::finish`].
///
/// # Errors
/// [`StoreError`] if a store did not settle its part: of that part nothing was given back or booked; the parts of
/// other stores are settled all the same. Calling [`Gate::finish`] again settles the rest. After
/// [`StoreError::Unavailable`] it is unknown whether the part was settled, and settling it twice might give back what
/// others hold, so the charges do not settle that part again. A ticket can be tried again.
///
/// # Cancel safety
/// If the future is dropped before completion, an engine that is being asked settles its part in the background (see
/// [`Gate::with_background`]), and the parts of stores that were not asked yet stay unsettled. Calling [`Gate::finish`]
/// again settles those; no part is settled twice.
#[must_use = "charges are not settled before that is asked for: call `now`, or await it"]
pub struct FinishingCharges<'a, 'c, U> {
    gate: &'a Gate,
    charged: &'c Charged,
    part: Part,
    outcome: Outcome,
    /// `None` once stores were asked.
    used: Option<U>,
    progress: Progress<'a, Finished<'c>>,
}

impl Gate {
    /// Settles a part of some charges without waiting.
    fn settle_now<'c>(
        &self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        let Endings { mut finished, mut parts } =
            self.endings(charged, charged.of(part), outcome, used, Claims::Yes, Settles::All)?;
        // Only marks can refuse a settlement, and there are none here.
        run_without_waiting(self.settle_parts(&mut finished, &mut parts, None, Waits::No))?;
        Ok(finished)
    }

    /// Settles a part of some charges and waits for engines.
    async fn execute_later<'c>(
        &self,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: impl FnMut(&ChargedLine<'_>) -> Option<u64>,
    ) -> Result<Finished<'c>, StoreError> {
        let Endings { mut finished, mut parts } =
            self.endings(charged, charged.of(part), outcome, used, Claims::Yes, Settles::All)?;
        self.settle_parts(&mut finished, &mut parts, None, Waits::Yes).await?;
        Ok(finished)
    }

    /// Reports whether a store that has any of these charges may have to be awaited.
    fn may_wait_for(&self, charged: &Charged, part: Part) -> bool {
        charged.of(part).any(|made| self.routes.may_wait(made.rules.share))
    }
}

impl<'a, 'c, U> FinishingCharges<'a, 'c, U>
where
    U: FnMut(&ChargedLine<'_>) -> Option<u64>,
{
    pub(super) const fn of(
        gate: &'a Gate,
        charged: &'c Charged,
        part: Part,
        outcome: Outcome,
        used: U,
    ) -> Self {
        Self { gate, charged, part, outcome, used: Some(used), progress: Progress::Asked }
    }

    /// Settles without waiting.
    ///
    /// # Errors
    /// As [`FinishingCharges`] says; [`StoreError::MustWait`] for the part of an engine that would have to be awaited.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> Result<Finished<'c>, StoreError> {
        let Self { gate, charged, part, outcome, used, .. } = self;
        gate.settle_now(charged, part, outcome, used.expect("not polled before"))
    }
}

impl<'a, 'c: 'a, U> Future for FinishingCharges<'a, 'c, U>
where
    U: FnMut(&ChargedLine<'_>) -> Option<u64> + Unpin + Send + 'a,
{
    type Output = Result<Finished<'c>, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, charged, part, outcome, used, progress } = self.get_mut();
        if let Some(used) = used.take() {
            let (gate, charged, part, outcome) = (*gate, *charged, *part, *outcome);
            if !gate.may_wait_for(charged, part) {
                *progress = Progress::Over;
                return Poll::Ready(gate.settle_now(charged, part, outcome, used));
            }
            *progress = Progress::Waits(Box::pin(gate.execute_later(charged, part, outcome, used)));
        }
        progress.poll(cx)
    }
}

impl<U> fmt::Debug for FinishingCharges<'_, '_, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishingCharges")
            .field("charged", self.charged)
            .field("part", &self.part)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

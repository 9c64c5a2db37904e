//! Single keys: their standings, resets and breakers, limits that callers bring under keys of their own, and the requests in
//! flight under policies of one key. For servers, their metrics, and the people who run them.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tidegate_core::{Quota, Standing, Tick};

use super::Gate;
use super::charged::Charged;
use super::waits::{Asking, InFlight, Waits};
use crate::policy::{PolicySet, Share};
use tidegate_limits::Precision;
use tidegate_limits::store::{
    BreakerView, Charge, DecidedBy, Executed, Execution, Handling, Op, Step, StepAnswer, StepClock,
    StoreError,
};

/// Single keys of a gate's stores, see [`Gate::keys`].
#[derive(Clone, Copy, Debug)]
pub struct Keys<'g>(pub(super) &'g Gate);

impl<'g> Keys<'g> {
    /// Forgets the keys of these charges: their limits are full again, and nothing that was charged before is given
    /// back, as with [`Op::Reset`]. The keys must be distinct.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not execute it. The other stores were asked all the same, and the call can be
    /// repeated.
    ///
    /// # Cancel safety
    /// If dropped before completion, some stores may have forgotten the keys and others not. The call can be repeated.
    pub fn reset(self, charges: &'g [Charge<'g>]) -> Asking<'g, Result<(), StoreError>> {
        Asking::new(move |waits| self.0.reset_parts(charges, waits))
    }

    /// Executes a charge of a key that belongs to no policy, in the store that the gate was created with: a limit that a
    /// caller brings under its own name. Such a key begins with
    /// [`CALLER_LIMIT`](crate::policy::CALLER_LIMIT).
    ///
    /// Writes to `out`, which the caller can reuse; the result contains no receipts.
    pub const fn execute(self, op: Op<'g>, charge: Charge<'g>, out: &'g mut Executed) -> ExecutingCharge<'g> {
        ExecutingCharge { gate: self.0, op, charge, out, later: None }
    }

    /// Reads the standing of a charge's key in the store that decides policies with this `share`; charges nothing.
    /// Takes one round trip if that store is an engine.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not answer, also if a fallback stands in for it, or the word has no store.
    ///
    /// # Cancel safety
    /// Changes nothing, so it may be dropped at any time.
    pub async fn standing(
        self,
        share: Option<Share>,
        charge: Charge<'_>,
    ) -> Result<Option<Standing>, StoreError> {
        let store = self.0.routes.of(share)?;
        let (tag, charges) = (self.0.routes.tag(store, charge.key), [charge]);
        let look = Step { tag, clock: StepClock::Engine, ..Step::new(self.0.time.now(), Op::Peek, &charges) };
        let looked = self.0.ask(store, &look, Waits::Yes).await.unwrap_or(Err(StoreError::MustWait))?;
        if looked.by == DecidedBy::Fallback {
            // It counts what was charged since the store is gone, and nothing of before.
            return Err(StoreError::Unavailable { reason: "a fallback stands in for it".to_owned() });
        }
        Ok(looked.lines.first().map(|line| line.decision.standing))
    }

    /// Reads the state of one breaker, or puts it into a state. The charge names its key and limit; `share` is the
    /// policy's. The view is `None` if the limit is not a breaker; the tick is that of the answer. Takes one exchange
    /// with the store.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not execute it.
    ///
    /// # Cancel safety
    /// If dropped before completion, an engine that is being asked carries out the step all the same.
    pub fn handle_breaker(
        self,
        share: Option<Share>,
        charge: &Charge<'g>,
        handling: Handling<'g>,
    ) -> Asking<'g, Result<(Option<BreakerView>, Tick), StoreError>> {
        let (gate, charge) = (self.0, *charge);
        Asking::new(move |waits| async move { gate.handle(share, &charge, handling, waits).await })
    }

    /// Returns the states of the breakers that a check has charged, after the check or after its settlement. Takes one
    /// exchange with a store per breaker, and none if there are no breakers.
    ///
    /// # Errors
    /// [`StoreError`] if a store did not answer.
    ///
    /// # Cancel safety
    /// Changes nothing, so it may be dropped at any time.
    pub async fn view_breakers(self, charged: &Charged) -> Result<Vec<KeyedView>, StoreError> {
        let mut views = Vec::new();
        for made in charged.places().filter(|made| matches!(*made.quota, Quota::Breaker(_))) {
            let charge = charged.charge(made);
            let (view, at) = self.0.handle(made.rules.share, &charge, Handling::Look, Waits::Yes).await?;
            views.extend(view.map(|view| KeyedView {
                key: charge.key.into(),
                policy: charged.policy(made).to_owned(),
                limit: made.limit as usize,
                view,
                at,
            }));
        }
        Ok(views)
    }
}

/// The state of the breaker of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyedView {
    /// The bytes of the key, in the form that [`text_of_key`](crate::policy::text_of_key) parses.
    pub key: Box<[u8]>,
    /// The name of the policy.
    pub policy: String,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The state of the breaker.
    pub view: BreakerView,
    /// When the state was read.
    pub at: Tick,
}

impl KeyedView {
    /// Creates the view of a breaker.
    #[must_use]
    pub fn new(key: &[u8], policy: &str, limit: usize, view: BreakerView, at: Tick) -> Self {
        Self { key: key.into(), policy: policy.to_owned(), limit, view, at }
    }
}

/// A charge that is executed when that is asked for: at once by [`ExecutingCharge::now`], or awaited as a future, which also
/// waits for an engine that answers later. See [`Keys::execute`].
///
/// # Errors
/// [`StoreError`] if the store did not execute it.
///
/// # Cancel safety
/// If the future is dropped before completion, an engine that is being asked executes the charge all the same, and the
/// answer is not written.
#[must_use = "a charge is not executed before that is asked for: call `now`, or await it"]
pub struct ExecutingCharge<'a> {
    gate: &'a Gate,
    op: Op<'a>,
    charge: Charge<'a>,
    out: &'a mut Executed,
    later: Option<InFlight<'a, StepAnswer>>,
}

impl ExecutingCharge<'_> {
    /// Executes it without waiting.
    ///
    /// # Errors
    /// [`StoreError`] if the store did not execute it; [`StoreError::MustWait`] if an engine would have to be asked,
    /// which was not done.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> Result<(), StoreError> {
        assert!(self.later.is_none(), "not polled before");
        match self.gate.begin_charge(self.op, self.charge, self.out)? {
            Execution::Done(done) => done,
            // Dropped without being polled, so the engine was not asked.
            Execution::Later(_) => Err(StoreError::MustWait),
        }
    }
}

impl Future for ExecutingCharge<'_> {
    type Output = Result<(), StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, op, charge, out, later } = self.get_mut();
        let later = match later {
            Some(later) => later,
            None => match gate.begin_charge(*op, *charge, out)? {
                Execution::Done(done) => return Poll::Ready(done),
                Execution::Later(asked) => later.insert(InFlight::to_its_end(asked, &gate.background)),
            },
        };
        **out = ready!(Pin::new(later).poll(cx))?;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for ExecutingCharge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutingCharge").field("op", &self.op).finish_non_exhaustive()
    }
}

impl Gate {
    /// Asks every store, since a key is forgotten wherever it is.
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
                // The engine's clock has dated the charges; by another clock some of them might appear to come after
                // the reset.
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

    fn begin_charge(
        &self,
        op: Op<'_>,
        charge: Charge<'_>,
        out: &mut Executed,
    ) -> Result<Execution, StoreError> {
        let store = self.routes.of(None)?;
        let tag = self.routes.tag(store, charge.key);
        // As in a check, a slightly old tick is good enough for permitting.
        let by_tick =
            self.precision != Precision::Exact && matches!(op, Op::Take) && !self.routes.own_waits();
        let (now, clock) = if by_tick {
            (self.time.recent(), StepClock::Fresh(self.time.fresh()))
        } else {
            (self.time.now(), StepClock::Engine)
        };
        let step = Step { now, clock, tag, receipts: false, watched: false, op, charges: &[charge] };
        Ok(self.routes.store(store).execute_into(&step, out))
    }

    async fn handle(
        &self,
        share: Option<Share>,
        charge: &Charge<'_>,
        handling: Handling<'_>,
        waits: Waits,
    ) -> Result<(Option<BreakerView>, Tick), StoreError> {
        let store = self.routes.of(share)?;
        let charges = [*charge];
        let tag = self.routes.tag(store, charge.key);
        let watched = self.is_observed();
        let step = Step { tag, watched, ..Step::new(self.time.now(), Op::Breaker(handling), &charges) };
        match self.ask(store, &step, waits).await {
            Some(executed) => executed.map(|executed| (executed.breaker.map(|view| *view), executed.at)),
            None => Err(StoreError::MustWait),
        }
    }
}

/// The standing of one limit on requests in flight: how many may be in flight, and how many are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacesStanding {
    /// The index of the policy in the set.
    pub policy: usize,
    /// The index of the limit within its policy.
    pub limit: usize,
    /// The standing. The places in use are `limit` minus `remaining` plus `debt`.
    pub standing: Standing,
}

impl PlacesStanding {
    /// Returns the number of places in use.
    #[must_use]
    pub const fn in_use(&self) -> u64 {
        let Standing { limit, remaining, debt, .. } = self.standing;
        limit.saturating_sub(remaining).saturating_add(debt)
    }
}

impl Gate {
    /// Returns the standings of the concurrency and adaptive limits of every policy in force that has a single key for
    /// all requests. Leaves out policies whose `by` makes many keys, and those whose store would have to be awaited.
    /// Asks the store once per limit of such a policy.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota};
    ///
    /// let at_once = Quota::concurrency(50, Duration::from_secs(30))?;
    /// let gate = Gate::in_memory(PolicySet::new(vec![Policy::new("reports", Limit::new(at_once, "50"))])?, 1000)?;
    /// let admission = gate.admit(&Descriptor::new()).now()?.admitted().expect("nobody is inside");
    /// let places = gate.places();
    /// assert_eq!((places[0].standing.limit, places[0].in_use()), (50, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn places(&self) -> Vec<PlacesStanding> {
        let (policies, now) = (self.policies(), self.now());
        let mut places = Vec::new();
        for (at, policy) in policies.policies().iter().enumerate().filter(|(_, policy)| policy.by.is_empty())
        {
            if !policy.limits.iter().any(|limit| limit.terms.quota.as_deref().is_some_and(has_places)) {
                continue;
            }
            let Some(standings) = self.standings(&policies, at, now) else { continue };
            let counting = standings.into_iter().filter(|one| {
                let quota = policy.limits.get(one.limit).and_then(|limit| limit.terms.quota.as_deref());
                quota.is_some_and(has_places)
            });
            places.extend(counting);
        }
        places
    }

    /// Returns the standings of the limits of a policy without `by`; `None` if an engine would have to be awaited.
    pub(super) fn standings(
        &self,
        policies: &PolicySet,
        policy: usize,
        now: Tick,
    ) -> Option<Vec<PlacesStanding>> {
        let plan = policies.plan_of_one_key(policy);
        let mut standings = Vec::with_capacity(plan.lines.len());
        for line in &plan.lines {
            let store = self.routes.of(line.rules.share).ok()?;
            let charge = plan.charge(line);
            let tag = self.routes.tag(store, charge.key);
            let charges = std::slice::from_ref(&charge);
            let step =
                Step { receipts: false, tag, clock: StepClock::Engine, ..Step::new(now, Op::Peek, charges) };
            let mut executed = Executed::default();
            let Execution::Done(Ok(())) = self.routes.store(store).execute_into(&step, &mut executed) else {
                return None;
            };
            let standing = executed.lines.first()?.decision.standing;
            standings.push(PlacesStanding { policy, limit: line.limit, standing });
        }
        Some(standings)
    }
}

/// Reports whether a limit counts requests in flight.
const fn has_places(quota: &Quota) -> bool {
    matches!(quota, Quota::Concurrency(_) | Quota::Adaptive(_))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_core::{Cost, Retry};

    use super::*;
    use tidegate_limits::ManualClock;
    use tidegate_limits::store::PlainStore;

    #[test]
    fn a_charge_is_taken_a_look_is_not_and_what_is_left_over_of_an_answer_is_gone() {
        let clock = Arc::new(ManualClock::default());
        let gate = Gate::new(PolicySet::default(), PlainStore::default());
        let gate = gate.with_clock(Arc::clone(&clock));
        let quota = Arc::new(Quota::per_second(1).burst(2).gcra().unwrap());
        let mut out = Executed::default();
        let mut ask = |op| {
            gate.keys().execute(op, Charge::new(b"key", &quota, Cost::ONE), &mut out).now().unwrap();
            let line = out.lines[0].decision;
            (out.lines.len(), out.allowed, line.standing.remaining, line.retry())
        };
        assert_eq!(ask(Op::Peek), (1, true, 2, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, true, 1, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, true, 0, Retry::After(Duration::ZERO)));
        assert_eq!(ask(Op::Take), (1, false, 0, Retry::After(Duration::from_secs(1))));
        clock.advance(Duration::from_secs(1));
        assert_eq!(ask(Op::Take), (1, true, 0, Retry::After(Duration::ZERO)));
    }
}

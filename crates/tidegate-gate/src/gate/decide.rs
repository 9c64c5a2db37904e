//! Decides a check: plans its charges under the policies, and has the stores execute them.
//!
//! The usual check asks one store that answers at once, in one step. All other cases are in [`super::several_stores`].

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::Guard;
use smallvec::SmallVec;
use tidegate_core::{Quota, Tick};

use super::charged::{Charged, Keep, keep_allowed};
use super::decision::replaces;
use super::waits::{Progress, Waits, run_without_waiting};
use super::{Check, Gate, GateDecision, InForce, LimitDecision};
use crate::policy::{LINES, Line, Plan, PolicySet, Stated};
use tidegate_limits::Precision;
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Executed, Execution, Op, Step, StepClock, StoreError, kept_back,
};
use tidegate_limits::{Borrowed, Buffers};

/// A check that is decided when it is asked for its answer: at once by [`Checking::now`], or awaited as a future, which
/// also waits for engines that answer later. See [`Gate::check`] and [`Gate::charge`].
///
/// If no store has to be awaited, the first poll decides and allocates nothing. Dropped before it was polled, it has asked
/// nobody.
///
/// # Errors
/// [`StoreError`] if no decision could be made; nothing stays charged then, and the caller chooses whether to fail open or
/// closed. [`StoreError::MustWait`] from [`Checking::now`] if an engine would have to be asked.
/// [`StoreError::DeadlinePassed`] from the future if an engine has not answered by the
/// [deadline](Check#structfield.deadline): refuse such a request even if you let undecided ones pass.
///
/// # Cancel safety
/// If the future is dropped before completion, what was taken is given back. A step that an engine is being asked to execute
/// is awaited in the background (see [`Gate::with_background`]) and then undone. Until that is done, or if the engine's
/// answer is lost, its charges stand: no more is let through than allowed, but some request may be refused too early.
#[must_use = "a check decides nothing before it is asked for its answer: call `now`, or await it"]
pub struct Checking<'a, 'd> {
    gate: &'a Gate,
    check: Check<'a, 'd>,
    charged: Option<&'a mut Charged>,
    progress: Progress<'a, GateDecision>,
}

impl<'a, 'd> Checking<'a, 'd> {
    #[inline(always)]
    pub(super) const fn of(gate: &'a Gate, check: Check<'a, 'd>, charged: Option<&'a mut Charged>) -> Self {
        Self { gate, check, charged, progress: Progress::Asked }
    }

    /// Decides without waiting.
    ///
    /// # Errors
    /// As [`Checking`] says; [`StoreError::MustWait`] if an engine would have to be asked. Nothing was spent then.
    ///
    /// # Panics
    /// If the future was polled before.
    #[inline(always)]
    pub fn now(self) -> Result<GateDecision, StoreError> {
        assert!(matches!(self.progress, Progress::Asked), "not polled before");
        match self.charged {
            None => self.gate.decide(&self.check, &mut ()),
            Some(charged) => self.gate.decide(&self.check, charged),
        }
    }
}

impl Future for Checking<'_, '_> {
    type Output = Result<GateDecision, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, check, charged, progress } = self.get_mut();
        if let Progress::Asked = progress {
            let decided = match charged {
                None => gate.decide_first(check, &mut ()),
                Some(charged) => gate.decide_first(check, *charged),
            };
            if decided.is_ready() {
                *progress = Progress::Over;
                return decided;
            }
            let (gate, check) = (*gate, *check);
            *progress = Progress::Waits(match charged.take() {
                None => Box::pin(async move { gate.decide_later(&check, &mut ()).await }),
                Some(charged) => Box::pin(async move { gate.decide_later(&check, charged).await }),
            });
        }
        progress.poll(cx)
    }
}

impl fmt::Debug for Checking<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking").field("check", &self.check).finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn decide<K: Keep>(
        &self,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        if check.cost.is_wrong() {
            return Err(StoreError::NotACost);
        }
        // Created where it is returned and filled in place: it is large, and moving it costs a tenth of deciding one limit.
        let mut decided = Ok(self.undecided(check));
        let Ok(decision) = &mut decided else { return decided };
        if !self.routes.are_plain(decision.policies.shares()) {
            return decided.and_then(|decision| self.decide_otherwise(decision, check, keep));
        }
        if let Err(error) = self.decide_plain(check, decision, keep) {
            decided = Err(error);
        }
        decided
    }

    /// Decides a check that its caller awaits, as far as that takes no waiting. Pending: it takes [`Gate::decide_later`];
    /// nothing was spent, and the check says whether it was planned.
    pub(super) fn decide_first<K: Keep>(
        &self,
        check: &mut Check<'_, '_>,
        keep: &mut K,
    ) -> Poll<Result<GateDecision, StoreError>> {
        if check.cost.is_wrong() {
            return Poll::Ready(Err(StoreError::NotACost));
        }
        // Filled in place, as in [`Gate::decide`].
        let mut decided = Poll::Ready(Ok(self.undecided(check)));
        let Poll::Ready(Ok(decision)) = &mut decided else { return decided };
        let is_plain = self.routes.are_plain(decision.policies.shares());
        if !is_plain && !self.needs_no_waiting(&decision.policies) {
            return Poll::Pending;
        }
        match self.decide_plain(check, decision, keep) {
            Ok(()) if is_plain => {}
            Ok(()) => {
                self.count(check, decision);
                let allowed = decision.allowed;
                if decision.leaves_uncharged(check, allowed) {
                    run_without_waiting(self.charge_anyway(check, decision, allowed, Waits::No));
                }
            }
            // The engine was not asked yet; it is asked and awaited next.
            Err(StoreError::MustWait) => {
                check.planned = true;
                return Poll::Pending;
            }
            Err(error) => decided = Poll::Ready(Err(error)),
        }
        decided
    }

    /// Takes the readings that the policies need, and reports whether one step of the gate's own store decides the rest of
    /// what they ask for, or several that it answers at once.
    #[inline(never)]
    fn needs_no_waiting(&self, policies: &PolicySet) -> bool {
        self.sense(policies);
        self.routes.are_plain(policies.shares().with_prepared(false))
            && !(policies.demotes() || self.stores_blocks(policies))
            && !(policies.charges_always() && self.routes.may_wait(None))
    }

    /// Decides a check that its caller awaits, where [`Gate::decide_first`] could not.
    pub(super) async fn decide_later<K: Keep>(
        &self,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        let mut decision = self.undecided(check);
        let demoted;
        let check = if decision.policies.demotes() {
            let policies = decision.keep_policies();
            demoted = Box::pin(self.demoted(check, &policies, Waits::Yes)).await;
            decision.priority = demoted.priority;
            &demoted
        } else {
            check
        };
        let stores_blocks = self.stores_blocks(&decision.policies);
        if stores_blocks {
            let policies = decision.keep_policies();
            // Boxed: otherwise all other checks would reserve space for it.
            Box::pin(self.learn_blocks(check, &policies, Waits::Yes)).await;
        }
        let is_plain = self.routes.are_plain(decision.policies.shares().with_prepared(false));
        let planned;
        let check = if is_plain && !check.planned {
            match self.decide_plain(check, &mut decision, keep) {
                // The engine was not asked yet; it is asked and awaited below.
                Err(StoreError::MustWait) => {
                    planned = Check { planned: true, ..*check };
                    &planned
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    self.conclude_check(check, &mut decision, stores_blocks).await;
                    return Ok(decision);
                }
            }
        } else {
            check
        };
        let mut decision = self.decide_parts(decision, check, keep, Waits::Yes).await?;
        self.conclude_check(check, &mut decision, stores_blocks).await;
        Ok(decision)
    }

    /// Decides a check and waits for engines.
    pub(super) async fn decide_async<K: Keep>(
        &self,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        let mut check = *check;
        match self.decide_first(&mut check, keep) {
            Poll::Ready(decided) => decided,
            // Boxed, since it is large, and otherwise every caller's future would contain it.
            Poll::Pending => Box::pin(self.decide_later(&check, keep)).await,
        }
    }

    /// Does what follows a decision that can be awaited.
    async fn conclude_check(&self, check: &Check<'_, '_>, decision: &mut GateDecision, stores_blocks: bool) {
        self.count(check, decision);
        self.charge_what_is_left(check, decision).await;
        if stores_blocks && !decision.allowed {
            Box::pin(self.keep_blocks(check, decision, Waits::Yes)).await;
        }
    }

    /// Returns an empty decision under the policies of the check, to be filled in.
    #[inline(always)]
    pub(super) fn undecided(&self, check: &Check<'_, '_>) -> GateDecision {
        // Filled in place: the limits are stored inline, and moving them costs more than deciding them.
        GateDecision {
            allowed: false,
            wait: Duration::ZERO,
            limits: SmallVec::new(),
            binding: None,
            refusal: None,
            anyway: None,
            priority: check.priority,
            brought: check.quota.cloned(),
            at: Tick::EPOCH,
            by: DecidedBy::Local,
            policies: match check.among {
                None => InForce(self.in_force()),
                Some(among) => InForce(Guard::from_inner(Arc::clone(among.set()))),
            },
        }
    }

    /// Decides in one step of the gate's own store.
    #[inline(always)]
    pub(super) fn decide_plain<K: Keep>(
        &self,
        check: &Check<'_, '_>,
        decision: &mut GateDecision,
        keep: &mut K,
    ) -> Result<(), StoreError> {
        let GateDecision { policies, limits, refusal, at, .. } = &mut *decision;
        let policies: &PolicySet = policies;
        if let Some(refused) = self.refusal(policies, check) {
            (*refusal, *at) = (Some(Box::new(refused)), self.time.now());
            return Ok(());
        }
        let mut buffers = Borrowed::take();
        let Buffers { keys, executed } = &mut *buffers;
        let mut plan = Plan { lines: SmallVec::new(), keys: mem::take(keys) };
        check.plan_into(policies, &mut plan);
        // Shadow limits and queues use the exact clock from the start, because their answers cannot be taken back.
        let by_tick = self.precision != Precision::Exact
            && !check.peek
            && !self.routes.own_waits()
            && plan.lines.iter().all(Line::is_plain);
        let at = if by_tick { self.time.recent() } else { self.time.now() };
        self.shorten_waits(policies, at, check, &mut plan.lines);
        let clock = if by_tick { StepClock::Fresh(self.time.fresh()) } else { StepClock::Engine };
        self.execute_plan::<K>(&plan, at, clock, check.op(), executed)?;
        if executed.allowed {
            keep_allowed(keep, &mut plan, executed);
        }
        self.tell_executed(check.op(), &plan, executed);
        limits.reserve_exact(plan.lines.len());
        // Extended from an iterator of known length, which writes in place without a capacity check per element.
        limits.extend(
            plan.lines.iter().zip(&executed.lines).map(|(line, charge_answer)| line.decided(charge_answer)),
        );
        *keys = mem::take(&mut plan.keys);
        drop(plan);
        decision.conclude(executed);
        self.block_over(check, decision);
        Ok(())
    }

    pub(super) fn execute_plan<K: Keep>(
        &self,
        plan: &Plan<'_>,
        now: Tick,
        clock: StepClock<'_>,
        op: Op<'_>,
        executed: &mut Executed,
    ) -> Result<(), StoreError> {
        if plan.lines.is_empty() {
            (executed.allowed, executed.wait) = (true, Duration::ZERO);
            (executed.at, executed.by) = (now, DecidedBy::Local);
            executed.lines.clear();
            return Ok(());
        }
        let (one, mut several);
        let charges: &[Charge<'_>] = if let [line] = &*plan.lines {
            one = [plan.charge(line)];
            &one
        } else {
            several = SmallVec::<[Charge<'_>; LINES]>::new();
            several.reserve_exact(plan.lines.len());
            // Extended rather than collected: a collected list is moved once more.
            several.extend(plan.charges());
            &several
        };
        let watched = self.is_observed();
        let step = Step { now, clock, tag: 0, receipts: K::KEEPS, watched, op, charges };
        match self.routes.own().execute_into(&step, executed) {
            Execution::Done(done) => done,
            // Dropped without being polled, so the engine was not asked.
            Execution::Later(_) => Err(StoreError::MustWait),
        }
    }
}

impl<'c> Check<'c, '_> {
    /// Lists the charges of the request in a plan, which is emptied first.
    #[inline(always)]
    pub(super) fn plan_into<'p>(&self, policies: &'p PolicySet, plan: &mut Plan<'p>)
    where
        'c: 'p,
    {
        plan.clear();
        self.plan_after(policies, plan);
    }

    /// Appends the charges of the request to a plan.
    #[inline(always)]
    pub(super) fn plan_after<'p>(&self, policies: &'p PolicySet, plan: &mut Plan<'p>)
    where
        'c: 'p,
    {
        let start = plan.lines.len();
        let counts = !(self.peek || self.planned);
        let stated = Stated { cost: self.cost.stated(), priority: self.priority, counts };
        match self.among {
            None => policies.plan_for(self.request, stated, plan),
            Some(among) => policies.plan_among(self.request, stated, among, plan),
        }
        if let Some(quota) = self.quota {
            self.bring(policies, quota, &mut plan.lines[start..]);
        }
    }

    pub(super) const fn op(&self) -> Op<'static> {
        if self.peek { Op::Peek } else { Op::Take }
    }

    /// Replaces the limits' own quotas by the quota that the caller brings, where it applies.
    #[cold]
    #[inline(never)]
    pub(super) fn bring<'p>(&self, policies: &PolicySet, quota: &'p Arc<Quota>, lines: &mut [Line<'p>]) {
        for line in lines.iter_mut().filter(|line| replaces(quota, line.quota)) {
            (line.quota, line.inline_quota) = (quota, true);
            line.kept_back = policies.kept_back(line, quota, self.priority);
        }
    }
}

impl Line<'_> {
    /// Returns how many units or places are kept back from the request, given the present standing of the limit.
    #[inline]
    pub(super) fn kept_in_places(&self, kept_back: u64, charge_answer: &ChargeAnswer) -> u64 {
        kept_back::in_places(self.quota, kept_back, charge_answer.decision.standing.limit, self.cost)
    }

    #[inline]
    pub(super) fn decided(&self, charge_answer: &ChargeAnswer) -> LimitDecision {
        LimitDecision {
            policy: self.policy,
            limit: self.limit,
            binding: self.binding,
            on_failure: self.rules.on_failure,
            cost: self.cost,
            kept_back: self.kept_in_places(self.kept_back, charge_answer),
            delays: !self.max_wait.is_zero(),
            decision: charge_answer.decision,
        }
    }
}

impl GateDecision {
    /// Takes over a store's answer about all limits in this decision.
    #[inline]
    pub(super) fn conclude(&mut self, executed: &Executed) {
        (self.allowed, self.wait) = (executed.allowed, executed.wait);
        (self.at, self.by) = (executed.at, executed.by);
        self.binding = binding(&self.limits, executed.allowed);
    }
}

/// Returns the limit to report to the caller: among refusals the one that lasts longest, otherwise the one with least remaining.
///
/// Of equal ones, the first in the order of the policies. `allowed` says that no limit refuses, apart from shadow limits.
#[inline]
pub(super) fn binding(limits: &[LimitDecision], allowed: bool) -> Option<usize> {
    let enforced = limits.iter().enumerate().filter(|(_, limit)| limit.binding);
    let first = if allowed {
        enforced.min_by_key(|(_, limit)| limit.remaining())
    } else {
        // Reversed, since `max_by_key` returns the last of equal ones, but the first policy must be named.
        let refusing = enforced.filter(|(_, limit)| !limit.decision.is_allowed());
        refusing.rev().max_by_key(|(_, limit)| limit.decision.retry())
    };
    first.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;
    use tidegate_core::decision::Ruling;
    use tidegate_core::{Cost, Decision, Outcome, Retry, Standing};

    use super::*;
    use crate::policy::{Limit, Over};
    use crate::{Descriptor, Entry, Policy};
    use tidegate_limits::ManualClock;

    fn first<F: Future + Unpin>(mut future: F) -> F::Output {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(output) = Pin::new(&mut future).poll(&mut cx) else { panic!("no store waits") };
        output
    }

    /// A future of the library's own that needs a second poll, or a runtime, would be of no use to a caller without one.
    #[test]
    fn what_is_awaited_is_answered_by_the_first_poll_where_no_store_waits() {
        let policy = |over| {
            let limit = Limit::new(Quota::per_hour(9).fixed_window().unwrap(), "9/h");
            Policy { over, ..Policy::new("all", limit) }
        };
        for over in [Over::Deny, Over::Demote { to: None }] {
            let gate = Gate::in_memory(PolicySet::new(vec![policy(over)]).unwrap(), 100).unwrap();
            let gate = gate.with_clock(ManualClock::default());
            let request = Descriptor::new();
            let left = || {
                let looked = first(gate.check(Check::of(&request).peek())).unwrap();
                looked.limits[0].decision.standing.remaining
            };
            drop(gate.check(&request));
            assert_eq!(left(), 9, "a check that is not polled asks nobody");
            assert!(first(gate.check(&request)).unwrap().allowed);
            let mut charged = Charged::default();
            assert!(first(gate.charge(&request, &mut charged)).unwrap().allowed);
            assert_eq!((left(), charged.lines().count()), (7, 1));
            first(gate.finish(&charged, crate::gate::Part::All, Outcome::Ignored, |_| Some(0))).unwrap();
            assert_eq!(left(), 8);
            let Entry::Admitted(admission) = first(gate.admit(&request)).unwrap() else { panic!("8 of 9") };
            first(admission.finish(Outcome::Success).used(|_| Some(3))).unwrap();
            assert_eq!(left(), 5);
            let Entry::Admitted(admission) = first(gate.admit(&request)).unwrap() else { panic!("5 of 9") };
            drop(admission.cancel());
            assert_eq!(left(), 4, "an end that is not polled is an admission that is dropped");
            first(gate.give_back(&request)).unwrap();
            let two = [Check::of(&request); 2];
            assert!(first(gate.check_together(&two)).unwrap().allowed);
            assert_eq!((first(gate.check_each(&two)).len(), left()), (2, 1));
        }
    }

    fn limit(binding: bool, remaining: u64, retry_after: Option<Option<u64>>) -> LimitDecision {
        let ruling = match retry_after {
            None => Ruling::Allowed { wait: Duration::ZERO },
            Some(after) => Ruling::Denied {
                retry: after.map_or(Retry::Never, |secs| Retry::After(Duration::from_secs(secs))),
            },
        };
        let standing = Standing { limit: 9, remaining, debt: 0, reset_after: Duration::ZERO };
        let decision = Decision { ruling, standing };
        LimitDecision {
            policy: 0,
            limit: 0,
            binding,
            on_failure: false,
            delays: false,
            cost: Cost::ONE,
            kept_back: 0,
            decision,
        }
    }

    /// The same choice, limit by limit: a later limit replaces an earlier one only where it is tighter.
    fn model(limits: &[LimitDecision]) -> Option<usize> {
        let tighter = |limit: &LimitDecision, than: &LimitDecision| {
            let (one, other) = (limit.decision, than.decision);
            match (one.is_allowed(), other.is_allowed()) {
                (true, true) => one.standing.remaining < other.standing.remaining,
                (false, false) => one.retry() > other.retry(),
                (allowed, _) => !allowed,
            }
        };
        let enforced = limits.iter().enumerate().filter(|(_, limit)| limit.binding);
        enforced.reduce(|held, next| if tighter(next.1, held.1) { next } else { held }).map(|(at, _)| at)
    }

    proptest! {
        #[test]
        fn the_binding_limit_is_the_first_of_the_tightest(
            asked in proptest::collection::vec(
                (proptest::bool::weighted(0.8), 0..3_u64, proptest::option::weighted(0.3, proptest::option::of(0..3_u64))),
                0..6,
            ),
        ) {
            let limits: Vec<_> = asked.into_iter().map(|(binding, left, after)| limit(binding, left, after)).collect();
            let allowed = limits.iter().all(|limit| !limit.binding || limit.decision.is_allowed());
            prop_assert_eq!(binding(&limits, allowed), model(&limits));
        }
    }
}

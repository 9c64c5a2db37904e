//! Decides several checks of one call together: all are charged, or none is.
//!
//! The fast path is at the end: no two checks meet the same limit under the same key, and one step of the gate's own
//! store decides them all.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Tick};

use super::charged::{Charged, Keep, keep_allowed};
use super::decide::binding;
use super::several_stores::{ChargeAnswers, Run, all_answered, furthest};
use super::waits::{Progress, Waits, run_without_waiting};
use super::{Check, Gate, GateDecision, InForce, LimitDecision};
use crate::policy::{Line, Plan, PolicySet, policy_of_key};
use tidegate_limits::store::{DecidedBy, Op, StepClock, StoreError};
use tidegate_limits::{Borrowed, Buffers, Precision};

/// The answer to several checks of one call.
#[derive(Clone, Debug)]
#[must_use = "a decision has no effect unless the caller follows it"]
pub struct Together {
    /// Whether the call may pass: no limit of any check refuses.
    pub allowed: bool,
    /// How long to delay the call.
    pub wait: Duration,
    /// When it was decided, by the clock that decided.
    pub at: Tick,
    /// Who decided; see [`GateDecision::by`].
    pub by: DecidedBy,
    /// One decision per check, in order, with what its own limits decided. If another check refuses the call, a check
    /// whose own limits allow it has spent nothing either. If the call was refused before all limits of a check were
    /// asked, its decision is not allowed and contains only the limits that were asked.
    pub decisions: Vec<GateDecision>,
}

/// Checks of one call, which are decided when the answer is wanted: at once by [`CheckingTogether::now`], or awaited as a
/// future, which also waits for engines that answer later. See [`Gate::check_together`].
///
/// # Errors
/// As for [`Checking`](super::Checking); nothing was charged then. [`StoreError::TwoQuotas`] if two checks bring different
/// quotas for one key.
///
/// # Cancel safety
/// As for [`Checking`](super::Checking).
#[must_use = "nothing is decided before the answer is wanted: call `now`, or await it"]
pub struct CheckingTogether<'a, 'd> {
    gate: &'a Gate,
    checks: &'a [Check<'a, 'd>],
    charged: Option<&'a mut Charged>,
    progress: Progress<'a, Together>,
}

impl<'a, 'd> CheckingTogether<'a, 'd> {
    pub(super) const fn of(gate: &'a Gate, checks: &'a [Check<'a, 'd>]) -> Self {
        Self { gate, checks, charged: None, progress: Progress::Asked }
    }

    /// Stores in `charged` what was charged, as [`Gate::charge`] does.
    pub fn charge(mut self, charged: &'a mut Charged) -> Self {
        charged.clear();
        self.charged = Some(charged);
        self
    }

    /// Decides without waiting.
    ///
    /// # Errors
    /// As [`CheckingTogether`] says; [`StoreError::MustWait`] if an engine would have to be asked.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> Result<Together, StoreError> {
        let Self { gate, checks, charged, progress } = self;
        assert!(matches!(progress, Progress::Asked), "not polled before");
        match charged {
            None => run_without_waiting(gate.decide_together(checks, &mut (), Waits::No, Tried::Nothing)),
            Some(charged) => {
                run_without_waiting(gate.decide_together(checks, charged, Waits::No, Tried::Nothing))
            }
        }
    }
}

impl Future for CheckingTogether<'_, '_> {
    type Output = Result<Together, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, checks, charged, progress } = self.get_mut();
        if let Progress::Asked = progress {
            let decided = match charged {
                None => gate.decide_together_first(checks, &mut ()),
                Some(charged) => gate.decide_together_first(checks, *charged),
            };
            let tried = match decided {
                Ok(together) => {
                    *progress = Progress::Over;
                    return Poll::Ready(together);
                }
                Err(tried) => tried,
            };
            let (gate, checks) = (*gate, *checks);
            // Boxed, since it is large, and otherwise every caller's future would contain it.
            *progress = Progress::Waits(match charged.take() {
                None => {
                    Box::pin(async move { gate.decide_together(checks, &mut (), Waits::Yes, tried).await })
                }
                Some(charged) => Box::pin(gate.decide_together(checks, charged, Waits::Yes, tried)),
            });
        }
        progress.poll(cx)
    }
}

impl fmt::Debug for CheckingTogether<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckingTogether").field("checks", &self.checks).finish_non_exhaustive()
    }
}

/// What was tried already for checks of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Nothing,
    /// One step of the gate's own store, which cannot decide them.
    OneStep,
}

impl Gate {
    /// Returns the undecided checks, under one set of policies even if another is put in force meanwhile, and that set.
    ///
    /// # Errors
    /// [`StoreError::NotACost`].
    fn undecided_together(&self, checks: &[Check<'_, '_>]) -> Result<(Together, InForce), StoreError> {
        if checks.iter().any(|check| check.cost.is_wrong()) {
            return Err(StoreError::NotACost);
        }
        let mut together = Together {
            allowed: true,
            wait: Duration::ZERO,
            at: Tick::EPOCH,
            by: DecidedBy::Local,
            decisions: checks.iter().map(|check| self.undecided(check)).collect(),
        };
        // One set for all checks, even if another is put in force meanwhile.
        let in_force = InForce(self.policies.load());
        for (check, decision) in checks.iter().zip(&mut together.decisions) {
            if check.among.is_none() && !Arc::ptr_eq(&decision.policies, &in_force) {
                decision.policies = in_force.clone();
            }
            self.sense(&decision.policies);
        }
        Ok((together, in_force))
    }

    /// Decides checks that their caller awaits, as far as that takes no waiting.
    ///
    /// # Errors
    /// What was tried, if it takes [`Gate::decide_together`]; nothing was charged.
    fn decide_together_first<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        keep: &mut K,
    ) -> Result<Result<Together, StoreError>, Tried> {
        let (mut together, in_force) = match self.undecided_together(checks) {
            Ok(undecided) => undecided,
            Err(error) => return Ok(Err(error)),
        };
        let more = |decision: &GateDecision| {
            decision.policies.charges_always() || self.stores_blocks(&decision.policies)
        };
        if together.decisions.iter().any(more) {
            return Err(Tried::Nothing);
        }
        match self.decide_together_plain(checks, &in_force, &mut together, keep) {
            Ok(true) => Ok(Ok(together)),
            Ok(false) => Err(Tried::OneStep),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn decide_together<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        keep: &mut K,
        waits: Waits,
        tried: Tried,
    ) -> Result<Together, StoreError> {
        let (mut together, in_force) = self.undecided_together(checks)?;
        for (check, decision) in checks.iter().zip(&mut together.decisions) {
            if self.stores_blocks(&decision.policies) {
                let policies = decision.keep_policies();
                Box::pin(self.learn_blocks(check, &policies, waits)).await;
            }
        }
        let is_decided =
            tried == Tried::Nothing && self.decide_together_plain(checks, &in_force, &mut together, keep)?;
        drop(in_force);
        if !is_decided {
            // Boxed, since it is large, and calls that one step decides do not need it.
            together = Box::pin(self.decide_together_routed(checks, together, keep, waits)).await?;
        }
        let allowed = together.allowed;
        for (check, decision) in checks.iter().zip(&mut together.decisions) {
            if decision.leaves_uncharged(check, allowed) {
                Box::pin(self.charge_anyway(check, decision, allowed, waits)).await;
            }
            if !decision.allowed && self.stores_blocks(&decision.policies) {
                Box::pin(self.keep_blocks(check, decision, waits)).await;
            }
        }
        Ok(together)
    }

    async fn decide_together_routed<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        mut together: Together,
        keep: &mut K,
        waits: Waits,
    ) -> Result<Together, StoreError> {
        let mut decisions = mem::take(&mut together.decisions);
        let policies: Vec<_> = decisions.iter_mut().map(GateDecision::keep_policies).collect();
        let checks = &*self.demoted_together(checks, &mut decisions, waits).await;
        let deadline = checks.iter().filter_map(|check| self.tick_of(check)).min();
        let at = self.time.now();
        together.at = at;
        for (check, decision) in checks.iter().zip(&mut decisions) {
            decision.at = at;
            if let Some(refusal) = self.refusal(&decision.policies, check) {
                decision.refusal = Some(Box::new(refusal));
                together.allowed = false;
            }
        }
        // Peeks go first: if they refuse, nothing must be undone.
        for op in [Op::Peek, Op::Take] {
            if !together.allowed {
                // The call is refused: the other checks are not asked.
                break;
            }
            let looks = matches!(op, Op::Peek);
            let mut merged = Merged::default();
            for (place, check) in checks.iter().enumerate().filter(|(_, check)| check.peek == looks) {
                let mut plan = Plan::default();
                check.plan_into(&policies[place], &mut plan);
                self.shorten_waits(&policies[place], at, check, &mut plan.lines);
                merged.add(place, plan)?;
            }
            if merged.parts.is_empty() {
                continue;
            }
            let mut runs = [Run::new(self, merged.plan, op, at, deadline)];
            self.execute_runs(&mut runs, K::KEEPS && !looks, waits).await;
            let [run] = runs;
            let (plan, executed, charge_answers) = run.outcome()?;
            if executed.allowed && !looks {
                keep.allowed(&plan, &executed);
            }
            together.allowed &= executed.allowed;
            together.wait = together.wait.max(executed.wait);
            (together.at, together.by) = (executed.at, furthest(together.by, executed.by));
            for part in &merged.parts {
                part.fill_in(&plan, &charge_answers, &mut decisions[part.check]);
                let decision = &mut decisions[part.check];
                (decision.at, decision.by) = (executed.at, executed.by);
                self.block_over(&checks[part.check], decision);
            }
        }
        if !together.allowed {
            together.wait = Duration::ZERO;
        }
        if together.allowed {
            checks.iter().zip(&decisions).for_each(|(check, decision)| self.count(check, decision));
        }
        together.decisions = decisions;
        Ok(together)
    }
}

impl GateDecision {
    /// Concludes a decision from its own limits; `limits` is the number of limits that were to be asked.
    fn conclude_part(&mut self, limits: usize) {
        let all_asked = self.limits.len() == limits;
        self.allowed =
            all_asked && self.limits.iter().all(|limit| !limit.binding || limit.decision.is_allowed());
        let waits = self.limits.iter().filter(|limit| limit.binding).map(|limit| limit.decision.wait());
        self.wait = if self.allowed { waits.max().unwrap_or_default() } else { Duration::ZERO };
        self.binding = binding(&self.limits, self.allowed);
    }
}

/// The plans of several checks merged into one, with equal keys only once.
#[derive(Default)]
struct Merged<'p> {
    plan: Plan<'p>,
    parts: Vec<PartOf<'p>>,
}

/// The part of one check in the merged plan.
struct PartOf<'p> {
    check: usize,
    /// The lines of the check, each with its index in the merged plan.
    lines: SmallVec<[(usize, Line<'p>); 4]>,
}

impl<'p> Merged<'p> {
    /// Adds the plan of a check.
    ///
    /// # Errors
    /// [`StoreError::TwoQuotas`] if the check brings another quota for a key that the plan already has.
    fn add(&mut self, check: usize, plan: Plan<'p>) -> Result<(), StoreError> {
        let mut part = PartOf { check, lines: SmallVec::new() };
        for mut line in plan.lines {
            let key = &plan.keys[line.key.clone()];
            let held = self.plan.lines.iter().position(|other| self.plan.keys[other.key.clone()] == *key);
            let at = match held {
                Some(at) => {
                    let other = &mut self.plan.lines[at];
                    if other.limit != line.limit {
                        // The canary got or lost the key between the plans of two checks: the call goes by the first.
                        line.quota = other.quota;
                    }
                    if other.quota != line.quota {
                        let policy = policy_of_key(key).unwrap_or_default().to_owned();
                        return Err(StoreError::TwoQuotas { policy });
                    }
                    let units = other.cost.units().saturating_add(line.cost.units());
                    other.cost = Cost::new(units).unwrap_or(Cost::MAX);
                    // No part of the call passes alone, so the whole call must leave as much as any of its checks must
                    // leave.
                    other.kept_back = other.kept_back.max(line.kept_back);
                    other.max_wait = other.max_wait.min(line.max_wait);
                    other.binding |= line.binding;
                    at
                }
                None => {
                    let start = self.plan.keys.len();
                    self.plan.keys.extend_from_slice(key);
                    line.key = start..self.plan.keys.len();
                    self.plan.lines.push(line.clone());
                    self.plan.lines.len() - 1
                }
            };
            part.lines.push((at, line));
        }
        self.parts.push(part);
        Ok(())
    }
}

impl PartOf<'_> {
    /// Fills in the check's decision with the decisions of its limits.
    fn fill_in(&self, plan: &Plan<'_>, charge_answers: &ChargeAnswers, decision: &mut GateDecision) {
        let decided = |(at, line): &(usize, Line<'_>)| {
            let charge_answer = charge_answers.get(*at)?.as_ref()?;
            let kept_back = line.kept_in_places(plan.lines[*at].kept_back, charge_answer);
            Some(LimitDecision { kept_back, ..line.decided(charge_answer) })
        };
        decision.limits.extend(self.lines.iter().filter_map(decided));
        decision.conclude_part(self.lines.len());
    }
}

impl Gate {
    /// Decides the checks if they qualify for the fast path, and reports whether they did; if not, nothing was charged.
    fn decide_together_plain<K: Keep>(
        &self,
        checks: &[Check<'_, '_>],
        in_force: &PolicySet,
        together: &mut Together,
        keep: &mut K,
    ) -> Result<bool, StoreError> {
        let Some(first) = checks.first() else { return Ok(false) };
        let is_plain = |check: &Check<'_, '_>| {
            let set = policies(check, in_force);
            check.peek == first.peek
                && !set.demotes()
                && self.routes.are_plain(set.shares().with_prepared(false))
        };
        if self.routes.own_waits() || (K::KEEPS && first.peek) || !checks.iter().all(is_plain) {
            return Ok(false);
        }
        if checks.iter().any(|check| self.refusal(policies(check, in_force), check).is_some()) {
            return Ok(false);
        }
        let mut buffers = Borrowed::take();
        let Buffers { keys, executed } = &mut *buffers;
        let mut plan = Plan { lines: SmallVec::new(), keys: mem::take(keys) };
        plan.clear();
        // The index behind the last line of each check.
        let mut ends: SmallVec<[usize; 8]> = SmallVec::new();
        for check in checks {
            let start = plan.lines.len();
            check.plan_after(policies(check, in_force), &mut plan);
            if meets_again(&plan, start) {
                return Ok(false);
            }
            ends.push(plan.lines.len());
        }
        // As in a single check, shadow limits and queues use the exact clock from the start, because their answers
        // cannot be taken back.
        let by_tick =
            self.precision != Precision::Exact && !first.peek && plan.lines.iter().all(Line::is_plain);
        let at = if by_tick { self.time.recent() } else { self.time.now() };
        let mut start = 0;
        for (check, end) in checks.iter().zip(&ends) {
            self.shorten_waits(policies(check, in_force), at, check, &mut plan.lines[start..*end]);
            start = *end;
        }
        let clock = if by_tick { StepClock::Fresh(self.time.fresh()) } else { StepClock::Engine };
        match self.execute_plan::<K>(&plan, at, clock, first.op(), executed) {
            // The engine was not asked yet.
            Err(StoreError::MustWait) => return Ok(false),
            decided => decided.and_then(|()| all_answered(executed, plan.lines.len()))?,
        }
        if executed.allowed {
            keep_allowed(keep, &mut plan, executed);
        }
        self.tell_executed(first.op(), &plan, executed);
        let mut start = 0;
        let mut all = plan.lines.iter().zip(&executed.lines);
        for ((check, decision), end) in checks.iter().zip(&mut together.decisions).zip(ends) {
            let lines = all.by_ref().take(end - start);
            decision.limits.extend(lines.map(|(line, settlement)| line.decided(settlement)));
            decision.conclude_part(end - start);
            (decision.at, decision.by) = (executed.at, executed.by);
            self.block_over(check, decision);
            if executed.allowed {
                self.count(check, decision);
            }
            start = end;
        }
        (together.allowed, together.at, together.by) = (executed.allowed, executed.at, executed.by);
        together.wait = if executed.allowed { executed.wait } else { Duration::ZERO };
        *keys = mem::take(&mut plan.keys);
        Ok(true)
    }
}

/// Returns the policies that a check is decided under.
fn policies<'p>(check: &Check<'p, '_>, in_force: &'p PolicySet) -> &'p PolicySet {
    check.among.map_or(in_force, |among| among.set())
}

/// Reports whether any line from index `from` on has the key of an earlier line.
fn meets_again(plan: &Plan<'_>, from: usize) -> bool {
    let key = |line: &Line<'_>| &plan.keys[line.key.clone()];
    let (before, new) = plan.lines.split_at(from);
    new.iter().any(|new| before.iter().any(|before| key(before) == key(new)))
}

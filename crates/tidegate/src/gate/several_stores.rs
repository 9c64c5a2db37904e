//! Checks whose policies are decided in several places, or by an engine that answers later.
//!
//! The charges of a request are divided into parts, one for each store and each tag that a store keeps apart. Parts are settled one after
//! the other: stores of this process first, engines last, so that a request which the process refuses costs no engine a call; of the parts
//! of one engine, those with a guard first. If a part refuses or fails, those before it are undone exactly: each is ended with nothing
//! spent. The same happens when the caller goes away; a step that an engine is being asked to settle is then awaited and undone in the
//! background.

use std::mem;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::charged::Keep;
use super::decide::shorten_waits;
use super::waits::{Waits, now};
use super::{Check, Gate, GateDecision};
use crate::policy::{Plan, PolicySet};
use crate::store::{
    Answer, Charge, DecidedBy, Op, OwnedStep, Settled, Settlement, Step, StepClock, StoreError,
};

/// What has come of each line of a plan; `None` for lines that were not asked.
pub(super) type Settlements = SmallVec<[Option<Settlement>; 4]>;

/// Charges that are settled in one step.
struct Part {
    store: usize,
    tag: u64,
    /// The places of the charges in the plan.
    lines: SmallVec<[usize; 4]>,
}

/// A request on its way through the stores.
pub(super) struct Run<'g, 'p> {
    gate: &'g Gate,
    plan: Plan<'p>,
    op: Op<'static>,
    /// When it was asked, by the gate's clock.
    asked: Tick,
    /// The tick from which its answer is of no use any more.
    pub(super) deadline: Option<Tick>,
    /// When it was decided, by the clock that decided last: an engine's where one was asked.
    at: Tick,
    parts: SmallVec<[Part; 2]>,
    /// The part that is settled next.
    next: usize,
    /// What has come of each line so far.
    settlements: Settlements,
    allowed: bool,
    wait: Duration,
    by: DecidedBy,
    error: Option<StoreError>,
    /// The steps that give back the settled parts, should a later one refuse or the caller go away: the store of each, the part, the step.
    undo: SmallVec<[(usize, usize, OwnedStep); 2]>,
    /// Whether other requests are awaited together with this one: the caller may then go away after this one is settled.
    pub(super) awaits_others: bool,
}

impl<'g, 'p> Run<'g, 'p> {
    pub(super) fn new(
        gate: &'g Gate,
        plan: Plan<'p>,
        op: Op<'static>,
        (at, deadline): (Tick, Option<Tick>),
    ) -> Self {
        let lines = plan.lines.len();
        let mut run = Self {
            gate,
            plan,
            op,
            asked: at,
            deadline,
            at,
            parts: SmallVec::new(),
            next: 0,
            settlements: SmallVec::from_elem(None, lines),
            allowed: true,
            wait: Duration::ZERO,
            by: DecidedBy::Local,
            error: None,
            undo: SmallVec::new(),
            awaits_others: false,
        };
        if let Err(error) = run.divide() {
            run.fail(error);
        }
        run
    }

    /// Divides the plan into parts.
    fn divide(&mut self) -> Result<(), StoreError> {
        for (at, line) in self.plan.lines.iter().enumerate() {
            let store = self.gate.routes.of(line.share)?;
            let tag = self.gate.routes.tag(store, &self.plan.keys[line.key.clone()]);
            match self.parts.iter_mut().find(|part| part.store == store && part.tag == tag) {
                Some(part) => part.lines.push(at),
                None => self.parts.push(Part { store, tag, lines: SmallVec::from_slice(&[at]) }),
            }
        }
        // A stable sort: stores are numbered in the order in which they are asked. Of the parts of one engine those with a guard go first:
        // places are scarcer, and a refusal by them leaves less to undo.
        let lines = &self.plan.lines;
        let has_guard = |part: &Part| part.lines.iter().any(|at| lines[*at].quota.is_guard());
        self.parts.sort_by_key(|part| (part.store, !has_guard(part)));
        Ok(())
    }

    /// Returns the store that is asked next; `None` when no further one is asked.
    pub(super) fn next_store(&self) -> Option<usize> {
        self.parts.get(self.next).filter(|_| self.goes_on()).map(|part| part.store)
    }

    /// Returns how many limits the request meets.
    pub(super) fn limits(&self) -> usize {
        self.plan.lines.len()
    }

    fn goes_on(&self) -> bool {
        self.error.is_none() && (self.allowed || matches!(self.op, Op::Peek))
    }

    pub(super) fn charges(&self) -> SmallVec<[Charge<'_>; 4]> {
        let part = &self.parts[self.next];
        part.lines.iter().map(|at| self.plan.charge(&self.plan.lines[*at])).collect()
    }

    /// Returns the step of the next part.
    pub(super) fn step<'s>(&self, charges: &'s [Charge<'s>], receipts: bool) -> Step<'s> {
        let Part { store, tag, .. } = self.parts[self.next];
        // Receipts undo this part if a later part refuses, or if the caller goes away.
        let receipts = receipts || self.may_be_undone() || self.gate.routes.store(store).caps().may_wait;
        Step { now: self.asked, clock: StepClock::Engine, tag, receipts, op: self.op, charges }
    }

    /// Says whether the next part may have to be undone when it is settled.
    fn may_be_undone(&self) -> bool {
        self.next + 1 < self.parts.len() || self.awaits_others
    }

    /// Says whether an engine is among those that are asked.
    pub(super) fn may_wait(&self) -> bool {
        self.parts.iter().any(|part| self.gate.routes.store(part.store).caps().may_wait)
    }

    /// Returns the step of the next part, from which it is undone if nobody waits any more when it is settled.
    pub(super) fn step_to_undo(&self) -> Option<OwnedStep> {
        matches!(self.op, Op::Take).then(|| OwnedStep::of(&self.step(&self.charges(), true)))
    }

    /// Takes over what came of the next part.
    pub(super) fn take(&mut self, answer: Answer) {
        let charges = self.parts[self.next].lines.len();
        let settled = match answer.and_then(|settled| whole(settled, charges)) {
            Ok(settled) => settled,
            Err(error) => return self.fail(error),
        };
        self.allowed &= settled.allowed;
        self.wait = self.wait.max(settled.wait);
        self.by = furthest(self.by, settled.by);
        self.at = settled.at;
        for at in &self.parts[self.next].lines {
            self.plan.lines[*at].by_fallback = settled.by == DecidedBy::Fallback;
        }
        if settled.allowed && matches!(self.op, Op::Take) && self.may_be_undone() {
            self.remember(&settled);
        }
        for (at, settlement) in self.parts[self.next].lines.iter().zip(settled.lines) {
            self.settlements[*at] = Some(settlement);
        }
        self.next += 1;
    }

    /// Notes how a part is undone that was just taken.
    fn remember(&mut self, settled: &Settled) {
        let undoing = OwnedStep::undoing(&self.step(&self.charges(), true), settled);
        if let Some(step) = undoing {
            self.undo.push((self.parts[self.next].store, self.next, step));
        }
    }

    pub(super) fn fail(&mut self, error: StoreError) {
        self.allowed = false;
        self.error = Some(error);
    }

    /// Gives back what was taken, if the request is refused; the limits then stand as they do afterwards.
    pub(super) async fn undo(&mut self, waits: Waits) {
        if self.allowed {
            return;
        }
        while let Some((store, part, step)) = self.undo.pop() {
            let asked = self.gate.ask_again(store, &step, waits);
            // At the deadline the engine is left to undo it in the background.
            let Some(answer) = self.gate.before(self.deadline, asked).await.flatten() else { continue };
            let settled = match answer {
                Ok(settled) => settled,
                // Whether it was undone is unknown: a second time might give back what others have charged.
                Err(StoreError::Unavailable { .. }) => continue,
                Err(_) => {
                    let _ = now(self.gate.ask_again(store, &step, Waits::Unwatched));
                    continue;
                }
            };
            let made = self.parts[part]
                .lines
                .iter()
                .filter(|at| self.settlements[**at].is_some_and(|settlement| settlement.receipt.is_some()));
            let made: SmallVec<[usize; 4]> = made.copied().collect();
            for (at, line) in made.into_iter().zip(settled.lines) {
                if let Some(settlement) = &mut self.settlements[at] {
                    (settlement.decision.standing, settlement.receipt) = (line.decision.standing, None);
                }
            }
        }
    }

    /// Fills a decision in with what came of the request.
    pub(super) fn conclude<K: Keep>(
        self,
        decision: &mut GateDecision,
        keep: &mut K,
    ) -> Result<(), StoreError> {
        let (plan, settled, settlements) = self.outcome()?;
        let both = plan.lines.iter().zip(&settlements);
        decision
            .limits
            .extend(both.filter_map(|(line, settlement)| Some(line.decided(settlement.as_ref()?))));
        if settled.allowed {
            keep.allowed(&plan, &settled);
        }
        decision.conclude(&settled);
        Ok(())
    }

    /// Returns what came of the request: its plan, the answer, and what came of each line. If the request is refused, lines that were not
    /// asked are missing from the answer, and `None` in the list.
    pub(super) fn outcome(mut self) -> Result<(Plan<'p>, Settled, Settlements), StoreError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        // From here on the caller sees to it that charges are ended.
        self.undo.clear();
        let settlements = mem::take(&mut self.settlements);
        let settled = Settled {
            allowed: self.allowed,
            wait: if self.allowed { self.wait } else { Duration::ZERO },
            at: self.at,
            by: self.by,
            lines: settlements.iter().flatten().copied().collect(),
            breaker: None,
        };
        Ok((mem::take(&mut self.plan), settled, settlements))
    }
}

/// A request that nobody waits for any more gives back what it had taken.
impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        for (store, _, step) in mem::take(&mut self.undo) {
            // If that fails, the charges stay until time returns them.
            let _ = now(self.gate.ask_again(store, &step, Waits::Unwatched));
        }
    }
}

impl Gate {
    /// Apart from the usual check, which needs none of the room that this takes on the stack.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_routed<K: Keep>(
        &self,
        decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        now(self.decide_parts(decision, check, keep, Waits::No))
    }

    pub(super) async fn decide_routed_async<K: Keep>(
        &self,
        decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        self.decide_parts(decision, check, keep, Waits::Yes).await
    }

    async fn decide_parts<K: Keep>(
        &self,
        mut decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
        waits: Waits,
    ) -> Result<GateDecision, StoreError> {
        let policies = decision.keep_policies();
        let at = self.time.now();
        let Some(run) = self.run_of(check, at, &policies, &mut decision) else { return Ok(decision) };
        let mut runs = [run];
        self.settle_runs(&mut runs, K::KEEPS, waits).await;
        let [run] = runs;
        run.conclude(&mut decision, keep)?;
        Ok(decision)
    }

    /// Plans a request that is asked at a tick; `None`, and the decision says so, where a list refuses it.
    pub(super) fn run_of<'g, 'p, 'c: 'p>(
        &'g self,
        check: &Check<'c, '_>,
        at: Tick,
        policies: &'p PolicySet,
        decision: &mut GateDecision,
    ) -> Option<Run<'g, 'p>> {
        if let Some(refusal) = self.refusal(policies, check) {
            (decision.denied_by_list, decision.at) = (Some(Box::new(refusal)), at);
            return None;
        }
        let mut plan = Plan::default();
        check.plan_into(policies, &mut plan);
        let deadline = self.tick_of(check);
        shorten_waits(at, deadline, &mut plan.lines);
        Some(Run::new(self, plan, check.op(), (at, deadline)))
    }
}

/// Refuses an answer that does not say what came of each charge.
pub(super) fn whole(settled: Settled, charges: usize) -> Answer {
    all_answered(&settled, charges).map(|()| settled)
}

/// Says that an answer does not tell what came of each charge, if it does not.
pub(super) fn all_answered(settled: &Settled, charges: usize) -> Result<(), StoreError> {
    let lines = settled.lines.len();
    if lines == charges {
        return Ok(());
    }
    let reason = format!("it answered {lines} charges of {charges}");
    Err(StoreError::Unavailable { reason })
}

/// Returns whichever of two is further from the caller.
pub(super) fn furthest(one: DecidedBy, other: DecidedBy) -> DecidedBy {
    let distance = |by| match by {
        DecidedBy::Local => 0,
        DecidedBy::Lease => 1,
        DecidedBy::Engine => 2,
        DecidedBy::Fallback => 3,
    };
    if distance(other) > distance(one) { other } else { one }
}

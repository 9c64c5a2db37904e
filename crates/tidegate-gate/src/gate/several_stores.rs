//! Decides checks whose policies lie in several stores, or in an engine that answers later.
//!
//! The charges of a request are divided into parts, one for each store and each tag that a store keeps separate. The
//! parts are executed one after the other: stores of this process first and engines last, so that a request which the
//! process refuses costs no call to an engine; within one engine, parts with a guard first. If a part refuses or fails,
//! the parts before it are undone exactly: each is ended with nothing spent. The same happens if the caller goes away;
//! a step that an engine is being asked to execute is then awaited and undone in the background.
//!
//! Many requests are executed in rounds: each round asks one store, in one exchange, for the next parts of all requests
//! that wait for it.

use std::mem;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Tick;

use super::charged::Keep;
use super::waits::{InFlight, Waits, run_without_waiting, undo_later};
use super::{Check, Gate, GateDecision};
use crate::policy::{Plan, PolicySet};
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Executed, Execution, Op, OwnedStep, Step, StepAnswer, StepClock, Store,
    StoreError,
};

/// The answer to each line of a plan; `None` for lines that were not asked.
pub(super) type ChargeAnswers = SmallVec<[Option<ChargeAnswer>; 4]>;

/// Charges that are executed in one step.
struct StorePart {
    store: usize,
    tag: u64,
    /// The indices of the charges' lines in the plan.
    lines: SmallVec<[usize; 4]>,
}

/// The state of a request while its parts are executed store by store.
pub(super) struct Run<'g, 'p> {
    gate: &'g Gate,
    plan: Plan<'p>,
    op: Op<'static>,
    /// When the request was asked, by the gate's clock.
    asked: Tick,
    /// The tick from which the answer is useless.
    deadline: Option<Tick>,
    /// When the request was decided, by the clock of the store that decided last.
    at: Tick,
    parts: SmallVec<[StorePart; 2]>,
    /// The index of the part that is executed next.
    next: usize,
    /// The answer to each line so far.
    charge_answers: ChargeAnswers,
    allowed: bool,
    wait: Duration,
    by: DecidedBy,
    error: Option<StoreError>,
    /// The steps that undo the executed parts if a later one refuses or the caller goes away: the store, the index of
    /// the part, the step.
    undo: SmallVec<[(usize, usize, OwnedStep); 2]>,
    /// Whether other requests are awaited together with this one: the caller may then go away after this one is
    /// executed.
    awaits_others: bool,
}

impl<'g, 'p> Run<'g, 'p> {
    pub(super) fn new(
        gate: &'g Gate,
        plan: Plan<'p>,
        op: Op<'static>,
        at: Tick,
        deadline: Option<Tick>,
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
            charge_answers: SmallVec::from_elem(None, lines),
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
            let store = self.gate.routes.of(line.rules.share)?;
            let tag = self.gate.routes.tag(store, &self.plan.keys[line.key.clone()]);
            match self.parts.iter_mut().find(|part| part.store == store && part.tag == tag) {
                Some(part) => part.lines.push(at),
                None => self.parts.push(StorePart { store, tag, lines: SmallVec::from_slice(&[at]) }),
            }
        }
        // A stable sort: stores are numbered in the order in which they are asked. Within one engine, parts with a
        // guard go first: places are scarcer, and a refusal by them leaves less to undo.
        let lines = &self.plan.lines;
        let has_guard = |part: &StorePart| part.lines.iter().any(|at| lines[*at].quota.is_guard());
        self.parts.sort_by_key(|part| (part.store, !has_guard(part)));
        Ok(())
    }

    /// Returns the store to ask next; `None` if no further store is asked.
    fn next_store(&self) -> Option<usize> {
        self.parts.get(self.next).filter(|_| self.goes_on()).map(|part| part.store)
    }

    /// Returns the number of limits that the request meets.
    pub(super) fn limits(&self) -> usize {
        self.plan.lines.len()
    }

    fn goes_on(&self) -> bool {
        self.error.is_none() && (self.allowed || matches!(self.op, Op::Peek))
    }

    fn charges(&self) -> SmallVec<[Charge<'_>; 4]> {
        let part = &self.parts[self.next];
        part.lines.iter().map(|at| self.plan.charge(&self.plan.lines[*at])).collect()
    }

    /// Returns the step for the next part.
    fn step<'s>(&self, charges: &'s [Charge<'s>], receipts: bool) -> Step<'s> {
        let StorePart { store, tag, .. } = self.parts[self.next];
        // Receipts are needed to undo this part if a later part refuses or the caller goes away.
        let caps = self.gate.routes.store(store).caps();
        let receipts = receipts || self.may_be_undone() || (caps.may_wait && !caps.keeps_abandoned);
        let watched = self.gate.is_observed();
        Step { now: self.asked, clock: StepClock::Engine, tag, receipts, watched, op: self.op, charges }
    }

    /// Reports whether the next part may have to be undone after it is executed.
    fn may_be_undone(&self) -> bool {
        self.next + 1 < self.parts.len() || self.awaits_others
    }

    /// Reports whether any part belongs to an engine.
    fn may_wait(&self) -> bool {
        self.parts.iter().any(|part| self.gate.routes.store(part.store).caps().may_wait)
    }

    /// Returns the step for the next part, for undoing it if no caller waits any more when it is executed; `None` for a
    /// peek.
    fn step_to_undo(&self) -> Option<OwnedStep> {
        matches!(self.op, Op::Take).then(|| OwnedStep::of(&self.step(&self.charges(), true)))
    }

    /// Takes over the answer to the next part.
    fn take(&mut self, answer: StepAnswer) {
        let charges = self.parts[self.next].lines.len();
        let mut executed = match answer.and_then(|executed| whole(executed, charges)) {
            Ok(executed) => executed,
            Err(error) => return self.fail(error),
        };
        self.gate.tell_moved(&mut executed.moved);
        self.allowed &= executed.allowed;
        self.wait = self.wait.max(executed.wait);
        self.by = furthest(self.by, executed.by);
        self.at = executed.at;
        for at in &self.parts[self.next].lines {
            self.plan.lines[*at].by_fallback = executed.by == DecidedBy::Fallback;
        }
        if executed.allowed && matches!(self.op, Op::Take) && self.may_be_undone() {
            self.remember(&executed);
        }
        for (at, charge_answer) in self.parts[self.next].lines.iter().zip(executed.lines) {
            self.charge_answers[*at] = Some(charge_answer);
        }
        self.next += 1;
    }

    /// Notes how to undo the part that was just executed.
    fn remember(&mut self, executed: &Executed) {
        let undoing = OwnedStep::undoing(&self.step(&self.charges(), true), executed);
        if let Some(step) = undoing {
            self.undo.push((self.parts[self.next].store, self.next, step));
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.allowed = false;
        self.error = Some(error);
    }

    /// Gives back what was taken if the request is refused, and updates the standings of its limits accordingly.
    async fn undo(&mut self, waits: Waits) {
        if self.allowed {
            return;
        }
        while let Some((store, part, step)) = self.undo.pop() {
            let asked = self.gate.ask_again(store, &step, waits);
            // At the deadline, the engine continues to undo it in the background.
            let Some(answer) = self.gate.before(self.deadline, asked).await.flatten() else { continue };
            let executed = match answer {
                Ok(executed) => executed,
                // It is unknown whether it was undone, and a second attempt might give back what others have charged.
                Err(StoreError::Unavailable { .. }) => continue,
                Err(_) => {
                    let _ = run_without_waiting(self.gate.ask_again(store, &step, Waits::Unwatched));
                    continue;
                }
            };
            let made = self.parts[part].lines.iter().filter(|at| {
                self.charge_answers[**at].is_some_and(|charge_answer| charge_answer.receipt.is_some())
            });
            let made: SmallVec<[usize; 4]> = made.copied().collect();
            for (at, line) in made.into_iter().zip(executed.lines) {
                if let Some(charge_answer) = &mut self.charge_answers[at] {
                    (charge_answer.decision.standing, charge_answer.receipt) = (line.decision.standing, None);
                }
            }
        }
    }

    /// Fills in a decision with the result of the request.
    pub(super) fn conclude<K: Keep>(
        self,
        decision: &mut GateDecision,
        keep: &mut K,
    ) -> Result<(), StoreError> {
        let (plan, executed, charge_answers) = self.outcome()?;
        let both = plan.lines.iter().zip(&charge_answers);
        decision
            .limits
            .extend(both.filter_map(|(line, charge_answer)| Some(line.decided(charge_answer.as_ref()?))));
        if executed.allowed {
            keep.allowed(&plan, &executed);
        }
        decision.conclude(&executed);
        Ok(())
    }

    /// Returns the result of the request: its plan, the answer, and the answer to each line. If the request is
    /// refused, lines that were not asked are missing from the answer, and `None` in the list.
    pub(super) fn outcome(mut self) -> Result<(Plan<'p>, Executed, ChargeAnswers), StoreError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        // From here on the caller is responsible for ending the charges.
        self.undo.clear();
        let charge_answers = mem::take(&mut self.charge_answers);
        let executed = Executed {
            allowed: self.allowed,
            wait: if self.allowed { self.wait } else { Duration::ZERO },
            at: self.at,
            by: self.by,
            lines: charge_answers.iter().flatten().copied().collect(),
            ..Executed::default()
        };
        let charge_answers_of = charge_answers.iter().map(Option::as_ref);
        self.gate.tell_decided(self.op, &self.plan, executed.at, executed.allowed, charge_answers_of);
        Ok((mem::take(&mut self.plan), executed, charge_answers))
    }
}

/// If no caller waits for a request any more, what it took is given back.
impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        for (store, _, step) in mem::take(&mut self.undo) {
            // If this fails, the charges stay until time returns them.
            let _ = run_without_waiting(self.gate.ask_again(store, &step, Waits::Unwatched));
        }
    }
}

impl Gate {
    /// Separate from the usual check, which does not need the stack space that this takes.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_routed<K: Keep>(
        &self,
        decision: GateDecision,
        check: &Check<'_, '_>,
        keep: &mut K,
    ) -> Result<GateDecision, StoreError> {
        run_without_waiting(self.decide_parts(decision, check, keep, Waits::No))
    }

    pub(super) async fn decide_parts<K: Keep>(
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
        self.execute_runs(&mut runs, K::KEEPS, waits).await;
        let [run] = runs;
        run.conclude(&mut decision, keep)?;
        self.block_over(check, &mut decision);
        Ok(decision)
    }

    /// Plans a request that is asked at a tick. `None`: a list, a deadline or a block refuses it, which is noted in the
    /// decision.
    pub(super) fn run_of<'g, 'p, 'c: 'p>(
        &'g self,
        check: &Check<'c, '_>,
        at: Tick,
        policies: &'p PolicySet,
        decision: &mut GateDecision,
    ) -> Option<Run<'g, 'p>> {
        if let Some(refusal) = self.refusal(policies, check) {
            (decision.refusal, decision.at) = (Some(Box::new(refusal)), at);
            return None;
        }
        let mut plan = Plan::default();
        check.plan_into(policies, &mut plan);
        self.shorten_waits(policies, at, check, &mut plan.lines);
        Some(Run::new(self, plan, check.op(), at, self.tick_of(check)))
    }
}

/// Turns an answer that does not cover every charge into an error.
pub(super) fn whole(executed: Executed, charges: usize) -> StepAnswer {
    all_answered(&executed, charges).map(|()| executed)
}

/// Returns an error if an answer does not cover every charge.
pub(super) fn all_answered(executed: &Executed, charges: usize) -> Result<(), StoreError> {
    let lines = executed.lines.len();
    if lines == charges {
        return Ok(());
    }
    let reason = format!("it answered {lines} charges of {charges}");
    Err(StoreError::Unavailable { reason })
}

/// Returns the one of two that is further from the caller.
pub(super) fn furthest(one: DecidedBy, other: DecidedBy) -> DecidedBy {
    let distance = |by| match by {
        DecidedBy::Local => 0,
        DecidedBy::Lease => 1,
        DecidedBy::Engine => 2,
        DecidedBy::Fallback => 3,
    };
    if distance(other) > distance(one) { other } else { one }
}

impl Gate {
    /// Executes requests, each all or nothing. Each round executes the next parts of all requests that wait for the same
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the requests gives back all that was taken, until [`Run::outcome`] hands it over.
    pub(super) async fn execute_runs(&self, runs: &mut [Run<'_, '_>], receipts: bool, waits: Waits) {
        let await_others = runs.len() > 1 && waits == Waits::Yes && runs.iter().any(Run::may_wait);
        runs.iter_mut().for_each(|run| run.awaits_others = await_others);
        let mut answers = Vec::new();
        while let Some(store) = runs.iter().filter_map(Run::next_store).min() {
            if waits == Waits::Yes && self.routes.store(store).caps().may_wait {
                self.fail_late(runs, store);
            }
            let asked: SmallVec<[usize; 4]> =
                (0..runs.len()).filter(|at| runs[*at].next_store() == Some(store)).collect();
            if asked.is_empty() {
                continue;
            }
            let later = {
                let charges: SmallVec<[_; 2]> = asked.iter().map(|at| runs[*at].charges()).collect();
                let steps: SmallVec<[Step<'_>; 2]> = asked
                    .iter()
                    .zip(&charges)
                    .map(|(at, charges)| runs[*at].step(charges, receipts))
                    .collect();
                match waits {
                    Waits::Yes => self.routes.store(store).execute_each(&steps, &mut answers),
                    Waits::No | Waits::Unwatched => {
                        // One by one: of a batch that is dropped without being polled, a store may have executed some
                        // steps.
                        answers.extend(steps.iter().map(|step| executed_now(self.routes.store(store), step)));
                        None
                    }
                }
            };
            if let Some(later) = later {
                let (runs, asked) = (&*runs, &asked);
                let undo = |later| {
                    let steps = asked.iter().map(|at| runs[*at].step_to_undo()).collect();
                    undo_later(self.routes.share(store), steps, later)
                };
                // The steps are one exchange, which continues as long as any request wants its answer: until the latest
                // deadline, or without limit if one request has none.
                let deadlines = asked.iter().map(|at| runs[*at].deadline);
                let deadline =
                    deadlines.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other)));
                let in_flight = InFlight::new(later, &self.background, &undo);
                let answered = self.before(deadline.flatten(), in_flight).await;
                answers = answered
                    .unwrap_or_else(|| asked.iter().map(|_| Err(StoreError::DeadlinePassed)).collect());
            }
            // If an engine answers fewer steps than it was asked, the answers for the rest count as unavailable.
            answers.resize_with(asked.len(), || {
                let reason = "it answered fewer steps than it was asked".to_owned();
                Err(StoreError::Unavailable { reason })
            });
            for (at, answer) in asked.iter().zip(answers.drain(..)) {
                runs[*at].take(answer);
            }
        }
        for run in runs {
            run.undo(waits).await;
        }
    }

    /// Fails requests whose deadline has passed before an engine is asked.
    fn fail_late(&self, runs: &mut [Run<'_, '_>], store: usize) {
        for run in runs.iter_mut().filter(|run| run.next_store() == Some(store)) {
            if run.deadline.is_some_and(|deadline| deadline <= self.time.now()) {
                run.fail(StoreError::DeadlinePassed);
            }
        }
    }
}

/// Has a store execute a step for a caller that cannot wait.
fn executed_now(store: &dyn Store, step: &Step<'_>) -> StepAnswer {
    let mut executed = Executed::default();
    match store.execute_into(step, &mut executed) {
        Execution::Done(done) => done.map(|()| executed),
        // Dropped without being polled, so the engine was not asked.
        Execution::Later(_) => Err(StoreError::MustWait),
    }
}

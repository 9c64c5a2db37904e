//! Executes steps through the engine within the deadline, or without it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Decision, Finish, Outcome, Retry, Standing, Tick};
use tidegate_limits::clock::{Clock, HeldTime, before};
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Ending, Executed, Execution, Later, MemoryStore, OnStoreError, Op,
    OwnedStep, Step, StepAnswer, Store, StoreError,
};

use super::breaker::{Breaker, Probe, Route};
use super::{Share, standing};

#[derive(Debug)]
pub(super) struct FallbackState {
    pub(super) engine: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) stand_in: StandIn,
    pub(super) deadline: Duration,
}

impl FallbackState {
    fn route(&self) -> Route {
        self.breaker.route(|| self.clock.now())
    }

    pub(super) fn decide(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> Execution {
        let mut probe = match self.route() {
            Route::WithoutEngine => return Execution::Done(self.without(step, out)),
            Route::Engine => None,
            Route::Probe(probe) => Some(probe),
        };
        match self.engine.execute_into(step, out) {
            Execution::Done(Ok(())) if probe.is_none() => {
                self.breaker.answers_as_ever();
                Execution::Done(Ok(()))
            }
            Execution::Done(done) => {
                Execution::Done(match self.judge(done, self.clock.now(), probe.as_mut()) {
                    Err(error) if is_decided_here(&error) => self.without(step, out),
                    done => done,
                })
            }
            Execution::Later(later) => {
                let (shared, step) = (Arc::clone(self), OwnedStep::of(step));
                Execution::Later(Box::pin(async move {
                    match shared.in_time(later, probe).await {
                        Err(error) if is_decided_here(&error) => shared.without_late(&step),
                        answer => answer,
                    }
                }))
            }
        }
    }

    pub(super) fn decide_each(
        self: &Arc<Self>,
        steps: &[Step<'_>],
        out: &mut Vec<StepAnswer>,
    ) -> Option<Later<Vec<StepAnswer>>> {
        let probe = match self.route() {
            Route::WithoutEngine => {
                out.clear();
                out.extend(steps.iter().map(|step| self.without_answer(step)));
                return None;
            }
            Route::Engine => None,
            Route::Probe(probe) => Some(probe),
        };
        let Some(later) = self.engine.execute_each(steps, out) else {
            self.judge_each(out, self.clock.now(), probe);
            for (step, answer) in steps.iter().zip(out) {
                if matches!(answer, Err(error) if is_decided_here(error)) {
                    *answer = self.without_answer(step);
                }
            }
            return None;
        };
        let shared = Arc::clone(self);
        let steps: Vec<OwnedStep> = steps.iter().map(OwnedStep::of).collect();
        Some(Box::pin(async move {
            let mut answers = shared.each_in_time(later, steps.len(), probe).await;
            for (step, answer) in steps.iter().zip(&mut answers) {
                if matches!(answer, Err(error) if is_decided_here(error)) {
                    *answer = shared.without_late(step);
                }
            }
            answers
        }))
    }

    pub(super) fn ask(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> Execution {
        let mut probe = match self.route() {
            Route::WithoutEngine => return Execution::Done(Err(self.unavailable())),
            Route::Engine => None,
            Route::Probe(probe) => Some(probe),
        };
        match self.engine.execute_into(step, out) {
            Execution::Done(done) => Execution::Done(self.judge(done, self.clock.now(), probe.as_mut())),
            Execution::Later(later) => {
                let shared = Arc::clone(self);
                Execution::Later(Box::pin(async move { shared.in_time(later, probe).await }))
            }
        }
    }

    pub(super) fn reset(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.ask(step, out) {
            Execution::Done(done) => Execution::Done(done.inspect(|()| self.stand_in.reset(step))),
            Execution::Later(later) => {
                let (shared, step) = (Arc::clone(self), OwnedStep::of(step));
                Execution::Later(Box::pin(async move {
                    let executed = later.await?;
                    step.with(|step| shared.stand_in.reset(step));
                    Ok(executed)
                }))
            }
        }
    }

    pub(super) fn finish(
        self: &Arc<Self>,
        step: &Step<'_>,
        endings: &[Ending],
        out: &mut Executed,
    ) -> Execution {
        if !step.charges.iter().any(|charge| charge.by_fallback) {
            return self.ask(step, out);
        }
        let lines = || step.charges.iter().zip(endings);
        if lines().all(|(charge, ending)| charge.by_fallback || matches!(ending, Ending::Once)) {
            return Execution::Done(self.stand_in.finish(step, endings, out));
        }
        let part = |here: bool| -> (Charges<'_>, Endings) {
            let lines = lines().filter(|(charge, _)| charge.by_fallback == here);
            lines.map(|(charge, ending)| (*charge, *ending)).unzip()
        };
        let ((theirs, their_endings), (ours, our_endings)) = (part(false), part(true));
        let their_step = Step { op: Op::Finish(&their_endings), charges: &theirs, ..*step };
        let our_step = Step { op: Op::Finish(&our_endings), charges: &ours, ..*step };
        let mut executed = Executed::default();
        match self.ask(&their_step, &mut executed) {
            Execution::Done(done) => Execution::Done(done.and_then(|()| {
                *out = self.finish_ours(executed, step, &our_step)?;
                Ok(())
            })),
            Execution::Later(later) => {
                let (shared, step, our_step) =
                    (Arc::clone(self), OwnedStep::of(step), OwnedStep::of(&our_step));
                Execution::Later(Box::pin(async move {
                    let executed = later.await?;
                    step.with(|step| our_step.with(|ours| shared.finish_ours(executed, step, ours)))
                }))
            }
        }
    }

    /// Ends the charges that were made here, after the engine has ended its own.
    fn finish_ours(&self, theirs: Executed, step: &Step<'_>, our_step: &Step<'_>) -> StepAnswer {
        let mut ours = Executed::default();
        if theirs.allowed {
            let Op::Finish(endings) = our_step.op else { return Ok(theirs) };
            self.stand_in.finish(our_step, endings, &mut ours)?;
        } else {
            ours.lines.extend(our_step.charges.iter().map(|charge| unasked(charge, step.now)));
        }
        let mut executed = Executed { lines: SmallVec::new(), ..theirs };
        executed.moved.append(&mut ours.moved);
        let (mut theirs, mut ours) = (theirs.lines.into_iter(), ours.lines.into_iter());
        let next = |charge: &Charge<'_>| if charge.by_fallback { ours.next() } else { theirs.next() };
        executed.lines.extend(step.charges.iter().filter_map(next));
        Ok(executed)
    }

    async fn in_time(&self, later: Later<StepAnswer>, mut probe: Option<Probe>) -> StepAnswer {
        if probe.is_none() && self.breaker.is_down() {
            // The engine has gone since this step was prepared.
            return Err(self.unavailable());
        }
        if let Some(probe) = &mut probe {
            probe.mark_asked();
        }
        let (asked, exchanges) = (self.clock.now(), self.engine.exchanges());
        let answer = self.before_deadline(asked, later).await;
        match answer {
            None if self.engine.exchanges() != exchanges => self.contended(probe.as_mut()),
            answer => self.judge(answer.unwrap_or_else(|| Err(self.late())), asked, probe.as_mut()),
        }
    }

    /// Handles a step that other writers or steps ahead of it held up: this does not count against the engine.
    fn contended<T>(&self, probe: Option<&mut Probe>) -> Result<T, StoreError> {
        if let Some(probe) = probe {
            self.breaker.answers(self.clock.now());
            probe.mark_asked();
        }
        Err(self.late())
    }

    async fn each_in_time(
        &self,
        later: Later<Vec<StepAnswer>>,
        count: usize,
        mut probe: Option<Probe>,
    ) -> Vec<StepAnswer> {
        let mut answers = Vec::new();
        if probe.is_none() && self.breaker.is_down() {
            answers.resize_with(count, || Err(self.unavailable()));
            return answers;
        }
        if let Some(probe) = &mut probe {
            probe.mark_asked();
        }
        let (asked, exchanges) = (self.clock.now(), self.engine.exchanges());
        let told = self.before_deadline(asked, later).await;
        let is_contended = told.is_none() && self.engine.exchanges() != exchanges;
        answers = told.unwrap_or_default();
        answers.resize_with(count, || Err(self.late()));
        match is_contended {
            true => drop(self.contended::<()>(probe.as_mut())),
            false => self.judge_each(&answers, asked, probe),
        }
        answers
    }

    async fn before_deadline<T>(&self, asked: Tick, later: Later<T>) -> Option<T> {
        before(&self.clock, asked.after(self.deadline), later).await
    }

    fn judge<T>(
        &self,
        answer: Result<T, StoreError>,
        asked: Tick,
        probe: Option<&mut Probe>,
    ) -> Result<T, StoreError> {
        match &answer {
            Err(StoreError::Unavailable { reason }) => self.breaker.fails(reason, asked, self.clock.now()),
            _ if probe.is_some() => self.breaker.answers(self.clock.now()),
            _ => self.breaker.answers_late(asked),
        }
        if let Some(probe) = probe {
            probe.mark_asked();
        }
        answer
    }

    /// Notes what many answers say: a single unavailable one means that the engine is gone.
    fn judge_each(&self, answers: &[StepAnswer], asked: Tick, mut probe: Option<Probe>) {
        let unavailable = answers.iter().find(|answer| matches!(answer, Err(StoreError::Unavailable { .. })));
        match unavailable {
            Some(Err(error)) => drop(self.judge::<()>(Err(error.clone()), asked, probe.as_mut())),
            _ => drop(self.judge(Ok(()), asked, probe.as_mut())),
        }
    }

    fn without(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        self.breaker.counts();
        self.stand_in.decide(step, out)
    }

    fn without_answer(&self, step: &Step<'_>) -> StepAnswer {
        let mut executed = Executed::default();
        self.without(step, &mut executed).map(|()| executed)
    }

    /// Decides a step at the present tick without the engine, which did not answer in time.
    fn without_late(&self, step: &OwnedStep) -> StepAnswer {
        let now = self.clock.now();
        step.with(|step| self.without_answer(&Step { now: step.now.max(now), ..*step }))
    }

    fn unavailable(&self) -> StoreError {
        StoreError::Unavailable { reason: self.breaker.reason().to_string() }
    }

    fn late(&self) -> StoreError {
        let reason = format!("no answer within {} ms", self.deadline.as_millis());
        StoreError::Unavailable { reason }
    }
}

type Charges<'a> = SmallVec<[Charge<'a>; 4]>;
type Endings = SmallVec<[Ending; 4]>;

/// Returns whether an error of the engine leaves the decision to the charges' [`OnStoreError`]; see [the
/// module](super#which-errors-count).
const fn is_decided_here(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable { .. }
            | StoreError::Contended { .. }
            | StoreError::Corrupt { .. }
            | StoreError::CellTooLarge { .. }
    )
}

// Decides steps while the engine is gone, each charge as its [`OnStoreError`] says, with a store of this process.

/// The number of keys that the stand-in's store has room for: the keys that are charged in an outage.
const KEYS: usize = 65_536;

#[derive(Debug)]
pub(super) struct StandIn {
    /// The store, made when it is first needed, because its table takes memory.
    store: OnceLock<MemoryStore>,
    nodes: u64,
    /// Executes by ticks that never step back.
    latest: HeldTime,
}

type LocalCharges<'a> = SmallVec<[(usize, Share, Charge<'a>); 4]>;

impl StandIn {
    pub(super) fn new(nodes: u64) -> Self {
        Self { store: OnceLock::new(), nodes: nodes.max(1), latest: HeldTime::default() }
    }

    pub(super) fn store(&self) -> &MemoryStore {
        self.store.get_or_init(|| MemoryStore::with_capacity(KEYS).expect("two megabytes of memory"))
    }

    pub(super) fn decide(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        let now = self.latest.hold(step.now);
        let step = &Step { now, ..*step };
        let closed =
            step.charges.iter().any(|charge| charge.binding && charge.rules.on_error == OnStoreError::Deny);
        let local: LocalCharges<'_> = step
            .charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.rules.on_error == OnStoreError::Local)
            .map(|(place, charge)| {
                let share = Share::of(charge.cost, charge.quota, self.nodes);
                let kept_back = share.kept_back(charge);
                (place, share, Charge { cost: share.charged, kept_back, ..*charge })
            })
            .collect();
        let mut decided = Executed { allowed: true, at: now, ..Executed::default() };
        if !local.is_empty() {
            self.take(step, closed, &local, &mut decided)?;
        }
        out.allowed = !closed && decided.allowed;
        out.wait = if out.allowed { decided.wait } else { Duration::ZERO };
        (out.at, out.by) = (decided.at, DecidedBy::Fallback);
        out.moved = std::mem::take(&mut decided.moved);
        out.lines.clear();
        out.lines.extend(step.charges.iter().map(|charge| unasked(charge, now)));
        for ((place, share, _), line) in local.iter().zip(decided.lines) {
            let ruling = match line.decision.ruling {
                // Refused for as long as the engine is gone, which is an unknown time.
                Ruling::Denied { retry: Retry::Never } if share.is_the_engines(&step.charges[*place]) => {
                    Ruling::Denied { retry: Retry::Unknown }
                }
                ruling => ruling,
            };
            out.lines[*place] = ChargeAnswer {
                decision: Decision { ruling, standing: standing(line.decision.standing, self.nodes) },
                receipt: line.receipt.filter(|_| step.receipts).map(|receipt| share.for_caller(receipt)),
            };
        }
        Ok(())
    }

    /// Takes the charges, or only peeks if the step is refused anyway.
    fn take(
        &self,
        step: &Step<'_>,
        closed: bool,
        local: &LocalCharges<'_>,
        decided: &mut Executed,
    ) -> Result<(), StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let owes = local.iter().any(|(_, share, charge)| share.owed(charge.quota) > 0);
        let op = if closed { Op::Peek } else { step.op };
        let asked = Step { op, receipts: step.receipts || owes, charges: &charges, ..*step };
        self.execute(&asked, decided)?;
        if owes && decided.allowed && matches!(op, Op::Take) {
            self.book(step.now, local, decided)?;
        }
        Ok(())
    }

    /// Books the units that charges owe beyond their whole limits.
    fn book(&self, now: Tick, local: &LocalCharges<'_>, decided: &mut Executed) -> Result<(), StoreError> {
        let (mut charges, mut endings, mut lines) = (
            SmallVec::<[Charge<'_>; 4]>::new(),
            SmallVec::<[Ending; 4]>::new(),
            SmallVec::<[usize; 4]>::new(),
        );
        for (line, (_, share, charge)) in local.iter().enumerate() {
            let owed = share.owed(charge.quota);
            // Only charges that were taken have receipts: a shadow that was refused has none.
            if let (Some(receipt), true) = (decided.lines[line].receipt, owed > 0) {
                let finish =
                    Finish { used: receipt.cost.units().saturating_add(owed), outcome: Outcome::Ignored };
                charges.push(*charge);
                endings.push(Ending::new(receipt, finish));
                lines.push(line);
            }
        }
        let mut booked = Executed::default();
        self.execute(&Step::new(now, Op::Finish(&endings), &charges), &mut booked)?;
        for (line, after) in lines.into_iter().zip(booked.lines) {
            decided.lines[line].decision.standing = after.decision.standing;
        }
        Ok(())
    }

    pub(super) fn finish(
        &self,
        step: &Step<'_>,
        endings: &[Ending],
        out: &mut Executed,
    ) -> Result<(), StoreError> {
        let mut local: LocalCharges<'_> = SmallVec::new();
        let mut translated: SmallVec<[Ending; 4]> = SmallVec::new();
        for (place, (charge, ending)) in step.charges.iter().zip(endings).enumerate() {
            let (share, ending) = end(self.nodes, charge, ending);
            local.push((place, share, Charge { cost: share.charged, ..*charge }));
            translated.push(ending);
        }
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let now = self.latest.hold(step.now);
        self.execute(&Step { now, op: Op::Finish(&translated), charges: &charges, ..*step }, out)?;
        out.by = DecidedBy::Fallback;
        for (((_, share, _), line), ending) in local.iter().zip(&mut out.lines).zip(endings) {
            if let Ending::Finish { .. } = ending {
                line.decision.standing = standing(line.decision.standing, self.nodes);
                line.receipt = line.receipt.and_then(|back| share.came_back(back));
            }
        }
        Ok(())
    }

    pub(super) fn reset(&self, step: &Step<'_>) {
        if let Some(store) = self.store.get() {
            // This cannot fail: the engine refuses steps with a repeated key.
            let _ = execute_here(store, step, &mut Executed::default());
        }
    }

    fn execute(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        execute_here(self.store(), step, out)
    }
}

fn end(nodes: u64, charge: &Charge<'_>, ending: &Ending) -> (Share, Ending) {
    match *ending {
        Ending::Finish { receipt, finish, renew } => {
            let share = Share::of(receipt.cost, charge.quota, nodes);
            let (receipt, finish) = (share.as_charged(receipt), share.finish(finish));
            (share, Ending::Finish { receipt, finish, renew })
        }
        // A mark is one unit on any number of nodes. No place that was taken here is held longer.
        Ending::Once | Ending::Forget | Ending::Extend { .. } => {
            (Share::of(charge.cost, charge.quota, 1), *ending)
        }
    }
}

fn execute_here(store: &MemoryStore, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
    match store.execute_into(step, out) {
        Execution::Done(done) => done,
        Execution::Later(_) => Err(StoreError::MustWait),
    }
}

pub(super) fn unasked(charge: &Charge<'_>, now: Tick) -> ChargeAnswer {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = match charge.rules.on_error {
        OnStoreError::Allow => Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: full },
        OnStoreError::Deny | OnStoreError::Local => Decision {
            ruling: Ruling::Denied { retry: Retry::Unknown },
            standing: Standing { remaining: 0, ..full },
        },
    };
    ChargeAnswer { decision, receipt: None }
}

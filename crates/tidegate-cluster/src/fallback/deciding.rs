//! Executes steps through the engine within the deadline, or without it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Tick;
use tidegate_limits::clock::{Clock, before};
#[cfg(doc)]
use tidegate_limits::store::OnStoreError;
use tidegate_limits::store::{
    Charge, Ending, Executed, Execution, Later, Op, OwnedStep, Step, StepAnswer, Store, StoreError,
};

use super::breaker::{Breaker, Probe, Route};
use super::stand_in::{StandIn, unasked};

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

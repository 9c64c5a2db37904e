//! Asks the engine to decide steps: one by one, or many in one exchange.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tidegate_core::Tick;
use tidegate_limits::clock::before;
use tidegate_limits::store::{
    ChargeAnswer, Executed, Execution, Later, Op, OwnedStep, Step, StepAnswer, StoreError,
};

use super::draws::Awaited;
use super::engine_part::HeldUnits;
use super::shared::{Drawing, LeasedState, TermsOfLines, ask, ask_each, widen};

/// How often a request waits for draws before the engine decides it alone: draws grow with the requests that wait for
/// them.
const ROUNDS: usize = 8;

type WaitingStep = (usize, OwnedStep, Pending);

impl Asking {
    fn decides(&self) -> bool {
        self.asked.with(|step| matches!(step.op, Op::Take | Op::Peek))
    }
}

impl LeasedState {
    #[inline]
    pub(super) fn execute(self: &Arc<Self>, step: &Step<'_>, out: &mut Executed) -> Execution {
        match self.begin(step, out) {
            FirstPass::Done(done) => Execution::Done(done),
            FirstPass::Pending(pending) => {
                Execution::Later(Box::pin(Arc::clone(self).execute_later(pending)))
            }
            FirstPass::AsksEngine(asking) => {
                let inner = Arc::clone(self);
                Execution::Later(Box::pin(async move { inner.ask_one(asking).await }))
            }
        }
    }

    async fn execute_later(self: Arc<Self>, pending: Box<(OwnedStep, Pending)>) -> StepAnswer {
        let (step, pending) = *pending;
        let mut answers = self.execute_rest(vec![None], vec![(0, step, pending)], Vec::new()).await;
        answers.pop().unwrap_or_else(|| Err(no_answer()))
    }

    /// Executes many steps: those for the engine in one exchange, and those that need draws wait together.
    pub(super) fn execute_each(
        self: &Arc<Self>,
        steps: &[Step<'_>],
        out: &mut Vec<StepAnswer>,
    ) -> Option<Later<Vec<StepAnswer>>> {
        out.clear();
        let (mut waiting, mut asking) = (Vec::new(), Vec::new());
        let mut answers: Vec<Option<StepAnswer>> = Vec::with_capacity(steps.len());
        for (at, step) in steps.iter().enumerate() {
            let mut executed = Executed::default();
            let mut answer = None;
            match self.begin(step, &mut executed) {
                FirstPass::Done(done) => answer = Some(done.map(|()| executed)),
                FirstPass::Pending(pending) => waiting.push((at, pending.0, pending.1)),
                FirstPass::AsksEngine(asks) => asking.push((at, asks)),
            }
            answers.push(answer);
        }
        if waiting.is_empty() && asking.is_empty() {
            out.extend(answers.into_iter().flatten());
            return None;
        }
        let inner = Arc::clone(self);
        Some(Box::pin(async move { inner.execute_rest(answers, waiting, asking).await }))
    }

    /// Executes the steps that have no answer yet. In each round, the engine is asked and draws are awaited
    /// concurrently.
    async fn execute_rest(
        self: Arc<Self>,
        mut answers: Vec<Option<StepAnswer>>,
        mut waiting: Vec<WaitingStep>,
        mut asking: Vec<(usize, Box<Asking>)>,
    ) -> Vec<StepAnswer> {
        for round in 0.. {
            let (mut again, mut draws) = (Vec::new(), Vec::new());
            for (at, step, pending) in mem::take(&mut waiting) {
                match pending {
                    Pending::Engine(local) => asking.push((at, self.ask_for_the_rest(&step, *local))),
                    Pending::Waits(drawing) if round < ROUNDS => {
                        draws.extend(drawing);
                        again.push((at, step));
                    }
                    Pending::Waits(_) => asking.push((at, step.with(|step| self.ask_for_all(step)))),
                }
            }
            let draws = draws
                .into_iter()
                .map(|(drawing, until)| before(&*self.clock, until, Awaited::of(drawing, Arc::clone(&self))));
            let (answered, _) = join(self.ask_all(mem::take(&mut asking)), join_all(draws)).await;
            for (at, answer) in answered {
                answers[at] = Some(answer);
            }
            for (at, step) in again {
                let (now, mut out) = (self.clock.now(), Executed::default());
                let pending = step
                    .with(|step| self.try_take(&Step { now: step.now.max(now), ..*step }, false, &mut out));
                match pending {
                    None => answers[at] = Some(Ok(out)),
                    Some(pending) => waiting.push((at, step, pending)),
                }
            }
            if waiting.is_empty() {
                break;
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(no_answer()))).collect()
    }

    /// Asks the engine about steps in their order. Takes and peeks do not share an exchange with other operations,
    /// because a fallback answers those one by one.
    async fn ask_all(self: &Arc<Self>, asking: Vec<(usize, Box<Asking>)>) -> Vec<(usize, StepAnswer)> {
        let (mut answers, mut rest) = (Vec::with_capacity(asking.len()), asking.into_iter().peekable());
        while let Some((at, first)) = rest.next() {
            let alike = |next: &(usize, Box<Asking>)| next.1.decides() == first.decides();
            let mut places = vec![at];
            let mut others = Vec::new();
            while let Some((at, next)) = rest.next_if(alike) {
                places.push(at);
                others.push(*next);
            }
            if others.is_empty() {
                answers.push((at, self.ask_one(first).await));
                continue;
            }
            others.insert(0, *first);
            answers.extend(places.into_iter().zip(self.ask_together(others).await));
        }
        answers
    }

    async fn ask_one(self: &Arc<Self>, asking: Box<Asking>) -> StepAnswer {
        let sent = self.clock.now();
        let answer = self.ask_engine(&asking.asked).await;
        self.conclude(*asking, answer, sent).await
    }

    async fn ask_together(self: &Arc<Self>, asking: Vec<Asking>) -> Vec<StepAnswer> {
        let sent = self.clock.now();
        let steps: Vec<&OwnedStep> = asking.iter().map(|asking| &asking.asked).collect();
        steps.iter().for_each(|step| self.count_central(step));
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        let mut answers = ask_each(&*self.engine, &steps).await.into_iter();
        let mut concluded = Vec::with_capacity(asking.len());
        for asking in asking {
            let answer = answers.next().unwrap_or_else(|| Err(no_answer()));
            concluded.push(self.conclude(asking, answer, sent).await);
        }
        concluded
    }

    pub(super) async fn ask_engine(&self, step: &OwnedStep) -> StepAnswer {
        self.count_central(step);
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
        ask(&*self.engine, step).await
    }

    async fn conclude(self: &Arc<Self>, asking: Asking, answer: StepAnswer, sent: Tick) -> StepAnswer {
        let Asking { asked, terms, on_answer } = asking;
        let mut executed = answer?;
        self.record_answer(&asked, &executed, sent);
        match on_answer {
            OnAnswer::Merge(merged) => {
                let (step, local) = *merged;
                self.merge(&step, local, &asked, &terms, executed).await
            }
            OnAnswer::Tell => {
                widen(&mut executed, &terms);
                Ok(executed)
            }
        }
    }

    fn count_central(&self, step: &OwnedStep) {
        if step.with(|step| matches!(step.op, Op::Take | Op::Draw)) {
            self.counts.central.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn no_answer() -> StoreError {
    StoreError::Unavailable { reason: "it answered fewer steps than it was asked".to_owned() }
}

pub(super) struct Asking {
    pub(super) asked: OwnedStep,
    pub(super) terms: TermsOfLines,
    pub(super) on_answer: OnAnswer,
}

pub(super) enum OnAnswer {
    Tell,
    /// The engine's answer is merged with the lines of the caller's step that were decided here.
    Merge(Box<(OwnedStep, LocalLines)>),
}

pub(super) enum FirstPass {
    Done(Result<(), StoreError>),
    /// A take that has to wait for draws or for the engine.
    Pending(Box<(OwnedStep, Pending)>),
    AsksEngine(Box<Asking>),
}

pub(super) enum Pending {
    /// Draws are awaited first, each until the given tick at most.
    Waits(SmallVec<[(Drawing, Tick); 2]>),
    Engine(Box<LocalLines>),
}

/// The lines that are decided here, `None` for those that the engine decides, and the units that were taken for them.
pub(super) struct LocalLines {
    pub(super) lines: SmallVec<[Option<ChargeAnswer>; 4]>,
    pub(super) held: HeldUnits,
}

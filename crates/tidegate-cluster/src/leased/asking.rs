//! Asks the engine to decide steps, one by one or many in one exchange; merges its decisions with what this node decided,
//! and updates leases by its answers.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Retry, Tick};
use tidegate_limits::clock::before;
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Ending, Executed, Execution, Later, Op, OwnedStep, Step, StepAnswer,
    StoreError,
};

use super::draws::{Awaited, Return};
use super::leasable::Terms;
use super::lease::GivenBack;
use super::request::Portion;
use super::state::{LeasedState, TermsOfLines, ask, ask_each, by_the_engine, keep_abandoned, widen};
use super::table::{ChargeSettings, Drawing, LeasedKey};

/// How often a request waits for draws before the engine decides it alone.
const ROUNDS: usize = 1;

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
        if executed.by == DecidedBy::Engine {
            self.took(self.clock.now().since(sent));
        }
        self.record_answer(&asked, &executed, sent);
        match on_answer {
            OnAnswer::Merge(merged) => {
                let (step, local) = *merged;
                self.merge(&step, local, &asked, &terms, executed).await
            }
            OnAnswer::Tell => {
                widen(&mut executed, &terms);
                keep_abandoned(asked.with(|step| step.receipts), &mut executed, &terms);
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

impl LeasedState {
    pub(super) fn ask_for_the_rest(&self, step: &OwnedStep, local: LocalLines) -> Box<Asking> {
        if local.held.portions.is_empty() && local.lines.iter().all(Option::is_none) {
            return step.with(|step| self.ask_for_all(step));
        }
        let (terms, asked) = step.with(|step| {
            let terms = self.terms_of(step);
            let charges = by_the_engine(step, &terms);
            let theirs: SmallVec<[Charge<'_>; 4]> = charges
                .iter()
                .zip(&local.lines)
                .filter(|(_, line)| line.is_none())
                .map(|(charge, _)| *charge)
                .collect();
            (terms.clone(), OwnedStep::of(&Step { receipts: true, charges: &theirs, ..*step }))
        });
        Box::new(Asking { asked, terms, on_answer: OnAnswer::Merge(Box::new((step.clone(), local))) })
    }

    /// Returns the step for the engine if it decides all charges, under the engine's limits.
    pub(super) fn ask_for_all(&self, step: &Step<'_>) -> Box<Asking> {
        let terms = self.terms_of(step);
        let charges = by_the_engine(step, &terms);
        let asked = OwnedStep::of(&Step { charges: &charges, ..*step });
        drop(charges);
        Box::new(Asking { asked, terms, on_answer: OnAnswer::Tell })
    }

    pub(super) async fn merge(
        self: &Arc<Self>,
        step: &OwnedStep,
        local: LocalLines,
        theirs: &OwnedStep,
        terms: &TermsOfLines,
        executed: Executed,
    ) -> StepAnswer {
        let LocalLines { lines, held } = local;
        if executed.by == DecidedBy::Fallback {
            // A step is decided in one place only, so that its charges can be ended there; here the fallback decides
            // all of it.
            drop(held);
            if let Some(undo) =
                theirs.with(|step| OwnedStep::undoing(step, &executed)).filter(|_| executed.allowed)
            {
                let _ = ask(&*self.engine, &undo).await;
            }
            let asking = step.with(|step| self.ask_for_all(step));
            let sent = self.clock.now();
            let mut executed = self.ask_engine(&asking.asked).await?;
            self.record_answer(&asking.asked, &executed, sent);
            widen(&mut executed, &asking.terms);
            return Ok(executed);
        }
        let allowed = executed.allowed;
        if allowed {
            held.admit();
        } else {
            drop(held);
        }
        let mut theirs = executed.lines.into_iter();
        let mut merged = Executed { lines: SmallVec::new(), ..executed };
        for line in lines {
            let line = match line {
                Some(line) => ChargeAnswer { receipt: line.receipt.filter(|_| allowed), ..line },
                None => theirs.next().ok_or_else(|| StoreError::Unavailable {
                    reason: "it answered fewer charges than it was asked".to_owned(),
                })?,
            };
            merged.lines.push(line);
        }
        widen(&mut merged, terms);
        keep_abandoned(step.with(|step| step.receipts), &mut merged, terms);
        Ok(merged)
    }

    /// Updates leases by the engine's answer: which requests need not be asked about again, and which may be.
    pub(super) fn record_answer(&self, asked: &OwnedStep, executed: &Executed, sent: Tick) {
        asked.with(|step| match step.op {
            Op::Take | Op::Peek => self.record_decisions(step, executed, sent),
            Op::Finish(endings) if executed.allowed => self.record_endings(step, endings, executed),
            Op::Reset => step.charges.iter().for_each(|charge| self.forget(charge.key)),
            _ => {}
        });
    }

    fn record_decisions(&self, step: &Step<'_>, executed: &Executed, sent: Tick) {
        if executed.by == DecidedBy::Fallback {
            return;
        }
        let takes = matches!(step.op, Op::Take);
        let at_once = |(charge, _): &(&Charge<'_>, _)| charge.max_wait.is_zero();
        for (charge, line) in step.charges.iter().zip(&executed.lines).filter(at_once) {
            match line.decision.ruling {
                Ruling::Denied { retry: Retry::After(after) } if takes => {
                    self.with_lease_of(charge, |entry| {
                        entry.lease.refused_alone(charge.cost, charge.kept_back, after, sent);
                        entry.lease.note(line.decision.standing.remaining, 0, sent);
                    });
                }
                Ruling::Allowed { .. } => self.with_lease_of(charge, |entry| {
                    let remaining = line.decision.standing.remaining;
                    entry.lease.would_be_granted(charge.cost, charge.kept_back, remaining);
                    let taken = if takes && executed.allowed { charge.cost.units() } else { 0 };
                    entry.lease.note(remaining, taken, sent);
                }),
                Ruling::Denied { .. } => {}
            }
        }
    }

    /// Units that came back through this node may be drawn again at once; those that came back elsewhere are noticed
    /// when a refusal expires.
    fn record_endings(&self, step: &Step<'_>, endings: &[Ending], executed: &Executed) {
        let by_engine = executed.by != DecidedBy::Fallback;
        for ((charge, ending), line) in step.charges.iter().zip(endings).zip(&executed.lines) {
            match ending {
                Ending::Forget => self.forget(charge.key),
                Ending::Finish { receipt, finish, .. } if by_engine && finish.used < receipt.cost.units() => {
                    let (now, remaining) = (self.clock.now(), line.decision.standing.remaining);
                    self.with_lease_of(charge, |entry| entry.lease.units_came_back(remaining, now));
                }
                Ending::Finish { .. } | Ending::Extend { .. } | Ending::Once => {}
            }
        }
    }

    /// Calls a function with the entry of a charge in the engine's form, if there is one under that limit.
    fn with_lease_of(&self, charge: &Charge<'_>, then: impl FnOnce(&mut LeasedKey)) {
        let hash = self.table.hash(charge.key);
        if let Some(entry) = self.table.lock(hash).get(hash, charge.key)
            && entry.lease.terms.engine == *charge.quota
        {
            then(entry);
        }
    }
}

/// Units taken by a request that is not yet admitted; put back when dropped.
pub(super) struct HeldUnits {
    pub(super) inner: Arc<LeasedState>,
    pub(super) portions: SmallVec<[TakenUnits; 4]>,
}

/// Units that were taken out of a lease, and the lease's identity.
pub(super) struct TakenUnits {
    pub(super) hash: u64,
    pub(super) key: Arc<[u8]>,
    /// The terms of the lease. If the key has others by now, its lease is a new one that does not count these units.
    pub(super) terms: Arc<Terms>,
    pub(super) settings: ChargeSettings,
    pub(super) portion: Portion,
}

impl HeldUnits {
    pub(super) fn admit(mut self) {
        for TakenUnits { hash, key, terms, portion, .. } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            if let Some(entry) = shard.get_under(hash, &key, &terms) {
                entry.lease.release(&portion);
            }
        }
    }
}

/// The request is not admitted: the units that it holds are put back.
impl Drop for HeldUnits {
    fn drop(&mut self) {
        let (mut returns, now) = (Vec::new(), self.inner.clock.now());
        let part = self.inner.part.at(now);
        for TakenUnits { hash, key, terms, settings, portion } in self.portions.drain(..) {
            let mut shard = self.inner.table.lock(hash);
            shard.granted = shard.granted.saturating_sub(1);
            match shard.get_under(hash, &key, &terms) {
                Some(entry) => {
                    let mut back = GivenBack::new();
                    entry.lease.release(&portion);
                    entry.lease.put_back(&portion, now, &mut back);
                    returns.extend(LeasedState::returns(entry, back));
                }
                None if terms.may_give(portion.cost.units(), part) => {
                    let receipt = portion.receipt(&terms.engine);
                    returns.push(Return { key, terms, settings, receipt });
                }
                None => {
                    self.inner.counts.burned.fetch_add(portion.cost.units(), Ordering::Relaxed);
                }
            }
        }
        self.inner.give_back(returns);
    }
}

/// The statistics of this node's leases, for metrics; totals count since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseHealth {
    /// Keys with units held or with recent requests.
    pub keys: usize,
    /// Units in batches that could be spent now, plus units taken by requests that wait for another limit's engine. The
    /// sum for one key over all nodes is the most by which admissions may exceed the engine's limit.
    pub outstanding: u64,
    /// Units drawn that may not be spent yet.
    pub reserved: u64,
    /// Charges granted out of batches.
    pub granted: u64,
    /// Charges refused without asking the engine.
    pub refused: u64,
    /// Steps decided by the engine, in whole or in part.
    pub central: u64,
    /// Calls to the engine: draws, units given back, and steps that it decided.
    pub messages: u64,
    /// How many of these calls were draws.
    pub draws: u64,
    /// Units drawn.
    pub drawn: u64,
    /// Units given back, because they were not needed in time.
    pub returned: u64,
    /// Units that come back at the rate only: drawn to be set aside, held too long far from the engine, or sent back
    /// without an answer. Counted at the next [`Leased::tick`](super::Leased::tick).
    pub burned: u64,
}

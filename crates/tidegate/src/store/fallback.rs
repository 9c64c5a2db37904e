//! What happens when an engine is gone: decided here, and nowhere else.
//!
//! A [`Fallback`] is a store around an engine's. While the engine answers it hands steps on and adds nothing to what is answered on the
//! spot; what is answered later gets a deadline. A step that the engine cannot decide goes by the words of its charges
//! ([`OnStoreError`]): it passes, is refused, or is decided by a store of this process, which grants this node's part of the limit.
//!
//! # Which errors count
//! [`StoreError::Unavailable`], which the deadline is too: the step is decided here, and so are the next ones (see [Outages](#outages)).
//! [`StoreError::Contended`], [`StoreError::Corrupt`] and [`StoreError::CellTooLarge`] speak of keys and not of the engine: that step is
//! decided here, the next one is the engine's again. All others are mistakes of the caller and returned.
//!
//! # Outages
//! With the first step that is not answered the engine counts as gone. Steps are then decided at once, without waiting; one of them at a
//! time, each a stated interval after the one before, asks the engine and waits until the deadline, as a probe. When one is answered
//! the engine is back. Each change is told once ([`FallbackBuilder::on_change`]), whatever the traffic.
//!
//! A step that missed its deadline is dropped, and not awaited in the background: an engine that hangs would collect a step for each
//! request, with a connection each. It may have been done all the same, so its caller may be charged twice, in the engine and here. Never does
//! that let through more.
//!
//! # The bound
//! Of a charge with [`OnStoreError::Local`] each unit counts as many times as there are nodes ([`FallbackBuilder::nodes`]). So `N` nodes that
//! are told of each other grant together *at most what the limit grants, and one request on each node more*: that of a caller who asks
//! for more than the node's part. Such a request passes where the part is full, and what it took too much is owed.
//!
//! Two kinds of limits do not remember what is owed. Those that count windows forget it when the window ends: where a window has not
//! enough for one request on each node, each node grants one in each window, and with fewer in the window than nodes that is more than
//! its limit. Places of a bulkhead are not owed either: with fewer places than nodes there is one on each. A window that begins with its
//! first charge begins on each node for itself.
//!
//! That bound holds beside the engine, which has granted what it has granted before: a key that was empty there starts anew here. Over an
//! outage and the time before it: at most twice the limit, and `N` requests more.
//!
//! # What is ended where
//! What was charged here is ended here ([`Charge::by_fallback`]), whether the engine is back or not, and what was charged by the engine
//! there: while it is gone, that is an error and may be told again. A step that ends charges of both is divided. Marks
//! ([`Ending::Once`]) go with the engine's. The engine is asked first: it alone may refuse or fail, and then nothing is ended here. If its
//! answer is lost after it has settled, and the step is told again, its mark refuses, and what was charged here stays charged.

mod breaker;
mod share;
mod stand_in;

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;

use breaker::{Breaker, Probe, Told, Way};
pub use breaker::{Change, Health};
use stand_in::StandIn;

#[cfg(doc)]
use super::OnStoreError;
use super::{
    Answer, Caps, Charge, Ending, Home, Later, Occupancy, Op, OwnedStep, Settled, Settling, Step, Store,
    StoreError, one_by_one,
};
use crate::clock::Clock;

/// How long an engine has to answer, unless another time is chosen: far beyond what one in the same building takes, and as long as a
/// caller hardly notices.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// How long after one probe the next one is, unless another time is chosen: an engine that is back is asked again within about a
/// second, and one that hangs keeps one request a second waiting.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A store that decides by itself what an engine cannot; see the [module](self).
///
/// Cheap to clone; clones are the same store. While the engine answers, a step costs one load more.
///
/// # Examples
/// ```
/// use tidegate::SystemClock;
/// use tidegate::store::Fallback;
/// # use tidegate::store::MemoryStore;
/// # let engine = MemoryStore::with_capacity(8);
/// let store = Fallback::around(engine, SystemClock::new())
///     .nodes(3)
///     .on_change(|change| eprintln!("{}: {}", if change.up { "back" } else { "gone" }, change.reason))
///     .build();
/// assert!(store.health().is_up());
/// ```
#[derive(Clone, Debug)]
pub struct Fallback {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    breaker: Arc<Breaker>,
    stand_in: StandIn,
    deadline: Duration,
}

/// Makes a [`Fallback`].
#[must_use = "a fallback is made by `build`"]
pub struct FallbackBuilder {
    engine: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    probe_every: Duration,
    nodes: u64,
    told: Option<Box<Told>>,
}

impl FallbackBuilder {
    /// Chooses how long the engine has to answer; [`DEADLINE`] unless chosen. Of no meaning for answers on the spot.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Chooses how long after one probe of an engine that is gone the next one is; [`PROBE_EVERY`] unless chosen.
    pub const fn probe_every(mut self, interval: Duration) -> Self {
        self.probe_every = interval;
        self
    }

    /// Says how many nodes there are; 1 unless it is said, 0 counts as 1. See [`Fallback::set_nodes`].
    pub const fn nodes(mut self, nodes: u64) -> Self {
        self.nodes = nodes;
        self
    }

    /// Has somebody told when the engine goes and when it is back: one call each, however many requests there are.
    ///
    /// Called on the thread of the step that found out, outside every lock; changes that follow each other closely on different
    /// threads may arrive in another order, which [`Change::at`] tells.
    pub fn on_change(mut self, told: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(told));
        self
    }

    /// Makes the store.
    #[must_use]
    pub fn build(self) -> Fallback {
        let Self { engine, clock, deadline, probe_every, nodes, told } = self;
        let breaker = Arc::new(Breaker::new(probe_every, told));
        Fallback {
            shared: Arc::new(Shared { engine, clock, breaker, stand_in: StandIn::new(nodes), deadline }),
        }
    }
}

impl fmt::Debug for FallbackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackBuilder")
            .field("engine", &self.engine)
            .field("deadline", &self.deadline)
            .field("probe_every", &self.probe_every)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Fallback {
    /// Begins one around an engine's store; the clock, which should be the gate's, tells when the engine is late.
    pub fn around(engine: impl Store + 'static, clock: impl Clock + 'static) -> FallbackBuilder {
        FallbackBuilder {
            engine: Arc::new(engine),
            clock: Arc::new(clock),
            deadline: DEADLINE,
            probe_every: PROBE_EVERY,
            nodes: 1,
            told: None,
        }
    }

    /// Returns whether the engine is asked, since when, and how much was decided without it.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.breaker.health()
    }

    /// Says how many nodes there are from now on, for charges with [`OnStoreError::Local`]; 0 counts as 1. What was charged before stays
    /// charged, as much as it was, and is ended by the number it was charged under.
    pub fn set_nodes(&self, nodes: u64) {
        self.shared.stand_in.nodes.set(nodes, self.shared.clock.now());
    }
}

impl Store for Fallback {
    fn settle_into(&self, step: &Step<'_>, out: &mut Settled) -> Settling {
        match step.op {
            Op::Take | Op::Peek => self.shared.decide(step, out),
            Op::Finish(endings) => self.shared.finish(step, endings, out),
            Op::Reset => self.shared.reset(step, out),
        }
    }

    fn settle_each(&self, steps: &[Step<'_>], out: &mut Vec<Answer>) -> Option<Later<Vec<Answer>>> {
        if steps.iter().all(|step| matches!(step.op, Op::Take | Op::Peek)) {
            self.shared.decide_each(steps, out)
        } else {
            // Charges that end are the engine's or this process's, each for itself.
            one_by_one(self, steps, out)
        }
    }

    fn occupancy(&self) -> Occupancy {
        self.shared.engine.occupancy()
    }

    fn caps(&self) -> Caps {
        self.shared.engine.caps()
    }

    fn home(&self) -> Home {
        self.shared.engine.home()
    }

    fn home_of(&self, by_fallback: bool) -> Home {
        if by_fallback { self.shared.stand_in.store().home() } else { self.home() }
    }
}

impl Shared {
    fn way(&self) -> Way {
        self.breaker.way(|| self.clock.now())
    }

    /// Settles a step that takes or looks.
    fn decide(self: &Arc<Self>, step: &Step<'_>, out: &mut Settled) -> Settling {
        let mut probe = match self.way() {
            Way::Without => return Settling::Done(self.without(step, out)),
            Way::Engine => None,
            Way::Probe(probe) => Some(probe),
        };
        match self.engine.settle_into(step, out) {
            Settling::Done(Ok(())) if probe.is_none() => Settling::Done(Ok(())),
            Settling::Done(done) => Settling::Done(match self.judge(done, probe.as_mut()) {
                Err(error) if is_decided_here(&error) => self.without(step, out),
                done => done,
            }),
            Settling::Later(later) => {
                let (shared, step) = (Arc::clone(self), OwnedStep::of(step));
                Settling::Later(Box::pin(async move {
                    match shared.in_time(later, probe).await {
                        Err(error) if is_decided_here(&error) => shared.without_late(&step),
                        answer => answer,
                    }
                }))
            }
        }
    }

    /// Settles many steps that take or look, in one exchange.
    fn decide_each(
        self: &Arc<Self>,
        steps: &[Step<'_>],
        out: &mut Vec<Answer>,
    ) -> Option<Later<Vec<Answer>>> {
        let probe = match self.way() {
            Way::Without => {
                out.clear();
                out.extend(steps.iter().map(|step| self.without_answer(step)));
                return None;
            }
            Way::Engine => None,
            Way::Probe(probe) => Some(probe),
        };
        let Some(later) = self.engine.settle_each(steps, out) else {
            self.judge_each(out, probe);
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

    /// Has the engine alone settle a step: what it does not settle is an error.
    fn ask(self: &Arc<Self>, step: &Step<'_>, out: &mut Settled) -> Settling {
        let mut probe = match self.way() {
            Way::Without => return Settling::Done(Err(self.gone())),
            Way::Engine => None,
            Way::Probe(probe) => Some(probe),
        };
        match self.engine.settle_into(step, out) {
            Settling::Done(done) => Settling::Done(self.judge(done, probe.as_mut())),
            Settling::Later(later) => {
                let shared = Arc::clone(self);
                Settling::Later(Box::pin(async move { shared.in_time(later, probe).await }))
            }
        }
    }

    fn reset(self: &Arc<Self>, step: &Step<'_>, out: &mut Settled) -> Settling {
        match self.ask(step, out) {
            Settling::Done(done) => Settling::Done(done.inspect(|()| self.stand_in.reset(step))),
            Settling::Later(later) => {
                let (shared, step) = (Arc::clone(self), OwnedStep::of(step));
                Settling::Later(Box::pin(async move {
                    let settled = later.await?;
                    step.with(|step| shared.stand_in.reset(step));
                    Ok(settled)
                }))
            }
        }
    }

    fn finish(self: &Arc<Self>, step: &Step<'_>, endings: &[Ending], out: &mut Settled) -> Settling {
        if !step.charges.iter().any(|charge| charge.by_fallback) {
            return self.ask(step, out);
        }
        let lines = || step.charges.iter().zip(endings);
        if lines().all(|(charge, ending)| charge.by_fallback || matches!(ending, Ending::Once)) {
            return Settling::Done(self.stand_in.finish(step, endings, out));
        }
        let part = |here: bool| -> (Charges<'_>, Endings) {
            let lines = lines().filter(|(charge, _)| charge.by_fallback == here);
            lines.map(|(charge, ending)| (*charge, *ending)).unzip()
        };
        let ((theirs, their_endings), (ours, our_endings)) = (part(false), part(true));
        let their_step = Step { op: Op::Finish(&their_endings), charges: &theirs, ..*step };
        let our_step = Step { op: Op::Finish(&our_endings), charges: &ours, ..*step };
        let mut settled = Settled::default();
        match self.ask(&their_step, &mut settled) {
            Settling::Done(done) => Settling::Done(done.and_then(|()| {
                *out = self.finish_ours(settled, step, &our_step)?;
                Ok(())
            })),
            Settling::Later(later) => {
                let (shared, step, our_step) =
                    (Arc::clone(self), OwnedStep::of(step), OwnedStep::of(&our_step));
                Settling::Later(Box::pin(async move {
                    let settled = later.await?;
                    step.with(|step| our_step.with(|ours| shared.finish_ours(settled, step, ours)))
                }))
            }
        }
    }

    /// Ends what was charged here, when the engine has ended what was charged there; returns the answer to the whole step.
    fn finish_ours(&self, theirs: Settled, step: &Step<'_>, our_step: &Step<'_>) -> Answer {
        let mut ours = Settled::default();
        if theirs.allowed {
            let Op::Finish(endings) = our_step.op else { return Ok(theirs) };
            self.stand_in.finish(our_step, endings, &mut ours)?;
        } else {
            ours.lines.extend(our_step.charges.iter().map(|charge| stand_in::unasked(charge, step.now)));
        }
        let mut settled = Settled { lines: SmallVec::new(), ..theirs };
        let (mut theirs, mut ours) = (theirs.lines.into_iter(), ours.lines.into_iter());
        let next = |charge: &Charge<'_>| if charge.by_fallback { ours.next() } else { theirs.next() };
        settled.lines.extend(step.charges.iter().filter_map(next));
        Ok(settled)
    }

    /// Waits for the engine until the deadline.
    async fn in_time(&self, later: Later<Answer>, mut probe: Option<Probe>) -> Answer {
        if probe.is_none() && self.breaker.is_down() {
            // It has gone since this step was made: the engine is not asked.
            return Err(self.gone());
        }
        if let Some(probe) = &mut probe {
            probe.asks();
        }
        let answer = self.before_deadline(later).await.unwrap_or_else(|| Err(self.late()));
        self.judge(answer, probe.as_mut())
    }

    /// Waits for many answers like [`Shared::in_time`].
    async fn each_in_time(
        &self,
        later: Later<Vec<Answer>>,
        count: usize,
        mut probe: Option<Probe>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        if probe.is_none() && self.breaker.is_down() {
            answers.resize_with(count, || Err(self.gone()));
            return answers;
        }
        if let Some(probe) = &mut probe {
            probe.asks();
        }
        answers = self.before_deadline(later).await.unwrap_or_default();
        answers.resize_with(count, || Err(self.late()));
        self.judge_each(&answers, probe);
        answers
    }

    async fn before_deadline<T>(&self, mut later: Later<T>) -> Option<T> {
        let until = self.clock.now().after(self.deadline);
        let mut sleep = self.clock.sleep_until(until);
        poll_fn(|cx| {
            if let Poll::Ready(answer) = later.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            while sleep.as_mut().poll(cx).is_ready() {
                if self.clock.now() >= until {
                    return Poll::Ready(None);
                }
                // Sleeps may end early.
                sleep = self.clock.sleep_until(until);
            }
            Poll::Pending
        })
        .await
    }

    /// Draws from an answer whether the engine is there.
    fn judge<T>(&self, answer: Result<T, StoreError>, probe: Option<&mut Probe>) -> Result<T, StoreError> {
        match &answer {
            Err(StoreError::Unavailable { reason }) => self.breaker.fails(reason, self.clock.now()),
            _ if probe.is_some() => self.breaker.answers(self.clock.now()),
            _ => {}
        }
        if let Some(probe) = probe {
            probe.asks();
        }
        answer
    }

    /// Draws from many answers whether the engine is there: one that is not given says that it is not.
    fn judge_each(&self, answers: &[Answer], mut probe: Option<Probe>) {
        let unavailable = answers.iter().find(|answer| matches!(answer, Err(StoreError::Unavailable { .. })));
        match unavailable {
            Some(Err(error)) => drop(self.judge::<()>(Err(error.clone()), probe.as_mut())),
            _ => drop(self.judge(Ok(()), probe.as_mut())),
        }
    }

    /// Decides a step without the engine.
    fn without(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        self.breaker.counts();
        self.stand_in.decide(step, out)
    }

    fn without_answer(&self, step: &Step<'_>) -> Answer {
        let mut settled = Settled::default();
        self.without(step, &mut settled).map(|()| settled)
    }

    /// Decides a step without the engine that was waited for.
    fn without_late(&self, step: &OwnedStep) -> Answer {
        let now = self.clock.now();
        step.with(|step| self.without_answer(&Step { now: step.now.max(now), ..*step }))
    }

    fn gone(&self) -> StoreError {
        StoreError::Unavailable { reason: self.breaker.reason().to_string() }
    }

    fn late(&self) -> StoreError {
        let reason = format!("no answer within {} ms", self.deadline.as_millis());
        StoreError::Unavailable { reason }
    }
}

/// Charges and endings of a part of a step.
type Charges<'a> = SmallVec<[Charge<'a>; 4]>;
type Endings = SmallVec<[Ending; 4]>;

/// Says whether the words of the charges decide where an engine says this; see [the module](self#which-errors-count).
const fn is_decided_here(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable { .. }
            | StoreError::Contended { .. }
            | StoreError::Corrupt { .. }
            | StoreError::CellTooLarge { .. }
    )
}

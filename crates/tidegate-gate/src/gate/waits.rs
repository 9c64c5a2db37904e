//! Whether a caller waits for engines and how long, the values that let it choose, and what becomes of an answer whose
//! caller goes away.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use tidegate_core::Tick;

use super::{Check, Gate};
use crate::policy::{Descriptor, Line, PolicySet, shortest_time_left, state_time_left};
use tidegate_limits::Background;
use tidegate_limits::clock;
use tidegate_limits::deadline::Deadline;
use tidegate_limits::store::{
    Executed, Execution, Later, OwnedStep, Step, StepAnswer, StepClock, Store, StoreError,
};

/// What happens if an engine answers later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The caller waits for the answer.
    Yes,
    /// The caller cannot wait and gets an error; the engine is not asked.
    No,
    /// No caller wants the answer: the engine is asked in the background.
    Unwatched,
}

/// Runs a future that never has to wait. Panics if it does.
pub(super) fn run_without_waiting<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("nothing is awaited where the caller cannot wait"),
    }
}

/// How far something is that is asked at the first poll.
pub(super) enum Progress<'a, T> {
    /// Nobody was asked yet.
    Asked,
    /// Engines are being asked.
    Waits(BoxFuture<'a, Result<T, StoreError>>),
    /// The answer was handed out.
    Over,
}

impl<T> Progress<'_, T> {
    /// Polls what is being awaited. Panics if the answer was handed out before, or nobody was asked.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, StoreError>> {
        let Self::Waits(later) = self else { unreachable!("polled after its answer was handed out") };
        let polled = later.as_mut().poll(cx);
        if polled.is_ready() {
            *self = Self::Over;
        }
        polled
    }
}

/// Something that stores are asked when the answer is wanted: at once by [`Asking::now`], or awaited as a future, which also
/// waits for engines that answer later.
///
/// Each method that returns one says what its answer is, and what a future that is dropped before completion leaves behind.
/// Dropped before it was polled, it has asked nobody. Takes two allocations.
#[must_use = "nobody is asked before the answer is wanted: call `now`, or await it"]
pub struct Asking<'a, T>(Stage<'a, T>);

enum Stage<'a, T> {
    Asked(Box<dyn FnOnce(Waits) -> BoxFuture<'a, T> + Send + 'a>),
    Waits(BoxFuture<'a, T>),
    Over,
}

impl<'a, T> Asking<'a, T> {
    /// Makes an answer that `ask` finds, for a caller that waits or does not.
    pub(crate) fn new<F>(ask: impl FnOnce(Waits) -> F + Send + 'a) -> Self
    where
        F: Future<Output = T> + Send + 'a,
    {
        Self(Stage::Asked(Box::new(move |waits| Box::pin(ask(waits)))))
    }

    /// Asks without waiting. Where an engine would have to be asked, the answer is [`StoreError::MustWait`], and that engine
    /// was not asked.
    ///
    /// # Panics
    /// If the future was polled before.
    pub fn now(self) -> T {
        let Stage::Asked(ask) = self.0 else { panic!("not polled before") };
        run_without_waiting(ask(Waits::No))
    }
}

impl<T> Future for Asking<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let stage = &mut self.0;
        let mut later = match std::mem::replace(stage, Stage::Over) {
            Stage::Asked(ask) => ask(Waits::Yes),
            Stage::Waits(later) => later,
            Stage::Over => unreachable!("polled after its answer was handed out"),
        };
        let polled = later.as_mut().poll(cx);
        if polled.is_pending() {
            *stage = Stage::Waits(later);
        }
        polled
    }
}

impl<T> fmt::Debug for Asking<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
    }
}

/// An answer that is awaited. If dropped after the first poll but before completion, it continues in the background,
/// since the engine may be at work by then. If dropped before the first poll, the engine was not asked.
pub(super) struct InFlight<'a, T> {
    later: Option<Later<T>>,
    polled: bool,
    background: &'a Background,
    /// What is done with an answer that the caller no longer waits for.
    then: &'a (dyn Fn(Later<T>) -> Later<()> + Sync),
}

impl<'a, T> InFlight<'a, T> {
    pub(super) fn new(
        later: Later<T>,
        background: &'a Background,
        then: &'a (dyn Fn(Later<T>) -> Later<()> + Sync),
    ) -> Self {
        Self { later: Some(later), polled: false, background, then }
    }
}

impl<'a> InFlight<'a, StepAnswer> {
    /// Awaits an answer. If the caller goes away, the answer is awaited in the background and then dropped.
    pub(super) fn to_its_end(later: Later<StepAnswer>, background: &'a Background) -> Self {
        Self::new(later, background, &|later| Box::pin(async move { drop(later.await) }))
    }
}

impl<T> Future for InFlight<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.polled = true;
        // Taken out during the poll, so that a future that panics is not polled again, in the background or anywhere
        // else.
        let mut later = self.later.take().expect("polled until it is ready");
        let polled = later.as_mut().poll(cx);
        if polled.is_pending() {
            self.later = Some(later);
        }
        polled
    }
}

impl<T> Drop for InFlight<'_, T> {
    fn drop(&mut self) {
        if let Some(later) = self.later.take().filter(|_| self.polled) {
            self.background.run((self.then)(later));
        }
    }
}

impl Gate {
    /// Has a store execute a step; `None` if no caller waits for the answer. If the caller goes away, the engine executes
    /// the step all the same.
    pub(super) async fn ask(&self, store: usize, step: &Step<'_>, waits: Waits) -> Option<StepAnswer> {
        let mut executed = Executed::default();
        let later = match self.routes.store(store).execute_into(step, &mut executed) {
            Execution::Done(done) => return Some(self.told(done.map(|()| executed))),
            Execution::Later(later) => later,
        };
        match waits {
            Waits::Yes => Some(self.told(InFlight::to_its_end(later, &self.background).await)),
            // Dropped without being polled, so the engine is not asked.
            Waits::No => Some(Err(StoreError::MustWait)),
            Waits::Unwatched => {
                self.background.run(Box::pin(async move { drop(later.await) }));
                None
            }
        }
    }

    /// Tells the observer what an answer says of guards, and returns it.
    fn told(&self, mut answer: StepAnswer) -> StepAnswer {
        if let Ok(executed) = &mut answer {
            self.tell_moved(&mut executed.moved);
        }
        answer
    }

    /// Has a store execute a step that was kept, with the present tick.
    pub(super) async fn ask_again(&self, store: usize, step: &OwnedStep, waits: Waits) -> Option<StepAnswer> {
        let now = self.time.now();
        let mut executed = Executed::default();
        let asked = step.with(|step| {
            let step = Step { now, clock: StepClock::Engine, ..*step };
            self.routes.store(store).execute_into(&step, &mut executed)
        });
        match (asked, waits) {
            (Execution::Done(done), _) => Some(self.told(done.map(|()| executed))),
            (Execution::Later(later), Waits::Yes) => {
                Some(self.told(InFlight::to_its_end(later, &self.background).await))
            }
            (Execution::Later(later), _) => {
                self.background.run(Box::pin(async move { drop(later.await) }));
                None
            }
        }
    }
}

/// Waits for the answers to steps, and undoes what they charged. A step that is `None` needs no undoing.
pub(super) fn undo_later(
    store: Arc<dyn Store>,
    steps: Vec<Option<OwnedStep>>,
    later: Later<Vec<StepAnswer>>,
) -> Later<()> {
    Box::pin(async move {
        if steps.iter().all(Option::is_none) {
            // All steps were peeks.
            return;
        }
        for (step, answer) in steps.iter().zip(later.await) {
            let (Some(step), Ok(executed)) = (step, answer) else { continue };
            let undoing = step.with(|step| OwnedStep::undoing(step, &executed)).filter(|_| executed.allowed);
            let Some(undoing) = undoing else { continue };
            let asked = undoing.with(|step| store.execute_into(step, &mut Executed::default()));
            if let Execution::Later(later) = asked {
                // If this fails, the charges stay until time returns them.
                drop(later.await);
            }
        }
    })
}

impl Gate {
    /// Adds to a request's description how long its caller still waits, as the attribute `request.header.grpc-timeout`:
    /// for a caller whose deadline is known otherwise than from the described headers, such as the one that the task
    /// [carries](tidegate_limits::deadline::carried). Adds nothing if no policy in force has a
    /// [deadline](crate::Policy::deadline), or if the description states no more time than this
    /// ([`time_left`](crate::policy::time_left)).
    ///
    /// [`Check::deadline`](field@Check::deadline) does not do this: it is the time until which an answer of the gate is
    /// useful, and a proxy that asks for a decision may wait less time for it than its client waits for the request.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota, Tick};
    ///
    /// let mut search = Policy::new("search", Limit::new(Quota::per_second(50).gcra()?, "50/s"));
    /// search.deadline = Some(Duration::from_millis(200));
    /// let gate = Gate::in_memory(PolicySet::new(vec![search])?, 1000)?.with_clock(ManualClock::default());
    ///
    /// let mut request = Descriptor::new();
    /// gate.state_time_left(&mut request, Tick::from_nanos(100_000_000));
    /// assert!(!gate.check(&request).now()?.allowed, "100 ms are left, and it needs 200");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state_time_left(&self, request: &mut Descriptor<'_>, until: impl Into<Deadline>) {
        if self.policies.load().has_deadlines() {
            let until = until.into().at(self.time.clock());
            state_time_left(request, until.since(self.time.now()));
        }
    }

    /// Awaits a future until a deadline by the gate's clock; `None` if it was not ready by then. It is polled at least once.
    ///
    /// For the end of an admission, whose caller should not wait for it without a bound: an engine that is being asked
    /// settles its part in the background then ([`Finishing`](super::Finishing)).
    ///
    /// # Cancel safety
    /// Dropping it drops the future.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::policy::PolicySet;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::in_memory(PolicySet::default(), 1000)?;
    /// assert_eq!(gate.within(gate.now(), async { 7 }).await, Some(7));
    /// assert_eq!(gate.within(gate.now(), std::future::pending::<u32>()).await, None);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn within<T>(
        &self,
        deadline: impl Into<Deadline>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let until = deadline.into().at(self.time.clock());
        self.before(Some(until), future).await
    }

    /// Awaits a future until a deadline, if there is one; `None` if the future was not ready by then.
    pub(super) async fn before<T>(
        &self,
        deadline: Option<Tick>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        match deadline {
            None => Some(future.await),
            Some(deadline) => clock::before(self.time.clock(), deadline, future).await,
        }
    }

    /// Returns the tick of a check's deadline, by the gate's clock.
    #[inline]
    pub(super) fn tick_of(&self, check: &Check<'_, '_>) -> Option<Tick> {
        check.deadline.map(|deadline| deadline.at(self.time.clock()))
    }

    /// Shortens the delays that queues may accept, so that none ends after the check's deadline or after the caller has
    /// stopped waiting.
    ///
    /// The time in the request's headers bounds delays only: an engine that is given up at a time that the caller chose
    /// would leave the decision to its fallback, so a caller could get through by sending a header.
    #[inline]
    pub(super) fn shorten_waits(
        &self,
        policies: &PolicySet,
        at: Tick,
        check: &Check<'_, '_>,
        lines: &mut [Line<'_>],
    ) {
        if policies.delays() {
            self.shorten(at, check, lines);
        }
    }

    #[inline(never)]
    fn shorten(&self, at: Tick, check: &Check<'_, '_>, lines: &mut [Line<'_>]) {
        let until_deadline = self.tick_of(check).map(|deadline| deadline.since(at));
        let said = shortest_time_left(check.request).map(|(left, ..)| left);
        let Some(left) = until_deadline.into_iter().chain(said).min() else { return };
        for line in lines {
            line.max_wait = line.max_wait.min(left);
        }
    }
}

//! One kind of work within requests, held to the time that is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::deadline::Timeouts;
use tidegate_core::{Outcome, Tick};

use super::{Deadline, carried, carry_through};
use crate::clock;
use crate::clock::{Clock, SystemClock};
use crate::observer::{Observer, StepDid};

/// One kind of work within requests, such as a query: how long it may take, how long it takes at least, and how often
/// there was not enough time for it. Clones share the counts.
///
/// The work gets the smaller of its own time and the time left until the deadline that the task [carries](carried()),
/// or until the default deadline if it carries none. Work that cannot be done in the time left is not begun.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::Tick;
/// use tidegate::clock::ManualClock;
/// use tidegate::deadline::{self, OutOfTime, Step, Timeouts};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tidegate::QuotaError> {
/// let millis = Duration::from_millis;
/// // A query: 500 ms at most, and never done in less than 20.
/// let query = Step::new(Timeouts::new(millis(1000), millis(10_000))?)
///     .within(millis(500))
///     .needing(millis(20))
///     .with_clock(ManualClock::default());
///
/// assert_eq!(query.run(async { "a row" }).await, Ok("a row"));
/// let hurried = deadline::carry_through(Tick::from_nanos(19_000_000), query.run(async { "a row" }));
/// assert_eq!(hurried.await, Err(OutOfTime::NotBegun));
/// assert_eq!((query.counts().begun, query.counts().not_begun), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Step {
    timeouts: Timeouts,
    own: Option<Duration>,
    needs: Duration,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Debug, Default)]
struct Counters {
    begun: AtomicU64,
    not_begun: AtomicU64,
    cut_off: AtomicU64,
}

/// How often work was begun, and how often there was not enough time for it. Each number is exact, but they are not
/// read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// How often work was begun.
    pub begun: u64,
    /// How often work was not begun, because it could not have been done in the time left.
    pub not_begun: u64,
    /// How often work was begun, and dropped when its time was up, however long that time was.
    pub cut_off: u64,
}

/// Why work has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfTime {
    /// It cannot be done in the time that is left; it was not begun.
    #[error("not enough time is left for the work; it was not begun")]
    NotBegun,
    /// Its time was up, and it was dropped. It had at least half of the time that it usually has: the shorter of the
    /// step's own time and the default.
    #[error("the work was not done in its time")]
    CutOff,
    /// The deadline that the task carries passed, and it was dropped. Less than half of its usual time was left when it
    /// began, which says nothing of the work.
    #[error("the work was not done in the short time that was left for it")]
    CutShort,
}

impl OutOfTime {
    /// Returns the outcome to report to a breaker or a permit: [`Outcome::Failure`] for [`OutOfTime::CutOff`], else
    /// [`Outcome::Ignored`].
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::CutOff => Outcome::Failure,
            Self::NotBegun | Self::CutShort => Outcome::Ignored,
        }
    }
}

/// Why work that can fail has no result: see [`Step::try_run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError<E> {
    /// There was not enough time for it.
    #[error(transparent)]
    Late(OutOfTime),
    /// It failed in time.
    #[error(transparent)]
    Failed(E),
}

impl<E> StepError<E> {
    /// Returns the outcome to report: that of [`OutOfTime::outcome`], or [`Outcome::Failure`] for work that failed.
    /// Work that was not begun, or that was cut short, is [`Outcome::Ignored`].
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Late(late) => late.outcome(),
            Self::Failed(_) => Outcome::Failure,
        }
    }
}

impl Step {
    /// Makes a step with these rules, without a limit of its own.
    #[must_use]
    pub fn new(timeouts: Timeouts) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self { timeouts, own: None, needs: Duration::ZERO, clock, counters: Arc::default(), observer: None }
    }

    /// Sets the longest time that the work gets, however much is left.
    #[must_use]
    pub fn within(self, own: Duration) -> Self {
        Self { own: Some(own), ..self }
    }

    /// Sets the least time that the work takes: with less left it is not begun. Zero by default. With more than
    /// [`Step::within`] or than the ceiling of the rules, no work is ever begun.
    #[must_use]
    pub fn needing(self, least: Duration) -> Self {
        Self { needs: least, ..self }
    }

    /// Sets the clock; the [`SystemClock`] by default.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Tells `observer` what became of work that is run through the returned step and its clones
    /// ([`Observer::on_step`]). Costs a reading of the clock for work that is done.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Runs work, which carries the deadline of its step, and drops it at that deadline. Work that is ready when
    /// first polled is in time. For work that can fail, see [`Step::try_run`].
    ///
    /// Run it inside a breaker or a permit, not around them: if they are dropped at the deadline, they report no outcome,
    /// and a service that hangs never opens the breaker.
    ///
    /// # Errors
    /// [`OutOfTime`], which is counted.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, OutOfTime> {
        let Some((began, time)) = self.time() else {
            // Relaxed, here and below: each count is independent.
            self.counters.not_begun.fetch_add(1, Ordering::Relaxed);
            self.tell(|| StepDid::NotBegun);
            return Err(OutOfTime::NotBegun);
        };
        self.counters.begun.fetch_add(1, Ordering::Relaxed);
        let until = began.after(time);
        let done = clock::before(&*self.clock, until, carry_through(until, work)).await;
        if done.is_some() {
            self.tell(|| StepDid::Done { took: self.clock.now().since(began) });
        }
        done.ok_or_else(|| {
            self.counters.cut_off.fetch_add(1, Ordering::Relaxed);
            let usual =
                self.own.map_or(self.timeouts.default_time(), |own| own.min(self.timeouts.default_time()));
            let (late, did) = if time < usual / 2 {
                (OutOfTime::CutShort, StepDid::CutShort)
            } else {
                (OutOfTime::CutOff, StepDid::CutOff)
            };
            self.tell(|| did);
            late
        })
    }

    fn tell(&self, did: impl FnOnce() -> StepDid) {
        if let Some(observer) = &self.observer {
            observer.on_step(did());
        }
    }

    /// Same as [`Step::run`], for work that returns a `Result`: one error for work that is late and for work that
    /// fails.
    ///
    /// # Errors
    /// [`StepError::Late`] if the time did not suffice, [`StepError::Failed`] with the error of the work.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work.
    ///
    /// # Examples
    /// A breaker around a service that hangs and fails:
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::{CallError, CircuitBreaker};
    /// use tidegate::deadline::{OutOfTime, Step, StepError, Timeouts};
    /// use tidegate::Breaker;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tidegate::QuotaError> {
    /// let ten = Duration::from_millis(10);
    /// let step = Step::new(Timeouts::new(ten, ten)?);
    /// let breaker = Breaker::new(CircuitBreaker::builder().consecutive(2))?;
    ///
    /// let hangs = std::future::pending::<Result<u32, std::fmt::Error>>();
    /// let late = breaker.run(step.try_run(hangs)).await;
    /// assert_eq!(late, Err(CallError::Failed(StepError::Late(OutOfTime::CutOff))));
    /// let failed = breaker.run(step.try_run(async { Err::<u32, _>(std::fmt::Error) })).await;
    /// assert_eq!(failed, Err(CallError::Failed(StepError::Failed(std::fmt::Error))));
    /// assert_eq!(breaker.state().as_str(), "open", "both counted");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If strangers choose the deadline that the task carries, let [`StepError::outcome`] judge. Then a caller who
    /// leaves no time opens no breaker.
    pub async fn try_run<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, StepError<E>> {
        match self.run(work).await {
            Ok(result) => result.map_err(StepError::Failed),
            Err(late) => Err(StepError::Late(late)),
        }
    }

    /// Returns how often work was begun, and how often there was not enough time for it.
    #[must_use]
    pub fn counts(&self) -> StepCounts {
        let Counters { begun, not_begun, cut_off } = &*self.counters;
        let [begun, not_begun, cut_off] =
            [begun, not_begun, cut_off].map(|count| count.load(Ordering::Relaxed));
        StepCounts { begun, not_begun, cut_off }
    }

    /// Returns the present tick, and how much time work that begins now has; `None` if that is too little.
    fn time(&self) -> Option<(Tick, Duration)> {
        let now = self.clock.now();
        let deadline =
            carried().map_or_else(|| self.timeouts.deadline(now, None), |at: Deadline| at.at(&*self.clock));
        let time = self.timeouts.for_step(now, deadline, self.own)?;
        self.timeouts.leaves(now, now.after(time), self.needs).then_some((now, time))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::block_on::block_on;
    use crate::clock::ManualClock;
    use crate::deadline::carry;

    const SECOND: Duration = Duration::from_secs(1);

    fn step() -> (Step, ManualClock) {
        let clock = ManualClock::default();
        let timeouts = Timeouts::new(2 * SECOND, 10 * SECOND).expect("times");
        (Step::new(timeouts).with_clock(clock.clone()), clock)
    }

    #[test]
    fn the_work_carries_the_least_of_what_bounds_it() {
        let (step, _) = step();
        let finds = |step: &Step| block_on(step.run(async { carried() })).unwrap();
        let at = |secs| Some(Deadline::from(Tick::from_secs(secs)));
        assert_eq!(finds(&step), at(2), "the default");
        assert_eq!(finds(&step.clone().within(SECOND)), at(1), "its own");
        assert_eq!(carry(Tick::from_secs(5), || finds(&step)), at(5), "what is left");
        assert_eq!(carry(Tick::from_secs(99), || finds(&step)), at(10), "the ceiling");
        assert_eq!(carry(Tick::from_secs(5), || finds(&step.clone().within(SECOND))), at(1), "its own");
    }

    #[test]
    fn work_that_cannot_be_done_is_neither_polled_nor_left_uncounted() {
        let (step, _) = step();
        let never = async { unreachable!("there is no time for it") };
        assert_eq!(carry(Tick::EPOCH, || block_on(step.run(never))), Err::<(), _>(OutOfTime::NotBegun));
        let needs_two = step.clone().needing(2 * SECOND);
        assert_eq!(block_on(needs_two.run(async { 1 })), Ok(1), "exactly enough");
        let needs_more = step.clone().needing(2 * SECOND + Duration::from_nanos(1));
        assert_eq!(block_on(needs_more.run(async { 1 })), Err(OutOfTime::NotBegun));
        let own = step.clone().within(SECOND).needing(2 * SECOND);
        assert_eq!(block_on(own.run(async { 1 })), Err(OutOfTime::NotBegun), "its own time is too short");
        assert_eq!(step.counts(), StepCounts { begun: 1, not_begun: 3, cut_off: 0 });
    }

    #[test]
    fn work_is_dropped_when_its_time_is_up() {
        let (step, clock) = step();
        let mut run = pin!(step.run(pending::<()>()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(run.as_mut().poll(&mut cx).is_pending());
        clock.advance(2 * SECOND - Duration::from_nanos(1));
        assert!(run.as_mut().poll(&mut cx).is_pending());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(OutOfTime::CutOff)));
        assert_eq!(step.counts(), StepCounts { begun: 1, not_begun: 0, cut_off: 1 });
    }

    /// A caller that leaves little time must not make the work look as if it hung.
    #[test]
    fn work_that_had_less_than_half_of_its_usual_time_was_cut_short() {
        let (step, clock) = step();
        let own = step.clone().within(SECOND / 2);
        // Half of the default of 2 s, and half of the own time of 500 ms.
        for (step, millis, late) in [
            (&step, 999, OutOfTime::CutShort),
            (&step, 1000, OutOfTime::CutOff),
            (&own, 249, OutOfTime::CutShort),
            (&own, 250, OutOfTime::CutOff),
            (&own, 9000, OutOfTime::CutOff),
        ] {
            let until = clock.now().after(Duration::from_millis(millis));
            let mut run = Box::pin(carry_through(until, step.run(pending::<()>())));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(run.as_mut().poll(&mut cx).is_pending());
            clock.advance(SECOND);
            assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(late)), "{millis} ms");
        }
        assert_eq!(step.counts().cut_off, 5, "both kinds");
    }

    #[derive(Debug, Default)]
    struct Heard(parking_lot::Mutex<Vec<StepDid>>);

    impl Observer for Heard {
        fn on_step(&self, did: StepDid) {
            self.0.lock().push(did);
        }
    }

    #[test]
    fn an_observer_hears_of_work_in_time_and_of_work_that_was_late() {
        let heard = Arc::new(Heard::default());
        let (step, clock) = step();
        let step = step.with_observer(heard.clone());
        let takes = |time| {
            let clock = clock.clone();
            async move { clock.advance(time) }
        };
        assert_eq!(block_on(step.run(takes(SECOND))), Ok(()));
        assert_eq!(carry(Tick::EPOCH, || block_on(step.run(takes(SECOND)))), Err(OutOfTime::NotBegun));
        for millis in [1000, 999] {
            let until = clock.now().after(Duration::from_millis(millis));
            let mut run = Box::pin(carry_through(until, step.run(pending::<()>())));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(run.as_mut().poll(&mut cx).is_pending());
            clock.advance(SECOND);
            assert!(run.as_mut().poll(&mut cx).is_ready());
        }
        let expected =
            [StepDid::Done { took: SECOND }, StepDid::NotBegun, StepDid::CutOff, StepDid::CutShort];
        assert_eq!(*heard.0.lock(), expected);
    }
}

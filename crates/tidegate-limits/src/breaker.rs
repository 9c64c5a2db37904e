//! Circuit breakers: they refuse calls to a service that fails until it answers again.
//!
//! The rules are those of [`CircuitBreaker`] in `tidegate-core`.

mod calls;
mod keyed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::refusal_reason::RefusalReason;
pub use calls::Call;
use calls::{BreakerCore, Entered, Refused, refused};
pub use keyed::KeyedBreaker;
pub use tidegate_core::breaker::{
    BreakerBuilder, Cause, Change, CircuitBreaker, CircuitBreakerState, Condition, Evaluate, Figure, Force,
    Forced, Judgement, SentinelRule, Totals, Window, WouldTrip,
};
use tidegate_core::{Outcome, QuotaError, Receipt};

use crate::answer::Denied;
use crate::clock::{Clock, SystemClock, Time};
use crate::duration_text::in_words;
use crate::observer::Observer;

/// Refuses calls to a service while it fails, and admits them again step by step.
///
/// A clone shares the state. Entering and leaving each take one short lock and one clock reading. A closed breaker
/// allocates only for the first call in an empty window. A breaker takes about 200 bytes plus its window: a quarter of
/// a byte for each call in a window of calls, or twelve bytes for each bucket in a window of time.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::breaker::CircuitBreaker;
/// use tidegate::clock::ManualClock;
/// use tidegate::{Breaker, Outcome};
///
/// let clock = ManualClock::default();
/// let payments = Breaker::new(CircuitBreaker::builder().consecutive(2).jitter(0.0))?.with_clock(clock.clone());
/// for _ in 0..2 {
///     payments.try_enter()?.leave(Outcome::Failure);
/// }
/// assert_eq!(payments.state().as_str(), "open");
/// assert!(payments.try_enter().is_err(), "nobody calls for five seconds");
///
/// clock.advance(Duration::from_secs(5));
/// let probe = payments.try_enter()?;
/// drop(probe); // reports no outcome, and lets another call probe
/// assert_eq!(payments.state().as_str(), "half-open");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Around a call that fails:
/// ```
/// use tidegate::Breaker;
/// use tidegate::breaker::{CallError, CircuitBreaker};
///
/// let breaker = Breaker::new(CircuitBreaker::hystrix())?;
/// let read = breaker.blocking_run(|| std::fs::read_to_string("/no/such/file"));
/// assert!(matches!(read, Err(CallError::Failed(_))), "it was tried, and counts as a failure");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone)]
pub struct Breaker {
    shared: Arc<BreakerCore>,
}

impl Breaker {
    /// Makes a closed breaker on the [`SystemClock`]. For a breaker with default settings, begin with
    /// [`CircuitBreaker::builder`].
    ///
    /// # Errors
    /// [`QuotaError`] names the setting that is out of range.
    pub fn new<L>(law: L) -> Result<Self, QuotaError>
    where
        L: TryInto<CircuitBreaker>,
        QuotaError: From<L::Error>,
    {
        Ok(Self::build(law.try_into()?, Time::new(SystemClock::new()), None))
    }

    fn build(law: CircuitBreaker, time: Time, observer: Option<Arc<dyn Observer>>) -> Self {
        Self { shared: Arc::new(BreakerCore::new(law, time, observer)) }
    }

    /// Returns a breaker on `clock`. A construction step: the result is closed, and shares nothing with earlier
    /// clones.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let BreakerCore { law, observer, .. } = &*self.shared;
        Self::build(law.clone(), Time::new(clock), observer.clone())
    }

    /// Returns a breaker that reports its changes of state to `observer` ([`Observer::on_change`]), and each call that
    /// it refuses or that ends ([`Observer::on_call`]). A layer of `tidegate-tower` around the breaker reports the same
    /// calls to an observer of its own: count one of the two. A construction step.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        let BreakerCore { law, time, .. } = &*self.shared;
        Self::build(law.clone(), time.new_like(), Some(Arc::new(observer)))
    }

    /// Enters the breaker without waiting. Report the outcome by [`Call::leave`].
    ///
    /// # Errors
    /// [`Denied`]: while open, with the time until the first probe. With [`Retry::Unknown`](tidegate_core::Retry::Unknown)
    /// while the allowed number of probes is in flight, or while a person holds it open without an end.
    pub fn try_enter(&self) -> Result<Call, Denied> {
        if self.shared.observer.is_some() {
            return self.enter_with_reason().map_err(|refusal| refusal.denied);
        }
        self.shared.enter_unobserved().map(|receipt| self.call(receipt)).map_err(refused)
    }

    fn call(&self, receipt: Receipt) -> Call {
        Call::new(Entered::Breaker(Arc::clone(&self.shared)), receipt)
    }

    /// Awaits `work` if the breaker admits it. `Ok` counts as success and `Err` as failure. Refused work is dropped
    /// without being polled.
    ///
    /// # Errors
    /// [`CallError`]: the refusal, or the error of the work.
    ///
    /// # Cancel safety
    /// If the future is dropped before it ends, it counts neither as success nor as failure, and a probe's place
    /// becomes free.
    pub async fn run<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, CallError<E>> {
        let call = self.enter_to_run()?;
        let result = work.await;
        call.leave(by_result(&result));
        result.map_err(CallError::Failed)
    }

    /// Awaits `work` if the breaker admits it; `classify` turns its result into an outcome.
    ///
    /// # Errors
    /// [`Denied`], as [`Breaker::try_enter`].
    ///
    /// # Cancel safety
    /// As [`Breaker::run`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Breaker, Outcome};
    /// use tidegate::breaker::CircuitBreaker;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let breaker = Breaker::new(CircuitBreaker::builder().consecutive(1))?;
    /// let status = breaker.run_with(async { 404 }, |status| Outcome::from_status(*status)).await?;
    /// assert_eq!((status, breaker.state().as_str()), (404, "closed"), "the caller's own fault");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with<T>(
        &self,
        work: impl Future<Output = T>,
        classify: impl FnOnce(&T) -> Outcome,
    ) -> Result<T, Denied> {
        let call = self.try_enter()?;
        let result = work.await;
        call.leave(classify(&result));
        Ok(result)
    }

    /// Runs `work` on this thread if the breaker admits it. `Ok` counts as success and `Err` as failure. A panic
    /// propagates, and counts as neither.
    ///
    /// # Errors
    /// [`CallError`]: the refusal, or the error of the work.
    pub fn blocking_run<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>> {
        let call = self.enter_to_run()?;
        let result = work();
        call.leave(by_result(&result));
        result.map_err(CallError::Failed)
    }

    fn enter_to_run<E>(&self) -> Result<Call, CallError<E>> {
        self.enter_with_reason().map_err(CallError::Refused)
    }

    /// Enters the breaker without waiting, as [`Breaker::try_enter`], and says why it refuses.
    ///
    /// # Errors
    /// [`Refusal`], in the same cases.
    #[inline(never)]
    pub fn enter_with_reason(&self) -> Result<Call, Refusal> {
        let entered = self.shared.enter(|receipt| self.call(receipt));
        entered.map_err(Refusal::of)
    }

    /// Returns the current condition of the breaker.
    #[must_use]
    pub fn state(&self) -> Condition {
        self.shared.with_state(CircuitBreaker::condition)
    }

    /// Returns the calls that count now: those in the window while closed, those of the current step while half-open.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.shared.with_state(CircuitBreaker::totals)
    }

    /// Returns the state that a person has forced the breaker into, until when, and why; `None` if it is not forced.
    #[must_use]
    pub fn forced(&self) -> Option<Forced> {
        self.shared.with_state(CircuitBreaker::forced)
    }

    /// Forces the breaker into a state, for `time`, or until [`Breaker::auto`] if that is `None`. The reason is for
    /// people; its first 255 bytes are kept. Replaces an earlier forced state; a `time` of zero only ends it.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Breaker;
    /// use tidegate::breaker::{CircuitBreaker, Force};
    ///
    /// let search = Breaker::new(CircuitBreaker::builder())?;
    /// search.force(Force::Open, Some(Duration::from_secs(600)), "the index is being rebuilt");
    /// assert!(search.try_enter().is_err());
    /// assert_eq!(search.forced().map(|forced| forced.reason().to_owned()).as_deref(), Some("the index is being rebuilt"));
    /// search.auto();
    /// assert!(search.try_enter().is_ok(), "a probe");
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn force(&self, to: Force, time: Option<Duration>, reason: &str) {
        self.shared.force(|now| Some(Forced::new(to, time.map(|time| now.after(time)), reason)));
    }

    /// Ends a forced state: from now on the outcomes of calls decide the state again. After [`Force::Open`] the service
    /// is tried by probes first.
    pub fn auto(&self) {
        self.shared.force(|_| None);
    }

    /// Returns the parameters of the breaker.
    #[must_use]
    pub fn law(&self) -> &CircuitBreaker {
        &self.shared.law
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("state", &self.state()).finish_non_exhaustive()
    }
}

/// A refusal by a breaker: the call was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The refusal in the form that all limits share.
    pub denied: Denied,
    /// Why the breaker refused.
    pub reason: RefusalReason,
}

impl Refusal {
    fn of(Refused { retry, reason }: Refused) -> Self {
        Self { denied: refused(retry), reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            RefusalReason::Open => f.write_str("the breaker is open")?,
            RefusalReason::HalfOpen => {
                f.write_str(
                    "the breaker lets no more calls through while it tries the service, until one of them ends or has \
                     lasted for its `ttl`",
                )?;
            }
            RefusalReason::Shedding => {
                f.write_str("the breaker refuses a share of the calls, because the service fails")?;
            }
            RefusalReason::Forced(forced) if forced.reason().is_empty() => {
                f.write_str("the breaker was forced open")?;
            }
            RefusalReason::Forced(forced) => write!(f, "the breaker was forced open: {}", forced.reason())?,
        }
        match self.denied.retry().after() {
            Some(wait) => write!(f, "; retry after {}", in_words(wait)),
            None => Ok(()),
        }
    }
}

/// Why a call through a breaker has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError<E> {
    /// The breaker refused it: the call was not made.
    #[error("{0}")]
    Refused(Refusal),
    /// The call was made and failed.
    #[error(transparent)]
    Failed(E),
}

const fn by_result<T, E>(result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(_) => Outcome::Failure,
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, tidegate_loom))]
mod loom_model {
    //! A few callers in all interleavings: the bound on probes holds, no probe is lost, and the breaker never gets stuck.

    use std::sync::Arc as Plain;
    use std::sync::atomic::{AtomicU64 as Count, Ordering};
    use std::time::Duration;

    use loom::thread;

    use super::*;
    use crate::clock::ManualClock;
    use crate::sync::explore;

    const SECOND: Duration = Duration::from_secs(1);

    /// A breaker that has tripped and whose open time is over. It uses a manual clock from the start, because loom would
    /// track the atomics of the system clock.
    fn tripped(probes: u64, steps: u8) -> (Breaker, ManualClock) {
        let clock = ManualClock::default();
        let law = CircuitBreaker::builder()
            .consecutive(1)
            .open_for(SECOND)
            .growth(1.0)
            .jitter(0.0)
            .probes(probes)
            .ttl(SECOND)
            .judgement(Judgement::Successes(1))
            .steps(steps);
        let breaker = Breaker::build(law.build().unwrap(), Time::new(clock.clone()), None);
        breaker.try_enter().unwrap().leave(Outcome::Failure);
        clock.advance(SECOND);
        (breaker, clock)
    }

    /// Enters if it may, and leaves with `outcome`, or by dropping if that is `None`; returns whether it entered.
    fn call(breaker: &Breaker, inside: &Count, most: u64, outcome: Option<Outcome>) -> bool {
        let Ok(call) = breaker.try_enter() else { return false };
        let is_probe = breaker.state().as_str() == "half-open";
        let others = inside.fetch_add(1, Ordering::SeqCst);
        assert!(!is_probe || others < most, "more probes than may be in flight");
        inside.fetch_sub(1, Ordering::SeqCst);
        match outcome {
            Some(outcome) => call.leave(outcome),
            None => drop(call),
        }
        true
    }

    /// Checks that a while later, whatever has happened, a call enters and good calls close the breaker.
    fn recovers(breaker: &Breaker, clock: &ManualClock) {
        for _ in 0..4 {
            clock.advance(2 * SECOND);
            breaker.try_enter().expect("it is not stuck").leave(Outcome::Success);
        }
        assert_eq!(breaker.state(), Condition::Closed);
    }

    /// Three calls try at once: one hangs up, one fails, one succeeds.
    #[test]
    fn probes_stay_within_the_bound_however_they_end() {
        explore(None, || {
            let (breaker, clock) = tripped(1, 0);
            let inside = Plain::new(Count::new(0));
            let spawn = |outcome| {
                let (breaker, inside) = (breaker.clone(), Plain::clone(&inside));
                thread::spawn(move || call(&breaker, &inside, 1, outcome))
            };
            let (cancelled, failed) = (spawn(None), spawn(Some(Outcome::Failure)));
            let entered = call(&breaker, &inside, 1, Some(Outcome::Success));
            let entered = [cancelled.join().unwrap(), failed.join().unwrap(), entered];
            assert!(entered.contains(&true), "somebody tries");
            recovers(&breaker, &clock);
        });
    }

    /// Cancelled probes give their places back, so the next call enters.
    #[test]
    fn a_cancelled_probe_leaves_its_place_to_the_next() {
        explore(None, || {
            let (breaker, _) = tripped(1, 0);
            let (one, inside) = (breaker.clone(), Plain::new(Count::new(0)));
            let other = Plain::clone(&inside);
            let cancelled = thread::spawn(move || {
                for _ in 0..2 {
                    call(&one, &other, 1, None);
                }
            });
            for _ in 0..2 {
                call(&breaker, &inside, 1, None);
            }
            cancelled.join().unwrap();
            assert!(matches!(breaker.state(), Condition::HalfOpen { in_flight: 0, .. }));
            assert!(breaker.try_enter().is_ok());
        });
    }

    /// A probe is lost while another ends. Its place comes back with time, and its late outcome changes nothing.
    #[test]
    fn a_lost_probe_strands_nobody() {
        explore(None, || {
            let (breaker, clock) = tripped(2, 1);
            let lost = breaker.try_enter().unwrap();
            let other = breaker.clone();
            let inside = Plain::new(Count::new(0));
            let another = Plain::clone(&inside);
            let fails = thread::spawn(move || {
                // Two calls in sequence: before the lost call's place is free, and after that.
                call(&other, &another, 2, Some(Outcome::Ignored));
                call(&other, &another, 2, Some(Outcome::Failure));
            });
            clock.advance(SECOND);
            call(&breaker, &inside, 2, Some(Outcome::Success));
            lost.leave(Outcome::Success);
            fails.join().unwrap();
            recovers(&breaker, &clock);
        });
    }

    /// A person opens it while a probe closes it: the forced state wins.
    #[test]
    fn a_forced_state_holds_whatever_ends_meanwhile() {
        explore(None, || {
            let (breaker, clock) = tripped(1, 0);
            let other = breaker.clone();
            let probe = thread::spawn(move || {
                for outcome in [Outcome::Success, Outcome::Failure] {
                    if let Ok(call) = other.try_enter() {
                        call.leave(outcome);
                    }
                }
            });
            breaker.force(Force::Open, None, "by hand");
            assert!(breaker.try_enter().is_err());
            probe.join().unwrap();
            assert_eq!(breaker.state().as_str(), "forced-open");
            breaker.auto();
            recovers(&breaker, &clock);
        });
    }
}

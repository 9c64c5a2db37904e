//! Retries: repeats calls where that may help, within a budget that all callers share.

pub mod header;

use std::sync::Arc;

use parking_lot::Mutex;
pub use tidegate_core::retry::{Pushback, Retries, Stop, Tried};
pub use tidegate_core::retry_budget::RetryBudget;
use tidegate_core::retry_budget::RetryBudgetState;
use tidegate_core::{Outcome, QuotaError, Tick};

use crate::clock::{Clock, SystemClock};
use crate::deadline;
use crate::observer::{Observer, RetryDecided};
use crate::rng::Rng;

/// A retry budget that clones share: use one for each called service in each calling process.
///
/// Counting a call and asking for a retry each take one short lock.
///
/// # Examples
/// ```
/// use tidegate::retries::{RetryBudget, SharedBudget};
///
/// let budget = SharedBudget::new(RetryBudget::new(0.1)?.without_floor());
/// for _ in 0..20 {
///     budget.call();
/// }
/// assert!(budget.retry() && budget.clone().retry());
/// assert!(!budget.retry(), "a tenth of twenty calls");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedBudget {
    clock: Arc<dyn Clock>,
    rules: RetryBudget,
    state: Arc<Mutex<RetryBudgetState>>,
}

impl SharedBudget {
    /// Makes a full budget on the [`SystemClock`].
    #[must_use]
    pub fn new(rules: RetryBudget) -> Self {
        Self::with_clock(rules, SystemClock::new())
    }

    /// Makes a full budget on `clock`.
    #[must_use]
    pub fn with_clock(rules: RetryBudget, clock: impl Clock + 'static) -> Self {
        let state = Arc::new(Mutex::new(rules.start(clock.now())));
        Self { clock: Arc::new(clock), rules, state }
    }

    /// Counts a first try.
    pub fn call(&self) {
        let now = self.clock.now();
        self.rules.call(&mut self.state.lock(), now);
    }

    /// Asks for one retry, and spends it if it is granted.
    #[must_use = "a retry that was granted is spent"]
    pub fn retry(&self) -> bool {
        let now = self.clock.now();
        self.rules.retry(&mut self.state.lock(), now)
    }

    fn is_spent(&self) -> bool {
        let now = self.clock.now();
        self.rules.is_spent(&self.state.lock(), now)
    }
}

impl Default for SharedBudget {
    /// The default rules, on the system clock.
    fn default() -> Self {
        Self::new(RetryBudget::default())
    }
}

/// The result of one try, as its caller judges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// When the service asks to be retried, if it said so.
    pub pushback: Option<Pushback>,
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, pushback: None }
    }
}

/// Retries calls by rules, within a shared budget. Clones share the budget.
///
/// # Examples
/// ```
/// use tidegate::Outcome;
/// use tidegate::retries::Retrier;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let retrier = Retrier::default();
/// let mut tries = 0;
/// let (answer, stopped) = retrier
///     .run(
///         || {
///             tries += 1;
///             std::future::ready(if tries < 3 { Err("no connection") } else { Ok(42) })
///         },
///         |answer| match answer {
///             Ok(_) => Outcome::Success.into(),
///             Err(_) => Outcome::Failure.into(),
///         },
///     )
///     .await;
/// assert_eq!(answer, Ok(42));
/// assert!(stopped.is_none());
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Retrier {
    rules: Retries,
    budget: SharedBudget,
    clock: Arc<dyn Clock>,
    draws: Arc<Rng>,
    observer: Option<Arc<dyn Observer>>,
}

impl Default for Retrier {
    fn default() -> Self {
        Self::new(Retries::default(), SharedBudget::default())
    }
}

impl Retrier {
    /// Makes a retrier with `rules` and `budget`, on the budget's clock.
    #[must_use]
    pub fn new(rules: Retries, budget: SharedBudget) -> Self {
        let clock = Arc::clone(&budget.clock);
        Self { rules, budget, clock, draws: Arc::default(), observer: None }
    }

    /// Returns a retrier that reports each decision about a retry to `observer` ([`Observer::on_retry`]), as do its
    /// clones.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Some(Arc::new(observer)), ..self }
    }

    /// Makes a call, and repeats it where that may help: see [`Retries::next`]. The deadline is the one that the task
    /// [carries](crate::deadline::carried); without one there is none.
    ///
    /// Returns the last answer, and if it was not a success, the reason why it was not retried. A try that hangs is not
    /// ended: give each try a time limit within `call`, for example by a [`Step`](crate::deadline::Step).
    ///
    /// # Cancel safety
    /// Dropping the future drops the try in progress; retries that were granted stay spent.
    pub async fn run<T, F>(
        &self,
        mut call: impl FnMut() -> F,
        mut judge: impl FnMut(&T) -> Verdict,
    ) -> (T, Option<Stop>)
    where
        F: Future<Output = T>,
    {
        self.budget.call();
        let answer = call().await;
        let verdict = judge(&answer);
        self.run_on(answer, verdict, call, judge).await
    }

    /// Continues as [`Retrier::run`] does after a first try that the caller made and judged itself. The caller must
    /// have counted that try with [`SharedBudget::call`]. If the first try succeeded, this allocates nothing and does
    /// not wait.
    ///
    /// # Cancel safety
    /// As [`Retrier::run`].
    pub async fn run_on<T, F>(
        &self,
        first: T,
        verdict: Verdict,
        mut call: impl FnMut() -> F,
        mut judge: impl FnMut(&T) -> Verdict,
    ) -> (T, Option<Stop>)
    where
        F: Future<Output = T>,
    {
        let (mut answer, mut verdict, mut times) = (first, verdict, 1);
        loop {
            let Verdict { outcome, pushback } = verdict;
            if outcome == Outcome::Success {
                return (answer, None);
            }
            let deadline = deadline::carried().map_or(Tick::MAX, |deadline| deadline.at(&*self.clock));
            let wait = match self.after(&Tried { times, outcome, pushback }, deadline) {
                Ok(until) => until,
                Err(stop) => return (answer, Some(stop)),
            };
            drop(answer);
            self.wait_until(wait).await;
            times += 1;
            answer = call().await;
            verdict = judge(&answer);
        }
    }

    /// Decides what follows a try that did not succeed. Returns the tick of the next try, which is then spent from the
    /// budget.
    fn after(&self, tried: &Tried, deadline: Tick) -> Result<Tick, Stop> {
        let now = self.clock.now();
        let next = self.next(tried, now, deadline);
        if let Some(observer) = &self.observer {
            let Tried { times, outcome, .. } = *tried;
            observer.on_retry(&RetryDecided { at: now, times, outcome, next });
        }
        next
    }

    fn next(&self, tried: &Tried, now: Tick, deadline: Tick) -> Result<Tick, Stop> {
        let wait = self.rules.next(tried, now, deadline, self.draws.next())?;
        if self.budget.retry() { Ok(now.after(wait)) } else { Err(Stop::BudgetSpent) }
    }

    /// Returns the budget.
    #[must_use]
    pub const fn budget(&self) -> &SharedBudget {
        &self.budget
    }

    async fn wait_until(&self, tick: Tick) {
        // Sleeps may end early.
        while self.clock.now() < tick {
            self.clock.sleep_until(tick).await;
        }
    }
}

/// The default share of retries above which callers are told to stop: one for every two first tries.
const SHARE: f64 = 0.5;

/// Counts the first tries and the retries that arrive at a server, and decides whether there are so many retries that
/// callers must not try again.
///
/// A caller with the default [`RetryBudget`] sends at most one retry for five calls, and ten retries a second in
/// addition. If one retry arrives for every two first tries, many callers have no budget, and a third of the requests
/// of an overloaded server are retries. Clones share the counts.
///
/// # Examples
/// ```
/// use tidegate::retries::{ArrivingRetries, Pushback, header};
///
/// let arriving = ArrivingRetries::default();
/// // For each request, by the header that it has:
/// let tries_before = header::read_grpc_attempts(b"0").unwrap_or(0);
/// arriving.count(tries_before);
/// // If a request is refused because of overload:
/// assert_eq!(arriving.pushback(), None, "few are retries: callers may try again");
///
/// for _ in 0..100 {
///     arriving.count(1);
/// }
/// assert_eq!(arriving.pushback(), Some(Pushback::Never));
/// ```
///
/// # Source
/// "Handling Overload" in Google's *Site Reliability Engineering*, 2016, chapter 21: "overloaded; don't retry".
#[derive(Clone, Debug)]
pub struct ArrivingRetries {
    seen: SharedBudget,
}

impl ArrivingRetries {
    /// Tells callers to stop above this share of retries to first tries, 0 to 1, and above the floor of the default
    /// [`RetryBudget`].
    ///
    /// # Errors
    /// As [`RetryBudget::new`].
    pub fn above(share: f64) -> Result<Self, QuotaError> {
        RetryBudget::new(share).map(|budget| Self { seen: SharedBudget::new(budget) })
    }

    /// As [`ArrivingRetries::above`], with other rules and another clock.
    #[must_use]
    pub fn with_clock(rules: RetryBudget, clock: impl Clock + 'static) -> Self {
        Self { seen: SharedBudget::with_clock(rules, clock) }
    }

    /// Counts a request that was tried this many times before; 0 is a first try.
    ///
    /// The number is the caller's claim. Read it only from a header that callers you trust set, such as your own proxy.
    /// Otherwise a stranger could make the server tell all refused callers not to come back.
    pub fn count(&self, tries_before: u32) {
        if tries_before == 0 {
            self.seen.call();
        } else {
            // A retry beyond the share is not counted, so the answer changes as soon as first tries outweigh retries
            // again.
            let _ = self.seen.retry();
        }
    }

    /// Returns what to tell a caller who is refused because of overload: [`Pushback::Never`] while too many retries
    /// arrive, else `None`, which leaves the decision to the caller. [`header`] has the headers to
    /// write.
    #[must_use]
    pub fn pushback(&self) -> Option<Pushback> {
        self.seen.is_spent().then_some(Pushback::Never)
    }
}

impl Default for ArrivingRetries {
    /// Tells callers to stop above one retry for every two first tries, over ten seconds, and above ten retries a
    /// second.
    fn default() -> Self {
        Self { seen: SharedBudget::new(RetryBudget::new(SHARE).unwrap_or_default()) }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::block_on::block_on;
    use crate::clock::ManualClock;

    fn failing(retrier: &Retrier, verdict: Verdict) -> (u32, Option<Stop>) {
        let mut tries = 0;
        let call = || {
            tries += 1;
            std::future::ready(())
        };
        let ((), stopped) = block_on(retrier.run(call, |()| verdict));
        (tries, stopped)
    }

    fn retrier(tries: u32, share: f64) -> Retrier {
        let clock = ManualClock::default();
        let budget = RetryBudget::new(share).expect("a share").without_floor();
        let rules = Retries::new(tries, Duration::ZERO, Duration::ZERO).expect("rules");
        Retrier::new(rules, SharedBudget::with_clock(budget, clock))
    }

    #[test]
    fn a_service_that_is_down_gets_a_share_more_and_not_three_times_as_much() {
        let retrier = retrier(3, 0.2);
        let tries: u32 = (0..1000).map(|_| failing(&retrier, Outcome::Failure.into()).0).sum();
        assert_eq!(tries, 1200);
        assert_eq!(failing(&retrier, Outcome::Failure.into()), (1, Some(Stop::BudgetSpent)));
    }

    /// Threads that share a budget get no retry beyond the share of the calls, whichever of them makes the calls.
    #[test]
    fn threads_share_a_budget_exactly() {
        let clock = ManualClock::default();
        let budget = RetryBudget::new(0.1).expect("a share").without_floor();
        let budget = SharedBudget::with_clock(budget, clock.clone());
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let (budget, clock) = (budget.clone(), clock.clone());
                    scope.spawn(move || {
                        let granted = |_| {
                            budget.call();
                            clock.advance(Duration::from_micros(100));
                            usize::from(budget.retry())
                        };
                        (0..2500).map(granted).sum::<usize>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
        });
        assert_eq!(granted, 1000, "a tenth of 10,000 calls within one second");
    }

    #[test]
    fn what_is_not_worth_another_try_costs_no_budget() {
        let retrier = retrier(3, 1.0);
        assert_eq!(failing(&retrier, Outcome::CallersFault.into()), (1, Some(Stop::NotWorthIt)));
        let never = Verdict { outcome: Outcome::Overloaded, pushback: Some(Pushback::Never) };
        assert_eq!(failing(&retrier, never), (1, Some(Stop::PushedBack)));
        assert_eq!(
            failing(&retrier, Outcome::Failure.into()),
            (3, Some(Stop::TriedEnough)),
            "two of three calls' retries"
        );
    }

    #[test]
    fn a_deadline_that_the_task_carries_ends_the_tries() {
        let retrier = retrier(3, 1.0);
        let stopped = deadline::carry(Tick::EPOCH, || failing(&retrier, Outcome::Failure.into()));
        assert_eq!(stopped, (1, Some(Stop::NoTimeLeft)));
    }

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<RetryDecided>>);

    impl Observer for Heard {
        fn on_retry(&self, decided: &RetryDecided) {
            self.0.lock().push(*decided);
        }
    }

    #[test]
    fn an_observer_hears_of_each_further_try_and_why_there_is_none() {
        let heard = Arc::new(Heard::default());
        let retrier = retrier(3, 1.0).with_observer(heard.clone());
        (0..4).for_each(|_| retrier.budget().call());
        assert_eq!(failing(&retrier, Outcome::Failure.into()).0, 3);
        assert_eq!(failing(&retrier.clone(), Outcome::CallersFault.into()).0, 1);
        assert_eq!(failing(&retrier, Outcome::Success.into()).0, 1, "nothing is to be decided");
        let heard = heard.0.lock();
        let said: Vec<_> = heard.iter().map(|decided| (decided.times, decided.next.err())).collect();
        let expected = [(1, None), (2, None), (3, Some(Stop::TriedEnough)), (1, Some(Stop::NotWorthIt))];
        assert_eq!(said, expected);
        assert_eq!((heard[0].outcome, heard[0].next), (Outcome::Failure, Ok(heard[0].at)));
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod arriving_tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn callers_are_told_to_stop_only_while_retries_are_too_many() {
        let clock = ManualClock::default();
        let rules = RetryBudget::new(SHARE).unwrap().without_floor();
        let arriving = ArrivingRetries::with_clock(rules, clock.clone());
        let arrive = |first: u32, retries: u32| {
            (0..first).for_each(|_| arriving.count(0));
            (0..retries).for_each(|retry| arriving.count(1 + retry % 3));
            arriving.pushback()
        };
        assert_eq!(arrive(100, 10), None, "within a budget of a tenth");
        assert_eq!(arrive(0, 39), None);
        assert_eq!(arrive(0, 1), Some(Pushback::Never), "one for every two");
        assert_eq!(arrive(2, 0), None, "and one for less than two");
        clock.advance(Duration::from_secs(20));
        assert_eq!(arrive(0, 100), Some(Pushback::Never), "nothing but retries");
        assert_eq!(arrive(10, 0), None, "they were not counted beyond the share");
    }

    #[test]
    fn a_quiet_service_is_left_alone() {
        let arriving = ArrivingRetries::with_clock(RetryBudget::default(), ManualClock::default());
        for _ in 0..9 {
            arriving.count(1);
        }
        assert_eq!(arriving.pushback(), None, "ten retries in a second are no storm");
    }
}

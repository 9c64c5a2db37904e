//! Retry budgets: bounds the load that retries add to a share of the recent calls, plus a few retries for callers
//! that make hardly any calls. Without a bound, three tries at each of three services make 27 calls of one. Where a
//! service fails because it has too much to do, each retry adds to the cause.
//!
//! Calls and retries are counted in buckets of a tenth of the span. The few retries beyond the share return over time,
//! like the tokens of a bucket; a new caller has one second's worth of them at once, not those of the whole span.

use core::time::Duration;

use crate::algorithm::Algorithm;
use crate::decision::{Ask, Cost, Transition};
use crate::error::QuotaError;
use crate::rate::{Gcra, GcraState};
use crate::time::{Rate, Tick};
use crate::window::{Buckets, Sums};

/// The span is divided into this many buckets, which are counted and forgotten as a whole.
const BUCKETS: u32 = 10;

/// Which sum counts the calls, and which the retries that the share paid for, without those that the floor paid for.
const CALLS: usize = 0;
const RETRIES: usize = 1;

const WHOLE: u64 = 1_000_000;

/// The parameters of a retry budget: a share of the calls, and a floor for callers that make few. `Copy`.
///
/// The default is one fifth of the calls of the last ten seconds and ten retries a second more, as in Finagle,
/// linkerd and tower; the floor saves up one second's worth at most.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Tick, retry_budget::RetryBudget};
///
/// let budget = RetryBudget::new(0.1)?.without_floor();
/// let mut state = budget.start(Tick::EPOCH);
/// for _ in 0..30 {
///     budget.call(&mut state, Tick::EPOCH);
/// }
/// let granted = (0..10).filter(|_| budget.retry(&mut state, Tick::EPOCH)).count();
/// assert_eq!(granted, 3, "a tenth of thirty");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
///
/// # Source
/// "Addressing Cascading Failures" in Google's *Site Reliability Engineering*, 2016, chapter 22: a retry budget per client. The floor and the
/// span are Finagle's (`RetryBudget`), whose reserve may be spent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// The share of the calls, in millionths.
    share: u64,
    floor: Option<Gcra>,
    window: Buckets,
}

/// The state of a [`RetryBudget`]: two sums and a bucket of tokens, 80 bytes, and 160 bytes on the heap, allocated
/// at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryBudgetState {
    sums: Sums<2>,
    floor: Option<GcraState>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        let floor = Rate::new(10, Duration::from_secs(1)).and_then(|rate| Gcra::new(rate, 10));
        Self { share: WHOLE / 5, floor: floor.ok(), window: Buckets::known(10_000, BUCKETS) }
    }
}

impl RetryBudget {
    /// The longest span: an hour. A budget saved up for longer does not fit the current load.
    const MAX_SPAN: Duration = Duration::from_secs(3600);

    /// Makes a budget of a share of the calls, 0 to 1 and rounded to millionths, with the floor and the span of the default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when the share is not a number from 0 to 1.
    pub fn new(share: f64) -> Result<Self, QuotaError> {
        if !(0.0..=1.0).contains(&share) {
            let want = "is not a share of the calls; use 0 to 1, such as 0.2";
            return Err(QuotaError::Parameter { name: "share", value: share.to_string(), want });
        }
        // From 0 to 1,000,000.
        Ok(Self { share: (share * WHOLE as f64).round() as u64, ..Self::default() })
    }

    /// Sets the rate of retries granted beyond the share. It saves up one second's worth, at least one, for callers
    /// that make few calls.
    ///
    /// # Errors
    /// [`QuotaError`] when the rate and the burst that it saves up are not a valid limit.
    pub fn with_floor(self, rate: Rate) -> Result<Self, QuotaError> {
        let a_second = u128::from(rate.count()) * 1_000_000_000 / rate.period().as_nanos().max(1);
        let burst = u64::try_from(a_second).unwrap_or(u64::MAX).clamp(1, Rate::MAX_COUNT);
        Ok(Self { floor: Some(Gcra::new(rate, burst)?), ..self })
    }

    /// Grants nothing beyond the share: a caller that makes fewer calls in a span than one divided by the share has no retries.
    #[must_use]
    pub const fn without_floor(self) -> Self {
        Self { floor: None, ..self }
    }

    /// Sets the time for which calls and retries count, 10 ms to an hour. A tenth of it is
    /// forgotten at a time, so between nine tenths and all of it counts.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn with_span(self, span: Duration) -> Result<Self, QuotaError> {
        if span < Duration::from_millis(10) || span > Self::MAX_SPAN {
            let want = "is not a span to count calls in; use 10 ms to an hour";
            return Err(QuotaError::Parameter { name: "span", value: format!("{span:?}"), want });
        }
        Ok(Self { window: Buckets::new(span, BUCKETS)?, ..self })
    }

    /// Returns the state before the first call.
    #[must_use]
    pub fn start(&self, now: Tick) -> RetryBudgetState {
        RetryBudgetState {
            sums: Sums::new(self.window, now),
            floor: self.floor.map(|floor| floor.fresh(now)),
        }
    }

    /// Counts a call that is not a retry.
    pub fn call(&self, state: &mut RetryBudgetState, now: Tick) {
        self.advance(state, now);
        state.sums.count(CALLS);
    }

    /// Asks for one retry, and says whether it is granted. Only a granted retry is counted.
    #[must_use = "a retry that was granted is spent"]
    pub fn retry(&self, state: &mut RetryBudgetState, now: Tick) -> bool {
        self.advance(state, now);
        if self.share_left(state.sums.totals()) {
            state.sums.count(RETRIES);
            return true;
        }
        let (Some(floor), Some(tokens)) = (self.floor, &mut state.floor) else { return false };
        match floor.decide(tokens, Ask::allow(now, Cost::ONE)) {
            Transition::Allowed { next, .. } => {
                *tokens = next;
                true
            }
            Transition::Denied { .. } => false,
        }
    }

    /// Says whether a retry would be refused now. A server that counts arriving retries then tells its callers not to
    /// try again.
    #[must_use]
    pub fn is_spent(&self, state: &RetryBudgetState, now: Tick) -> bool {
        let set_back = state.sums.is_set_back(self.window, now);
        let floor_left = self.floor.zip(state.floor.as_ref());
        // After the clock was set back, the next call finds a new state, whose floor is full.
        let floor_left =
            floor_left.is_some_and(|(floor, tokens)| set_back || floor.standing(tokens, now).remaining > 0);
        !floor_left && !self.share_left(state.sums.totals_at(self.window, now))
    }

    fn share_left(&self, sums: [u64; 2]) -> bool {
        let [calls, retries] = sums.map(u128::from);
        (retries + 1) * u128::from(WHOLE) <= calls * u128::from(self.share)
    }

    /// Moves on to the bucket in which `now` lies. If the clock was set back by more than
    /// [`MAX_STEP_BACK`](crate::time::MAX_STEP_BACK), the state starts anew; a smaller step counts as none.
    fn advance(&self, state: &mut RetryBudgetState, now: Tick) {
        if state.sums.is_set_back(self.window, now) {
            *state = self.start(now);
        }
        state.sums.advance(self.window, now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn granted(budget: &RetryBudget, state: &mut RetryBudgetState, at: Tick, asks: usize) -> usize {
        (0..asks).filter(|_| budget.retry(state, at)).count()
    }

    fn calls(budget: &RetryBudget, state: &mut RetryBudgetState, at: Tick, calls: usize) {
        (0..calls).for_each(|_| budget.call(state, at));
    }

    /// tower's budget turns a share into whole calls per retry: 0.3 becomes a third, and every share above a half becomes one.
    #[test]
    fn a_share_is_exact() {
        for (share, expected) in
            [(0.0, 0), (0.1, 100), (0.2, 200), (0.3, 300), (0.6, 600), (0.75, 750), (1.0, 1000)]
        {
            let budget = RetryBudget::new(share).unwrap().without_floor();
            let mut state = budget.start(Tick::EPOCH);
            calls(&budget, &mut state, Tick::EPOCH, 1000);
            assert_eq!(granted(&budget, &mut state, Tick::EPOCH, 5000), expected, "{share}");
            assert!(budget.is_spent(&state, Tick::EPOCH));
        }
    }

    /// Finagle's reserve for ten seconds may be spent at once: a hundred retries for each client that has just started.
    #[test]
    fn a_new_caller_has_one_second_of_the_floor() {
        let budget = RetryBudget::default();
        let mut state = budget.start(Tick::EPOCH);
        assert_eq!(granted(&budget, &mut state, Tick::EPOCH, 1000), 10);
        assert_eq!(granted(&budget, &mut state, Tick::from_nanos(500_000_000), 1000), 5);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(60), 1000), 10);
    }

    /// The SRE book's budgets: at most three tries of a request, and retries are at most a tenth of a client's requests.
    /// Without the tenth, a hundred requests to a service that is down become 300.
    #[test]
    fn the_sre_books_tenth_holds_where_every_call_fails() {
        let budget = RetryBudget::new(0.1).unwrap().without_floor();
        let mut state = budget.start(Tick::EPOCH);
        let tries: usize = (0..100)
            .map(|_| {
                budget.call(&mut state, Tick::EPOCH);
                1 + (0..2).take_while(|_| budget.retry(&mut state, Tick::EPOCH)).count()
            })
            .sum();
        assert_eq!(tries, 110);
    }

    #[test]
    fn a_slow_floor_grants_one_now_and_then() {
        let budget = RetryBudget::new(0.0)
            .unwrap()
            .with_floor(Rate::new(6, Duration::from_secs(60)).unwrap())
            .unwrap();
        let mut state = budget.start(Tick::EPOCH);
        let each_second = (0..60).map(|second| granted(&budget, &mut state, Tick::from_secs(second), 10));
        assert_eq!(each_second.sum::<usize>(), 6);
    }

    #[test]
    fn calls_are_forgotten_after_the_span() {
        let budget = RetryBudget::new(0.5).unwrap().without_floor();
        let mut state = budget.start(Tick::EPOCH);
        calls(&budget, &mut state, Tick::EPOCH, 100);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(9), 20), 20);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(10), 20), 0, "the calls are ten seconds old");
        calls(&budget, &mut state, Tick::from_secs(12), 10);
        assert_eq!(
            granted(&budget, &mut state, Tick::from_secs(12), 20),
            0,
            "retries of second nine still count"
        );
        calls(&budget, &mut state, Tick::from_secs(30), 10);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(30), 20), 5);
    }

    #[test]
    fn a_clock_that_steps_back_stands_still() {
        let budget = RetryBudget::new(0.5).unwrap().without_floor();
        let mut state = budget.start(Tick::from_secs(100));
        calls(&budget, &mut state, Tick::from_secs(100), 4);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(93), 9), 2);
        calls(&budget, &mut state, Tick::from_secs(90), 2);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(100), 9), 1);
    }

    /// Otherwise an hour of calls would be counted as if they had come at once, and the floor would be empty for an hour.
    #[test]
    fn a_clock_that_is_set_back_begins_anew() {
        let budget = RetryBudget::new(0.5).unwrap();
        let mut state = budget.start(Tick::from_secs(4000));
        calls(&budget, &mut state, Tick::from_secs(4000), 4);
        assert_eq!(granted(&budget, &mut state, Tick::from_secs(4000), 99), 12);
        let back = Tick::from_secs(400);
        assert!(!budget.is_spent(&state, back));
        assert_eq!(granted(&budget, &mut state, back, 99), 10, "the floor alone");
        calls(&budget, &mut state, back, 4);
        assert_eq!(
            granted(&budget, &mut state, Tick::from_secs(411), 99),
            10,
            "these calls are forgotten in time"
        );
    }

    #[test]
    fn bad_parameters_are_refused_by_name() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let said = RetryBudget::new(share).unwrap_err().to_string();
            assert_eq!(said, format!("share {share} is not a share of the calls; use 0 to 1, such as 0.2"));
        }
        let said = RetryBudget::default().with_span(Duration::ZERO).unwrap_err().to_string();
        assert_eq!(said, "span 0ns is not a span to count calls in; use 10 ms to an hour");
    }

    /// A budget in its plainest form: every call and retry with its time.
    struct Plain {
        share: u64,
        /// The time, and whether it was a retry.
        seen: Vec<(u64, bool)>,
    }

    impl Plain {
        fn retry(&mut self, part: u64) -> bool {
            let within = |retry: bool| {
                self.seen.iter().filter(|(at, what)| *what == retry && part - at < u64::from(BUCKETS)).count()
                    as u64
            };
            let granted = (within(true) + 1) * WHOLE <= within(false) * self.share;
            if granted {
                self.seen.push((part, true));
            }
            granted
        }
    }

    proptest! {
        #[test]
        fn the_buckets_count_what_a_list_counts(
            share in 0..=WHOLE,
            events in proptest::collection::vec((0..400_u64, 0..4_u8), 0..200),
        ) {
            let budget = RetryBudget { share, ..RetryBudget::default().without_floor() };
            let (mut state, mut plain) = (budget.start(Tick::EPOCH), Plain { share, seen: Vec::new() });
            let mut now = 0;
            for (hundredths, what) in events {
                now += hundredths * 10_000_000;
                let (tick, part) = (Tick::from_nanos(now), now / 1_000_000_000);
                if what == 0 {
                    prop_assert_eq!(!budget.is_spent(&state, tick), budget.retry(&mut state.clone(), tick));
                    prop_assert_eq!(budget.retry(&mut state, tick), plain.retry(part));
                } else {
                    budget.call(&mut state, tick);
                    plain.seen.push((part, false));
                }
            }
        }
    }

    /// The sizes that the documentation gives.
    #[test]
    fn the_state_is_as_small_as_documented() {
        assert_eq!(size_of::<RetryBudgetState>(), 80);
    }
}

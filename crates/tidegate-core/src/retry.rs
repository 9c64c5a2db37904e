//! Whether a call that failed is worth trying again, and after how long.
//!
//! Everything that speaks against it is asked in one place: how it ended, what the service said about trying again, how often it was tried, and
//! the time that is left. What all retries together may add to the load is the [`RetryBudget`](crate::retry_budget::RetryBudget)'s, which is
//! asked last, so that no retry is paid for and then not made.

use core::time::Duration;

use crate::error::QuotaError;
use crate::guard::Outcome;
use crate::time::{Rate, Tick};

/// How often a call is tried, and how long is waited in between. `Copy`.
///
/// The wait before try `n` is drawn evenly from zero to the least of `most` and `base · 2ⁿ⁻²` ("full jitter"): callers that failed together do not
/// come back together.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::retry::{Retries, Stop, Tried};
/// use tidegate_core::{Outcome, Tick};
///
/// let retries = Retries::new(3, Duration::from_millis(100), Duration::from_secs(2))?;
/// let now = Tick::from_secs(1);
/// let tried = Tried { times: 1, outcome: Outcome::Failure, pushback: None };
///
/// assert_eq!(retries.next(&tried, now, Tick::MAX, u32::MAX), Ok(Duration::from_millis(100)), "the largest draw waits longest");
/// assert_eq!(retries.next(&Tried { times: 3, ..tried }, now, Tick::MAX, 0), Err(Stop::TriedEnough));
/// assert_eq!(retries.next(&Tried { outcome: Outcome::CallersFault, ..tried }, now, Tick::MAX, 0), Err(Stop::NotWorthIt));
/// assert_eq!(retries.next(&tried, now, now, 0), Err(Stop::NoTimeLeft));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
///
/// # Source
/// Full jitter: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. Pushback: gRPC proposal A6, client retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    tries: u32,
    base: Duration,
    most: Duration,
}

/// What became of the last try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// How often it was tried by now, 1 or more.
    pub times: u32,
    /// How the last try ended.
    pub outcome: Outcome,
    /// What the service said about trying again, if anything.
    pub pushback: Option<Pushback>,
}

/// What a service says about trying again: `Retry-After` in HTTP, `grpc-retry-pushback-ms` in gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// Not before so long.
    After(Duration),
    /// Not at all: a negative number in gRPC, or one that cannot be read.
    Never,
}

/// Why a call is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// It succeeded, or would end the same way again: the caller's own mistake, or a caller who has gone.
    #[error("another try would not help")]
    NotWorthIt,
    /// The service said not to.
    #[error("the service asked not to be tried again")]
    PushedBack,
    /// It was tried as often as is allowed.
    #[error("tried as often as is allowed")]
    TriedEnough,
    /// The wait before the next try would end at the deadline or later.
    #[error("no time is left for another try")]
    NoTimeLeft,
    /// The budget that all retries share is spent.
    #[error("too many calls are retried already")]
    BudgetSpent,
}

impl Default for Retries {
    /// Three tries, 50 ms doubled up to two seconds.
    fn default() -> Self {
        Self { tries: 3, base: Duration::from_millis(50), most: Duration::from_secs(2) }
    }
}

impl Retries {
    /// The most tries that can be set. More than a few multiply the load of a failing service; gRPC caps them at five.
    pub const MAX_TRIES: u32 = 100;

    /// Makes rules: `tries` in all, the first included, 1 to [`Retries::MAX_TRIES`]; a wait of up to `base` before the second, doubled with each, up
    /// to `most`. Both up to [`Rate::MAX_PERIOD`]; zero does not wait.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range, or `base` is above `most`.
    pub fn new(tries: u32, base: Duration, most: Duration) -> Result<Self, QuotaError> {
        if tries == 0 || tries > Self::MAX_TRIES {
            let want = "is not a number of tries, the first included; use 1 to 100";
            return Err(QuotaError::Parameter { name: "tries", value: tries.to_string(), want });
        }
        if most > Rate::MAX_PERIOD {
            let want = "is too long to wait; use 146 years or less";
            return Err(QuotaError::Parameter { name: "most", value: format!("{most:?}"), want });
        }
        if base > most {
            let want = "is above the longest wait; lower it, or raise the longest";
            return Err(QuotaError::Parameter { name: "base", value: format!("{base:?}"), want });
        }
        Ok(Self { tries, base, most })
    }

    /// Returns how long to wait before the next try, or why there is none.
    ///
    /// `draw` is drawn evenly from all of `u32`. A service that names a time is waited for as long, and no shorter than its callers spread by
    /// themselves: the draw is added to it, so that they do not all come back at that moment.
    ///
    /// # Errors
    /// [`Stop`]; never [`Stop::BudgetSpent`], which whoever holds the budget says.
    pub fn next(&self, tried: &Tried, now: Tick, deadline: Tick, draw: u32) -> Result<Duration, Stop> {
        match tried.outcome {
            Outcome::Success | Outcome::CallersFault | Outcome::Ignored => return Err(Stop::NotWorthIt),
            Outcome::Failure | Outcome::Overloaded => {}
        }
        if tried.pushback == Some(Pushback::Never) {
            return Err(Stop::PushedBack);
        }
        if tried.times >= self.tries {
            return Err(Stop::TriedEnough);
        }
        let least = match tried.pushback {
            Some(Pushback::After(wait)) => wait,
            _ => Duration::ZERO,
        };
        let wait = least.saturating_add(drawn(self.longest(tried.times), draw));
        if now.after(wait) >= deadline {
            return Err(Stop::NoTimeLeft);
        }
        Ok(wait)
    }

    /// The longest wait after so many tries.
    fn longest(&self, times: u32) -> Duration {
        let doubled = 1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX);
        self.base.saturating_mul(doubled).min(self.most)
    }
}

/// A part of `longest` as large as the draw's part of all draws, rounded down.
fn drawn(longest: Duration, draw: u32) -> Duration {
    // Below 2⁹⁶: the longest wait is a `Duration` of at most 146 years.
    let nanos = longest.as_nanos() * u128::from(draw) / u128::from(u32::MAX);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Tried = Tried { times: 1, outcome: Outcome::Failure, pushback: None };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let retries = Retries::new(100, millis(50), millis(300)).unwrap();
        let longest =
            |times| retries.next(&Tried { times, ..FAILED }, Tick::EPOCH, Tick::MAX, u32::MAX).unwrap();
        assert_eq!([1, 2, 3, 4, 5, 33, 99].map(longest), [50, 100, 200, 300, 300, 300, 300].map(millis));
        assert_eq!(retries.next(&FAILED, Tick::EPOCH, Tick::MAX, 0), Ok(Duration::ZERO));
    }

    #[test]
    fn a_service_that_names_a_time_is_not_asked_before() {
        let retries = Retries::default();
        let tried = Tried { pushback: Some(Pushback::After(millis(700))), ..FAILED };
        assert_eq!(retries.next(&tried, Tick::EPOCH, Tick::MAX, 0), Ok(millis(700)));
        assert_eq!(retries.next(&tried, Tick::EPOCH, Tick::MAX, u32::MAX), Ok(millis(750)));
        let never = Tried { pushback: Some(Pushback::Never), ..FAILED };
        assert_eq!(retries.next(&never, Tick::EPOCH, Tick::MAX, 0), Err(Stop::PushedBack));
    }

    #[test]
    fn a_try_that_would_begin_at_the_deadline_is_not_made() {
        let retries = Retries::default();
        let tried = Tried { pushback: Some(Pushback::After(millis(700))), ..FAILED };
        let at = |millis: u64| Tick::from_nanos(millis * 1_000_000);
        assert_eq!(retries.next(&tried, at(300), at(1000), 0), Err(Stop::NoTimeLeft));
        assert_eq!(retries.next(&tried, at(300), at(1001), 0), Ok(millis(700)));
        let century = Tried { pushback: Some(Pushback::After(Duration::MAX)), ..FAILED };
        assert_eq!(retries.next(&century, at(300), Tick::MAX, u32::MAX), Err(Stop::NoTimeLeft));
    }

    #[test]
    fn only_what_another_try_may_mend_is_tried_again() {
        let retries = Retries::default();
        let next = |outcome| retries.next(&Tried { outcome, ..FAILED }, Tick::EPOCH, Tick::MAX, 0).is_ok();
        use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
        let worth = [Success, CallersFault, Failure, Overloaded, Ignored].map(next);
        assert_eq!(worth, [false, false, true, true, false]);
    }

    #[test]
    fn bad_parameters_are_refused_by_name() {
        for (tries, base, most, said) in [
            (0, 0, 0, "tries 0 is not a number of tries, the first included; use 1 to 100"),
            (101, 0, 0, "tries 101 is not a number of tries, the first included; use 1 to 100"),
            (1, 2, 1, "base 2ms is above the longest wait; lower it, or raise the longest"),
        ] {
            assert_eq!(Retries::new(tries, millis(base), millis(most)).unwrap_err().to_string(), said);
        }
    }
}

//! Decides whether a failed call is worth trying again, and after how long: by how the last try ended, the service's
//! pushback, the number of tries, and the time left. The [`RetryBudget`](crate::retry_budget::RetryBudget) is asked
//! last, so that no retry is paid for and then not made.

use core::time::Duration;

use crate::error::QuotaError;
use crate::guard::Outcome;
use crate::time::{Rate, Tick, nanos, span};

/// How often a call is tried, and how long to wait in between. `Copy`.
///
/// The wait before try `n` is drawn evenly from zero to the lesser of `most` and `base · 2ⁿ⁻²` ("full jitter"), so
/// that callers that failed together do not come back together; [`Retries::without_jitter`] waits for the whole of it. If
/// the service names a time, the caller waits at least that long, up to a limit ([`Retries::with_pushback_up_to`]).
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
    most_pushback: Duration,
    jitters: bool,
}

/// The tries made so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The number of tries so far, 1 or more.
    pub times: u32,
    /// How the last try ended.
    pub outcome: Outcome,
    /// What the service said about trying again, if anything.
    pub pushback: Option<Pushback>,
}

/// What a service says about trying again: `Retry-After` in HTTP, `grpc-retry-pushback-ms` in gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// Not before this time has passed.
    After(Duration),
    /// Not at all: in gRPC, a negative number or one that cannot be read.
    Never,
}

/// Why a call is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The call succeeded, or would end the same way again: the caller's own mistake, or a caller who has gone.
    #[error("another try would not help")]
    NotWorthIt,
    /// The service said not to.
    #[error("the service asked not to be tried again")]
    PushedBack,
    /// It was tried as often as is allowed.
    #[error("tried as often as is allowed")]
    TriedEnough,
    /// The service named a time longer than the caller is willing to wait.
    #[error("the service asked for a longer wait than is allowed")]
    WaitTooLong,
    /// The wait before the next try would end at the deadline or later.
    #[error("no time is left for another try")]
    NoTimeLeft,
    /// The budget that all retries share is spent.
    #[error("too many calls are retried already")]
    BudgetSpent,
}

impl Default for Retries {
    /// Three tries, with waits of up to 50 ms, doubled up to two seconds; a time that the service names, up to a minute.
    fn default() -> Self {
        let (base, most) = (Duration::from_millis(50), Duration::from_secs(2));
        Self { tries: 3, base, most, most_pushback: Self::PUSHBACK_UP_TO, jitters: true }
    }
}

impl Retries {
    /// The most tries that can be set. More than a few multiply the load of a failing service; gRPC caps them at five.
    const MAX_TRIES: u32 = 100;

    /// The longest time that a service may name unless another is set: a minute. A service that writes `Retry-After:
    /// 86400` could hold a caller and its memory for a day.
    const PUSHBACK_UP_TO: Duration = Duration::from_secs(60);

    /// Makes rules. `tries` includes the first try and is 1 to 100. The wait before the second try is up
    /// to `base`; it doubles with each further try, up to `most`. Both are up to [`Rate::MAX_PERIOD`]; zero means no wait.
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
        Ok(Self { tries, base, most, most_pushback: Self::PUSHBACK_UP_TO, jitters: true })
    }

    /// Sets the longest time that a service may name; the default is a minute. If the service names
    /// a longer one, there is no further try.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is above [`Rate::MAX_PERIOD`].
    pub fn with_pushback_up_to(self, longest: Duration) -> Result<Self, QuotaError> {
        if longest > Rate::MAX_PERIOD {
            let want = "is too long to wait; use 146 years or less";
            return Err(QuotaError::Parameter { name: "pushback", value: format!("{longest:?}"), want });
        }
        Ok(Self { most_pushback: longest, ..self })
    }

    /// Waits for the longest time in place of a random part of it, whatever the draw: to copy a backoff without jitter.
    /// Callers that failed together then come back together.
    #[must_use]
    pub const fn without_jitter(self) -> Self {
        Self { jitters: false, ..self }
    }

    /// Returns how long to wait before the next try, or why there is none.
    ///
    /// `draw` must be drawn evenly from all of `u32`. The wait is the one that `draw` selects, plus the time that the
    /// service names, if any, so that its callers do not all come back at that moment.
    ///
    /// # Errors
    /// [`Stop`]; never [`Stop::BudgetSpent`], which the holder of the budget returns.
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
            Some(Pushback::After(wait)) if wait > self.most_pushback => return Err(Stop::WaitTooLong),
            Some(Pushback::After(wait)) => wait,
            _ => Duration::ZERO,
        };
        let longest = self.longest(tried.times);
        let wait = least.saturating_add(if self.jitters { drawn(longest, draw) } else { longest });
        if now.after(wait) >= deadline {
            return Err(Stop::NoTimeLeft);
        }
        Ok(wait)
    }

    fn longest(&self, times: u32) -> Duration {
        // At most 2⁶² nanoseconds times 2⁶³. If it would be doubled more often, it is above every `most` already,
        // unless the base is zero.
        span(u128::from(nanos(self.base)) << times.saturating_sub(1).min(63)).min(self.most)
    }
}

/// Returns `longest` times `draw` divided by `u32::MAX`, rounded down.
fn drawn(longest: Duration, draw: u32) -> Duration {
    // Below 2⁹⁶: the longest wait is at most 146 years.
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

        let retries = Retries::new(100, Duration::from_nanos(1), Rate::MAX_PERIOD).unwrap();
        let longest =
            |times| retries.next(&Tried { times, ..FAILED }, Tick::EPOCH, Tick::MAX, u32::MAX).unwrap();
        assert_eq!([34, 63, 99].map(longest), [1 << 33, 1 << 62, 1 << 62].map(Duration::from_nanos));
    }

    #[test]
    fn without_jitter_every_draw_waits_for_the_longest_time() {
        let retries = Retries::new(9, millis(50), millis(300)).unwrap().without_jitter();
        for draw in [0, 1, u32::MAX] {
            let waits =
                |times| retries.next(&Tried { times, ..FAILED }, Tick::EPOCH, Tick::MAX, draw).unwrap();
            assert_eq!([1, 2, 3, 4, 5].map(waits), [50, 100, 200, 300, 300].map(millis));
        }
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
    }

    /// A call without a deadline used to sleep as long as the service's `Retry-After` said, even a day.
    #[test]
    fn a_service_cannot_hold_its_callers_for_as_long_as_it_likes() {
        let asked = |retries: Retries, wait| {
            let tried = Tried { pushback: Some(Pushback::After(wait)), ..FAILED };
            retries.next(&tried, Tick::EPOCH, Tick::MAX, 0)
        };
        let (retries, minute) = (Retries::default(), Retries::PUSHBACK_UP_TO);
        assert_eq!(asked(retries, minute), Ok(minute));
        for wait in [minute + Duration::from_nanos(1), 1440 * minute, Duration::MAX] {
            assert_eq!(asked(retries, wait), Err(Stop::WaitTooLong));
        }
        let patient = retries.with_pushback_up_to(Rate::MAX_PERIOD).unwrap();
        assert_eq!(asked(patient, 1440 * minute), Ok(1440 * minute));
        let said = retries.with_pushback_up_to(Duration::MAX).unwrap_err().to_string();
        assert_eq!(
            said,
            "pushback 18446744073709551615.999999999s is too long to wait; use 146 years or less"
        );
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

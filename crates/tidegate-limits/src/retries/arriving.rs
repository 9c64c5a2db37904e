//! Counts retries that arrive at a server, and decides what the server tells the callers.

use tidegate_core::QuotaError;
use tidegate_core::retry::Pushback;
use tidegate_core::retry_budget::RetryBudget;

use super::SharedBudget;
use crate::clock::Clock;

/// The default share of retries above which callers are told to stop: one for every two first tries.
const SHARE: f64 = 0.5;

/// Counts the first tries and the retries that arrive at a server, and decides whether there are so many retries that
/// callers must not try again.
///
/// A caller with the default [`RetryBudget`] sends at most one retry for five calls, and ten retries a second in addition.
/// If one retry arrives for every two first tries, many callers have no budget, and a third of the requests of an
/// overloaded server are retries. Clones share the counts.
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
    /// The number is the caller's claim. Read it only from a header that callers you trust set, such as your own
    /// proxy. A stranger who claims retries would make the server tell all refused callers not to come back.
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
    /// arrive, else `None`, which leaves the decision to the caller. [`header`](super::header) has the headers to
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

//! Deadlines: how long work may take. A request that nobody waits for any more is useless load. A deadline comes in
//! with the request, and each step gets no more than the time left. The next service is told the time left minus the
//! time that its answer needs to come back. Work that cannot finish in time is not started.

use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Rate, Tick};

/// The rules for deadlines at one place of a system. 48 bytes, `Copy`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Tick, deadline::Timeouts};
///
/// let second = Duration::from_secs(1);
/// let timeouts = Timeouts::new(second, 10 * second)?.with_margin(Duration::from_millis(5))?;
/// let start = Tick::from_secs(100);
///
/// assert_eq!(timeouts.deadline(start, None), Tick::from_secs(101), "nobody said: the default");
/// assert_eq!(timeouts.deadline(start, Some(60 * second)), Tick::from_secs(110), "no more than the ceiling");
///
/// let deadline = timeouts.deadline(start, Some(second));
/// let later = start.after(Duration::from_millis(900));
/// assert_eq!(timeouts.for_step(later, deadline, Some(second)), Some(Duration::from_millis(100)), "what is left");
/// assert_eq!(timeouts.for_next_hop(later, deadline), Some(Duration::from_millis(95)), "and for whom we ask, less the margin");
/// assert!(!timeouts.leaves(later, deadline, Duration::from_millis(150)), "not worth beginning");
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    default: Duration,
    ceiling: Duration,
    margin: Duration,
}

impl Timeouts {
    /// Makes rules: `default` for requests whose caller gives no time, `ceiling` for all. Both are 1 ns to
    /// [`Rate::MAX_PERIOD`].
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when either is out of range, or the default is above the ceiling.
    pub fn new(default: Duration, ceiling: Duration) -> Result<Self, QuotaError> {
        in_range("ceiling", ceiling)?;
        in_range("default", default)?;
        if default > ceiling {
            let want = "is above the ceiling; lower it, or raise the ceiling";
            return Err(QuotaError::Parameter { name: "default", value: format!("{default:?}"), want });
        }
        Ok(Self { default, ceiling, margin: Duration::ZERO })
    }

    /// Sets the margin, which is subtracted from the time that the next service is told, so that its answer can come
    /// back and be processed. The default is 0; it must be below the ceiling. A request with no more time left than the
    /// margin calls no further service.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is the ceiling or more: the next service would never have time left.
    pub fn with_margin(self, margin: Duration) -> Result<Self, QuotaError> {
        if margin >= self.ceiling {
            let want = "leaves the next service no time; use less than the ceiling";
            return Err(QuotaError::Parameter { name: "margin", value: format!("{margin:?}"), want });
        }
        Ok(Self { margin, ..self })
    }

    /// Returns the time for requests whose caller gives none.
    #[must_use]
    pub const fn default_time(&self) -> Duration {
        self.default
    }

    /// Returns the longest time for any request.
    #[must_use]
    pub const fn ceiling(&self) -> Duration {
        self.ceiling
    }

    /// Returns the margin, which is subtracted from the time that the next service is told.
    #[must_use]
    pub const fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns the tick by which a request that came at `now` must be answered. `asked` is the time that its caller
    /// gives: `None` means the default, and more than the ceiling counts as the ceiling.
    ///
    /// A caller that gives a time of zero has given up already: its deadline is `now`.
    #[must_use]
    pub fn deadline(&self, now: Tick, asked: Option<Duration>) -> Tick {
        now.after(asked.unwrap_or(self.default).min(self.ceiling))
    }

    /// Returns the time for one step of the work: the time left until the deadline, at most the ceiling, and at most
    /// the step's `own` time if it has one. `None`: no time is left.
    #[must_use]
    pub fn for_step(&self, now: Tick, deadline: Tick, own: Option<Duration>) -> Option<Duration> {
        let left = deadline.since(now).min(self.ceiling).min(own.unwrap_or(Duration::MAX));
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time to tell the next service: the time left, at most the ceiling, minus the margin. `None`: no time
    /// is left for that service, and it should not be called.
    #[must_use]
    pub fn for_next_hop(&self, now: Tick, deadline: Tick) -> Option<Duration> {
        let left = deadline.since(now).min(self.ceiling).checked_sub(self.margin)?;
        (!left.is_zero()).then_some(left)
    }

    /// Says whether work that takes `needs` can be done by the deadline. Work that takes no time fits before the
    /// deadline, not at it.
    #[must_use]
    pub fn leaves(&self, now: Tick, deadline: Tick, needs: Duration) -> bool {
        let left = deadline.since(now);
        !left.is_zero() && needs <= left
    }
}

fn in_range(name: &'static str, time: Duration) -> Result<(), QuotaError> {
    if time.is_zero() || time > Rate::MAX_PERIOD {
        let want = "is not a time for work; use 1 ns to 146 years";
        return Err(QuotaError::Parameter { name, value: format!("{time:?}"), want });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        for (default, ceiling, said) in [
            (Duration::ZERO, SECOND, "default 0ns is not a time for work; use 1 ns to 146 years"),
            (SECOND, Duration::ZERO, "ceiling 0ns is not a time for work; use 1 ns to 146 years"),
            (2 * SECOND, SECOND, "default 2s is above the ceiling; lower it, or raise the ceiling"),
            (
                SECOND,
                Duration::MAX,
                "ceiling 18446744073709551615.999999999s is not a time for work; use 1 ns to 146 years",
            ),
        ] {
            assert_eq!(Timeouts::new(default, ceiling).unwrap_err().to_string(), said);
        }
        let timeouts = Timeouts::new(SECOND, SECOND).unwrap();
        let said = timeouts.with_margin(SECOND).unwrap_err().to_string();
        assert_eq!(said, "margin 1s leaves the next service no time; use less than the ceiling");
    }

    #[test]
    fn at_the_deadline_nothing_is_left() {
        let timeouts = Timeouts::new(SECOND, SECOND).unwrap();
        let (now, before) = (Tick::from_secs(5), Tick::from_nanos(5_000_000_000 - 1));
        assert_eq!(timeouts.for_step(now, now, None), None);
        assert_eq!(timeouts.for_next_hop(now, now), None);
        assert!(!timeouts.leaves(now, now, Duration::ZERO));
        assert!(
            timeouts.leaves(before, now, Duration::ZERO)
                && timeouts.leaves(before, now, Duration::from_nanos(1))
        );
        assert_eq!(
            timeouts.deadline(now, Some(Duration::ZERO)),
            now,
            "a caller who gives no time has given up"
        );
    }

    proptest! {
        /// No step gets more than the time left, its own time or the ceiling, and the next service gets even less.
        #[test]
        fn no_step_outlives_its_request(
            default in 1..u64::MAX / 4, above in 0..u64::MAX / 4, margin in 0..u64::MAX,
            asked in proptest::option::of(0..u64::MAX), own in proptest::option::of(0..u64::MAX),
            start in 0..u64::MAX, spent in 0..u64::MAX,
        ) {
            let ceiling = Duration::from_nanos(default + above);
            let Ok(timeouts) = Timeouts::new(Duration::from_nanos(default), ceiling) else { return Ok(()) };
            let timeouts = timeouts.with_margin(Duration::from_nanos(margin)).unwrap_or(timeouts);
            let start = Tick::from_nanos(start);
            let deadline = timeouts.deadline(start, asked.map(Duration::from_nanos));
            prop_assert!(deadline.since(start) <= ceiling);
            let now = start.after(Duration::from_nanos(spent));
            let own = own.map(Duration::from_nanos);
            let step = timeouts.for_step(now, deadline, own).unwrap_or_default();
            prop_assert!(step <= own.unwrap_or(Duration::MAX) && now.after(step) <= deadline.max(now));
            let hop = timeouts.for_next_hop(now, deadline).unwrap_or_default();
            prop_assert!(hop.is_zero() || hop + timeouts.margin() <= deadline.since(now));
        }
    }
}

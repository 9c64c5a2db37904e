//! How long work may take: by what its caller asks, by what is set here, and by what is left.
//!
//! A request that nobody waits for any more is load without use. So a deadline comes in with the request, each step gets no more than what is
//! left, the next service is told what is left less the time its answer needs to come back, and work that cannot be done in time is not begun.

use core::time::Duration;

use crate::error::QuotaError;
use crate::time::{Rate, Tick};

/// The rules for deadlines at one place of a system. 32 bytes, `Copy`.
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
    /// Makes rules: `default` for requests whose caller names no time, `ceiling` for all. Both 1 ns to [`Rate::MAX_PERIOD`].
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

    /// Sets what is kept back of the time that the next service is told, for its answer to come back and be worked on: 0 unless set, and below
    /// the ceiling. A request that has no more left than this calls no further service.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is the ceiling or more: nothing would ever be left.
    pub fn with_margin(self, margin: Duration) -> Result<Self, QuotaError> {
        if margin >= self.ceiling {
            let want = "leaves the next service no time; use less than the ceiling";
            return Err(QuotaError::Parameter { name: "margin", value: format!("{margin:?}"), want });
        }
        Ok(Self { margin, ..self })
    }

    /// Returns the time for requests whose caller names none.
    #[must_use]
    pub const fn default_time(&self) -> Duration {
        self.default
    }

    /// Returns the time that no request exceeds.
    #[must_use]
    pub const fn ceiling(&self) -> Duration {
        self.ceiling
    }

    /// Returns what is kept back of the time that the next service is told.
    #[must_use]
    pub const fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns when a request that came at `now` has to be answered, by the time its caller gives it.
    ///
    /// A caller who gives no time at all has given up already: its deadline is `now`.
    #[must_use]
    pub fn deadline(&self, now: Tick, asked: Option<Duration>) -> Tick {
        now.after(asked.unwrap_or(self.default).min(self.ceiling))
    }

    /// Returns the time that one step of the work gets: what is left until the deadline, no more than the step's own time where it has one, and
    /// no more than the ceiling. `None` where nothing is left.
    #[must_use]
    pub fn for_step(&self, now: Tick, deadline: Tick, own: Option<Duration>) -> Option<Duration> {
        let left = deadline.since(now).min(self.ceiling).min(own.unwrap_or(Duration::MAX));
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time to tell the next service: what is left, less the margin. `None` where nothing is left for it, and it had better not be
    /// asked.
    #[must_use]
    pub fn for_next_hop(&self, now: Tick, deadline: Tick) -> Option<Duration> {
        let left = deadline.since(now).min(self.ceiling).checked_sub(self.margin)?;
        (!left.is_zero()).then_some(left)
    }

    /// Says whether work that takes `needs` can be done by the deadline. Work that takes no time can until then, not at it.
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
        /// Whatever is asked and set: no step gets more than what is left, its own time or the ceiling, and the next service less still.
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

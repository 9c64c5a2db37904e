//! The bound of a wait.

use std::time::Duration;

use tidegate_core::Tick;

use crate::clock::Clock;
use crate::deadline::Deadline;

/// The end of a wait: a duration after its first poll, or a deadline by the clock in use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeBound {
    Within(Duration),
    Until(Deadline),
}

impl TimeBound {
    /// No bound: waits as long as it takes.
    pub(crate) const NONE: Self = Self::Within(Duration::MAX);

    /// Returns the same bound with its deadline as a tick of `clock`. To be called at the first poll, since an
    /// `Instant` and the clock may drift apart later.
    pub(crate) fn on_clock(self, clock: &dyn Clock) -> Self {
        match self {
            Self::Within(_) => self,
            Self::Until(deadline) => Self::Until(Deadline::Tick(deadline.tick(clock))),
        }
    }

    /// Returns the longest wait from `now`, the tick of the first poll; `None` if the bound has already passed, even if
    /// there is nothing to wait for.
    pub(crate) fn max_wait(self, now: Tick, clock: &dyn Clock) -> Option<Duration> {
        match self {
            Self::Within(timeout) => Some(timeout),
            Self::Until(deadline) => {
                let deadline = deadline.tick(clock);
                (now <= deadline).then(|| deadline.since(now))
            }
        }
    }

    /// Returns whether the bound has passed at the first poll. Reads the clock only if there is a deadline.
    pub(crate) fn has_passed(self, clock: &dyn Clock) -> bool {
        matches!(self, Self::Until(_)) && self.max_wait(clock.now(), clock).is_none()
    }

    /// Returns whether the bound leaves no time at all.
    pub(crate) const fn is_at_once(self) -> bool {
        matches!(self, Self::Within(Duration::ZERO))
    }

    /// Returns the deadline as a tick, if the bound is one.
    pub(crate) fn until(self, clock: &dyn Clock) -> Option<Tick> {
        match self {
            Self::Within(_) => None,
            Self::Until(deadline) => Some(deadline.tick(clock)),
        }
    }

    /// Returns the tick at which the wait ends; `None` if it has no bound. Reads the clock only if needed.
    pub(crate) fn deadline(self, clock: &dyn Clock) -> Option<Tick> {
        match self {
            Self::Within(Duration::MAX) => None,
            Self::Within(timeout) => Some(clock.now().after(timeout)),
            Self::Until(deadline) => Some(deadline.tick(clock)),
        }
    }
}

//! How long a caller is ready to wait.

use std::time::Duration;

use tidegate_core::Tick;

use crate::clock::Clock;
use crate::deadline::Deadline;

/// The end of a wait: so long after its first poll, or at a tick of the clock it goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimeBound {
    Within(Duration),
    Until(Deadline),
}

impl TimeBound {
    /// No bound: waits as long as it takes.
    pub(crate) const NONE: Self = Self::Within(Duration::MAX);

    /// Returns the same bound with its deadline as a tick of `clock`. For the first poll: an `Instant` and the clock may drift apart later.
    pub(crate) fn by(self, clock: &dyn Clock) -> Self {
        match self {
            Self::Within(_) => self,
            Self::Until(deadline) => Self::Until(Deadline::Tick(deadline.tick(clock))),
        }
    }

    /// Returns how long there is to wait from `now`, the tick of the first poll; `None` when the bound has passed by then, even
    /// where nothing has to be waited for.
    pub(crate) fn max_wait(self, now: Tick, clock: &dyn Clock) -> Option<Duration> {
        match self {
            Self::Within(timeout) => Some(timeout),
            Self::Until(deadline) => {
                let deadline = deadline.tick(clock);
                (now <= deadline).then(|| deadline.since(now))
            }
        }
    }

    /// Says whether the bound has passed at the first poll. Reads the clock only where that matters.
    pub(crate) fn has_passed(self, clock: &dyn Clock) -> bool {
        matches!(self, Self::Until(_)) && self.max_wait(clock.now(), clock).is_none()
    }

    /// Says whether it leaves no time at all: now or not at all.
    pub(crate) const fn is_at_once(self) -> bool {
        matches!(self, Self::Within(Duration::ZERO))
    }

    /// Returns the tick at which the wait ends; `None` where it has no bound. Reads the clock only where that matters.
    pub(crate) fn deadline(self, clock: &dyn Clock) -> Option<Tick> {
        match self {
            Self::Within(Duration::MAX) => None,
            Self::Within(timeout) => Some(clock.now().after(timeout)),
            Self::Until(deadline) => Some(deadline.tick(clock)),
        }
    }
}

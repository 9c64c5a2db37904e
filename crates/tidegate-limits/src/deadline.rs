//! Deadlines: when a caller wants an answer, read from a header, carried through the task, and sent on to the next
//! service.
//!
//! [`Timeouts`] computes how much time a request and each of its steps get. A [`Step`] holds work to that time, and
//! counts the work that ran out of it.

pub mod header;
mod step;
mod task_local;

use std::time::Instant;

pub use step::{OutOfTime, Step, StepCounts, StepError};
pub(crate) use task_local::carry_nothing;
pub use task_local::{Carrying, carried, carry, carry_through};
use tidegate_core::Tick;
pub use tidegate_core::deadline::Timeouts;

use crate::clock::Clock;

/// The end of a wait: a tick of the limiter's clock, or an `Instant` of the machine.
///
/// An `Instant` is converted to a tick when the wait begins ([`Clock::tick_of`]). Methods take `impl Into<Deadline>`,
/// so either can be passed directly, and with the feature `tokio` also an instant of tokio's clock.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(1))?;
/// let deadline = Instant::now() + Duration::from_secs(2);
/// assert!(limiter.blocking_wait_until(1, deadline).is_ok());
/// assert!(limiter.blocking_wait_until(1, deadline).is_err(), "at once: the next unit is a minute away");
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// A tick of the limiter's clock.
    Tick(Tick),
    /// A reading of the machine's monotonic clock.
    Instant(Instant),
}

impl Deadline {
    /// Returns the deadline as a tick of `clock`. A tick is returned unchanged: it must be of that clock.
    #[must_use]
    pub fn at(self, clock: &impl Clock) -> Tick {
        self.tick(clock)
    }

    /// As [`Deadline::at`], for a trait object.
    pub fn tick(self, clock: &dyn Clock) -> Tick {
        match self {
            Self::Tick(tick) => tick,
            Self::Instant(instant) => clock.tick_of(instant),
        }
    }
}

impl From<Tick> for Deadline {
    fn from(tick: Tick) -> Self {
        Self::Tick(tick)
    }
}

impl From<Instant> for Deadline {
    fn from(instant: Instant) -> Self {
        Self::Instant(instant)
    }
}

#[cfg(feature = "tokio")]
impl From<tokio::time::Instant> for Deadline {
    fn from(instant: tokio::time::Instant) -> Self {
        Self::Instant(instant.into_std())
    }
}

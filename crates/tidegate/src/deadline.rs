//! The point in time by which a caller wants an answer, and how it travels: in from a header, through the task, out to the next service.
//!
//! How much time a request and each of its steps get is [`Timeouts`]' arithmetic; a [`Step`] holds work to it, and counts what had no time.

mod carried;
pub mod header;
mod step;

use std::time::Instant;

pub(crate) use carried::carry_nothing;
pub use carried::{Carrying, carried, carry, carry_through};
pub use step::{OutOfTime, Step, StepCounts};
use tidegate_core::Tick;
pub use tidegate_core::deadline::Timeouts;

use crate::clock::Clock;

/// When a wait ends at the latest: a tick of the clock that the limiter goes by, or an `Instant` of the machine's.
///
/// An `Instant` becomes a tick when the wait begins ([`Clock::tick_of`]). Calls take `impl Into<Deadline>`, so either is handed in as it is;
/// with the feature `tokio` an instant of tokio's clock too.
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
    /// Returns the tick of the deadline by a clock. A tick is taken to be of that clock.
    #[must_use]
    pub fn at(self, clock: &impl Clock) -> Tick {
        self.tick(clock)
    }

    /// As [`Deadline::at`], for clocks of any kind.
    pub(crate) fn tick(self, clock: &dyn Clock) -> Tick {
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

//! Deadlines: when a caller wants an answer, read from a header, carried through the task, and sent on to the next
//! service.

pub mod header;
mod step;

use std::cell::Cell;
use std::thread::LocalKey;
use std::time::Instant;

pub use step::{OutOfTime, Step, StepCounts, StepError};
use tidegate_core::Tick;
pub use tidegate_core::deadline::Timeouts;

use crate::clock::Clock;
use crate::task_local::{self, Carried};

/// The end of a wait: a tick of the limiter's clock, or an `Instant` of the machine.
///
/// An `Instant` is converted to a tick when the wait begins ([`Clock::tick_of`]). Methods take `impl Into<Deadline>`;
/// with the feature `tokio` also an instant of tokio's clock.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_minute(1))?;
/// let deadline = Instant::now() + Duration::from_secs(2);
/// assert!(limiter.wait(1).until(deadline).blocking().is_ok());
/// assert!(limiter.wait(1).until(deadline).blocking().is_err(), "at once: the next unit is a minute away");
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
    pub fn at(self, clock: &(impl Clock + ?Sized)) -> Tick {
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

thread_local! {
    static CARRIED: Cell<Option<Deadline>> = const { Cell::new(None) };
}

impl Carried for Deadline {
    fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
        &CARRIED
    }
}

/// A future with a deadline: see [`carry_through`].
pub type Carrying<F> = task_local::Carrying<Deadline, F>;

/// Returns the deadline of the current work: that of the innermost enclosing [`carry`] or [`carry_through`]. `None`
/// outside of them, and in tasks and threads started inside them: pass the deadline on to those explicitly.
///
/// Costs one load from thread-local memory.
#[must_use]
pub fn carried() -> Option<Deadline> {
    CARRIED.get()
}

/// Runs a function during which [`carried()`] returns `deadline`.
pub fn carry<T>(deadline: impl Into<Deadline>, work: impl FnOnce() -> T) -> T {
    task_local::carry(Some(deadline.into()), work)
}

/// Returns a future during whose polls [`carried()`] returns `deadline`, on any thread.
///
/// The future does not end at the deadline by itself; the code that runs it has to enforce it.
///
/// # Cancel safety
/// Dropping it drops the future.
///
/// # Examples
/// ```
/// use tidegate::deadline::Deadline;
/// use tidegate::{Tick, deadline};
///
/// async fn deep_within() -> Option<Deadline> {
///     deadline::carried()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let until = Deadline::from(Tick::from_secs(5));
/// assert_eq!(deadline::carry_through(until, deep_within()).await, Some(until));
/// # }
/// ```
pub fn carry_through<F: Future>(deadline: impl Into<Deadline>, future: F) -> Carrying<F> {
    task_local::carry_through(Some(deadline.into()), future)
}

pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    task_local::carry_through(None, future)
}

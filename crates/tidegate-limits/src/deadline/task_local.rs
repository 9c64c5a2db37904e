//! The deadline that a task carries, so that code deep inside it knows how much time its work has.

use std::cell::Cell;
use std::thread::LocalKey;

use super::Deadline;
use crate::task_local;
use crate::task_local::Carried;

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
///
/// # Examples
/// ```
/// use tidegate::{Deadline, Tick, deadline};
///
/// let until = Deadline::from(Tick::from_secs(5));
/// assert_eq!(deadline::carry(until, deadline::carried), Some(until));
/// assert_eq!(deadline::carried(), None);
/// ```
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
/// use tidegate::{Deadline, Tick, deadline};
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

/// As [`carry_through`], for work that belongs to no single request: [`carried()`] returns `None`.
pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    task_local::carry_through(None, future)
}

//! The deadline that a task carries, so that code deep within it knows how long its work may take.

use std::cell::Cell;
use std::thread::LocalKey;

use super::Deadline;
use crate::carried::{self, Carried};

thread_local! {
    static CARRIED: Cell<Option<Deadline>> = const { Cell::new(None) };
}

impl Carried for Deadline {
    fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
        &CARRIED
    }
}

/// A future with a deadline: see [`carry_through`].
pub type Carrying<F> = carried::Carrying<Deadline, F>;

/// Returns the deadline of the work that is being done: the one that the innermost [`carry`] or [`carry_through`] around it was given. `None` outside
/// of them, and in tasks and threads that were started from within: what they are to carry is handed to them.
///
/// A load from a thread's own memory.
#[must_use]
pub fn carried() -> Option<Deadline> {
    CARRIED.get()
}

/// Runs a function that finds `deadline` in [`carried`].
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
    carried::carry(Some(deadline.into()), work)
}

/// Returns a future that finds `deadline` in [`carried`] while it is polled, on whatever thread that is.
///
/// It does not end at the deadline by itself; whoever runs it sees to that.
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
    carried::carry_through(Some(deadline.into()), future)
}

/// As [`carry_through`], for work that is no one request's: it finds no deadline.
pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    carried::carry_through(None, future)
}

//! The priority that a task carries, so that code deep within it knows how much its work matters.

use std::cell::Cell;
use std::thread::LocalKey;

use tidegate_core::Priority;

use crate::carried::{self, Carried};

thread_local! {
    static CARRIED: Cell<Option<Priority>> = const { Cell::new(None) };
}

impl Carried for Priority {
    fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
        &CARRIED
    }
}

/// A future with a priority: see [`carry_through`].
pub type Carrying<F> = carried::Carrying<Priority, F>;

/// Returns the priority of the work that is being done: the one that the innermost [`carry`] or [`carry_through`] around it was given. `None` outside
/// of them, and in tasks and threads that were started from within: what they are to carry is handed to them.
///
/// A load from a thread's own memory.
#[must_use]
pub fn carried() -> Option<Priority> {
    CARRIED.get()
}

/// Runs a function that finds `priority` in [`carried`].
///
/// # Examples
/// ```
/// use tidegate::{Criticality, Priority, priority};
///
/// let report = Priority::of(Criticality::Sheddable);
/// assert_eq!(priority::carry(report, priority::carried), Some(report));
/// assert_eq!(priority::carried(), None);
/// ```
pub fn carry<T>(priority: impl Into<Priority>, work: impl FnOnce() -> T) -> T {
    carried::carry(Some(priority.into()), work)
}

/// Returns a future that finds `priority` in [`carried`] while it is polled, on whatever thread that is.
///
/// # Cancel safety
/// Dropping it drops the future.
///
/// # Examples
/// ```
/// use tidegate::{Criticality, Priority, priority};
///
/// async fn deep_within() -> Option<Priority> {
///     priority::carried()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let report = Priority::of(Criticality::Sheddable);
/// assert_eq!(priority::carry_through(report, deep_within()).await, Some(report));
/// # }
/// ```
pub fn carry_through<F: Future>(priority: impl Into<Priority>, future: F) -> Carrying<F> {
    carried::carry_through(Some(priority.into()), future)
}

/// As [`carry_through`], for work that is no one request's: it finds no priority.
pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    carried::carry_through(None, future)
}

/// Returns a function that finds what the caller carries now, whatever thread runs it.
pub(crate) fn hand_over<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let priority = carried();
    move || carried::carry(priority, work)
}

/// Returns the priority that was named, else the one that is carried, else the default.
#[inline]
pub(crate) fn named_or_carried(named: Option<Priority>) -> Priority {
    named.or_else(carried).unwrap_or_default()
}

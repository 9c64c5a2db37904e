//! Priorities: how important a request is, read from a header, carried through the task, and sent on to the next
//! service.
//!
//! The carried priority applies to all work inside the task that names none itself: an entry into a
//! [`Bulkhead`](crate::Bulkhead), or a function that a [`BlockingPool`](crate::blocking_pool::BlockingPool) runs. A
//! `Check` of a gate and a switch do not read it; pass it to them as `priority::carried().unwrap_or_default()`.
//!
//! # Examples
//! An entry deep inside a request takes its place by the request's priority:
//! ```
//! use tidegate::policy::{KeepFor, Kept};
//! use tidegate::priority::Criticality;
//! use tidegate::{Bulkhead, priority};
//!
//! let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
//! let database = Bulkhead::new(2)?.with_keep_for(kept)?;
//! let query = || database.try_enter();
//!
//! let _first = priority::carry(Criticality::Sheddable, query)?;
//! assert!(priority::carry(Criticality::Sheddable, query).is_err(), "the second place is kept");
//! assert!(query().is_ok(), "critical, where nobody says otherwise");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod header;
mod keep_for;

use std::cell::Cell;
use std::thread::LocalKey;

pub use keep_for::{KeepFor, KeepForError, Kept};
#[doc(hidden)]
pub use keep_for::{graded, most_at_once};
pub use tidegate_core::priority::{Cohorts, ParsePriorityError};
pub use tidegate_core::{Criticality, Priority};

use crate::task_local::{self, Carried};

thread_local! {
    static CARRIED: Cell<Option<Priority>> = const { Cell::new(None) };
}

impl Carried for Priority {
    fn slot() -> &'static LocalKey<Cell<Option<Self>>> {
        &CARRIED
    }
}

/// A future with a priority: see [`carry_through`].
pub type Carrying<F> = task_local::Carrying<Priority, F>;

/// Returns the priority of the current work: that of the innermost enclosing [`carry`] or [`carry_through`]. `None`
/// outside of them, and in tasks and threads started inside them: pass the priority on to those explicitly.
///
/// Costs one load from thread-local memory.
#[must_use]
pub fn carried() -> Option<Priority> {
    CARRIED.get()
}

/// Runs a function during which [`carried()`] returns `priority`.
pub fn carry<T>(priority: impl Into<Priority>, work: impl FnOnce() -> T) -> T {
    task_local::carry(Some(priority.into()), work)
}

/// Returns a future during whose polls [`carried()`] returns `priority`, on any thread.
///
/// # Cancel safety
/// Dropping it drops the future.
pub fn carry_through<F: Future>(priority: impl Into<Priority>, future: F) -> Carrying<F> {
    task_local::carry_through(Some(priority.into()), future)
}

pub(crate) fn carry_nothing<F: Future>(future: F) -> Carrying<F> {
    task_local::carry_through(None, future)
}

/// Returns a function during which [`carried()`] returns the priority that the caller carries now, on any thread.
pub(crate) fn hand_over<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let priority = carried();
    move || task_local::carry(priority, work)
}

#[inline]
pub(crate) fn named_or_carried(named: Option<Priority>) -> Priority {
    named.or_else(carried).unwrap_or_default()
}

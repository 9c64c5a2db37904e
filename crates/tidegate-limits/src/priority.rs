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

/// Priorities in headers.
pub mod header {
    use tidegate_core::Priority;

    /// The header in which services pass on the importance of a request, written as a [`Priority`]: `sheddable`, or with
    /// a cohort `sheddable/17`.
    pub const TIDEGATE_PRIORITY: &str = "x-tidegate-priority";

    /// Reads the value of a [`TIDEGATE_PRIORITY`] header; `None` if it is not valid. The caller decides whose header to
    /// trust.
    ///
    /// # Examples
    /// ```
    /// use tidegate::priority::{Criticality, Priority};
    /// use tidegate::priority::header::read_priority;
    ///
    /// assert_eq!(read_priority(b"sheddable/17"), Priority::of(Criticality::Sheddable).in_cohort(17));
    /// assert_eq!(read_priority(b"Sheddable"), None);
    /// assert_eq!(read_priority(b"critical, critical-plus"), None);
    /// ```
    #[must_use]
    pub fn read_priority(value: &[u8]) -> Option<Priority> {
        std::str::from_utf8(value).ok()?.parse().ok()
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::header::read_priority;
    use super::*;

    #[test]
    fn what_is_no_priority_is_not_read() {
        let huge = [b"critical/".as_slice(), &[b'1'; 65_536]].concat();
        for value in [
            &b""[..],
            b" critical",
            b"critical ",
            b"CRITICAL",
            b"critical/128",
            b"critical/-1",
            b"critical-plus-plus",
            b"critical\0",
            b"critical\xff",
            &huge,
        ] {
            assert_eq!(read_priority(value), None, "{:?}", value.get(..30).unwrap_or(value));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not_and_what_is_written_is_read(
            bytes: Vec<u8>, level in 0..4_usize, cohort in 0..128_u8,
        ) {
            if let Some(read) = read_priority(&bytes) {
                prop_assert_eq!(read_priority(read.to_string().as_bytes()), Some(read));
            }
            let priority = Priority::of(Criticality::ALL[level]).in_cohort(cohort).unwrap();
            prop_assert_eq!(read_priority(priority.to_string().as_bytes()), Some(priority));
        }
    }
}

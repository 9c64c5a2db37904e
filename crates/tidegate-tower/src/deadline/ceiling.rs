//! Tells whether the deadline that a task carries was set by somebody, or is only the ceiling of a client's whole call: a
//! value of this thread.

use std::cell::Cell;

use tidegate::Deadline;

thread_local! {
    /// The carried deadline of the call in progress, if it is only the ceiling of the whole call.
    static CEILING: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// Says whether a carried deadline is only the ceiling of a client's whole call, and nobody has set one.
pub(super) fn is_only_ceiling(carried: Deadline) -> bool {
    CEILING.get() == Some(carried)
}

/// Runs a part of a call. `ceiling` is the deadline that it carries, if that is only the ceiling of the whole call.
pub(super) fn within_ceiling<R>(ceiling: Option<Deadline>, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(CEILING.replace(ceiling));
    work()
}

/// Restores the thread-local value when dropped, also if the work panics.
struct Restore(Option<Deadline>);

impl Drop for Restore {
    fn drop(&mut self) {
        CEILING.set(self.0);
    }
}

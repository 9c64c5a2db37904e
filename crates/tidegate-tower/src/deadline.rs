//! Deadline layers: read the time left from a request, carry it through the task, and tell it to the next service.

mod forward;
mod future;
mod header;
mod rules;
mod serve;
mod whole_call;

use std::cell::Cell;

use tidegate::Deadline;

pub use self::forward::{ForwardDeadlineLayer, ForwardDeadlineService};
pub use self::future::DeadlineFuture;
pub use self::serve::{DeadlineLayer, DeadlineService};
pub use self::whole_call::{BoundsCalls, WholeCallFuture, WholeCallLayer, WholeCallService};

thread_local! {
    /// The carried deadline of the call in progress, if it is only the ceiling of a client's whole call and nobody has
    /// set one.
    static CEILING: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// Says whether a carried deadline is only the ceiling of a client's whole call, and nobody has set one.
fn is_only_ceiling(carried: Deadline) -> bool {
    CEILING.get() == Some(carried)
}

/// Runs a part of a call. `ceiling` is the deadline that it carries, if that is only the ceiling of the whole call.
fn within_ceiling<R>(ceiling: Option<Deadline>, work: impl FnOnce() -> R) -> R {
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

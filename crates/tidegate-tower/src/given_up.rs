//! Records in a thread-local flag whether a future is being dropped because its time is up.
//!
//! A future that is dropped does not learn the reason. If the caller hung up, the drop says nothing about the work. If
//! a deadline of ours has passed, the work took too long, and a limit that adapts to latencies must learn of it:
//! otherwise a service that hangs would never lower the limit. So the deadline layer sets the flag on this thread while
//! it drops the future within.

use std::cell::Cell;

use tidegate::Outcome;

thread_local! {
    static TIMEOUT_IS_FAILURE: Cell<bool> = const { Cell::new(false) };
}

/// Restores the flag of this thread when dropped, also if the code in between panics.
struct Restore {
    before: bool,
}

impl Drop for Restore {
    fn drop(&mut self) {
        TIMEOUT_IS_FAILURE.set(self.before);
    }
}

/// Runs `work`, which drops a future, and records meanwhile whether the timeout counts as a failure of that future.
pub(crate) fn dropping_for_timeout<T>(timeout_is_failure: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore { before: TIMEOUT_IS_FAILURE.replace(timeout_is_failure) };
    work()
}

/// Returns the outcome of work that is being dropped: a failure within [`dropping_for_timeout`] if the timeout counts,
/// else ignored.
pub(crate) fn outcome_of_drop() -> Outcome {
    if TIMEOUT_IS_FAILURE.get() { Outcome::Failure } else { Outcome::Ignored }
}

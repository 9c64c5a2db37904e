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
    static SHORTER_DEADLINE: Cell<bool> = const { Cell::new(false) };
}

/// Restores a flag of this thread when dropped, also if the code in between panics.
struct Restore {
    flag: &'static std::thread::LocalKey<Cell<bool>>,
    before: bool,
}

impl Restore {
    fn after_setting(flag: &'static std::thread::LocalKey<Cell<bool>>, to: bool) -> Self {
        Self { flag, before: flag.replace(to) }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

/// Runs `work`, and records meanwhile whether the deadline that it carries was set by a caller who gives it less time
/// than our default. If it was, a timeout does not count against the services that `work` calls.
pub(crate) fn under_shorter_deadline<T>(is_shorter: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&SHORTER_DEADLINE, is_shorter);
    work()
}

/// Returns whether the carried deadline was set by a caller who gives less time than our default.
pub(crate) fn is_under_shorter_deadline() -> bool {
    SHORTER_DEADLINE.get()
}

/// Runs `work`, which drops a future, and records meanwhile whether the timeout counts as a failure of that future.
pub(crate) fn dropping_for_timeout<T>(timeout_is_failure: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&TIMEOUT_IS_FAILURE, timeout_is_failure);
    work()
}

/// Returns the outcome of work that is being dropped: a failure within [`dropping_for_timeout`] if the timeout
/// counts, else ignored.
pub(crate) fn outcome_of_drop() -> Outcome {
    if TIMEOUT_IS_FAILURE.get() { Outcome::Failure } else { Outcome::Ignored }
}

//! Records in a thread-local flag whether a future is being dropped because its time is up.
//!
//! A future that is dropped does not learn the reason. If the caller hung up, the drop says nothing about the work. If
//! a deadline of ours has passed, the work took too long, and a limit that adapts to latencies must learn of it:
//! otherwise a service that hangs would never lower the limit. So the deadline layer sets the flag on this thread while
//! it drops the future within.

use std::cell::Cell;

use tidegate::Outcome;

thread_local! {
    static GIVEN_UP: Cell<bool> = const { Cell::new(false) };
    static HURRIED: Cell<bool> = const { Cell::new(false) };
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
pub(crate) fn hurried<T>(is_hurried: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&HURRIED, is_hurried);
    work()
}

/// Returns whether the carried deadline was set by a caller who gives less time than our default.
pub(crate) fn is_hurried() -> bool {
    HURRIED.get()
}

/// Runs `work`, which drops a future, and records meanwhile whether the timeout counts as a failure of that future.
pub(crate) fn giving_up<T>(says_something: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&GIVEN_UP, says_something);
    work()
}

/// Returns the outcome of work that is being dropped: a failure within [`giving_up`] if the timeout counts, else
/// ignored.
pub(crate) fn outcome_of_drop() -> Outcome {
    if GIVEN_UP.get() { Outcome::Failure } else { Outcome::Ignored }
}

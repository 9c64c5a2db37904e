//! Whether a future is being dropped because its time is up.
//!
//! A future that is dropped learns nothing of the reason. Where a caller hung up, that says nothing of the work; where a deadline of ours has
//! passed, the work took too long, and a limit that learns from latencies must hear of it: a service that hangs would teach it nothing at
//! all. So the deadline layer says so on this thread while it drops what is within.

use std::cell::Cell;

use tidegate::Outcome;

thread_local! {
    static GIVEN_UP: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which drops a future, and says meanwhile whether the time that was up says something of what is dropped.
pub(crate) fn giving_up<T>(says_something: bool, work: impl FnOnce() -> T) -> T {
    /// Restores what was said before, also where dropping panics.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            GIVEN_UP.set(self.0);
        }
    }
    let _restore = Restore(GIVEN_UP.replace(says_something));
    work()
}

/// Returns how work ended that is being dropped.
pub(crate) fn outcome_of_drop() -> Outcome {
    if GIVEN_UP.get() { Outcome::Failure } else { Outcome::Ignored }
}

//! Whether a future is being dropped because its time is up.
//!
//! A future that is dropped learns nothing of the reason. Where a caller hung up, that says nothing of the work; where a deadline of ours has
//! passed, the work took too long, and a limit that learns from latencies must hear of it: a service that hangs would teach it nothing at
//! all. So the deadline layer says so on this thread while it drops what is within.

use std::cell::Cell;

use tidegate::Outcome;

thread_local! {
    static GIVEN_UP: Cell<bool> = const { Cell::new(false) };
    static HURRIED: Cell<bool> = const { Cell::new(false) };
}

/// Sets a flag of this thread back to what it was, also where what runs meanwhile panics.
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

/// Runs `work`, and says meanwhile whether the deadline that it carries is the wish of a caller who gives it less time than we would: then to
/// run out of it says nothing of the services that are called.
pub(crate) fn hurried<T>(is_hurried: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&HURRIED, is_hurried);
    work()
}

/// Says whether the deadline that is carried is the wish of a hurried caller.
pub(crate) fn is_hurried() -> bool {
    HURRIED.get()
}

/// Runs `work`, which drops a future, and says meanwhile whether the time that was up says something of what is dropped.
pub(crate) fn giving_up<T>(says_something: bool, work: impl FnOnce() -> T) -> T {
    let _restore = Restore::after_setting(&GIVEN_UP, says_something);
    work()
}

/// Returns how work ended that is being dropped.
pub(crate) fn outcome_of_drop() -> Outcome {
    if GIVEN_UP.get() { Outcome::Failure } else { Outcome::Ignored }
}

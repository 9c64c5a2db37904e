//! Adds to a check how long its caller still waits.

use tidegate::Deadline;
use tidegate::gate::Check;
use tidegate::policy::time_left;

use super::Engine;
use crate::live::Live;

impl Engine {
    /// Bounds the delay of a request by the time that its caller still waits, if a policy may delay requests.
    ///
    /// Only for stores that always decide. If an engine were given up at a deadline that the caller chose,
    /// `on_store_error` would decide the request, so a caller could get through by sending a header.
    pub(super) fn prepared<'a, 'd>(&self, live: &Live, check: Check<'a, 'd>) -> Check<'a, 'd> {
        let mut check = check;
        if check.deadline.is_none() && live.delays && self.store.caps().always_decides {
            check.deadline = time_left(check.request).map(|(left, _)| Deadline::Tick(self.now().after(left)));
        }
        check
    }
}

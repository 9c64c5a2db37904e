//! What a check is decided under beside its policies: the time that its caller still waits.

use tidegate::Deadline;
use tidegate::gate::Check;
use tidegate::policy::time_left;

use super::Engine;
use crate::live::Live;

impl Engine {
    /// Bounds the wait of a request by the time that its caller still waits, where a policy may hold it back.
    ///
    /// Only where the store decides on the spot: an engine that was given up for a time that a caller has named would leave the decision to
    /// `on_store_error`, and a caller would choose by a header to be let through.
    pub(super) fn prepared<'a, 'd>(&self, live: &Live, check: Check<'a, 'd>) -> Check<'a, 'd> {
        let mut check = check;
        if check.deadline.is_none() && live.delays && self.store.caps().always_decides {
            check.deadline = time_left(check.request).map(|(left, _)| Deadline::Tick(self.now().after(left)));
        }
        check
    }
}

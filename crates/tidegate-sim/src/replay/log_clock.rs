//! The clock that a log turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Clock, Tick};

/// A clock that stands where the log is; clones share the time. Nobody sleeps by it, so it keeps no list of sleepers, as
/// [`ManualClock`](tidegate::ManualClock) does, and a step costs one write.
#[derive(Clone, Debug, Default)]
pub(super) struct LogClock {
    nanos: Arc<AtomicU64>,
}

impl LogClock {
    pub(super) fn set(&self, tick: Tick) {
        // Relaxed: one thread writes and reads, and the tick publishes nothing but itself.
        self.nanos.store(tick.as_nanos(), Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

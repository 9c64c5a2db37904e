//! A clock that is set from the times in a log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Clock, Tick};

/// A clock at the current time of the log; clones share the time. No task sleeps on it, so it keeps no list of
/// sleepers as [`ManualClock`](tidegate::ManualClock) does, and setting it costs one write.
#[derive(Clone, Debug, Default)]
pub(super) struct LogClock {
    nanos: Arc<AtomicU64>,
}

impl LogClock {
    pub(super) fn set(&self, tick: Tick) {
        // Relaxed: one thread writes and reads, and the tick publishes no other memory.
        self.nanos.store(tick.as_nanos(), Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

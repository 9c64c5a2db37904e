//! How long work takes: the ticks of one permit, and the mean time of recent ones, which bounds the wait in a short queue.

use std::time::Duration;

use tidegate_core::Tick;
use tidegate_core::time::nanos;

use crate::sync::{AtomicU64, Ordering};

/// The weight of one sample in the mean is 1/32, so about the last hundred count.
const WEIGHT: u64 = 32;
/// The shortest bound on a wait in a short queue: timers are exact only to some milliseconds.
const LEAST_WAIT: Duration = Duration::from_millis(5);
/// The longest bound on a wait in a short queue.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// The ticks from which a law learns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// When the work began.
    pub(super) began: Tick,
    /// When the answer began, if it was streamed.
    pub(super) answered: Option<Tick>,
    /// Until when the caller waits, if it said so and there is a law.
    pub(super) deadline: Option<Tick>,
}

/// The mean time from entering to leaving, in nanoseconds; zero until the first permit has left.
#[derive(Debug, Default)]
pub(super) struct MeanLatency(AtomicU64);

impl MeanLatency {
    /// Adds one sample to the mean. When two samples arrive at once, one may be lost; in a mean of about a hundred that
    /// does not matter.
    pub(super) fn learn(&self, latency: Duration) {
        let latency = nanos(latency);
        // Relaxed, here and below: no other data depends on the number.
        let mean = self.0.load(Ordering::Relaxed);
        let next = match mean {
            0 => latency,
            mean => mean - mean / WEIGHT + latency / WEIGHT,
        };
        self.0.store(next, Ordering::Relaxed);
    }

    /// Returns the longest wait in a short queue: half the mean, but at least 5 ms and at most 1 s.
    pub(super) fn short_wait(&self) -> Duration {
        let half = Duration::from_nanos(self.0.load(Ordering::Relaxed) / 2);
        half.clamp(LEAST_WAIT, MOST_WAIT)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_is_half_of_what_work_takes_within_bounds() {
        let latency = MeanLatency::default();
        assert_eq!(latency.short_wait(), LEAST_WAIT, "nobody has left");
        latency.learn(Duration::from_millis(40));
        assert_eq!(latency.short_wait(), Duration::from_millis(20));
        for _ in 0..200 {
            latency.learn(Duration::from_millis(100));
        }
        let wait = latency.short_wait();
        assert!(wait > Duration::from_millis(49) && wait <= Duration::from_millis(50), "{wait:?}");
        for _ in 0..200 {
            latency.learn(Duration::MAX);
        }
        assert_eq!(latency.short_wait(), MOST_WAIT);
    }
}

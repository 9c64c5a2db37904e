//! How long work takes of late, so that a short line is no longer than it helps.

use std::time::Duration;

use tidegate_core::time::nanos;

use crate::sync::{AtomicU64, Ordering};

/// How much of each piece of work enters the mean: a thirty-second, so that the last hundred count.
const WEIGHT: u64 = 32;
/// Nobody waits for less in a short line: a timer is not more exact than some milliseconds.
const LEAST_WAIT: Duration = Duration::from_millis(5);
/// Nor for more, however long the work takes.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// The mean time from entering to leaving, in nanoseconds; zero before anybody left.
#[derive(Debug, Default)]
pub(super) struct MeanLatency(AtomicU64);

impl MeanLatency {
    /// Takes in one piece of work. Of two that end at once one may be lost, which a mean of a hundred does not notice.
    pub(super) fn learn(&self, latency: Duration) {
        let latency = nanos(latency);
        // Relaxed, here and below: the number stands by itself.
        let mean = self.0.load(Ordering::Relaxed);
        let next = match mean {
            0 => latency,
            mean => mean - mean / WEIGHT + latency / WEIGHT,
        };
        self.0.store(next, Ordering::Relaxed);
    }

    /// Returns how long one waits at most in a short line: half the mean, within 5 ms and 1 s.
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

//! Which denials are logged. A flood of refusals must not become a flood of log lines; the metrics count all.
//!
//! Each policy may log a few lines at once and then one every ten seconds; all together may log one a second. A line
//! says how many denials of its policy were left out before it.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Limiter, Quota, QuotaError};

/// How many lines one policy may log at once. Requests that are tried by hand are all logged.
const BURST: u64 = 5;
/// Lines of one policy a minute after that.
const PER_MINUTE: u64 = 6;
const BURST_OF_ALL: u64 = 50;
/// Lines of all policies a second after that: as many as the log accepts from one place in the program. With more,
/// the log itself would drop lines.
const PER_SECOND_OF_ALL: u64 = 1;

/// Limits the denials that are logged for one policy, or for all together.
#[derive(Debug)]
pub(crate) struct DenialLog {
    often: Limiter,
    left_out: AtomicU64,
}

impl Default for DenialLog {
    fn default() -> Self {
        Self::new(Quota::per_minute(PER_MINUTE).burst(BURST).gcra())
    }
}

impl DenialLog {
    fn new(quota: Result<Quota, QuotaError>) -> Self {
        let often = Limiter::new(quota.expect("a rate in range")).expect("a quota in range");
        Self { often, left_out: AtomicU64::new(0) }
    }

    /// Makes the limit for all policies together.
    pub(crate) fn of_all() -> Self {
        Self::new(Quota::per_second(PER_SECOND_OF_ALL).burst(BURST_OF_ALL).gcra())
    }

    #[cfg(test)]
    fn with_clock(self, clock: impl tidegate::clock::Clock + 'static) -> Self {
        Self { often: self.often.with_clock(clock), ..self }
    }

    /// Returns whether to log a denial: the number left out before this one; `None` if it is left out and counted.
    pub(crate) fn turn(&self, of_all: &Self) -> Option<u64> {
        // Relaxed: only people read the count.
        if self.often.admit() && of_all.often.admit() {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate::clock::ManualClock;

    use super::*;

    #[test]
    fn a_flood_is_some_lines_that_say_how_many_there_were() {
        let clock = Arc::new(ManualClock::default());
        let log = |log: DenialLog| log.with_clock(Arc::clone(&clock));
        let (one, other, all) =
            (log(DenialLog::default()), log(DenialLog::default()), log(DenialLog::of_all()));
        let told: Vec<u64> = (0..1000).filter_map(|_| one.turn(&all)).collect();
        assert_eq!(told, [0; 5], "the first are told whole");
        assert_eq!(other.turn(&all), Some(0), "another policy's flood takes nothing from this one");
        clock.advance(Duration::from_secs(10));
        assert_eq!(one.turn(&all), Some(995));
        assert_eq!(one.turn(&all), None);
    }

    #[test]
    fn many_policies_have_a_line_a_second_together() {
        let clock = Arc::new(ManualClock::default());
        let log = |log: DenialLog| log.with_clock(Arc::clone(&clock));
        let all = log(DenialLog::of_all());
        let policies: Vec<DenialLog> = (0..100).map(|_| log(DenialLog::default())).collect();
        let told = || policies.iter().filter_map(|policy| policy.turn(&all)).count();
        assert_eq!(told(), 50);
        clock.advance(Duration::from_secs(3));
        assert_eq!(told(), 3);
    }
}

//! How often the log is told of denials.
//!
//! A flood of refusals must not become a flood of lines, so most are left out. Each policy has a few lines at once and then one every ten
//! seconds, all policies together one a second; a line says how many of its policy's denials were left out since the one before. What was
//! denied in all, the metrics count.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Limiter, Quota, QuotaError};

/// Lines of one policy at once: what is tried by hand is seen whole.
const BURST: u64 = 5;
/// Lines of one policy a minute after that.
const PER_MINUTE: u64 = 6;
/// Lines of all policies at once, and a second: as often as one place in the program may speak, or it would be the log that
/// leaves lines out.
const BURST_OF_ALL: u64 = 50;
const PER_SECOND_OF_ALL: u64 = 1;

/// Which denials of one policy, or of all, are told.
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

    /// The one of all policies together.
    pub(crate) fn of_all() -> Self {
        Self::new(Quota::per_second(PER_SECOND_OF_ALL).burst(BURST_OF_ALL).gcra())
    }

    #[cfg(test)]
    fn with_clock(self, clock: impl tidegate::Clock + 'static) -> Self {
        Self { often: self.often.with_clock(clock), ..self }
    }

    /// Says whether a denial is told, and how many were left out before it; counts it where it is not.
    pub(crate) fn turn(&self, of_all: &Self) -> Option<u64> {
        // Relaxed: a number for people.
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

    use tidegate::ManualClock;

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

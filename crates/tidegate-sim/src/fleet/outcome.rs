//! What came of a run.

use std::time::Duration;

/// What all nodes together did in one stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Units asked for.
    pub asked: u64,
    /// Units admitted.
    pub admitted: u64,
    /// Units that one central limit would have admitted of the same asks.
    pub ideal: u64,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// By how many units any span had more than the burst and what the rate returned in it; see [`tidegate_core::envelope::Envelope`].
    pub excess: u64,
    /// Admitted units in thousandths of the ideal.
    pub used_per_mille: u64,
    /// Units asked for.
    pub asked: u64,
    /// Units admitted.
    pub admitted: u64,
    /// Messages that nodes sent to the engine.
    pub messages: u64,
    /// Calls to what the regions agree through.
    pub calls_across: u64,
    /// Those of them that were made on the way of a request.
    pub across_on_path: u64,
    /// Requests whose decision never came.
    pub hung: u64,
    /// The longest that a decision took.
    pub longest: Duration,
    /// The median and the 99th percentile of what decisions took.
    pub p50: Duration,
    /// The 99th percentile of what decisions took.
    pub p99: Duration,
    /// What happened in each [`Outcome::STRETCH`].
    pub intervals: Vec<Interval>,
    /// How long after the last fault all went as before: at least nine tenths of the ideal, for half a second; `None` if it never did.
    pub recovery: Option<Duration>,
}

impl Outcome {
    /// The length of an interval.
    pub const STRETCH: Duration = Duration::from_millis(100);

    /// Returns how much of the ideal was admitted from a time on, in thousandths.
    #[must_use]
    pub fn used_from(&self, time: Duration) -> u64 {
        let first = usize::try_from(time.as_nanos() / Self::STRETCH.as_nanos()).unwrap_or(usize::MAX);
        let later = self.intervals.get(first..).unwrap_or_default();
        let sum = |of: fn(&Interval) -> u64| later.iter().map(of).sum::<u64>();
        (sum(|one| one.admitted) * 1000).checked_div(sum(|one| one.ideal)).unwrap_or(1000)
    }

    /// Finds the recovery after a time.
    pub(super) fn find_recovery(&mut self, healed: Duration) {
        let first =
            usize::try_from(healed.as_nanos().div_ceil(Self::STRETCH.as_nanos())).unwrap_or(usize::MAX);
        let good = |stretch: &[Interval]| {
            let sum = |of: fn(&Interval) -> u64| stretch.iter().map(of).sum::<u64>();
            sum(|one| one.admitted) * 10 >= sum(|one| one.ideal) * 9
        };
        let later = self.intervals.get(first..).unwrap_or_default();
        self.recovery =
            later.windows(5).position(good).map(|at| Self::STRETCH * u32::try_from(at).unwrap_or(u32::MAX));
    }
}

//! The outcome of a run.

use std::time::Duration;

/// What all nodes together did in one [`Outcome::STRETCH`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) asked: u64,
    /// Units admitted.
    pub(crate) admitted: u64,
    /// Units that one central limit would have admitted of the same requests.
    pub(crate) ideal: u64,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The most units, over all spans of time, that were admitted beyond the burst and what the rate returns in
    /// that span; see [`tidegate_core::envelope::Envelope`].
    pub(crate) excess: u64,
    /// Admitted units in thousandths of the ideal.
    pub(crate) used_per_mille: u64,
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    /// Messages that nodes sent to the engine.
    pub(crate) messages: u64,
    /// Calls to the coordinator of all regions.
    pub(crate) calls_across: u64,
    /// Those calls across regions that were made while a request was being decided.
    pub(crate) across_on_path: u64,
    /// Requests that were never decided.
    pub(crate) hung: u64,
    pub(crate) longest: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) intervals: Vec<Interval>,
    /// How long after the last fault the fleet was back: it admitted at least nine tenths of the ideal for half a
    /// second. `None` if it never did.
    pub(crate) recovery: Option<Duration>,
}

impl Outcome {
    /// The length of an interval.
    pub(crate) const STRETCH: Duration = Duration::from_millis(100);

    /// Returns how much of the ideal was admitted from a time on, in thousandths.
    pub(crate) fn used_from(&self, time: Duration) -> u64 {
        let first = usize::try_from(time.as_nanos() / Self::STRETCH.as_nanos()).unwrap_or(usize::MAX);
        let later = self.intervals.get(first..).unwrap_or_default();
        let sum = |of: fn(&Interval) -> u64| later.iter().map(of).sum::<u64>();
        (sum(|one| one.admitted) * 1000).checked_div(sum(|one| one.ideal)).unwrap_or(1000)
    }

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

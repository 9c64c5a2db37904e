//! The rules by which a breaker trips: which figures it compares with which thresholds.

use core::fmt;

use super::outcomes::{Sample, Totals};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// The share of all calls, in millionths, the unit of shares.
pub(super) const WHOLE: u32 = 1_000_000;

/// Why a breaker tripped, or would have: the figure that reached its threshold.
///
/// Displayed as a person reads it: `12 of 20 calls failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Figure {
    /// The share of the calls in the window that failed is too large.
    FailureRatio(Totals),
    /// The share of the calls in the window that were slow is too large.
    SlowRatio(Totals),
    /// Too many calls in a row failed.
    Consecutive {
        /// How many failed in a row.
        failures: u32,
    },
    /// Too many of the calls in the window failed, whatever their share.
    Failures(Totals),
    /// The calls admitted to try the service failed, or were slow.
    Probes(Totals),
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FailureRatio(totals) | Self::Failures(totals) => {
                write!(f, "{} of {} calls failed", totals.failures, totals.calls)
            }
            Self::SlowRatio(totals) => write!(f, "{} of {} calls were slow", totals.slow, totals.calls),
            Self::Consecutive { failures: 1 } => f.write_str("1 call failed"),
            Self::Consecutive { failures } => write!(f, "{failures} calls in a row failed"),
            Self::Probes(Totals { calls, failures, slow }) => {
                let probes = if *calls == 1 { "probe" } else { "probes" };
                write!(f, "of {calls} {probes} {failures} failed and {slow} were slow")
            }
        }
    }
}

impl Figure {
    pub(super) const LARGEST: usize = 1 + 12;
}

impl Bytes for Figure {
    fn write(&self, out: &mut Writer) {
        let (kind, totals) = match *self {
            Self::FailureRatio(totals) => (0, totals),
            Self::SlowRatio(totals) => (1, totals),
            Self::Consecutive { failures } => (2, Totals { calls: failures, failures, slow: 0 }),
            Self::Failures(totals) => (3, totals),
            Self::Probes(totals) => (4, totals),
        };
        out.u8(kind);
        totals.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (kind, totals) = (from.u8()?, Totals::read(from)?);
        match kind {
            0 => Ok(Self::FailureRatio(totals)),
            1 => Ok(Self::SlowRatio(totals)),
            2 => Ok(Self::Consecutive { failures: totals.failures }),
            3 => Ok(Self::Failures(totals)),
            4 => Ok(Self::Probes(totals)),
            _ => Err(DecodeError::Value { field: "figure" }),
        }
    }
}

/// The thresholds, with shares in millionths. `None` if a figure is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BreakerThresholds {
    pub(super) failure_ratio: Option<u32>,
    pub(super) slow_ratio: Option<u32>,
    pub(super) consecutive: Option<u32>,
    pub(super) failures: Option<u32>,
    /// Ratios and counts are not compared below this many calls.
    pub(super) min_calls: u32,
    /// Whether a figure has to exceed its threshold rather than reach it. A share of all calls trips when it is
    /// reached in either case.
    pub(super) above: bool,
}

impl BreakerThresholds {
    /// Returns the first figure that trips the breaker.
    pub(super) fn tripped_by(&self, totals: Totals, consecutive: u32) -> Option<Figure> {
        if self.consecutive.is_some_and(|most| consecutive >= most) {
            return Some(Figure::Consecutive { failures: consecutive });
        }
        if totals.calls < self.min_calls {
            return None;
        }
        let too_many = self.failures.is_some_and(|most| match self.above {
            true => totals.failures > most,
            false => totals.failures >= most,
        });
        if too_many { Some(Figure::Failures(totals)) } else { self.ratio_of(totals) }
    }

    /// Returns the ratio that trips the breaker, however few calls there were.
    pub(super) fn ratio_of(&self, totals: Totals) -> Option<Figure> {
        let too_large = |part: u32, share: Option<u32>| {
            share.is_some_and(|share| self.is_over(part, totals.calls, share))
        };
        if too_large(totals.failures, self.failure_ratio) {
            return Some(Figure::FailureRatio(totals));
        }
        too_large(totals.slow, self.slow_ratio).then_some(Figure::SlowRatio(totals))
    }

    fn is_over(&self, part: u32, whole: u32, share: u32) -> bool {
        let (is, most) = (u64::from(part) * u64::from(WHOLE), u64::from(whole) * u64::from(share));
        whole > 0 && if self.above && share < WHOLE { is > most } else { is >= most }
    }

    pub(super) const fn counts_failures(&self) -> bool {
        self.failure_ratio.is_some() || self.consecutive.is_some() || self.failures.is_some()
    }

    /// Says whether this call alone counts against the service.
    pub(super) const fn is_bad(&self, sample: Sample) -> bool {
        sample.failed && self.counts_failures() || sample.slow && self.slow_ratio.is_some()
    }
}

impl Bytes for BreakerThresholds {
    fn write(&self, out: &mut Writer) {
        // No threshold is zero, so zero stands for `None`.
        for threshold in [self.failure_ratio, self.slow_ratio, self.consecutive, self.failures] {
            out.u32(threshold.unwrap_or(0));
        }
        out.u32(self.min_calls);
        out.u8(u8::from(self.above));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut threshold = || from.u32().map(|number| (number > 0).then_some(number));
        let (failure_ratio, slow_ratio) = (threshold()?, threshold()?);
        let (consecutive, failures) = (threshold()?, threshold()?);
        let (min_calls, above) = (from.u32()?, from.u8()? != 0);
        Ok(Self { failure_ratio, slow_ratio, consecutive, failures, min_calls, above })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BreakerThresholds = BreakerThresholds {
        failure_ratio: None,
        slow_ratio: None,
        consecutive: None,
        failures: None,
        min_calls: 4,
        above: false,
    };

    fn totals(calls: u32, failures: u32, slow: u32) -> Totals {
        Totals { calls, failures, slow }
    }

    #[test]
    fn a_threshold_is_reached_or_exceeded() {
        for (above, trips) in [(false, [false, true, true]), (true, [false, false, true])] {
            let ratio = BreakerThresholds { failure_ratio: Some(WHOLE / 2), above, ..NONE };
            assert_eq!(
                [3, 4, 5].map(|failures| ratio.tripped_by(totals(8, failures, 0), 0).is_some()),
                trips
            );
            let count = BreakerThresholds { failures: Some(4), above, ..NONE };
            assert_eq!(
                [3, 4, 5].map(|failures| count.tripped_by(totals(9, failures, 0), 0).is_some()),
                trips
            );
        }
    }

    #[test]
    fn a_share_of_all_trips_where_thresholds_are_to_be_exceeded() {
        let rules = BreakerThresholds { slow_ratio: Some(WHOLE), above: true, ..NONE };
        assert_eq!(rules.tripped_by(totals(5, 0, 5), 0), Some(Figure::SlowRatio(totals(5, 0, 5))));
        assert_eq!(rules.tripped_by(totals(5, 0, 4), 0), None);
    }

    #[test]
    fn too_few_calls_trip_nothing_but_failures_in_a_row() {
        let rules =
            BreakerThresholds { failure_ratio: Some(1), failures: Some(1), consecutive: Some(3), ..NONE };
        assert_eq!(rules.tripped_by(totals(3, 3, 0), 2), None);
        assert_eq!(rules.tripped_by(totals(3, 3, 0), 3), Some(Figure::Consecutive { failures: 3 }));
        assert_eq!(BreakerThresholds { min_calls: 0, ..rules }.tripped_by(totals(0, 0, 0), 0), None);
    }

    #[test]
    fn figures_are_told_in_words() {
        assert_eq!(Figure::FailureRatio(totals(20, 12, 0)).to_string(), "12 of 20 calls failed");
        assert_eq!(Figure::Probes(totals(3, 2, 1)).to_string(), "of 3 probes 2 failed and 1 were slow");
    }
}

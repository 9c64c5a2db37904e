//! A rate in the form in which its author wrote it.

use std::fmt;
use std::time::Duration;

use super::unit::Unit;

/// The largest period that the core crate accepts.
pub(super) const MAX_PERIOD: Duration = tidegate_core::Rate::MAX_PERIOD;

/// A rate as written: a count per number of units, or unlimited.
///
/// Keeps the author's form: `100/10min` prints as `100/10min`, not as `10/min`, which is a different limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrittenRate {
    /// Deliberately no limit.
    Unlimited,
    /// `count` per `times` units.
    Per {
        /// The count, 1 to 2⁶⁰.
        count: u64,
        /// The number of units in the period, 1 or more.
        times: u64,
        /// The unit.
        unit: Unit,
    },
}

impl WrittenRate {
    /// Returns the period; `None` if unlimited.
    #[must_use]
    pub fn period(self) -> Option<Duration> {
        match self {
            Self::Unlimited => None,
            Self::Per { times, unit, .. } => multiply(unit.length(), times),
        }
    }
}

fn multiply(length: Duration, times: u64) -> Option<Duration> {
    let nanos = length.as_nanos().checked_mul(u128::from(times))?;
    (nanos <= MAX_PERIOD.as_nanos()).then(|| tidegate_core::time::span(nanos))
}

impl fmt::Display for WrittenRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Per { count, times: 1, unit } => write!(f, "{count}/{}", unit.name()),
            Self::Per { count, times, unit } => write!(f, "{count}/{times}{}", unit.name()),
        }
    }
}

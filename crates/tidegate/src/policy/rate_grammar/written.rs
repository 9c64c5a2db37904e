//! A rate as its author wrote it.

use std::fmt;
use std::time::Duration;

use super::unit::Unit;

/// The largest period: what core accepts.
pub(super) const MAX_PERIOD: Duration = tidegate_core::Rate::MAX_PERIOD;

/// A rate as written: so many per so many units, or unlimited.
///
/// Keeps the words of its author: `100/10min` prints as `100/10min`, not as `10/min`, which is another limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrittenRate {
    /// No limit, on purpose.
    Unlimited,
    /// `count` per `times` units.
    Per {
        /// How many; 1 to 2⁶⁰.
        count: u64,
        /// How many units make the period; 1 or more.
        times: u64,
        /// The unit.
        unit: Unit,
    },
}

impl WrittenRate {
    /// Returns the period; `None` when unlimited.
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

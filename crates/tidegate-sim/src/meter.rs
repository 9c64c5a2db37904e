//! A leaky bucket without a bound: the highest level it reaches at a rate tells the burst that the requests needed.
//!
//! The arithmetic is that of `gcra`: with a rate of `c` units per `p` nanoseconds in lowest terms, a unit weighs `p`,
//! and `c` drains in each nanosecond. Nothing is rounded, so a level fits a burst exactly as a gate would decide.

use std::time::Duration;

use tidegate::limiter::Rate;

/// Levels from here on are too high for any burst. Below it nothing saturates.
const TOP: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter {
    /// How much drains per nanosecond.
    drain: u64,
    unit: u64,
}

impl Meter {
    pub(crate) fn new(rate: Rate) -> Self {
        let (drain, unit) = rate.reduced();
        Self { drain, unit }
    }

    #[inline]
    pub(crate) fn drained(&self, level: u64, nanos: u64) -> u64 {
        level.saturating_sub(nanos.saturating_mul(self.drain))
    }

    #[inline]
    pub(crate) fn charged(&self, level: u64, units: u64) -> u64 {
        level.saturating_add(units.saturating_mul(self.unit))
    }

    /// The highest level that a burst allows; `None` if that is too high for exact arithmetic.
    pub(crate) fn full(&self, burst: u64) -> Option<u64> {
        self.unit.checked_mul(burst).filter(|full| *full < TOP)
    }

    pub(crate) fn burst(&self, level: u64) -> u64 {
        level.div_ceil(self.unit)
    }

    /// Returns how long a level takes to drain, rounded up to a nanosecond.
    pub(crate) fn drains_in(&self, level: u64) -> Duration {
        Duration::from_nanos(level.div_ceil(self.drain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_the_burst_that_was_needed() {
        // At 7 per minute a unit takes 60/7 s, which is not a whole number of nanoseconds.
        let meter = Meter::new(Rate::new(7, Duration::from_secs(60)).unwrap());
        let mut level = 0;
        for (seconds_later, burst) in [(0, 1), (0, 2), (8, 3), (1, 3), (60, 1)] {
            level = meter.charged(meter.drained(level, seconds_later * 1_000_000_000), 1);
            assert_eq!(meter.burst(level), burst, "{seconds_later}");
            assert!(level <= meter.full(burst).unwrap() && level > meter.full(burst - 1).unwrap());
        }
        assert_eq!(meter.drains_in(meter.full(7).unwrap()), Duration::from_secs(60));
        assert_eq!(meter.full(u64::MAX), None);
    }
}

//! The report of a GCRA word at one moment, computed only when it is read.

use core::time::Duration;

use crate::decision::{Retry, Standing};

/// The report of one word of a limit at one tick. Four numbers, `Copy`: making it costs a subtraction, reading it divisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraReport {
    pub(super) unit: u64,
    pub(super) scale: u64,
    pub(super) burst: u64,
    /// Scaled time until the limit is full.
    pub(super) spent: u64,
}

impl GcraReport {
    /// Returns the standing of the limit.
    #[must_use]
    #[inline]
    pub fn standing(&self) -> Standing {
        let (remaining, debt) = match self.full().checked_sub(self.spent) {
            Some(left) => (whole(left, self.unit), 0),
            None => (0, self.debt()),
        };
        Standing { limit: self.burst, remaining, debt, reset_after: self.span(self.spent) }
    }

    /// Returns when `units` can be spent: after zero time if they can be now, never if they are above the burst.
    #[must_use]
    pub fn retry(&self, units: u64) -> Retry {
        if units > self.burst {
            return Retry::Never;
        }
        // At most a burst, which fits 64 bits when added to any word.
        let wanted = self.spent + units * self.unit;
        Retry::After(self.span(wanted.saturating_sub(self.full())))
    }

    /// Returns the units below empty, rounded up.
    #[cold]
    fn debt(&self) -> u64 {
        self.spent.saturating_sub(self.full()).div_ceil(self.unit.max(1))
    }

    /// Returns the burst in scaled time. In every word form it fits 64 bits.
    const fn full(&self) -> u64 {
        self.burst.wrapping_mul(self.unit)
    }

    /// Returns scaled time as a wait, rounded up.
    fn span(&self, scaled: u64) -> Duration {
        let nanos = whole(scaled, self.scale);
        Duration::from_nanos(nanos + u64::from(nanos.wrapping_mul(self.scale) != scaled))
    }
}

/// Returns `scaled / part`, rounded down. `part` is never zero. The result for zero only avoids a panic path, so that
/// a division whose result is not used costs nothing.
#[inline]
pub(super) const fn whole(scaled: u64, part: u64) -> u64 {
    match scaled.checked_div(part) {
        Some(whole) => whole,
        None => 0,
    }
}

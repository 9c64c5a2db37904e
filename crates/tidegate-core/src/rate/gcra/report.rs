//! What a GCRA word says at one moment, worked out when somebody asks.

use core::time::Duration;

use crate::decision::{Retry, Standing};

/// What one word of a limit says at one tick. Four numbers, `Copy`: making it costs a subtraction, reading it divisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraReport {
    pub(super) unit: u64,
    pub(super) scale: u64,
    pub(super) burst: u64,
    /// Scaled time until the limit is full.
    pub(super) spent: u64,
}

impl GcraReport {
    /// Returns what the limit looks like.
    #[must_use]
    #[inline]
    pub fn standing(&self) -> Standing {
        let (remaining, debt) = match self.full().checked_sub(self.spent) {
            Some(left) => (whole(left, self.unit), 0),
            None => (0, self.debt()),
        };
        Standing { limit: self.burst, remaining, debt, reset_after: self.span(self.spent) }
    }

    /// Returns when `units` could be spent: after no time where they can be, never above the burst.
    #[must_use]
    pub fn retry(&self, units: u64) -> Retry {
        if units > self.burst {
            return Retry::Never;
        }
        // At most a burst, which fits beside any word.
        let wanted = self.spent + units * self.unit;
        Retry::After(self.span(wanted.saturating_sub(self.full())))
    }

    /// Units below empty, rounded up.
    #[cold]
    fn debt(&self) -> u64 {
        self.spent.saturating_sub(self.full()).div_ceil(self.unit.max(1))
    }

    /// A form's burst times its unit fits.
    const fn full(&self) -> u64 {
        self.burst.wrapping_mul(self.unit)
    }

    /// Returns scaled time as a wait, rounded up.
    fn span(&self, scaled: u64) -> Duration {
        let nanos = whole(scaled, self.scale);
        Duration::from_nanos(nanos + u64::from(nanos.wrapping_mul(self.scale) != scaled))
    }
}

/// Returns how often `part` is contained in `scaled`. No part is zero; saying what becomes of one keeps a panic out of the way, so
/// that a division costs nothing where nobody asks for its result.
#[inline]
pub(super) const fn whole(scaled: u64, part: u64) -> u64 {
    match scaled.checked_div(part) {
        Some(whole) => whole,
        None => 0,
    }
}

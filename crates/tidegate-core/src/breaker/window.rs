//! The window of calls that a breaker judges by, the outcome of one call, and sums of outcomes.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::window::Count;

/// Which calls a breaker judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last calls, this many of them: 1 to [`Window::MAX_CALLS`]. Time does not remove them.
    Calls(u32),
    /// The calls that ended in the last `span`, in `buckets` equal parts, 1 to [`Window::MAX_BUCKETS`]. The parts lie
    /// on multiples of their length and are forgotten whole. So the window looks back for `span` minus the part of
    /// the current bucket that is still to come, and with a single bucket it starts empty after each `span`.
    Time {
        /// How far it looks back: from 1 ns for each bucket, up to a day.
        span: Duration,
        /// The number of buckets.
        buckets: u32,
    },
}

impl Window {
    /// The most calls in a window of calls: 16,384, which take 4 KiB.
    pub const MAX_CALLS: u32 = 1 << 14;
    /// The most buckets in a window of time: 256, which take 3 KiB.
    pub const MAX_BUCKETS: u32 = 256;
    /// The longest window of time: a day.
    pub const MAX_SPAN: Duration = Duration::from_secs(86_400);
}

/// The outcome of a call that shows something about the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) failed: bool,
    pub(super) slow: bool,
}

/// How many calls there were, and how many of them failed or were slow; a call may be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// All calls whose outcome shows something about the service.
    pub calls: u32,
    /// Those that failed.
    pub failures: u32,
    /// Those that took longer than the limit for slow calls.
    pub slow: u32,
}

impl Totals {
    pub(super) const fn add(&mut self, sample: Sample) {
        self.calls = self.calls.saturating_add(1);
        self.failures = self.failures.saturating_add(sample.failed as u32);
        self.slow = self.slow.saturating_add(sample.slow as u32);
    }
}

impl Count for Totals {
    const ZERO: Self = Self { calls: 0, failures: 0, slow: 0 };

    fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            failures: self.failures.saturating_add(other.failures),
            slow: self.slow.saturating_add(other.slow),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(other.calls),
            failures: self.failures.saturating_sub(other.failures),
            slow: self.slow.saturating_sub(other.slow),
        }
    }
}

impl Bytes for Totals {
    fn write(&self, out: &mut Writer) {
        out.u32(self.calls);
        out.u32(self.failures);
        out.u32(self.slow);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let totals = Self { calls: from.u32()?, failures: from.u32()?, slow: from.u32()? };
        if totals.failures > totals.calls || totals.slow > totals.calls {
            return Err(DecodeError::Value { field: "calls" });
        }
        Ok(totals)
    }
}

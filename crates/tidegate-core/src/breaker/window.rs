//! Which calls a breaker judges by, what one of them says, and sums of what they say.

use core::time::Duration;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// Which calls a breaker judges by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last so many calls, 1 to [`Window::MAX_CALLS`]. They are kept for as long as no others come.
    Calls(u32),
    /// The calls that ended in the last `span`, in `buckets` equal parts, 1 to [`Window::MAX_BUCKETS`], which lie on multiples of their
    /// length and are forgotten whole. So it looks back for `span` less the part of a bucket that is still to come; a single
    /// bucket starts from nothing after each `span`.
    Time {
        /// How far it looks back: 1 ns for each bucket, to a day.
        span: Duration,
        /// How many parts it is kept in.
        buckets: u32,
    },
}

impl Window {
    /// The most calls of a window that counts them: 16,384, which take 4 KiB.
    pub const MAX_CALLS: u32 = 1 << 14;
    /// The most buckets of a window of time: 256, which take 3 KiB.
    pub const MAX_BUCKETS: u32 = 256;
    /// The longest window of time: a day.
    pub const MAX_SPAN: Duration = Duration::from_secs(86_400);
}

/// One call that ended, as far as it says something of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) failed: bool,
    pub(super) slow: bool,
}

/// How many calls there were, and how many of them failed or were slow; a call may be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Totals {
    /// All calls whose outcome says something of the service.
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

    pub(super) const fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            failures: self.failures.saturating_add(other.failures),
            slow: self.slow.saturating_add(other.slow),
        }
    }

    pub(super) const fn minus(self, other: Self) -> Self {
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

//! What a closed breaker remembers of calls: the last so many of them, or those of the last so many seconds.
//!
//! Totals are kept beside the outcomes, so a call costs the same however long the window is: its outcome is added, and what it pushes out is
//! taken off.

mod buckets;
mod ring;

use core::time::Duration;

use self::buckets::Buckets;
use self::ring::Ring;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

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

    /// Returns the bytes that a full window is written in.
    pub(super) const fn largest(self) -> usize {
        match self {
            Self::Calls(calls) => Ring::largest(calls),
            Self::Time { buckets, .. } => Buckets::largest(buckets),
        }
    }
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

    const fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            failures: self.failures.saturating_add(other.failures),
            slow: self.slow.saturating_add(other.slow),
        }
    }

    const fn minus(self, other: Self) -> Self {
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

/// The outcomes in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Outcomes {
    /// None; takes no room.
    #[default]
    None,
    Ring(Ring),
    Buckets(Buckets),
}

impl Outcomes {
    /// Adds the outcome of a call that ended at `at`. Allocates for the first one only.
    pub(super) fn add(&mut self, window: Window, at: Tick, sample: Sample) {
        if !self.is_of(window) {
            *self = match window {
                Window::Calls(calls) => Self::Ring(Ring::new(calls)),
                Window::Time { span, buckets } => Self::Buckets(Buckets::new(span, buckets, at)),
            };
        }
        match self {
            Self::None => {}
            Self::Ring(ring) => ring.add(sample),
            Self::Buckets(buckets) => buckets.add(at, sample),
        }
    }

    /// Returns the totals of the window that ends at `at`, and forgets what lies before it.
    pub(super) fn totals(&mut self, at: Tick) -> Totals {
        match self {
            Self::None => Totals::default(),
            Self::Ring(ring) => ring.totals(),
            Self::Buckets(buckets) => {
                buckets.advance(at);
                buckets.totals()
            }
        }
    }

    /// Says whether these are outcomes of such a window.
    pub(super) fn is_of(&self, window: Window) -> bool {
        match (self, window) {
            (Self::Ring(ring), Window::Calls(calls)) => ring.size() == calls,
            (Self::Buckets(kept), Window::Time { span, buckets }) => kept.is_of(span, buckets),
            _ => false,
        }
    }

    /// Returns the tick from which the window is empty; `None` when time does not empty it.
    pub(super) fn empty_at(&self) -> Option<Tick> {
        match self {
            Self::None => Some(Tick::EPOCH),
            Self::Ring(ring) => (ring.totals().calls == 0).then_some(Tick::EPOCH),
            Self::Buckets(buckets) => Some(buckets.empty_at()),
        }
    }

    /// Moves what happened by `from` to `to`, an earlier tick.
    pub(super) fn set_back(&mut self, from: Tick, to: Tick) {
        if let Self::Buckets(buckets) = self {
            buckets.set_back(from, to);
        }
    }
}

impl Bytes for Outcomes {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::None => out.u8(0),
            Self::Ring(ring) => {
                out.u8(1);
                ring.write(out);
            }
            Self::Buckets(buckets) => {
                out.u8(2);
                buckets.write(out);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            0 => Ok(Self::None),
            1 => Bytes::read(from).map(Self::Ring),
            2 => Bytes::read(from).map(Self::Buckets),
            _ => Err(DecodeError::Value { field: "window" }),
        }
    }
}

#[cfg(test)]
mod tests;

//! The result of one measurement of the goodput.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// The known goodput of a limit weighs at most as much as this many measurements, so that it follows a service that
/// drifts.
const MEMORY: f64 = 4.0;
/// From this many samples on, a mean latency counts as proof.
const PROOF: f64 = 12.0;

/// The result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reading {
    /// Work that ended well, per nanosecond.
    pub(super) rate: f64,
    /// The mean latency of work that ended well or late, in nanoseconds; zero if none did.
    pub(super) latency: f64,
    /// Whether most work found the limit nearly reached when it entered.
    pub(super) full: bool,
    /// Whether most work found more places in use than the limit, its own included: each takes several places, and
    /// runs alone.
    pub(super) wider: bool,
    /// The share of work that failed or was late.
    pub(super) failed: f64,
    /// Whether the failures were due to overload.
    pub(super) failing: bool,
    /// The highest number in use when work entered.
    pub(super) peak: f64,
    /// How many successes this reading is the mean of.
    pub(super) good: f64,
    /// Whether a step up to this limit, or an earlier one, brought much less than in proportion: some work waited
    /// here.
    pub(super) queued: bool,
    /// Whether most work came too late for its caller. Not written: it is handled at once.
    pub(super) too_late: bool,
    /// The share of their callers' time that nearly all work took; infinite if callers did not say how long they wait.
    /// Written with what belongs to the reserve.
    pub(super) share: f64,
}

impl Reading {
    /// A measurement of nothing.
    pub(super) const NONE: Self = Self {
        rate: 0.0,
        latency: 0.0,
        full: false,
        wider: false,
        failed: 0.0,
        failing: false,
        peak: 0.0,
        good: 0.0,
        queued: false,
        too_late: false,
        share: f64::INFINITY,
    };

    /// Adds another measurement at the same limit.
    pub(super) fn merge(&mut self, other: &Self) {
        self.good = (self.good + other.good).min(MEMORY * other.good).max(1.0);
        let share = (other.good / self.good).min(1.0);
        self.rate += (other.rate - self.rate) * share;
        self.latency += (other.latency - self.latency) * share;
        (self.failed, self.failing) = (other.failed, other.failing);
        let mixes = self.share.is_finite() && other.share.is_finite();
        self.share = if mixes { self.share + (other.share - self.share) * share } else { other.share };
    }

    pub(super) fn proves_latency(&self) -> bool {
        self.good >= PROOF
    }
}

impl Bytes for Reading {
    fn write(&self, out: &mut Writer) {
        for number in [self.rate, self.latency, self.failed, self.peak, self.good] {
            out.f64(number);
        }
        out.flag(self.full);
        out.flag(self.wider);
        // Both flags share one byte, so that forms written before the second flag existed still read the same.
        out.two_flags(self.failing, self.queued);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut number = |field| from.within(field, 0.0..=f64::MAX);
        let (rate, latency, failed) = (number("rate")?, number("latency")?, number("failed")?);
        let (peak, good) = (number("peak")?, number("good")?);
        let (full, wider) = (from.flag("full")?, from.flag("wider")?);
        let (failing, queued) = from.two_flags("failing")?;
        Ok(Self { rate, latency, full, wider, failed, failing, peak, good, queued, ..Self::NONE })
    }
}

//! The result of one measurement of the goodput.

use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// The known goodput of a limit weighs at most as much as this many measurements, so that it follows a service that
/// drifts.
const MEMORY: f64 = 4.0;
/// From this many samples on, a mean latency counts as proof.
const PROOF: f64 = 12.0;

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
    pub(super) peak: f64,
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
        // One byte, so that older forms still read the same.
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

/// A limit at which work began to fail is not tried again for this many measurements: half a minute at a tenth of a
/// second each.
const FOR: u32 = 256;
/// Work is failing if the share of failures is at least this, and at least [`UNUSUAL`] above the usual share.
const FAILING: f64 = 1.0 / 3.0;
/// By how much the share of failures exceeds the usual one, at least, if work is [failing](FAILING).
const UNUSUAL: f64 = 0.25;
/// How fast the usual share follows the measured one: half in 35 measurements. Such lasting failures have other
/// causes than the limit.
const WEIGHT: f64 = 0.02;
/// A number inside that exceeds the highest unharmed one by this factor may be a cliff.
const BEYOND: f64 = 1.1;
/// Up to this share of failures, and twice the usual one, counts as if nothing failed.
const FEW: f64 = 0.01;
/// The share of the highest unharmed number that remains after each measurement without failures: half after 138.
const FADING: f64 = 0.995;

/// The limit at which work began to fail, which is avoided for a while: recovery can take much longer than the visit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cliff {
    at: f64,
    measurements: u32,
    /// The highest number inside while nothing failed.
    unharmed: f64,
    usual: f64,
}

impl Cliff {
    pub(super) const UNKNOWN: Self = Self { at: f64::INFINITY, measurements: 0, unharmed: 0.0, usual: 0.0 };

    /// Returns the number of places at which work began to fail; infinite if none is known.
    pub(super) fn at(&self) -> f64 {
        self.at
    }

    pub(super) fn is_beyond(&self, inside: f64) -> bool {
        self.unharmed > 0.0 && inside > self.unharmed * BEYOND
    }

    /// Updates the record by a reading, and returns whether work is failing because of overload. `fell`: the limit was
    /// raised, and most of the goodput was lost.
    pub(super) fn failing(&mut self, reading: &Reading, limit: u64, fell: bool) -> bool {
        let failing = reading.failed >= FAILING && reading.failed >= self.usual + UNUSUAL;
        let few = FEW + 2.0 * self.usual;
        self.usual += (reading.failed - self.usual) * WEIGHT;
        self.measurements = self.measurements.saturating_sub(1);
        if self.measurements == 0 {
            self.at = f64::INFINITY;
        }
        let inside = reading.peak.min(limit as f64);
        if !failing {
            // With more failures than usual the most that were inside may be what made them.
            let harmless = if reading.failed <= few { inside } else { 0.0 };
            self.unharmed = (self.unharmed * FADING).max(harmless);
            return false;
        }
        // Failures that follow with fewer inside still belong to the same fall.
        let new = self.measurements == 0 && self.is_beyond(inside);
        if new || fell && inside * 2.0 > self.at {
            (self.at, self.measurements) = (inside, FOR);
        }
        true
    }
}

impl Bytes for Cliff {
    fn write(&self, out: &mut Writer) {
        out.f64(self.at);
        out.u32(self.measurements);
        out.f64(self.unharmed);
        out.f64(self.usual);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            at: from.within("cliff", 0.0..=f64::INFINITY)?,
            measurements: from.u32()?,
            unharmed: from.within("unharmed", 0.0..=f64::MAX)?,
            usual: from.within("usual", 0.0..=1.0)?,
        })
    }
}

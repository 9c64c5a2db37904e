//! Where work begins to fail: a limit that is not gone near for a while, since the fall from it can last much longer than the visit.

use super::epoch::Reading;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// For so many measurements a limit at which work began to fail is not tried again: half a minute at a tenth of a second each.
const FOR: u32 = 256;
/// From this share on, and by this much above the usual one, work is failing.
const FAILING: f64 = 1.0 / 3.0;
const UNUSUAL: f64 = 0.25;
/// How fast failures become the usual: half in 35 measurements. Those have other reasons than the limit.
const WEIGHT: f64 = 0.02;
/// A place at which so many times as many are inside as ever unharmed may be a cliff.
const BEYOND: f64 = 1.1;
/// What is kept with each measurement of the most that were inside unharmed: half after 138.
const FADING: f64 = 0.995;

/// What is known of failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cliff {
    at: f64,
    measurements: u32,
    /// The most that were inside while nothing failed.
    unharmed: f64,
    /// The usual share of failures.
    usual: f64,
}

impl Cliff {
    pub(super) const UNKNOWN: Self = Self { at: f64::INFINITY, measurements: 0, unharmed: 0.0, usual: 0.0 };

    /// The number of places at which work began to fail; infinite where none is known.
    pub(super) fn at(&self) -> f64 {
        self.at
    }

    /// Says of a reading whether work is failing because there is too much of it, and takes it in. `fell`: the limit was raised, and most of
    /// the goodput was lost.
    pub(super) fn failing(&mut self, reading: &Reading, limit: u64, fell: bool) -> bool {
        let failing = reading.failed >= FAILING && reading.failed >= self.usual + UNUSUAL;
        self.usual += (reading.failed - self.usual) * WEIGHT;
        self.measurements = self.measurements.saturating_sub(1);
        if self.measurements == 0 {
            self.at = f64::INFINITY;
        }
        let inside = reading.peak.min(limit as f64);
        self.unharmed *= FADING;
        if !failing {
            self.unharmed = self.unharmed.max(inside);
            return false;
        }
        // What fails afterwards, with fewer inside, is still the fall.
        let new = self.measurements == 0 && self.unharmed > 0.0 && inside > self.unharmed * BEYOND;
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

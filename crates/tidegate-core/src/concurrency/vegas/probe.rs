//! Probes of the baseline: when it is measured again, and from which samples.

use super::super::jitter::Jitter;
use crate::average::Average;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// Samples for one measurement: enough for the least of them to be a quick one, few enough to finish soon.
const SAMPLES: u32 = 10;

/// The state of the probe for the next baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Probe {
    /// Samples since the last measurement.
    count: u64,
    jitter: Jitter,
    /// The number that the service works on at once, smoothed.
    working: Average,
    /// The least latency, since the last measurement, of work that entered while few were inside; infinite if there
    /// is none.
    quick: f64,
    /// How many such samples there were, at most [`SAMPLES`].
    seen: u32,
    /// Whether the limit is held down until there are enough such samples.
    draining: bool,
}

impl Probe {
    pub(super) fn new(seed: u64) -> Self {
        let jitter = Jitter::new(seed);
        Self { count: 0, jitter, working: Average::default(), quick: f64::INFINITY, seen: 0, draining: false }
    }

    /// Restarts the count, with the next jitter.
    pub(super) fn restart(&self) -> Self {
        let jitter = self.jitter.next();
        Self { count: 0, jitter, quick: f64::INFINITY, seen: 0, draining: false, ..*self }
    }

    /// Counts a sample; returns whether a measurement is due.
    pub(super) fn due(&mut self, every: f64, limit: f64) -> bool {
        self.count = self.count.saturating_add(1);
        (0.5 + self.jitter.unit() / 2.0) * every * limit <= self.count as f64
    }

    /// Records how many of the pieces of work inside were being worked on rather than waiting.
    pub(super) fn worked_on(&mut self, count: f64) {
        self.working.add(count, 16, 1.0 / 16.0);
    }

    /// Counts a sample; returns the baseline when this one completes a measurement.
    pub(super) fn measure(&mut self, every: f64, limit: f64, latency: f64, in_flight: f64) -> Option<f64> {
        if in_flight <= self.few() {
            self.quick = self.quick.min(latency);
            self.seen = (self.seen + 1).min(SAMPLES);
        }
        if !self.due(every, limit) {
            return None;
        }
        if self.seen == SAMPLES {
            let measured = self.quick;
            *self = self.restart();
            return Some(measured);
        }
        if !self.draining {
            (self.draining, self.quick, self.seen) = (true, f64::INFINITY, 0);
        }
        None
    }

    pub(super) const fn draining(&self) -> bool {
        self.draining
    }

    /// Returns the limit to hold while draining.
    pub(super) fn held(&self) -> Option<f64> {
        self.draining.then(|| self.few())
    }

    /// Half of the number that the service works on at once: nothing waits among so few, even if the baseline is
    /// twice too long.
    fn few(&self) -> f64 {
        (self.working.get().unwrap_or(0.0) / 2.0).ceil().max(1.0)
    }
}

impl Bytes for Probe {
    fn write(&self, out: &mut Writer) {
        out.u64(self.count);
        self.jitter.write(out);
        self.working.write(out);
        out.f64(self.quick);
        out.u32(self.seen);
        out.flag(self.draining);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (count, jitter, working) = (from.u64()?, Bytes::read(from)?, Bytes::read(from)?);
        let (quick, seen) = (from.within("quick", 1.0..=f64::INFINITY)?, from.u32()?);
        if seen > SAMPLES {
            return Err(DecodeError::Value { field: "seen" });
        }
        Ok(Self { count, jitter, working, quick, seen, draining: from.flag("draining")? })
    }
}

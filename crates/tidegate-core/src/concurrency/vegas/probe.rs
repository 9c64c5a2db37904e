//! Probes of the baseline: when it is measured again, and from which samples.

use super::super::Sample;
use super::super::bounds::Jitter;
use crate::average::Average;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::Tick;

/// Samples for one measurement: enough for the least of them to be a quick one, few enough to finish soon.
const SAMPLES: u32 = 10;

/// The most samples for which the limit is held down, beside one for each place that was in use when that began. Three
/// times as many as one measurement needs.
const PATIENCE: u64 = 3 * SAMPLES as u64;

/// How much of a drain a sample takes. Cancelled work takes a tenth of that, so that a drain ends even if all work is
/// cancelled.
const STEP: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Probe {
    /// Samples since the last measurement; while draining, how many more samples the drain may last, times [`STEP`].
    count: u64,
    jitter: Jitter,
    /// The number that the service works on at once, smoothed.
    working: Average,
    /// The least latency, since the last measurement, of work that entered while few were inside; infinite if there
    /// is none.
    quick: f64,
    /// How many such samples there were, at most [`SAMPLES`].
    seen: u32,
    /// While the limit is held down until there are enough such samples.
    drain: Option<Drain>,
}

/// The limit is held down so that few are inside. Earlier work may last for hours, so one more may enter beside it: if
/// they filled the limit, no sample would come.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Drain {
    /// The most places that were in use when work entered that has ended since, and had entered before the drain.
    peak: u64,
    /// How many places that work took.
    ended: u64,
    /// How many places the last piece of work before the drain took.
    width: u64,
    /// When the drain began; once no earlier work is inside, when that became so.
    since: Tick,
}

impl Drain {
    /// Returns how many places may still be in use by work that entered before the drain.
    const fn earlier(&self) -> u64 {
        self.peak.saturating_sub(self.ended)
    }

    fn ended(&mut self, limit: f64, sample: &Sample) {
        if self.earlier() > 0 && entered(sample) < self.since {
            self.peak = self.peak.max(inside(limit, sample));
            self.ended = self.ended.saturating_add(sample.places);
            if self.earlier() == 0 {
                self.since = sample.at;
            }
        }
    }
}

/// Returns how many places were in use when work entered, but no more than the limit has: if that was lowered, as
/// many have left.
fn inside(limit: f64, sample: &Sample) -> u64 {
    sample.in_flight.min(limit.ceil() as u64)
}

fn entered(sample: &Sample) -> Tick {
    sample.at.before(sample.held)
}

impl Probe {
    pub(super) fn new(seed: u64) -> Self {
        let jitter = Jitter::new(seed);
        Self { count: 0, jitter, working: Average::default(), quick: f64::INFINITY, seen: 0, drain: None }
    }

    pub(super) fn restart(&self) -> Self {
        let jitter = self.jitter.next();
        Self { count: 0, jitter, quick: f64::INFINITY, seen: 0, drain: None, ..*self }
    }

    pub(super) fn due(&mut self, every: f64, limit: f64) -> bool {
        self.count = self.count.saturating_add(1);
        (0.5 + self.jitter.unit() / 2.0) * every * limit <= self.count as f64
    }

    /// Records how many of the pieces of work inside were being worked on rather than waiting.
    pub(super) fn worked_on(&mut self, count: f64) {
        self.working.add(count, 16, 1.0 / 16.0);
    }

    /// Counts work of any outcome as left, and against a drain. A drain that lasts too long ends without a measurement;
    /// the next one is tried later.
    pub(super) fn ended(&mut self, limit: f64, sample: &Sample) {
        let Some(drain) = &mut self.drain else { return };
        drain.ended(limit, sample);
        let taken = if sample.outcome == Outcome::Ignored { 1 } else { STEP };
        self.count = self.count.saturating_sub(taken);
        if self.count == 0 {
            *self = self.restart();
        }
    }

    /// Takes the latency of a sample; returns the baseline when this one completes a measurement.
    pub(super) fn measure(&mut self, every: f64, limit: f64, latency: f64, sample: &Sample) -> Option<f64> {
        if sample.in_flight as f64 <= self.few() || self.was_alone(sample) {
            self.quick = self.quick.min(latency);
            self.seen = (self.seen + 1).min(SAMPLES);
        }
        if !self.draining() && !self.due(every, limit) {
            return None;
        }
        if self.seen == SAMPLES {
            let measured = self.quick;
            *self = self.restart();
            return Some(measured);
        }
        if !self.draining() {
            let (peak, places) = (inside(limit, sample), sample.places);
            self.drain = Some(Drain { peak, ended: places, width: places, since: sample.at });
            (self.count, self.quick, self.seen) =
                (peak.saturating_add(PATIENCE).saturating_mul(STEP), f64::INFINITY, 0);
        }
        None
    }

    /// Says whether work was alone although it took more places than few: while the limit is held down to few, such
    /// work enters only if nobody else is inside.
    fn was_alone(&self, sample: &Sample) -> bool {
        self.drain.is_some_and(|drain| drain.earlier() == 0 && entered(sample) >= drain.since)
            && sample.in_flight as f64 > self.few()
    }

    pub(super) const fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Returns the limit to hold while draining: few, or room for one more beside earlier work.
    pub(super) fn held(&self) -> Option<f64> {
        let beside = |drain: Drain| match drain.earlier() {
            0 => 0.0,
            earlier => earlier.saturating_add(drain.width) as f64,
        };
        self.drain.map(|drain| self.few().max(beside(drain)))
    }

    /// Half of the number that the service works on at once: nothing waits among so few, even if the baseline is
    /// twice too long.
    fn few(&self) -> f64 {
        (self.working.get().unwrap_or(0.0) / 2.0).ceil().max(1.0)
    }
}

/// Whether the limit is held down; forms of earlier builds say no more about it.
const HELD_DOWN_BEFORE: u8 = 1;
const HELD_DOWN: u8 = 2;

impl Bytes for Probe {
    fn write(&self, out: &mut Writer) {
        out.u64(self.count);
        self.jitter.write(out);
        self.working.write(out);
        out.f64(self.quick);
        out.u32(self.seen);
        match self.drain {
            None => out.u8(0),
            Some(Drain { peak, ended, width, since }) => {
                out.u8(HELD_DOWN);
                out.u64(peak);
                out.u64(ended);
                out.u64(width);
                out.tick(since);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (count, jitter, working) = (from.u64()?, Bytes::read(from)?, Bytes::read(from)?);
        let (quick, seen) = (from.within("quick", 1.0..=f64::INFINITY)?, from.u32()?);
        if seen > SAMPLES {
            return Err(DecodeError::Value { field: "seen" });
        }
        let drain = match from.u8()? {
            0 => None,
            HELD_DOWN_BEFORE => Some(Drain { peak: 0, ended: 0, width: 1, since: Tick::MAX }),
            HELD_DOWN => {
                Some(Drain { peak: from.u64()?, ended: from.u64()?, width: from.u64()?, since: from.tick()? })
            }
            _ => return Err(DecodeError::Value { field: "draining" }),
        };
        Ok(Self { count, jitter, working, quick, seen, drain })
    }
}

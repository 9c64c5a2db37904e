//! Vegas: moves the limit by the length of the queue, which it infers from latencies.
//!
//! The lowest latency seen is the *baseline*: how long work takes when nothing waits. Of `L` inside, `L·(1 −
//! baseline/latency)` are then waiting. The limit grows while fewer than three wait, and shrinks when more than six
//! do, both times the logarithm of the limit. Where latencies differ for other reasons than a queue, the cheapest
//! request becomes the baseline, and the limit falls to its least; [`Gradient`](super::Gradient) suits those.
//!
//! # The baseline
//! The baseline is measured anew after up to thirty samples for each place, since a service that became slower for
//! good needs a new one. Netflix takes the next sample, which under load has waited, so the limit grows by a queue
//! with each probe. Here a probe takes only samples from work that entered while *few* were inside: at most half the
//! number that the service works on at once (`in flight · baseline/latency`, smoothed). If the load leaves no such
//! room, the limit is lowered to that half until ten samples have come, and then restored: about one round trip in
//! twenty.
//!
//! The limit is lowered as the work inside ends, so one more piece always finds room. Work that asks for more places
//! than that enters alone, and counts as work among few. If ten samples do not come in time, the limit is restored
//! without a measurement, and the next probe comes at its time. Failed work and callers' mistakes are not
//! measurements. Cancelled work teaches nothing, but while the limit is held down it counts as work that has left.
//!
//! # Source
//! `VegasLimit` of Netflix' concurrency-limits, after L. Brakmo and L. Peterson, "TCP Vegas", 1995. Draining before a
//! measurement is what TCP BBR and Envoy do.

use core::time::Duration;

use super::bounds::{Bounds, Jitter, LIMITS, log10_step};
use super::{Evidence, Law, Sample, nanos};
use crate::average::{Average, interpolate};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::Tick;

/// A limit that keeps a short queue, whose length it infers from latencies.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-vegas.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Law, Sample, Vegas};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = Vegas::default();
/// let mut state = law.start(Tick::EPOCH);
/// let mut took = |millis| {
///     let latency = Duration::from_millis(millis);
///     law.learn(&mut state, &Sample { at: Tick::EPOCH, latency, held: latency, in_flight: 20, places: 1, time_left: None, outcome: Outcome::Success });
///     law.limit(&state)
/// };
/// assert_eq!(took(100), 20, "the first latency is the baseline");
/// assert_eq!(took(100), 26, "nobody waits");
/// assert_eq!(took(200), 25, "half of those inside wait");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vegas {
    pub(super) bounds: Bounds,
    grow_below: f64,
    shrink_above: f64,
    smoothing: f64,
    pub(super) probe_every: f64,
    seed: u64,
    /// Whether a probe takes the very next sample as the baseline, and every outcome counts as a measurement.
    probes_under_load: bool,
}

/// The state of [`Vegas`]: 112 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VegasState {
    limit: f64,
    /// The latency when nothing waits, in nanoseconds; `None` before the first sample.
    baseline: Option<f64>,
    probe: Probe,
}

impl Default for Vegas {
    fn default() -> Self {
        Self {
            bounds: Bounds::known(1, 1000),
            grow_below: 3.0,
            shrink_above: 6.0,
            smoothing: 1.0,
            probe_every: 30.0,
            seed: 0,
            probes_under_load: false,
        }
    }
}

impl Vegas {
    /// Netflix' arithmetic: a probe takes the next sample as the baseline, and every outcome is a measurement.
    #[must_use]
    pub fn netflix() -> Self {
        Self { probes_under_load: true, ..Self::default() }
    }

    /// Sets the bounds of the limit.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the seed of the jitter between probes, so that instances started together do not probe together.
    #[must_use]
    pub const fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    #[cfg(test)]
    fn baseline(&self, state: &VegasState) -> Option<Duration> {
        // Nanoseconds that came from a `Duration`; the cast saturates.
        state.baseline.map(|nanos| Duration::from_nanos(nanos as u64))
    }

    fn step(&self, state: &mut VegasState, latency: f64, in_flight: f64, overloaded: bool) {
        let (limit, step) = (state.limit, log10_step(state.limit));
        let baseline = state.baseline.unwrap_or(latency);
        let queue = (limit * (1.0 - baseline / latency)).ceil();
        let next = if overloaded {
            limit - step
        } else if in_flight * 2.0 < limit {
            return;
        } else if queue <= step {
            limit + self.shrink_above * step
        } else if queue < self.grow_below * step {
            limit + step
        } else if queue > self.shrink_above * step {
            limit - step
        } else {
            return;
        };
        state.limit = interpolate(limit, self.bounds.clamp(next), self.smoothing);
    }

    fn learn_from_all(&self, state: &mut VegasState, sample: &Sample) {
        if sample.outcome == Outcome::Ignored {
            return;
        }
        let latency = nanos(sample);
        if state.probe.due(self.probe_every, state.limit) {
            state.baseline = Some(latency);
            state.probe = state.probe.restart();
        } else if state.baseline.is_none_or(|baseline| latency < baseline) {
            state.baseline = Some(latency);
        } else {
            self.step(state, latency, sample.in_flight as f64, sample.outcome == Outcome::Overloaded);
        }
    }

    fn learn_from_work(&self, state: &mut VegasState, sample: &Sample) {
        let in_flight = sample.in_flight as f64;
        state.probe.ended(state.limit, sample);
        let latency = match Evidence::of(sample, Duration::MAX) {
            Evidence::Latency(latency) => latency,
            Evidence::Overload => return self.step(state, nanos(sample), in_flight, true),
            _ => return,
        };
        if let Some(measured) = state.probe.measure(self.probe_every, state.limit, latency, sample) {
            state.baseline = Some(measured);
            return;
        }
        match state.baseline {
            Some(baseline) if latency >= baseline => {
                // Work that entered while the limit was held down shows how long work takes, but nothing about the
                // limit to return to, nor about how many the service works on.
                if !state.probe.draining() {
                    state.probe.worked_on(in_flight * baseline / latency);
                    self.step(state, latency, in_flight, false);
                }
            }
            _ => state.baseline = Some(latency),
        }
    }
}

impl Law for Vegas {
    type State = VegasState;

    fn start(&self, _now: Tick) -> VegasState {
        VegasState { limit: self.bounds.start() as f64, baseline: None, probe: Probe::new(self.seed) }
    }

    fn limit(&self, state: &VegasState) -> u64 {
        let limit = match state.probe.held() {
            Some(few) => few.min(state.limit),
            None => state.limit,
        };
        self.bounds.clamp(limit) as u64
    }

    fn learn(&self, state: &mut VegasState, sample: &Sample) {
        if self.probes_under_load {
            self.learn_from_all(state, sample);
        } else {
            self.learn_from_work(state, sample);
        }
    }

    fn counts_ignored(&self, state: &VegasState) -> bool {
        state.probe.draining()
    }
}

impl Bytes for Vegas {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        for number in [self.grow_below, self.shrink_above, self.smoothing, self.probe_every] {
            out.f64(number);
        }
        out.u64(self.seed);
        out.flag(self.probes_under_load);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bounds, grow_below) = (Bytes::read(from)?, from.within("grow below", 1.0..=99.0)?);
        Ok(Self {
            bounds,
            grow_below,
            shrink_above: from.within("shrink above", grow_below..=100.0)?,
            smoothing: from.within("smoothing", 0.001..=1.0)?,
            probe_every: from.within("probe every", 2.0..=10_000.0)?,
            seed: from.u64()?,
            probes_under_load: from.flag("probes under load")?,
        })
    }
}

impl Bytes for VegasState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        out.flag(self.baseline.is_some());
        out.f64(self.baseline.unwrap_or(1.0));
        self.probe.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, known) = (from.within("limit", LIMITS)?, from.flag("baseline")?);
        let baseline = from.within("baseline", 1.0..=f64::MAX)?;
        Ok(Self { limit, baseline: known.then_some(baseline), probe: Bytes::read(from)? })
    }
}

/// Samples for one measurement: enough for the least of them to be a quick one, few enough to finish soon.
const SAMPLES: u32 = 10;

/// The most samples for which the limit is held down, beside one for each place that was in use when that began. Three
/// times as many as one measurement needs.
const PATIENCE: u64 = 3 * SAMPLES as u64;

/// How much of a drain a sample takes. Cancelled work takes a tenth of that, so that a drain ends even if all work is
/// cancelled.
const STEP: u64 = 10;

/// Probes of the baseline: when it is measured again, and from which samples.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Probe {
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
    fn new(seed: u64) -> Self {
        let jitter = Jitter::new(seed);
        Self { count: 0, jitter, working: Average::default(), quick: f64::INFINITY, seen: 0, drain: None }
    }

    fn restart(&self) -> Self {
        let jitter = self.jitter.next();
        Self { count: 0, jitter, quick: f64::INFINITY, seen: 0, drain: None, ..*self }
    }

    fn due(&mut self, every: f64, limit: f64) -> bool {
        self.count = self.count.saturating_add(1);
        (0.5 + self.jitter.unit() / 2.0) * every * limit <= self.count as f64
    }

    /// Records how many of the pieces of work inside were being worked on rather than waiting.
    fn worked_on(&mut self, count: f64) {
        self.working.add(count, 16, 1.0 / 16.0);
    }

    /// Counts work of any outcome as left, and against a drain. A drain that lasts too long ends without a measurement;
    /// the next one is tried later.
    fn ended(&mut self, limit: f64, sample: &Sample) {
        let Some(drain) = &mut self.drain else { return };
        drain.ended(limit, sample);
        let taken = if sample.outcome == Outcome::Ignored { 1 } else { STEP };
        self.count = self.count.saturating_sub(taken);
        if self.count == 0 {
            *self = self.restart();
        }
    }

    /// Takes the latency of a sample; returns the baseline when this one completes a measurement.
    fn measure(&mut self, every: f64, limit: f64, latency: f64, sample: &Sample) -> Option<f64> {
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

    const fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Returns the limit to hold while draining: few, or room for one more beside earlier work.
    fn held(&self) -> Option<f64> {
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

#[cfg(test)]
mod tests;

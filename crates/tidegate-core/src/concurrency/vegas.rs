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

mod probe;

use core::time::Duration;

use super::bounds::{Bounds, LIMITS, log10_step};
use super::{Evidence, Law, Sample, nanos};
use crate::average::interpolate;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::Tick;
use probe::Probe;

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

#[cfg(test)]
mod tests;

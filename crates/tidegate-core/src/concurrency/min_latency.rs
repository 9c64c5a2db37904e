//! Minimum latency: lowers the limit to its least from time to time, to measure how long work takes when nothing
//! waits, and moves the limit by comparing latency with that.
//!
//! At the end of each interval the law computes a gradient: the measured latency plus a quarter, divided by the
//! interval's median, clamped to one half up to two. The limit is multiplied by the gradient, and the square root of
//! the result is added as room for growth and bursts. After five intervals at the least limit, latency is measured
//! again at once. A measurement lasts for fifty requests, three at a time; where work takes seconds, that is a minute
//! with hardly any places. Work that began before a measurement does not count after it.
//!
//! Envoy counts every response, time-outs and quick errors too: the first measure the time-out, and the others set a
//! baseline that no work can meet. Here only work that was done is measured. Within an interval each overload counts
//! as work that never ends, so the limit halves once half of an interval is overload.
//!
//! # Source
//! The gradient controller of Envoy's adaptive concurrency filter. The median comes from a histogram, and is off by a
//! sixteenth at most.

use core::time::Duration;

use super::bounds::{Bounds, Jitter, LIMITS};
use super::{Evidence, Law, Sample, nanos};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward};

/// After this many intervals in a row at the least limit, the latency is measured again.
const INTERVALS_AT_LEAST: u32 = 5;
/// How much later than due a measurement may begin, as a share of the time between two measurements.
const LATER: f64 = 0.15;

/// A limit that compares the median latency with one that was measured while few were inside.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-envoy.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Law, MinLatency, Sample};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = MinLatency::default();
/// let mut state = law.start(Tick::EPOCH);
/// for millis in 10..1000 {
///     let (at, latency) = (Tick::EPOCH.after(Duration::from_millis(millis)), Duration::from_millis(10));
///     let sample = Sample { at, latency, held: latency, in_flight: law.limit(&state), places: 1, time_left: None, outcome: Outcome::Success };
///     law.learn(&mut state, &sample);
///     if millis == 58 {
///         assert_eq!(law.limit(&state), 3, "the first fifty are a measurement");
///     }
/// }
/// assert!(law.limit(&state) > 50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinLatency {
    pub(super) bounds: Bounds,
    interval: Duration,
    buffer: f64,
    every: Duration,
    requests: u32,
    seed: u64,
    /// Whether the latency of every response counts, however it ended, unless it was ignored.
    measures_all: bool,
}

/// The state of [`MinLatency`]: 96 bytes, and 2 KiB on the heap for the median, allocated at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct MinLatencyState {
    limit: f64,
    /// The measured latency in nanoseconds; `None` before the first measurement.
    least: Option<f64>,
    latencies: Median,
    measuring: bool,
    /// When the last measurement began: work that began earlier does not count.
    since: Tick,
    last: Tick,
    interval_ends: Tick,
    measure_at: Tick,
    /// How many intervals in a row have ended at the least limit.
    at_least: u32,
    jitter: Jitter,
}

impl Default for MinLatency {
    fn default() -> Self {
        Self {
            bounds: Bounds::known(3, 1000).start_at(3).expect("the least of them"),
            interval: Duration::from_millis(100),
            buffer: 0.25,
            every: Duration::from_secs(60),
            requests: 50,
            seed: 0,
            measures_all: false,
        }
    }
}

impl MinLatency {
    /// Envoy's arithmetic: every response is a latency, however it ended. There latencies are whole microseconds, and
    /// newer versions can set the limit of a measurement apart from the least limit.
    #[must_use]
    pub fn envoy() -> Self {
        Self { measures_all: true, ..Self::default() }
    }

    /// Sets the bounds of the limit; the least is also the limit of a measurement.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets how often the limit moves, 1 ms to 1 h.
    fn interval(self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(3600);
        Ok(Self {
            interval: in_range("interval", span, &range, "is not an interval; use 1 ms to 1 h")?,
            ..self
        })
    }

    /// Sets the share by which work may be slower than the measured latency before the limit shrinks, 0 to 10.
    fn buffer(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to be slower by; use 0 to 10";
        Ok(Self { buffer: in_range("buffer", share, &(0.0..=10.0), want)?, ..self })
    }

    /// Sets the time between measurements, 1 ms to a day, and how many requests one takes, 1 to 100,000.
    pub(super) fn measure(self, every: Duration, requests: u32) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(86_400);
        let every = in_range(
            "measure every",
            every,
            &range,
            "is not a time between two measurements; use 1 ms to a day",
        )?;
        let want = "is not a number of requests; use 1 to 100000";
        let requests = in_range("requests", requests, &(1..=100_000), want)?;
        Ok(Self { every, requests, ..self })
    }

    /// Sets the seed of the jitter between measurements, so that instances started together do not measure together.
    #[must_use]
    pub const fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    #[cfg(test)]
    fn least_latency(&self, state: &MinLatencyState) -> Option<Duration> {
        // Nanoseconds that came from a `Duration`; the cast saturates.
        state.least.map(|nanos| Duration::from_nanos(nanos as u64))
    }

    /// Returns the latency that a sample counts as, in nanoseconds: infinite for an overload; `None` if the sample
    /// does not count.
    fn latency(&self, sample: &Sample, measuring: bool) -> Option<f64> {
        if self.measures_all {
            return (sample.outcome != Outcome::Ignored).then(|| nanos(sample));
        }
        match Evidence::of(sample, Duration::MAX) {
            Evidence::Latency(latency) => Some(latency),
            Evidence::Overload if !measuring => Some(f64::INFINITY),
            _ => None,
        }
    }

    fn begin_measurement(state: &mut MinLatencyState) {
        (state.measuring, state.since, state.at_least) = (true, state.last, 0);
        state.latencies.take();
    }

    fn end_measurement(&self, state: &mut MinLatencyState) {
        state.least = state.latencies.take();
        state.jitter = state.jitter.next();
        let later = self.every.mul_f64(1.0 + LATER * state.jitter.unit());
        (state.measuring, state.measure_at) = (false, state.last.after(later));
        state.interval_ends = state.last.after(self.interval);
    }

    fn end_interval(&self, state: &mut MinLatencyState) {
        state.interval_ends = state.last.after(self.interval);
        let (Some(median), Some(least)) = (state.latencies.take(), state.least) else { return };
        let gradient = (least * (1.0 + self.buffer) / median).clamp(0.5, 2.0);
        let scaled = state.limit * gradient;
        let next = self.bounds.clamp((scaled + scaled.sqrt()).floor());
        let lowest = self.bounds.least() as f64;
        state.at_least = if state.limit <= lowest && next <= lowest { state.at_least + 1 } else { 0 };
        state.limit = next;
    }
}

impl Law for MinLatency {
    type State = MinLatencyState;

    fn start(&self, now: Tick) -> MinLatencyState {
        MinLatencyState {
            limit: self.bounds.start() as f64,
            least: None,
            latencies: Median::new(),
            measuring: true,
            since: now,
            last: now,
            interval_ends: now,
            measure_at: now,
            at_least: 0,
            jitter: Jitter::new(self.seed),
        }
    }

    fn limit(&self, state: &MinLatencyState) -> u64 {
        if state.measuring { self.bounds.least() } else { self.bounds.clamp(state.limit) as u64 }
    }

    fn learn(&self, state: &mut MinLatencyState, sample: &Sample) {
        let at = onward(state.last, sample.at);
        if at < state.last {
            // The clock was set far back: move the ticks that lie ahead of it to now.
            (state.since, state.interval_ends, state.measure_at) = (at, at, at);
        }
        state.last = at;
        if at.before(sample.held) >= state.since
            && let Some(latency) = self.latency(sample, state.measuring)
        {
            state.latencies.add(latency);
        }
        if state.measuring {
            if state.latencies.count() >= self.requests {
                self.end_measurement(state);
            }
        } else {
            if at >= state.interval_ends {
                self.end_interval(state);
            }
            if at >= state.measure_at || state.at_least >= INTERVALS_AT_LEAST {
                Self::begin_measurement(state);
            }
        }
    }
}

impl Bytes for MinLatency {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        out.duration(self.interval);
        out.f64(self.buffer);
        out.duration(self.every);
        out.u32(self.requests);
        out.u64(self.seed);
        out.flag(self.measures_all);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let law = Self::default().bounds(Bytes::read(from)?);
        let (interval, buffer) = (from.duration("interval")?, from.f64()?);
        let (every, requests) = (from.duration("measure every")?, from.u32()?);
        let law = law.interval(interval).and_then(|law| law.buffer(buffer)?.measure(every, requests));
        let law = law.map_err(|_| DecodeError::Value { field: "interval" })?.seed(from.u64()?);
        Ok(Self { measures_all: from.flag("measures all")?, ..law })
    }
}

impl Bytes for MinLatencyState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        out.flag(self.least.is_some());
        out.f64(self.least.unwrap_or(1.0));
        self.latencies.write(out);
        out.flag(self.measuring);
        for tick in [self.since, self.last, self.interval_ends, self.measure_at] {
            out.tick(tick);
        }
        out.u32(self.at_least);
        self.jitter.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, known) = (from.within("limit", LIMITS)?, from.flag("least")?);
        let least = from.within("least", 1.0..=f64::INFINITY)?;
        let (latencies, measuring) = (Bytes::read(from)?, from.flag("measuring")?);
        let (since, last, interval_ends, measure_at) =
            (from.tick()?, from.tick()?, from.tick()?, from.tick()?);
        let at_least = from.u32()?;
        if at_least > INTERVALS_AT_LEAST {
            return Err(DecodeError::Value { field: "at least" });
        }
        Ok(Self {
            limit,
            least: known.then_some(least),
            latencies,
            measuring,
            since,
            last,
            interval_ends,
            measure_at,
            at_least,
            jitter: Bytes::read(from)?,
        })
    }
}

// The median of latencies, from a histogram of fixed size.

/// Cells for each doubling of the latency: neighbouring cells differ by an eighth at most.
const CELLS_A_DOUBLING: usize = 8;
/// Cells for latencies up to 2⁶⁴ ns, and one for longer ones.
const CELLS: usize = 64 * CELLS_A_DOUBLING + 1;
/// The index of the cell for longer latencies.
const ENDLESS: usize = CELLS - 1;

/// A histogram of latencies: 2 KiB on the heap, allocated at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Median {
    cells: Box<[u32]>,
    count: u32,
}

impl Median {
    fn new() -> Self {
        Self { cells: vec![0; CELLS].into_boxed_slice(), count: 0 }
    }

    /// Counts a latency in nanoseconds, 1 or more; infinity counts as longer than any other. Ignores samples beyond
    /// 2³² − 1.
    fn add(&mut self, latency: f64) {
        if self.count < u32::MAX {
            self.cells[cell(latency)] += 1;
            self.count += 1;
        }
    }

    const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the median, off by a sixteenth at most, and empties the histogram; `None` if it was empty.
    fn take(&mut self) -> Option<f64> {
        let (half, mut sum, mut found) = (self.count.div_ceil(2), 0, None);
        for (cell, count) in self.cells.iter_mut().enumerate() {
            sum += core::mem::take(count);
            if sum >= half && sum > 0 {
                found = found.or(Some(cell));
            }
        }
        self.count = 0;
        found.map(middle)
    }
}

impl Bytes for Median {
    fn write(&self, out: &mut Writer) {
        self.cells.iter().for_each(|&cell| out.u32(cell));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if from.left() < CELLS * size_of::<u32>() {
            return Err(DecodeError::Short);
        }
        let (mut median, mut sum) = (Self::new(), 0u64);
        for cell in &mut median.cells {
            *cell = from.u32()?;
            sum += u64::from(*cell);
        }
        median.count = u32::try_from(sum).map_err(|_| DecodeError::Value { field: "latencies" })?;
        Ok(median)
    }
}

fn cell(latency: f64) -> usize {
    if latency == f64::INFINITY {
        return ENDLESS;
    }
    let nanos = (latency as u64).max(1);
    let doubling = nanos.ilog2();
    // The three bits below the highest bit select the eighth of the doubling. Below 8 ns some cells stay empty.
    let eighth = if doubling >= 3 { nanos >> (doubling - 3) } else { nanos << (3 - doubling) };
    doubling as usize * CELLS_A_DOUBLING + (eighth & 7) as usize
}

fn middle(cell: usize) -> f64 {
    if cell == ENDLESS {
        return f64::INFINITY;
    }
    let (doubling, eighth) = (cell / CELLS_A_DOUBLING, cell % CELLS_A_DOUBLING);
    // A power of two is exact, and so are its eighths and sixteenths.
    (1u128 << doubling) as f64 * (1.0 + (eighth as f64 + 0.5) / 8.0)
}

#[cfg(test)]
mod tests;

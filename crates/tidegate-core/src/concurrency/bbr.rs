//! BBR for services: while the processor is busy, limits the work inside to the number the service could handle in
//! its best recent moments.
//!
//! By Little's law that number is the throughput multiplied by the latency: the highest throughput of any bucket of a
//! window, times the least average latency of any bucket. The limit applies while the processor is busy, and for a
//! while after; otherwise it is the largest of the bounds. So it suits a server whose own processor does the work;
//! where work waits for a dependency, the processor idles and the law does nothing. It needs readings of the processor
//! ([`Signal::Cpu`]), typically each half second; without them it never limits. Time advances with samples and
//! readings alone.
//!
//! Unlike the other libraries, it smooths readings in fractions (in integers, full load reads as 981 of 1000), counts
//! nanoseconds (in milliseconds, a service of 0.1 ms gets ten times its limit) and only work that was done (quick
//! refusals would make the best moment), and begins the cool-off anew while the processor is busy.
//!
//! # Source
//! `ratelimit/bbr` of kratos aegis and `core/load` of go-zero, both after the BBR shedder of Alibaba's Sentinel.

mod best_moments;

use core::time::Duration;

use super::bounds::Bounds;
use super::{Law, Sample, Signal};
use crate::average::interpolate;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward};
use crate::window::Buckets;
use best_moments::{Counting, Served};

/// A limit that holds while the processor is busy: the highest throughput multiplied by the least latency.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-bbr.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{Bbr, Bounds, Law, Sample, Signal};
/// use tidegate_core::{Outcome, Tick};
///
/// let law = Bbr::default();
/// let mut state = law.start(Tick::EPOCH);
/// // 500 requests a second, of 20 ms each.
/// for millis in (0..1000).step_by(2) {
///     let (at, latency) = (Tick::EPOCH.after(Duration::from_millis(millis)), Duration::from_millis(20));
///     law.learn(&mut state, &Sample { at, latency, held: latency, in_flight: 10, places: 1, time_left: None, outcome: Outcome::Success });
/// }
/// assert_eq!(law.limit(&state), Bounds::MOST, "the machine has time");
///
/// law.sense(&mut state, Tick::from_secs(1), Signal::Cpu(900));
/// assert_eq!(law.limit(&state), 10);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bbr {
    pub(super) bounds: Bounds,
    pub(super) window: Buckets,
    threshold: u16,
    smoothing: f64,
    cool_off: Duration,
    /// From how many thousandths of the memory on the limit also applies; `None` if memory does not matter.
    memory: Option<u16>,
    arithmetic: Arithmetic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Corrected,
    Aegis,
    GoZero,
}

/// The state of [`Bbr`]: 152 bytes, and up to 32 on the heap for each bucket, allocated at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct BbrState {
    cpu: Cpu,
    served: Served,
    /// The latest tick seen.
    last: Tick,
    /// When the processor was last busy; under aegis' arithmetic, when dropping began.
    mark: Option<Tick>,
    limited: bool,
    /// Whether the limit was reached since it was last lifted, as far as samples show.
    dropped: bool,
    /// The average number inside, smoothed as go-zero does.
    flying: f64,
}

impl Default for Bbr {
    fn default() -> Self {
        Self {
            bounds: Bounds::known(1, Bounds::MOST),
            window: Buckets::known(10_000, 100),
            threshold: 800,
            smoothing: 0.95,
            cool_off: Duration::from_secs(1),
            memory: None,
            arithmetic: Arithmetic::Corrected,
        }
    }
}

impl Bbr {
    /// The arithmetic and numbers of kratos aegis, whose readings come each half second.
    ///
    /// aegis notes that it drops when it refuses a request; here that is when work ends that had filled the limit.
    /// aegis counts cancelled work as served, and repeats the last reading in place of a reading of zero; here both
    /// change nothing. aegis keeps its best moments for the length of a bucket before it looks again, and rounds the
    /// buckets in a second down.
    #[must_use]
    pub fn aegis() -> Self {
        Self { arithmetic: Arithmetic::Aegis, ..Self::default() }
    }

    /// The arithmetic and numbers of go-zero, whose readings come each quarter second: a window of 5 s in 50 buckets,
    /// a threshold of 900.
    ///
    /// The limit shrinks further with the processor's idle share, to a tenth, and holds only while the average number
    /// inside exceeds it. go-zero updates that average when work ends; here it averages the number that was inside
    /// when that work entered. Dropping and cancelled work are as in [`aegis`](Self::aegis).
    #[must_use]
    pub fn go_zero() -> Self {
        let window = Buckets::known(5000, 50);
        Self { window, threshold: 900, arithmetic: Arithmetic::GoZero, ..Self::default() }
    }

    /// Sets the bounds of the limit; their start is the limit of a busy machine before anything is measured.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the reading from which the processor is busy, 1 to 1000 thousandths; 800 by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn threshold(self, thousandths: u16) -> Result<Self, QuotaError> {
        let want = "is not a share of the processor's time; use 1 to 1000 thousandths";
        Ok(Self { threshold: in_range("threshold", thousandths, &(1..=1000), want)?, ..self })
    }

    /// Sets the weight of the old average at each new reading, 0 to 0.999; 0.95 by default. Averaged readings
    /// ([`Signal::CpuAveraged`]) are taken as they are, since smoothing twice would delay them twice, and so are all in
    /// an [`AdaptiveConcurrency`](super::AdaptiveConcurrency).
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn smoothing(self, kept: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to keep; use 0 to 0.999";
        Ok(Self { smoothing: in_range("smoothing", kept, &(0.0..=0.999), want)?, ..self })
    }

    fn cool_off(self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::ZERO..=Duration::from_secs(3600);
        Ok(Self { cool_off: in_range("cool-off", span, &range, "is too long; use up to an hour")?, ..self })
    }

    /// Sets the use of memory from which the limit also applies, 1 to 1000 thousandths of what this process may use.
    /// The limit then stays for the cool-off of a second, so readings have to come more often. The profiles ignore
    /// this.
    ///
    /// It ends a pile of work in progress that fills the memory; it does not help against memory that idle state
    /// takes.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn memory(self, thousandths: u16) -> Result<Self, QuotaError> {
        let want = "is not a share of the memory; use 1 to 1000 thousandths";
        Ok(Self { memory: Some(in_range("memory", thousandths, &(1..=1000), want)?), ..self })
    }

    /// Returns the reading from which the processor is busy, in thousandths.
    #[must_use]
    pub const fn busy_from(&self) -> u16 {
        self.threshold
    }

    #[cfg(test)]
    fn cpu(&self, state: &BbrState) -> u16 {
        state.cpu.thousandths()
    }

    /// Advances the time and decides whether the limit applies. `met`: the sample just seen had reached the limit.
    fn settle(&self, state: &mut BbrState, at: Tick, met: bool) {
        state.last = onward(state.last, at);
        state.served.advance(self.window, self.counting(), state.last);
        let busy = state.cpu.thousandths() >= self.threshold;
        let recent = |mark: Option<Tick>| mark.is_some_and(|mark| state.last.since(mark) < self.cool_off);
        match self.arithmetic {
            Arithmetic::Corrected => {
                if busy {
                    state.mark = Some(state.last);
                }
                state.limited = busy || recent(state.mark);
            }
            Arithmetic::Aegis => {
                if busy {
                    state.mark = state.mark.or(met.then_some(state.last));
                } else if state.mark.is_none_or(|mark| state.last.since(mark) > self.cool_off) {
                    state.mark = None;
                }
                state.limited = busy || state.mark.is_some();
            }
            Arithmetic::GoZero => {
                if busy {
                    state.mark = Some(state.last);
                }
                state.dropped = (state.dropped || met) && recent(state.mark);
                state.limited = busy || state.dropped;
            }
        }
    }

    /// Updates the state by a reading of the processor, in thousandths, that is averaged already.
    pub(super) fn sense_once(&self, state: &mut BbrState, at: Tick, thousandths: u16) {
        state.cpu.read(thousandths.min(1000), 0.0);
        self.settle(state, at, false);
    }

    fn counting(&self) -> Counting {
        match self.arithmetic {
            Arithmetic::Corrected => Counting::Nanoseconds,
            Arithmetic::Aegis => Counting::MillisecondsUp,
            Arithmetic::GoZero => Counting::MillisecondsRounded,
        }
    }

    /// Whether an outcome counts as work that was done.
    fn counts(&self, outcome: Outcome) -> bool {
        match self.arithmetic {
            // A refusal of a faulty request comes back at once, and shows neither the latency nor the throughput of work.
            Arithmetic::Corrected => outcome == Outcome::Success,
            Arithmetic::Aegis => true,
            Arithmetic::GoZero => outcome != Outcome::Overloaded,
        }
    }
}

impl Law for Bbr {
    type State = BbrState;

    fn start(&self, now: Tick) -> BbrState {
        let (cpu, served) = (Cpu::default(), Served::new(self.window, now));
        BbrState { cpu, served, last: now, mark: None, limited: false, dropped: false, flying: 0.0 }
    }

    fn limit(&self, state: &BbrState) -> u64 {
        if !state.limited {
            return self.bounds.most();
        }
        let inside = state.served.inside(self.window, self.counting());
        let limit = match self.arithmetic {
            Arithmetic::Corrected => inside.map_or(self.bounds.start() as f64, f64::round),
            // Both libraries refuse a request only if *more* are inside than the limit.
            Arithmetic::Aegis => inside.unwrap_or(0.0).floor().max(1.0) + 1.0,
            Arithmetic::GoZero => {
                let left =
                    f64::from(1000 - state.cpu.thousandths()) / f64::from((1000 - self.threshold).max(1));
                let most = inside.unwrap_or(0.0).max(1.0) * left.clamp(0.1, 1.0);
                if state.flying <= most {
                    return self.bounds.most();
                }
                most.floor() + 1.0
            }
        };
        self.bounds.clamp(limit) as u64
    }

    fn learn(&self, state: &mut BbrState, sample: &Sample) {
        if sample.outcome == Outcome::Ignored {
            return;
        }
        let met = state.limited && sample.in_flight >= self.limit(state);
        self.settle(state, sample.at, met);
        state.flying = interpolate(state.flying, sample.in_flight.saturating_sub(1) as f64, 0.1);
        if self.counts(sample.outcome) {
            // The limit is a rate times a time, so the time has to be that of the place.
            state.served.count(self.counting(), sample.held);
        }
    }

    fn sense(&self, state: &mut BbrState, at: Tick, signal: Signal) {
        let reading = match signal {
            Signal::Cpu(thousandths) => thousandths.min(1000),
            Signal::CpuAveraged(thousandths) => return self.sense_once(state, at, thousandths),
            Signal::Memory(thousandths) => {
                if self.arithmetic == Arithmetic::Corrected
                    && self.memory.is_some_and(|full| thousandths >= full)
                {
                    state.mark = Some(onward(state.last, at));
                }
                return self.settle(state, at, false);
            }
        };
        match self.arithmetic {
            Arithmetic::Corrected => state.cpu.read(reading, self.smoothing),
            Arithmetic::Aegis if reading == 0 => {}
            Arithmetic::Aegis | Arithmetic::GoZero => state.cpu.read_whole(reading, self.smoothing),
        }
        self.settle(state, at, false);
    }
}

// How the law and its state are written and read.

impl Bytes for Bbr {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        self.window.write(out);
        out.u32(u32::from(self.threshold));
        out.f64(self.smoothing);
        out.duration(self.cool_off);
        out.u8(match (self.arithmetic, self.memory) {
            (Arithmetic::Corrected, None) => 0,
            (Arithmetic::Aegis, _) => 1,
            (Arithmetic::GoZero, _) => 2,
            (Arithmetic::Corrected, Some(_)) => 3,
        });
        if let (Arithmetic::Corrected, Some(memory)) = (self.arithmetic, self.memory) {
            out.u32(u32::from(memory));
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bounds, window) = (Bytes::read(from)?, Bytes::read(from)?);
        let law = Self { bounds, window, ..Self::default() };
        // A value that does not fit 16 bits is out of range, too.
        let threshold = u16::try_from(from.u32()?).unwrap_or(u16::MAX);
        let (smoothing, cool_off) = (from.f64()?, from.duration("cool-off")?);
        let law = law.threshold(threshold).and_then(|law| law.smoothing(smoothing)?.cool_off(cool_off));
        let law = law.map_err(|_| DecodeError::Value { field: "threshold" })?;
        let arithmetic = match from.u8()? {
            0 => Arithmetic::Corrected,
            1 => Arithmetic::Aegis,
            2 => Arithmetic::GoZero,
            3 => {
                let memory = u16::try_from(from.u32()?).unwrap_or(u16::MAX);
                return law.memory(memory).map_err(|_| DecodeError::Value { field: "memory" });
            }
            _ => return Err(DecodeError::Value { field: "arithmetic" }),
        };
        Ok(Self { arithmetic, ..law })
    }
}

impl Bytes for BbrState {
    fn write(&self, out: &mut Writer) {
        self.cpu.write(out);
        self.served.write(out);
        out.tick(self.last);
        out.flag(self.mark.is_some());
        out.tick(self.mark.unwrap_or(Tick::EPOCH));
        out.flag(self.limited);
        out.flag(self.dropped);
        out.f64(self.flying);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (cpu, served, last) = (Bytes::read(from)?, Bytes::read(from)?, from.tick()?);
        let (marked, mark) = (from.flag("mark")?, from.tick()?);
        Ok(Self {
            cpu,
            served,
            last,
            mark: marked.then_some(mark),
            limited: from.flag("limited")?,
            dropped: from.flag("dropped")?,
            flying: from.within("flying", 0.0..=f64::MAX)?,
        })
    }
}

// How busy the processor is, smoothed over readings.

/// The smoothed use of the processor in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cpu {
    used: f64,
    heard: bool,
}

impl Cpu {
    /// Averages in a reading with the weight `1 − kept`. The first reading becomes the average.
    fn read(&mut self, thousandths: u16, kept: f64) {
        let reading = f64::from(thousandths);
        self.used = if self.heard { interpolate(self.used, reading, 1.0 - kept) } else { reading };
        self.heard = true;
    }

    /// Averages in a reading as the other libraries do: starting from zero, and truncated to whole thousandths each
    /// time.
    fn read_whole(&mut self, thousandths: u16, kept: f64) {
        self.used = (self.used * kept + f64::from(thousandths) * (1.0 - kept)).trunc();
    }

    fn thousandths(&self) -> u16 {
        // Readings are at most 1000, so their average is too, apart from rounding.
        self.used.round().min(1000.0) as u16
    }
}

impl Bytes for Cpu {
    fn write(&self, out: &mut Writer) {
        out.f64(self.used);
        out.flag(self.heard);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { used: from.within("cpu", 0.0..=1000.0)?, heard: from.flag("cpu heard")? })
    }
}

#[cfg(test)]
mod tests;

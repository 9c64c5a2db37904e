//! BBR for services: while the processor is busy, no more may be inside than the service could work on in its best moments.
//!
//! By Little's law the number inside is what is served in a time, multiplied by how long it takes. The law keeps a window of buckets, takes
//! the most that was served in any of them and the least average latency of any of them, and their product is the limit. It applies
//! while the processor is busy, and for a while after; otherwise there is no limit but the largest of the bounds.
//!
//! # When
//! Right on a server whose work is done by its own processor: a busy processor is then the one sign of overload that lies neither with
//! callers nor with dependencies. Wrong where the work is waiting for somebody else: the processor idles while the dependency drowns, and
//! the law does nothing. It needs readings of the processor ([`Signal::Cpu`]), each half second as a rule: without them it never limits.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | bounds | 1 to 2²⁰ | 1 to 2²⁰ | [`Bounds`]; the start is the limit of a busy machine before anything is known of it |
//! | window | 1 ms to a day, 1 to 1000 buckets | 10 s of 100 | what the best moments are taken from |
//! | threshold | 1 to 1000 | 800 | from how many thousandths on the processor is busy |
//! | smoothing | 0 to 0.999 | 0.95 | what an old reading keeps of its weight with each new one; 0 where readings are smoothed already, as those of the crate `tidegate` are |
//! | cool-off | up to 1 h | 1 s | how long the limit stays after the processor was last busy |
//!
//! # What is corrected
//! | the peer | this law |
//! |---|---|
//! | smooths readings in integers, so that full load reads as 981 of 1000 and thresholds above it never act | keeps fractions: full load reads as 1000 |
//! | (aegis) marks when dropping *began*; an overload longer than a second has no cool-off | the cool-off begins anew while the processor is busy |
//! | counts latency in whole milliseconds, so that a service of 0.1 ms gets ten times its limit | counts nanoseconds |
//! | (aegis) counts failures as served, so that quick failures make the best moment | counts work that was done |
//! | admits one more than its limit | admits its limit |
//!
//! [`Bbr::aegis`] and [`Bbr::go_zero`] have the peers' arithmetic. Time passes for this law with samples and readings alone.
//!
//! # Source
//! `ratelimit/bbr` of kratos aegis and `core/load` of go-zero, both after the BBR shedder of Alibaba's Sentinel; the name is from N. Cardwell
//! et al., "BBR: Congestion-Based Congestion Control", 2016, which estimates bandwidth and round trip in the same way.

mod cpu;
mod served;

use core::time::Duration;

use super::bounds::Bounds;
use super::law::{Law, Sample, Signal};
use crate::average::toward;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::QuotaError;
use crate::guard::Outcome;
use crate::knob::in_range;
use crate::time::{Tick, onward};
use crate::window::Buckets;
use cpu::Cpu;
use served::{Counting, Served};

/// A limit that holds while the processor is busy: the most served, multiplied by the least latency.
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
///     law.learn(&mut state, &Sample { at, latency, in_flight: 10, outcome: Outcome::Success });
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
    arithmetic: Arithmetic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Corrected,
    Aegis,
    GoZero,
}

/// What [`Bbr`] remembers: 152 bytes, and up to 32 on the heap for each bucket, allocated at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct BbrState {
    cpu: Cpu,
    served: Served,
    /// The latest tick that was told.
    last: Tick,
    /// When the processor was last busy; under aegis' arithmetic, when dropping began.
    mark: Option<Tick>,
    /// Whether the limit holds.
    limited: bool,
    /// Whether somebody met the limit since it was last lifted, as far as samples tell.
    dropped: bool,
    /// How many were inside on average, as go-zero smooths it.
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
            arithmetic: Arithmetic::Corrected,
        }
    }
}

impl Bbr {
    /// The arithmetic and knobs of kratos aegis, whose readings come each half second.
    #[must_use]
    pub fn aegis() -> Self {
        Self { arithmetic: Arithmetic::Aegis, ..Self::default() }
    }

    /// The arithmetic and knobs of go-zero, whose readings come each quarter second: a window of 5 s in 50 buckets, a threshold of 900.
    ///
    /// The limit shrinks further with the time that the processor has left, to a tenth, and holds only while more are inside on average.
    /// go-zero takes that average when work ends; here it is of how many were inside when that work entered.
    #[must_use]
    pub fn go_zero() -> Self {
        let window = Buckets::known(5000, 50);
        Self { window, threshold: 900, arithmetic: Arithmetic::GoZero, ..Self::default() }
    }

    /// Sets the bounds of the limit; their start is the limit of a busy machine before anything is known of it.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sets the window, 1 ms to a day, and into how many buckets it is cut, 1 to 1000.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range.
    pub fn window(self, window: Duration, buckets: u32) -> Result<Self, QuotaError> {
        Ok(Self { window: Buckets::new(window, buckets)?, ..self })
    }

    /// Sets from how many thousandths on the processor is busy, 1 to 1000.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn threshold(self, thousandths: u16) -> Result<Self, QuotaError> {
        let want = "is not a share of the processor's time; use 1 to 1000 thousandths";
        Ok(Self { threshold: in_range("threshold", thousandths, &(1..=1000), want)?, ..self })
    }

    /// Sets what an old reading keeps of its weight with each new one, 0 to 0.999; 0 where readings are smoothed already, as those that the
    /// crate `tidegate` takes of the machine are: smoothed twice, they come late twice.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn smoothing(self, kept: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to keep; use 0 to 0.999";
        Ok(Self { smoothing: in_range("smoothing", kept, &(0.0..=0.999), want)?, ..self })
    }

    /// Sets how long the limit stays after the processor was last busy, up to an hour.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is longer.
    pub fn cool_off(self, span: Duration) -> Result<Self, QuotaError> {
        let range = Duration::ZERO..=Duration::from_secs(3600);
        Ok(Self { cool_off: in_range("cool-off", span, &range, "is too long; use up to an hour")?, ..self })
    }

    /// Returns from how many thousandths on the processor is busy.
    #[must_use]
    pub const fn busy_from(&self) -> u16 {
        self.threshold
    }

    /// Returns how busy the processor is, in thousandths, smoothed.
    #[must_use]
    pub fn cpu(&self, state: &BbrState) -> u16 {
        state.cpu.thousandths()
    }

    /// Moves time on, and settles whether the limit holds. `met`: somebody inside has just been seen at the limit.
    fn settle(&self, state: &mut BbrState, at: Tick, met: bool) {
        state.last = onward(state.last, at);
        state.served.advance(self.window, state.last);
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

    fn counting(&self) -> Counting {
        match self.arithmetic {
            Arithmetic::Corrected => Counting::Nanoseconds,
            Arithmetic::Aegis => Counting::MillisecondsUp,
            Arithmetic::GoZero => Counting::MillisecondsRounded,
        }
    }

    /// Whether a sample tells of work that was done.
    fn counts(&self, outcome: Outcome) -> bool {
        match self.arithmetic {
            Arithmetic::Corrected => matches!(outcome, Outcome::Success | Outcome::CallersFault),
            Arithmetic::Aegis => true,
            Arithmetic::GoZero => !matches!(outcome, Outcome::Overloaded | Outcome::Ignored),
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
            // Both peers refuse whoever finds *more* inside than the limit.
            Arithmetic::Aegis => (inside.unwrap_or(0.0) + 0.5).floor().max(1.0) + 1.0,
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
        let met = state.limited && sample.in_flight >= self.limit(state);
        self.settle(state, sample.at, met);
        state.flying = toward(state.flying, sample.in_flight.saturating_sub(1) as f64, 0.1);
        if self.counts(sample.outcome) {
            state.served.count(self.counting(), sample.latency);
        }
    }

    fn sense(&self, state: &mut BbrState, at: Tick, signal: Signal) {
        let Signal::Cpu(thousandths) = signal else { return };
        let reading = thousandths.min(1000);
        match self.arithmetic {
            Arithmetic::Corrected => state.cpu.read(reading, self.smoothing),
            Arithmetic::Aegis if reading == 0 => {}
            Arithmetic::Aegis | Arithmetic::GoZero => state.cpu.read_whole(reading, self.smoothing),
        }
        self.settle(state, at, false);
    }
}

impl Bytes for Bbr {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
        self.window.write(out);
        out.u32(u32::from(self.threshold));
        out.f64(self.smoothing);
        out.duration(self.cool_off);
        out.u8(match self.arithmetic {
            Arithmetic::Corrected => 0,
            Arithmetic::Aegis => 1,
            Arithmetic::GoZero => 2,
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (bounds, window) = (Bytes::read(from)?, Bytes::read(from)?);
        let law = Self { bounds, window, ..Self::default() };
        // What is larger than 16 bits is out of range, too.
        let threshold = u16::try_from(from.u32()?).unwrap_or(u16::MAX);
        let (smoothing, cool_off) = (from.f64()?, from.duration("cool-off")?);
        let law = law.threshold(threshold).and_then(|law| law.smoothing(smoothing)?.cool_off(cool_off));
        let law = law.map_err(|_| DecodeError::Value { field: "threshold" })?;
        let arithmetic = match from.u8()? {
            0 => Arithmetic::Corrected,
            1 => Arithmetic::Aegis,
            2 => Arithmetic::GoZero,
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

#[cfg(test)]
mod tests;

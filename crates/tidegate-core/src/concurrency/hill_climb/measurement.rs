//! One measurement: what work that entered from a time on tells of goodput and latency.

use super::super::Sample;
use super::Seen;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::{Tick, nanos};

/// From so many pieces of work on a measurement tells something.
const SOME: f64 = 20.0;
/// A measurement takes so many pieces of work that end well. The standard deviation of random arrivals is then 10 %.
const ENOUGH: f64 = 100.0;
/// It ends with fewer after this many times the base.
const PATIENCE: f64 = 30.0;
/// A goodput can be compared from so many pieces on: a trial that begins with fewer is decided by chance.
const COMPARABLE: f64 = 80.0;
/// Goodput is counted from this many times the base after the first piece of work that entered: what ends before is
/// what is short.
const LAG: f64 = 1.5;
/// The base is certain once all that was inside has been followed by so much.
const TURNS: f64 = 2.0;
/// The latency is lower than another one if it is by this many standard deviations.
const DEVIATIONS: f64 = 1.5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measurement {
    /// Work that entered before is not part of it.
    pub(super) since: Tick,
    /// When the first piece ended, and from when on goodput is counted.
    pub(super) first: Option<Tick>,
    pub(super) from: Option<Tick>,
    /// How many pieces of work ended well since `from`, whenever they entered.
    pub(super) ended_well: f64,
    pub(super) good: f64,
    /// How many ended in another way, and how many of them were late.
    pub(super) failed: f64,
    pub(super) late: f64,
    /// How many found the limit reached.
    pub(super) full: f64,
    /// The sum of the places in use at their entries, and the most.
    pub(super) inside: f64,
    pub(super) peak: f64,
    /// How many of the good took the time that work takes, and the sums of the logarithms of their nanoseconds and of the
    /// squares of these.
    pub(super) timed: f64,
    pub(super) logs: f64,
    pub(super) squares: f64,
}

impl Measurement {
    pub(super) const fn starting(since: Tick) -> Self {
        Self {
            since,
            first: None,
            from: None,
            ended_well: 0.0,
            good: 0.0,
            failed: 0.0,
            late: 0.0,
            full: 0.0,
            inside: 0.0,
            peak: 0.0,
            timed: 0.0,
            logs: 0.0,
            squares: 0.0,
        }
    }

    pub(super) fn count(&mut self, seen: &Seen, sample: &Sample, at: Tick, base: f64) {
        let one = |holds: bool| f64::from(u8::from(holds));
        if seen.entered >= self.since {
            self.first.get_or_insert(at);
            self.good += one(seen.good);
            self.failed += one(!seen.good);
            self.late += one(seen.late);
            self.full += one(seen.full);
            self.inside += sample.in_flight as f64;
            self.peak = self.peak.max(sample.in_flight as f64);
            if seen.timed {
                self.timed += 1.0;
                let log = seen.held.log2();
                self.logs += log;
                self.squares += log * log;
            }
        }
        if self.from.is_some() {
            self.ended_well += one(seen.good);
        } else if self.first.is_some_and(|first| nanos(at.since(first)) as f64 >= LAG * base) {
            self.from = Some(at);
        }
    }

    /// Returns the same without times after `last`.
    pub(super) fn until(self, last: Tick) -> Self {
        let until = |tick: Option<Tick>| tick.map(|tick| tick.min(last));
        Self { since: self.since.min(last), first: until(self.first), from: until(self.from), ..self }
    }

    fn ended(&self) -> f64 {
        self.good + self.failed
    }

    pub(super) fn has_good(&self) -> bool {
        self.good > 0.0
    }

    pub(super) fn has_some(&self) -> bool {
        self.ended() >= SOME
    }

    /// Says whether all that was inside has been followed by more. What ends first is what is short.
    pub(super) fn has_turned_over(&self) -> bool {
        self.good >= SOME.max(TURNS * self.mean_inside())
    }

    /// Says whether the goodput is known.
    pub(super) fn is_enough(&self, now: Tick, base: f64) -> bool {
        let span = self.span(now);
        span > 0.0 && (self.ended_well >= ENOUGH || self.has_some() && span >= PATIENCE * base)
    }

    /// Says whether the goodput is known well enough to be compared with another one.
    pub(super) fn is_comparable(&self, now: Tick) -> bool {
        self.ended_well >= COMPARABLE && self.timed > 0.0 && self.span(now) > 0.0
    }

    fn span(&self, now: Tick) -> f64 {
        self.from.map_or(0.0, |from| nanos(now.since(from)) as f64)
    }

    /// Returns how many pieces of work ended well per nanosecond.
    pub(super) fn rate(&self, now: Tick) -> f64 {
        let span = self.span(now);
        if span > 0.0 { self.ended_well / span } else { 0.0 }
    }

    /// Returns the geometric mean of the nanoseconds that work took; zero without any.
    pub(super) fn latency(&self) -> f64 {
        if self.timed > 0.0 { (self.logs / self.timed).exp2().min(u64::MAX as f64) } else { 0.0 }
    }

    /// Says whether work took less time, and not by chance.
    pub(super) fn is_quicker_than(&self, latency: f64) -> bool {
        if self.timed == 0.0 {
            return false;
        }
        let mean = self.logs / self.timed;
        let variance = (self.squares / self.timed - mean * mean).max(0.0);
        (mean + DEVIATIONS * (variance / self.timed).sqrt()).exp2() < latency
    }

    pub(super) fn mean_inside(&self) -> f64 {
        self.inside / self.ended().max(1.0)
    }

    pub(super) fn failed_share(&self) -> f64 {
        self.failed / self.ended().max(1.0)
    }

    /// Says whether most work found the limit reached.
    pub(super) fn is_full(&self) -> bool {
        self.full * 2.0 >= self.ended()
    }

    /// Says whether four fifths of the work were late or failed.
    pub(super) fn is_useless(&self) -> bool {
        self.failed >= SOME && self.failed >= 4.0 * self.good
    }

    /// Says whether a quarter of the work was late.
    pub(super) fn is_late(&self) -> bool {
        self.late * 4.0 >= self.ended() && self.late > 0.0
    }

    /// Says whether a twentieth of the work was late.
    pub(super) fn is_slightly_late(&self) -> bool {
        self.late * 20.0 >= self.ended() && self.late > 0.0
    }
}

impl Bytes for Measurement {
    fn write(&self, out: &mut Writer) {
        out.tick(self.since);
        for tick in [self.first, self.from] {
            out.flag(tick.is_some());
            out.tick(tick.unwrap_or(Tick::EPOCH));
        }
        let counts = [self.ended_well, self.good, self.failed, self.late, self.full];
        for number in counts.into_iter().chain([self.inside, self.peak, self.timed, self.logs, self.squares])
        {
            out.f64(number);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let since = from.tick()?;
        let (begun, first, counts, begins) =
            (from.flag("begun")?, from.tick()?, from.flag("counts")?, from.tick()?);
        let mut number = |field| from.within(field, 0.0..=f64::MAX);
        Ok(Self {
            since,
            first: begun.then_some(first),
            from: counts.then_some(begins),
            ended_well: number("ended well")?,
            good: number("good")?,
            failed: number("failed")?,
            late: number("late")?,
            full: number("full")?,
            inside: number("inside")?,
            peak: number("peak")?,
            timed: number("timed")?,
            logs: number("logs")?,
            squares: number("squares")?,
        })
    }
}

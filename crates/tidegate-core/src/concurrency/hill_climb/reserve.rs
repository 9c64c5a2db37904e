//! What is known of callers' time, and of the places held in reserve because of it.

use core::time::Duration;

use super::super::bounds::LIMITS;
use super::super::law::Sample;
use super::reading::Reading;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::nanos;

/// Callers who wait longer count as if they waited this long, so that a reserve adds about 0.27 s of latency.
const LONGEST: Duration = Duration::from_millis(500);
/// A raise is kept if goodput falls by at most this share, a little more than one standard deviation of 160
/// random arrivals.
const LOSS: f64 = 0.1;
/// Callers say how long they wait if at least nine in ten do.
const TOLD: (u64, u64) = (9, 10);
/// Nearly all work takes at most this many standard deviations longer than the mean.
const DEVIATIONS: f64 = 2.0;
/// Larger shares of a caller's time count as this: twice the time or a thousand times mean the same.
const LARGEST: f64 = 2.0;

/// Marks, in the highest bit of a count that stays small, that what belongs to the reserve follows. Forms without it
/// read as before there were reserves.
pub(super) const FOLLOWS: u32 = 1 << 31;

/// The shares of their callers' time that pieces of work took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    /// How many callers said how long they wait.
    pub(super) told: u64,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Shares {
    pub(super) const NONE: Self = Self { told: 0, sum: 0.0, squares: 0.0 };

    /// Counts a piece of work. Its place counts, not the time to the head of its answer: the time in a place grows with
    /// the number of places, while the head of a streamed answer may come as soon as ever.
    pub(super) fn count(&mut self, sample: &Sample) {
        let Some(time_left) = sample.time_left else { return };
        let time = (nanos(time_left.min(LONGEST)) as f64).max(1.0);
        let share = (nanos(sample.held.max(sample.latency)) as f64 / time).min(LARGEST);
        self.told += 1;
        self.sum += share;
        self.squares += share * share;
    }

    /// Returns the share that nearly all of `ended` pieces of work took at most; infinite if too few callers said how
    /// long they wait.
    pub(super) fn nearly_all(&self, ended: u64) -> f64 {
        if self.told == 0 || self.told.saturating_mul(TOLD.1) < ended.saturating_mul(TOLD.0) {
            return f64::INFINITY;
        }
        let count = self.told as f64;
        let mean = self.sum / count;
        mean + DEVIATIONS * (self.squares / count - mean * mean).max(0.0).sqrt()
    }
}

/// Places in reserve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reserve {
    /// The limit that the law had settled on, without a reserve.
    pub(super) settled: f64,
    /// The goodput per nanosecond there.
    pub(super) rate: f64,
    /// Whether the last measurement differed so much that the next one decides whether the reserve is given up.
    pub(super) doubtful: bool,
    /// Whether the limit was lowered since the last measurement, because latency had grown.
    pub(super) lowered: bool,
    /// For how many measurements it has been held.
    pub(super) held: u32,
}

impl Reserve {
    /// A reserve of nothing, for the byte form.
    pub(super) const NONE: Self = Self { settled: 1.0, rate: 0.0, doubtful: false, lowered: false, held: 0 };

    /// Says whether a raise from `known` lost more goodput than it may, of the settled limit's or of what there is now.
    pub(super) fn has_lost(&self, known: &Reading, reading: &Reading) -> bool {
        reading.rate < self.border(known)
    }

    /// Says whether a raise lies so close to the border that more samples are worth their time.
    pub(super) fn is_undecided(&self, known: &Reading, reading: &Reading) -> bool {
        let border = self.border(known);
        (reading.rate / border - 1.0).abs() < 1.0 / reading.good.sqrt()
    }

    /// The least goodput per nanosecond with which a raise is kept.
    fn border(&self, known: &Reading) -> f64 {
        self.rate.max(known.rate) * (1.0 - LOSS)
    }
}

impl Bytes for Shares {
    fn write(&self, out: &mut Writer) {
        out.u64(self.told);
        out.f64(self.sum);
        out.f64(self.squares);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let told = from.count("told")?;
        let (sum, squares) =
            (from.within("shares", 0.0..=f64::MAX)?, from.within("squares", 0.0..=f64::MAX)?);
        Ok(Self { told, sum, squares })
    }
}

impl Bytes for Reserve {
    fn write(&self, out: &mut Writer) {
        out.f64(self.settled);
        out.f64(self.rate);
        // Both flags share one byte, so that forms written before the second flag existed still read the same.
        out.two_flags(self.doubtful, self.lowered);
        out.u32(self.held);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let settled = from.within("settled", LIMITS)?;
        let rate = from.within("settled rate", 0.0..=f64::MAX)?;
        let (doubtful, lowered) = from.two_flags("doubtful")?;
        Ok(Self { settled, rate, doubtful, lowered, held: from.u32()? })
    }
}

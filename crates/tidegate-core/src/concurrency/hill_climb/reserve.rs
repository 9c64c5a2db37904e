//! Places held in reserve: more than the work needs now, for the time when a dependency becomes slower.
//!
//! The fewest places that lose no goodput are too few as soon as work takes longer, and finding the new limit costs
//! goodput. More places cost latency, since work waits inside the service instead of in front of it. Where callers say
//! how long they wait, the law knows how much latency they can spare. Once it has settled on a limit, it raises the
//! limit step by step, as long as goodput stays and nearly all work takes at most two fifths of its caller's time.
//! Fewer are not tried then, so a reserve also saves the goodput that experiments cost.
//!
//! The law goes back to the limit that it had settled on, and measures anew, when goodput falls, work fails, or latency
//! comes close to what callers wait for: the capacity may have fallen.

use core::time::Duration;

use super::super::bounds::Bounds;
use super::super::law::Sample;
use super::reading::Reading;
use super::state::{HillClimbState, LEAP, STEP};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::nanos;

/// The limit is raised until nearly all work takes this share of its caller's time.
const AIM: f64 = 0.42;
/// A raise is kept if nearly all work took at most this share of its caller's time.
const KEPT: f64 = 0.5;
/// The reserve is given up if nearly all work takes longer than this share of its caller's time.
const GIVEN_UP: f64 = 0.68;
/// Callers who wait longer count as if they waited this long, so that a reserve adds at most 0.2 s of latency.
const LONGEST: Duration = Duration::from_millis(500);
/// A reserve is begun if latency can grow by this factor. Less would hardly help where a dependency becomes slower.
const WORTHWHILE: f64 = 1.7;
/// The limit is not raised further if latency is this close, as a factor, to what it may be.
const CLOSE: f64 = 1.15;
/// The factor of the first raise. It is small, since goodput falls steeply where more places do harm. The next ones
/// double the limit at most.
const FIRST: f64 = 1.25;
/// A raise is kept if goodput falls by at most this share, a little more than one standard deviation of 160
/// random arrivals.
const LOSS: f64 = 0.1;
/// The reserve is given up if goodput falls by more than this share.
const LOST: f64 = 0.2;
/// A raise is kept if at most this share of the work fails.
const FEW_FAIL: f64 = 0.05;
/// The reserve is given up if more than this share of the work fails.
const MANY_FAIL: f64 = 0.1;
/// After a raise in vain, none is tried for this many measurements.
const WAIT: u32 = 128;
/// One more than the measurements between two looks at whether the limit can be raised further.
const LOOKS: u32 = 8;
/// Callers say how long they wait if at least nine in ten do.
const TOLD: (u64, u64) = (9, 10);
/// Nearly all work takes at most this many standard deviations longer than the mean.
const DEVIATIONS: f64 = 2.0;
/// Larger shares of a caller's time count as this, so that a single one does not hide the others for good.
const LARGEST: f64 = 1e3;

/// Marks, in the highest bit of a count that stays small, that what belongs to the reserve follows. Forms without it
/// read as before there were reserves.
pub(super) const FOLLOWS: u32 = 1 << 31;

/// The shares of their callers' time that pieces of work took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    /// How many callers said how long they wait.
    told: u64,
    sum: f64,
    squares: f64,
}

impl Shares {
    pub(super) const NONE: Self = Self { told: 0, sum: 0.0, squares: 0.0 };

    pub(super) fn count(&mut self, sample: &Sample) {
        let Some(time_left) = sample.time_left else { return };
        let time = (nanos(time_left.min(LONGEST)) as f64).max(1.0);
        let share = (nanos(sample.latency) as f64 / time).min(LARGEST);
        self.told += 1;
        self.sum += share;
        self.squares += share * share;
    }

    /// Returns the share that nearly all of `ended` pieces of work took at most; infinite if too few callers said how
    /// long they wait.
    pub(super) fn nearly_all(&self, ended: u64) -> f64 {
        if self.told == 0 || self.told * TOLD.1 < ended * TOLD.0 {
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
    rate: f64,
    /// Whether the last measurement differed so much that the next one decides whether the reserve is given up.
    doubtful: bool,
}

impl Reserve {
    /// A reserve of nothing, for the byte form.
    const NONE: Self = Self { settled: 1.0, rate: 0.0, doubtful: false };

    /// Says whether a raise lies so close to the border that more samples are worth their time.
    pub(super) fn is_undecided(&self, reading: &Reading) -> bool {
        (reading.rate / self.rate - (1.0 - LOSS)).abs() < 1.0 / reading.good.sqrt()
    }
}

impl HillClimbState {
    /// Tries a raise if the law has settled and callers have time, or if there is a reserve already. Returns whether the
    /// reserve decides what comes next.
    pub(super) fn raise_reserve(&mut self, known: &Reading, bounds: &Bounds) -> bool {
        let times = AIM / known.share;
        let begins = self.reserve.is_none();
        // A service may take far longer to recover from too many places than it had them, so none is risked while a limit
        // is known at which work failed.
        let harmless = self.no_reserve_for == 0 && self.cliff.at().is_infinite() && known.failed <= FEW_FAIL;
        if begins && !(harmless && self.rejected > 0 && times >= WORTHWHILE) {
            return false;
        }
        let most = (self.cliff.at() / STEP).max(self.limit);
        let factor = times.min(if begins { FIRST } else { LEAP });
        let trial = bounds.nearest((self.limit * factor).max(self.limit + 1.0).min(most));
        if times >= CLOSE && trial > self.limit {
            let without = Reserve { settled: self.limit, rate: known.rate, doubtful: false };
            self.reserve.get_or_insert(without);
            self.trial = Some(trial);
        } else if begins {
            return false;
        } else {
            self.rests = LOOKS - 1;
        }
        true
    }

    /// Keeps a raise or takes it back.
    pub(super) fn judge_raise(&mut self, reserve: &Reserve, trial: f64, reading: Reading) {
        let lost = reading.rate < reserve.rate * (1.0 - LOSS);
        if !lost && reading.share <= KEPT && reading.failed <= FEW_FAIL {
            (self.limit, self.rests) = (trial, 0);
            self.known = Some(Reading { queued: true, ..reading });
        } else if self.limit == reserve.settled {
            (self.reserve, self.no_reserve_for, self.rests) = (None, WAIT, 0);
            if lost {
                // Where more places do harm, fewer may do good.
                (self.upwards, self.may_plunge, self.rejected) = (false, true, 0);
            }
        } else {
            self.rests = WAIT;
        }
    }

    /// Handles one more measurement with a reserve.
    pub(super) fn measured_reserve(&mut self, bounds: &Bounds, reading: Reading) {
        let Some(reserve) = &mut self.reserve else { return };
        let changed = reading.rate < reserve.rate * (1.0 - LOST) || reading.share > GIVEN_UP;
        if reading.failed > MANY_FAIL || changed && reserve.doubtful {
            self.give_up_reserve();
            self.forget();
            return;
        }
        reserve.doubtful = changed;
        if changed {
            return;
        }
        if let Some(known) = &mut self.known {
            known.merge(&reading);
        }
        if self.rests > 0 {
            self.rests -= 1;
        } else {
            self.experiment(bounds);
        }
    }

    /// Goes back to the limit without a reserve.
    pub(super) fn give_up_reserve(&mut self) {
        if let Some(reserve) = self.reserve.take() {
            (self.limit, self.trial) = (reserve.settled, None);
        }
    }
}

impl HillClimbState {
    /// How many bytes [`write_reserve`](Self::write_reserve) adds.
    pub(in super::super) const RESERVE_BYTES: usize = 3 * 8 + 1 + (2 * 8 + 1) + 8 + 4;

    /// Says whether anything is known of how long callers wait.
    pub(super) fn knows_of_time(&self) -> bool {
        let share = self.known.map_or(f64::INFINITY, |known| known.share);
        self.epoch.shares != Shares::NONE
            || self.reserve.is_some()
            || self.no_reserve_for > 0
            || share.is_finite()
    }

    /// Writes what belongs to the reserve.
    pub(super) fn write_reserve(&self, out: &mut Writer) {
        self.epoch.shares.write(out);
        out.flag(self.reserve.is_some());
        self.reserve.unwrap_or(Reserve::NONE).write(out);
        out.f64(self.known.map_or(f64::INFINITY, |known| known.share));
        out.u32(self.no_reserve_for);
    }

    /// Reads what [`write_reserve`](Self::write_reserve) wrote.
    pub(super) fn read_reserve(&mut self, from: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.epoch.shares = Bytes::read(from)?;
        let (holds, reserve) = (from.flag("holds a reserve")?, Bytes::read(from)?);
        self.reserve = holds.then_some(reserve);
        let share = from.within("share", 0.0..=f64::INFINITY)?;
        if let Some(known) = &mut self.known {
            known.share = share;
        }
        self.no_reserve_for = from.u32()?;
        Ok(())
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
        out.flag(self.doubtful);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            settled: from.within("settled", super::super::bounds::LIMITS)?,
            rate: from.within("settled rate", 0.0..=f64::MAX)?,
            doubtful: from.flag("doubtful")?,
        })
    }
}

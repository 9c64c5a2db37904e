//! Places held in reserve, where callers' time allows it, for when a dependency becomes slower.
//!
//! The fewest places that lose no goodput are too few as soon as work takes longer, and finding the new limit costs
//! goodput; more places cost latency, and callers' time tells how much of it they can spare. Once the law has settled
//! on a limit, it raises it step by step, as long as goodput stays and nearly all work takes about half of its
//! caller's time. When nearly all work takes much more than that, fewer places are tried: as many as make latency as
//! short as before if the capacity fell. If goodput is then as high, it did, and the reserve is kept. If goodput fell
//! with the places, work takes longer by itself; if it rose, the places did harm. In both cases the law goes back to
//! the limit that it had settled on, and also when most of the goodput is lost or a tenth of the work fails in two
//! measurements in a row, and after a thousand measurements, since the right limit may have changed without any of
//! these signs.

use core::time::Duration;

use super::super::Sample;
use super::super::bounds::{Bounds, LIMITS};
use super::reading::Reading;
use super::state::{FEW_FAIL, HillClimbState, LEAP, LONGEST_WAIT, STEP};
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

/// Marks, in the highest bit of a count that stays small, that what belongs to the reserve follows.
pub(super) const FOLLOWS: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    /// How many callers said how long they wait.
    pub(super) told: u64,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Shares {
    pub(super) const NONE: Self = Self { told: 0, sum: 0.0, squares: 0.0 };

    /// Counts a piece of work by its time in the place, which grows with the number of places; the head of a streamed
    /// answer may come as soon as ever.
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

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reserve {
    /// The limit that the law had settled on, without a reserve.
    pub(super) settled: f64,
    pub(super) rate: f64,
    /// Whether the last measurement differed so much that the next one decides whether the reserve is given up.
    pub(super) doubtful: bool,
    /// Whether the limit was lowered since the last measurement, because latency had grown.
    pub(super) lowered: bool,
    /// For how many measurements it has been held.
    pub(super) held: u32,
}

impl Reserve {
    pub(super) const NONE: Self = Self { settled: 1.0, rate: 0.0, doubtful: false, lowered: false, held: 0 };

    /// Says whether a raise from `known` lost more goodput than it may, of the settled limit's or of what there is now.
    pub(super) fn has_lost(&self, known: &Reading, reading: &Reading) -> bool {
        reading.rate < self.border(known)
    }

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
        // One byte, so that older forms still read the same.
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

/// The limit is raised until nearly all work takes this share of its caller's time.
const AIM: f64 = 0.54;
/// A raise is kept if nearly all work took at most this share of its caller's time.
const KEPT: f64 = 0.61;
/// Fewer places are tried if nearly all work takes longer than this share of its caller's time.
const TOO_LONG: f64 = 0.78;
/// A reserve is begun if latency can grow by this factor. Less would hardly help where a dependency becomes slower.
const WORTHWHILE: f64 = 1.7;
/// The limit is not raised further if latency could grow by less than this factor.
const CLOSE: f64 = 1.05;
/// The factor of the first raise: small, since goodput falls steeply where more places do harm. The next ones double
/// the limit at most.
const FIRST: f64 = 1.25;
/// The reserve is given up if goodput falls by more than this share.
const LOST: f64 = 0.6;
/// After fewer places were tried, the reserve is given up if goodput fell by at least this share of the proportional loss.
const NEEDED: f64 = 0.5;
/// The same if goodput rose by more than this share.
const GAINED: f64 = 0.15;
/// The reserve is given up if more than this share of the work fails.
const MANY_FAIL: f64 = 0.1;
/// After a raise that was taken back, none is tried for this many measurements at the limit.
const WAIT: u32 = LONGEST_WAIT;
/// After this many measurements the law settles anew.
const HELD: u32 = 1024;
/// One more than the measurements between two looks at whether the limit can be raised further.
const LOOKS: u32 = 8;

impl HillClimbState {
    /// Tries a raise if the law has settled and callers have time, or if there is a reserve. Returns whether the reserve
    /// decides what comes next.
    pub(super) fn raise_reserve(&mut self, known: &Reading, bounds: &Bounds) -> bool {
        let times = AIM / known.share;
        let begins = self.reserve.is_none();
        // A service that failed from too many places may take long to recover.
        let harmless = self.no_reserve_for == 0 && self.cliff.at().is_infinite() && known.failed <= FEW_FAIL;
        if begins && !(harmless && self.rejected > 0 && times >= WORTHWHILE) {
            return false;
        }
        let most = (self.cliff.at() / STEP).max(self.limit);
        let factor = times.min(if begins { FIRST } else { LEAP });
        let trial = bounds.nearest((self.limit * factor).max(self.limit + 1.0).min(most));
        if times >= CLOSE && trial > self.limit {
            let without = Reserve { settled: self.limit, rate: known.rate, ..Reserve::NONE };
            self.reserve.get_or_insert(without);
            self.trial = Some(trial);
        } else if begins {
            return false;
        } else {
            self.rests = LOOKS - 1;
        }
        true
    }

    pub(super) fn judge_raise(&mut self, reserve: &Reserve, known: &Reading, trial: f64, reading: Reading) {
        let lost = reserve.has_lost(known, &reading);
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

    pub(super) fn measured_reserve(&mut self, bounds: &Bounds, reading: Reading) {
        let (Some(reserve), Some(known)) = (&mut self.reserve, &mut self.known) else { return };
        reserve.held = reserve.held.saturating_add(1);
        let changed = reading.rate < reserve.rate * (1.0 - LOST)
            || reading.share.is_infinite()
            || reading.failed > MANY_FAIL;
        let over = reading.failing || changed && reserve.doubtful || reserve.held >= HELD;
        if over || reserve.lowered && !changed && !is_fallen_capacity(known, &reading) {
            self.give_up_reserve();
            self.forget();
            return;
        }
        reserve.doubtful = changed;
        if changed {
            return;
        }
        if reserve.lowered {
            // The capacity fell.
            (reserve.lowered, reserve.rate, *known) = (false, reading.rate, reading);
        } else {
            known.merge(&reading);
        }
        if reading.share > TOO_LONG {
            self.lower(bounds, reading);
        } else if self.rests > 0 {
            self.rests -= 1;
        } else {
            self.experiment(bounds);
        }
    }

    /// Lowers the limit to as many places as make latency short enough if the capacity fell. Gives the reserve up if
    /// none of it would be left.
    fn lower(&mut self, bounds: &Bounds, reading: Reading) {
        let Some(reserve) = &mut self.reserve else { return };
        let fewer = bounds.nearest(self.limit * fewer(&reading));
        if fewer <= reserve.settled {
            self.give_up_reserve();
            self.forget();
            return;
        }
        reserve.lowered = true;
        (self.limit, self.known, self.rests) = (fewer, Some(reading), LOOKS - 1);
    }

    pub(super) fn give_up_reserve(&mut self) {
        if let Some(reserve) = self.reserve.take() {
            (self.limit, self.trial) = (reserve.settled, None);
        }
    }
}

/// Returns the share of the places with which nearly all work takes [`AIM`] of its caller's time, if work waits.
fn fewer(reading: &Reading) -> f64 {
    AIM / reading.share
}

/// Says whether goodput did not follow the number of places, after it was lowered from `known`: the capacity fell.
fn is_fallen_capacity(known: &Reading, reading: &Reading) -> bool {
    let unneeded = 1.0 - NEEDED * (1.0 - fewer(known))..=1.0 + GAINED;
    unneeded.contains(&(reading.rate / known.rate))
}

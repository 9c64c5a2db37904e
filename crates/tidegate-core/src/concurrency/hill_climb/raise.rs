//! Places held in reserve: more than the work needs now, for the time when a dependency becomes slower.
//!
//! The fewest places that lose no goodput are too few as soon as work takes longer, and finding the new limit costs
//! goodput. More places cost latency, since work waits inside the service instead of in front of it. Where callers say
//! how long they wait, the law knows how much latency they can spare. Once it has settled on a limit, it raises the
//! limit step by step, as long as goodput stays and nearly all work takes about half of its caller's time.
//! Fewer are not tried then, so a reserve also saves the goodput that experiments cost.
//!
//! When nearly all work takes much more of its caller's time than that, fewer places are tried: as many as make latency
//! as short as before if the capacity fell. The next measurement judges that. If goodput is as high with fewer places,
//! the capacity fell, and the reserve is kept. If goodput fell with the places, work takes longer by itself; if it rose,
//! the places did harm. In both cases the reserve is given up.
//!
//! When a reserve is given up, the law goes back to the limit that it had settled on, and measures anew. That also happens
//! when most of the goodput is lost or a tenth of the work fails in two measurements in a row, and after a thousand
//! measurements, since the right limit may have changed without any of these signs.

use super::super::bounds::Bounds;
use super::reading::Reading;
use super::reserve::Reserve;
use super::state::{FEW_FAIL, HillClimbState, LEAP, LONGEST_WAIT, STEP};

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
/// The factor of the first raise. It is small, since goodput falls steeply where more places do harm. The next ones
/// double the limit at most.
const FIRST: f64 = 1.25;
/// The reserve is given up if goodput falls by more than this share.
const LOST: f64 = 0.6;
/// After fewer places were tried, the reserve is given up if goodput fell by at least this share of the proportional
/// loss: nothing had waited.
const NEEDED: f64 = 0.5;
/// After fewer places were tried, the reserve is given up if goodput rose by more than this share: more places did harm.
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
    /// Tries a raise if the law has settled and callers have time, or if there is a reserve already. Returns whether the
    /// reserve decides what comes next.
    pub(super) fn raise_reserve(&mut self, known: &Reading, bounds: &Bounds) -> bool {
        let times = AIM / known.share;
        let begins = self.reserve.is_none();
        // A service that failed from too many places may take long to recover, so no reserve is begun while the law knows
        // of a limit at which work failed.
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

    /// Keeps a raise or takes it back.
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

    /// Handles one more measurement with a reserve.
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

    /// Goes back to the limit without a reserve.
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

/// Says whether goodput did not follow the number of places, after it was lowered from `known`: then latency had grown
/// because the capacity fell.
fn is_fallen_capacity(known: &Reading, reading: &Reading) -> bool {
    let unneeded = 1.0 - NEEDED * (1.0 - fewer(known))..=1.0 + GAINED;
    unneeded.contains(&(reading.rate / known.rate))
}

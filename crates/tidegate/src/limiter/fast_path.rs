//! Which way a check goes: a short one where its clock and its precision have one, and the longer ones after that.
//!
//! A compare-exchange waits for all stores before it, and on some processors the next check waits for the exchange. So the short
//! ways are written to store nothing else: they keep no number across a call, since whatever needs one is asked last, and its
//! answer is theirs.

use tidegate_core::Cost;

use super::word::Undecided;
use super::{Limiter, Tell, lease};
use crate::clock::Time;
use crate::precision::Precision;

/// The short way that a check tries first: the precision and the clock in one look.
#[derive(Clone, Copy, Debug)]
pub(super) enum FastPath {
    Tick,
    Lease,
    Clock,
}

impl FastPath {
    pub(super) fn of(precision: Precision, time: &Time) -> Self {
        match (time, precision) {
            (Time::System(_), Precision::Shared) => Self::Tick,
            (Time::System(_), Precision::Leased) => Self::Lease,
            // The other two know the system's clock only.
            (Time::System(_), Precision::Exact) | (Time::Other { .. }, _) => Self::Clock,
        }
    }
}

impl Limiter {
    // Inlined, for it chooses among short ways that are inlined into it. What they do not decide is asked of a function apart, and
    // nothing comes after that: so the short ways keep nothing across a call.
    #[inline]
    pub(super) fn decide<T: Tell>(&self, cost: Cost) -> T {
        let (shared, units) = (&*self.shared, cost.units());
        let quick = match shared.fast_path {
            FastPath::Tick => shared.permit_fast(units),
            FastPath::Lease => lease::spend_fast(shared, units),
            FastPath::Clock => return self.decide_by_clock(cost),
        };
        match quick {
            Ok(told) => told,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(why) => self.decide_otherwise(cost, why, 0),
        }
    }

    /// Decides by the clock on every check. Apart, for reading it is a call on some machines, and what is kept across one would
    /// cost the other ways.
    #[inline(never)]
    fn decide_by_clock<T: Tell>(&self, cost: Cost) -> T {
        match self.shared.decide_fast(cost.units()) {
            Ok(told) => told,
            Err(Undecided::Lost) => self.decide_after_loss(cost),
            Err(_) => self.decide_otherwise(cost, Undecided::NotAsked, 0),
        }
    }

    #[cold]
    #[inline(never)]
    fn decide_after_loss<T: Tell>(&self, cost: Cost) -> T {
        self.decide_otherwise(cost, Undecided::Lost, 1)
    }

    /// Decides what the short ways do not: new leases, refusals after a tick, other clocks, and all that takes the lock. So many
    /// exchanges were lost until now.
    #[inline(never)]
    fn decide_otherwise<T: Tell>(&self, cost: Cost, why: Undecided, mut lost: u32) -> T {
        let (shared, units) = (&self.shared, cost.units());
        let by_tick = match shared.precision {
            Precision::Shared if why != Undecided::ByClock => {
                shared.permit_by_tick(units, std::mem::take(&mut lost))
            }
            Precision::Leased => lease::spend(shared, units),
            _ => None,
        };
        if let Some(told) = by_tick {
            return told;
        }
        match shared.decide_by_clock(units, lost) {
            Some(told) => told,
            None => T::of(self.allow_under_lock(cost)),
        }
    }
}

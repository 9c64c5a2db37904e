//! The clock of a limiter: the system clock is called directly, any other clock through a trait object.

use std::any::Any;
use std::sync::Arc;

use tidegate_core::rate::{Bandwidth, Refill};
use tidegate_core::{Quota, Tick};

use super::{Clock, HeldTime, SystemClock};

/// The system clock, or another one whose steps back are held.
///
/// Ticks of the system clock do not step back; those of any other clock are held ([`HeldTime`]).
#[derive(Debug)]
pub enum Time {
    /// The system clock.
    System(SystemClock),
    /// Any other clock.
    Other {
        /// The clock.
        clock: Arc<dyn Clock>,
        /// What holds its steps back.
        held: HeldTime,
    },
}

impl Time {
    /// Takes the system clock for itself, and holds the steps back of any other.
    pub fn new(clock: impl Clock + 'static) -> Self {
        match (&clock as &dyn Any).downcast_ref::<SystemClock>() {
            Some(system) => Self::System(*system),
            None => Self::of(Arc::new(clock)),
        }
    }

    fn of(clock: Arc<dyn Clock>) -> Self {
        Self::Other { clock, held: HeldTime::default() }
    }

    /// Returns the same clock for another limiter, which holds its time separately.
    pub(crate) fn new_like(&self) -> Self {
        match self {
            Self::System(system) => Self::System(*system),
            Self::Other { clock, .. } => Self::of(Arc::clone(clock)),
        }
    }

    /// Returns the current tick.
    #[inline]
    pub fn now(&self) -> Tick {
        match self {
            Self::System(system) => system.now(),
            Self::Other { .. } => self.other(false),
        }
    }

    #[inline]
    pub(crate) fn fast_tick(&self) -> Option<Tick> {
        match self {
            Self::System(_) => SystemClock::fast_tick(),
            Self::Other { .. } => None,
        }
    }

    /// Returns a tick that may be a little older, and costs less.
    #[inline]
    pub fn recent(&self) -> Tick {
        match self {
            Self::System(system) => system.recent(),
            Self::Other { .. } => self.other(true),
        }
    }

    pub(crate) fn shared(&self) -> Option<Tick> {
        match self {
            Self::System(_) => SystemClock::shared(),
            Self::Other { .. } => Some(self.recent()),
        }
    }

    /// Returns the tick that the system clock shares while it is kept. Costs one load.
    #[inline(always)]
    pub(crate) fn shared_tick(&self) -> Option<Tick> {
        match self {
            Self::System(_) => SystemClock::shared(),
            Self::Other { .. } => None,
        }
    }

    /// Reads a clock other than the system clock. Separate, so that the code for the system clock stays short.
    #[cold]
    #[inline(never)]
    fn other(&self, recent: bool) -> Tick {
        match self {
            Self::System(system) => system.now(),
            Self::Other { clock, held } => held.hold(if recent { clock.recent() } else { clock.now() }),
        }
    }

    /// Returns a quota for limiters on this clock: a calendar window or an aligned bucket of its own, which follows the wall
    /// clock.
    pub fn followed(&self, quota: &Arc<Quota>) -> Arc<Quota> {
        let aligned = |bandwidth: &Bandwidth| bandwidth.refill(Refill::Aligned) == *bandwidth;
        let follows = match &**quota {
            Quota::FixedWindow(_) => true,
            Quota::TokenBucket(limit) => limit.bandwidths().iter().any(aligned),
            _ => false,
        };
        match self.clock().wall().filter(|_| follows) {
            Some(wall) => {
                let own = Quota::clone(quota);
                own.follow_wall(&wall);
                Arc::new(own)
            }
            None => Arc::clone(quota),
        }
    }

    /// Returns the clock whose present tick a store reads before it refuses. The steps back of its ticks are held here,
    /// because a store that saw both these ticks and those behind them would take the difference for progress.
    #[inline]
    pub fn fresh(&self) -> &dyn Clock {
        match self {
            Self::System(system) => system,
            Self::Other { .. } => self,
        }
    }

    /// Returns the clock itself, whose ticks are not held.
    pub fn clock(&self) -> &dyn Clock {
        match self {
            Self::System(system) => system,
            Self::Other { clock, .. } => &**clock,
        }
    }
}

impl Clock for Time {
    fn now(&self) -> Tick {
        Self::now(self)
    }

    fn recent(&self) -> Tick {
        Self::recent(self)
    }
}

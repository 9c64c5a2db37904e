//! Clocks: the source of ticks, and of the timers that wake waiters.
//!
//! Code below a limiter or a gate never reads the time itself: a clock is read once per check and the tick is passed
//! down. [`SystemClock`] is the only code that asks the machine. With [`ManualClock`], tests and replays set the time
//! themselves.
//!
//! A clock includes its timer, as provided methods. So a limiter on a virtual clock cannot wait by a real one, and no
//! separate timer has to be passed in. To wait on another runtime's timer, wrap a clock and override
//! [`Clock::sleep_until`], as [`TokioClock`] (feature `tokio`) does.

mod manual;
mod monotonic;
mod system;
#[cfg(feature = "tokio")]
mod tokio;

use std::any::Any;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

pub use manual::ManualClock;
pub use monotonic::HeldTime;
pub use system::SystemClock;
use tidegate_core::rate::{Bandwidth, Refill};
pub use tidegate_core::time::WallAhead;
use tidegate_core::{Quota, Tick};
#[cfg(feature = "tokio")]
pub use tokio::TokioClock;

/// A sleep in progress; dropping it cancels it.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The longest single sleep. Timers add it to an `Instant`, which cannot represent the longest time that a limit may
/// take, 146 years. Sleepers check the clock again afterwards, so a longer sleep is only split.
const LONGEST_SLEEP: Duration = Duration::from_secs(86_400);

/// A source of the current tick, and of sleeps until a tick.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current tick. Called once per check. It may stand still; limits treat a step back as standing
    /// still.
    fn now(&self) -> Tick;

    /// Returns a tick that costs less than [`Clock::now`]. It may be a little older, but is never later than `now`.
    /// Called once per check in place of `now`, which is then called only before a refusal (see
    /// [`crate::Precision`]).
    ///
    /// The default calls `now`: a clock without a cheaper source has no staleness.
    fn recent(&self) -> Tick {
        self.now()
    }

    /// Returns the tick of an `Instant` of the machine's monotonic clock. Called once per wait whose deadline is an
    /// `Instant`.
    ///
    /// The default gives the tick the same distance from this clock's present as the `Instant` has from the
    /// machine's, exact to the time between the two readings. That is right for every clock that runs with real time.
    #[allow(clippy::disallowed_methods, reason = "where the machine's clock and this one are compared")]
    fn tick_of(&self, instant: Instant) -> Tick {
        // This clock is read first: the tick is then early by the time between the readings, so no wait ends after
        // its deadline.
        let now = self.now();
        let here = Instant::now();
        match instant.checked_duration_since(here) {
            Some(ahead) => now.after(ahead),
            None => now.before(here.duration_since(instant)),
        }
    }

    /// Returns how far the wall clock is ahead of this clock's ticks; `None` if the ticks are the wall clock's. Called
    /// once for each limit. Calendar windows and aligned refills follow the number from then on, so a clock that returns
    /// one keeps it right.
    ///
    /// The default is `None`.
    fn wall(&self) -> Option<WallAhead> {
        None
    }

    /// Returns a future that ends when the clock reaches `tick`. Called when an async waiter has to wait, once or
    /// more per wait: a sleep may end early, and the waiter then asks again.
    ///
    /// The default sleeps on a timer thread of its own (`futures-timer`), on any runtime or none. It is right for
    /// every clock that runs with real time.
    fn sleep_until(&self, tick: Tick) -> Sleep {
        let span = tick.since(self.now()).min(LONGEST_SLEEP);
        Box::pin(futures_timer::Delay::new(span))
    }

    /// Blocks the calling thread until the clock reaches `tick`. Called by the blocking waits only.
    ///
    /// The default puts the thread to sleep, which is right for every clock that runs with real time.
    #[allow(clippy::disallowed_methods, reason = "the one place that sleeps")]
    fn block_until(&self, tick: Tick) {
        loop {
            let span = tick.since(self.now()).min(LONGEST_SLEEP);
            if span.is_zero() {
                return;
            }
            std::thread::sleep(span);
        }
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Tick {
        (**self).now()
    }

    fn recent(&self) -> Tick {
        (**self).recent()
    }

    fn tick_of(&self, instant: Instant) -> Tick {
        (**self).tick_of(instant)
    }

    fn wall(&self) -> Option<WallAhead> {
        (**self).wall()
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        (**self).sleep_until(tick)
    }

    fn block_until(&self, tick: Tick) {
        (**self).block_until(tick);
    }
}

// Runs a future until a tick at most.

/// Awaits a future until the clock reaches a tick. Returns `None` if the future was not ready by then, and drops it.
///
/// A future that is ready when first polled is in time, and no sleep is started for it.
///
/// # Cancel safety
/// Dropping this future drops the inner future.
pub async fn before<T>(clock: &dyn Clock, until: Tick, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep: Option<Sleep> = None;
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // The clock decides, and the timer only wakes: if another timer for the same tick wakes the task first, the time is
        // up all the same. Sleeps may end early.
        while clock.now() < until {
            let sleeping = sleep.get_or_insert_with(|| clock.sleep_until(until));
            ready!(sleeping.as_mut().poll(cx));
            sleep = None;
        }
        Poll::Ready(None)
    })
    .await
}

// The clock of a limiter: the system clock is called directly, any other clock through a trait object.

/// The system clock, or another one whose steps back are held.
///
/// Limits in words do not remember when they were last changed, so ticks must not step back. Those of the system
/// clock do not; those of any other clock are held ([`HeldTime`]).
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

    /// Holds the steps back of a clock.
    pub fn of(clock: Arc<dyn Clock>) -> Self {
        Self::Other { clock, held: HeldTime::default() }
    }

    /// Returns the same clock for another limiter, which holds its time separately.
    pub fn new_like(&self) -> Self {
        match self {
            Self::System(system) => Self::System(*system),
            Self::Other { clock, .. } => Self::of(Arc::clone(clock)),
        }
    }

    #[inline]
    /// Returns the current tick.
    pub fn now(&self) -> Tick {
        match self {
            Self::System(system) => system.now(),
            Self::Other { .. } => self.other(false),
        }
    }

    /// Returns the current tick if the processor's counter has it.
    #[inline]
    pub fn fast_tick(&self) -> Option<Tick> {
        match self {
            Self::System(_) => SystemClock::fast_tick(),
            Self::Other { .. } => None,
        }
    }

    #[inline]
    /// Returns a tick that may be a little older, and costs less.
    pub fn recent(&self) -> Tick {
        match self {
            Self::System(system) => system.recent(),
            Self::Other { .. } => self.other(true),
        }
    }

    /// Returns a tick that all threads see for a while, if there is one.
    pub fn shared(&self) -> Option<Tick> {
        match self {
            Self::System(_) => SystemClock::shared(),
            Self::Other { .. } => Some(self.recent()),
        }
    }

    /// Returns the tick that the system clock shares while it is kept. Costs one load.
    #[inline(always)]
    pub fn shared_tick(&self) -> Option<Tick> {
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

//! Clocks: the source of ticks, and of the timers that wake waiters.
//!
//! Code below a limiter or a gate never reads the time itself: a clock is read once per check and the tick is passed
//! down.
//!
//! A clock includes its timer, as provided methods, so a limiter on a virtual clock cannot wait by a real one. To wait
//! on another runtime's timer, wrap a clock and override [`Clock::sleep_until`], as [`TokioClock`] (feature `tokio`)
//! does.

mod manual;
mod monotonic;
mod system;
mod time;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

pub use manual::ManualClock;
pub use monotonic::HeldTime;
pub use system::SystemClock;
use tidegate_core::Tick;
pub use tidegate_core::time::WallAhead;
pub use time::Time;
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
    /// The default gives the tick the same distance from this clock's present as the `Instant` has from the machine's,
    /// exact to the time between the two readings. That is right for every clock that runs with real time.
    #[allow(clippy::disallowed_methods, reason = "where the machine's clock and this one are compared")]
    fn tick_of(&self, instant: Instant) -> Tick {
        // This clock is read first: the tick is then early by the time between the readings, so no wait ends after its
        // deadline.
        let now = self.now();
        let here = Instant::now();
        match instant.checked_duration_since(here) {
            Some(ahead) => now.after(ahead),
            None => now.before(here.duration_since(instant)),
        }
    }

    /// Returns how far the wall clock is ahead of this clock's ticks; `None` if the ticks are the wall clock's. Called
    /// once for each limit. Calendar windows and aligned refills follow the number from then on, so a clock that
    /// returns one keeps it right. The default is `None`.
    fn wall(&self) -> Option<WallAhead> {
        None
    }

    /// Returns a future that ends when the clock reaches `tick`. Called when an async waiter has to wait, once or more
    /// per wait: a sleep may end early, and the waiter then asks again.
    ///
    /// The default sleeps on a timer thread of its own (`futures-timer`), on any runtime or none. It is right for every
    /// clock that runs with real time.
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

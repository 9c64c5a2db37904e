//! Where ticks come from, and who wakes a waiter when one has come.
//!
//! Nothing below a limiter or a gate reads the time by itself: a clock is read once per check and the tick is passed down.
//! [`SystemClock`] is the only place that asks the machine; [`ManualClock`] lets tests and replays turn time by hand.
//!
//! A clock also brings its timer, as provided methods: a limiter told to live by a virtual clock then cannot wait by a real
//! one, and there is no second thing to hand over. To wait on another runtime's timer, wrap a clock and override
//! [`Clock::sleep_until`], as [`TokioClock`] (feature `tokio`) does.

mod manual;
#[cfg(feature = "tokio")]
mod tokio;

pub use manual::ManualClock;
#[cfg(feature = "tokio")]
pub use tokio::TokioClock;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Tick;

/// A sleep under way; dropping it ends it.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The longest single sleep: timers add it to an `Instant`, which cannot hold a limit's 146 years. Who sleeps looks at the
/// clock again afterwards, so a longer one is only taken in pieces.
const LONGEST_SLEEP: Duration = Duration::from_secs(86_400);

/// A source of now, and of waiting until then.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current tick. Called once per check. May stand still; limits treat a step back as standing still.
    fn now(&self) -> Tick;

    /// Returns a future that ends when the clock has come to `tick`. Called when an async waiter has to wait, once or more
    /// per wait: a sleep may end early, and the waiter then asks again.
    ///
    /// The default sleeps on a timer thread of its own (`futures-timer`), on any runtime or none; it is right for every clock
    /// that runs with real time.
    fn sleep_until(&self, tick: Tick) -> Sleep {
        let span = tick.since(self.now()).min(LONGEST_SLEEP);
        Box::pin(futures_timer::Delay::new(span))
    }

    /// Holds the calling thread until the clock has come to `tick`. Called by the blocking waits only.
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

/// The machine's monotonic clock, anchored to the Unix epoch when it is made.
///
/// Ticks are nanoseconds since 1970, so that calendar windows work, but they advance with the monotonic clock: setting the
/// wall clock neither mints nor blocks capacity. After such a step, calendar windows keep the old wall time until the
/// process restarts. A clone shares the anchor. Cost: one `clock_gettime`, about 20 ns.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
    /// Wall time at `origin`, in nanoseconds since the Unix epoch.
    anchor: u64,
}

impl SystemClock {
    /// Anchors a clock to the present.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { origin: Instant::now(), anchor: tidegate_core::time::nanos(wall) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.anchor).after(self.origin.elapsed())
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Tick {
        (**self).now()
    }

    fn sleep_until(&self, tick: Tick) -> Sleep {
        (**self).sleep_until(tick)
    }

    fn block_until(&self, tick: Tick) {
        (**self).block_until(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_counts_from_1970_and_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(first > Tick::from_secs(1_700_000_000));
        assert!(clock.now() >= first);
    }
}

//! Where ticks come from.
//!
//! Nothing below a limiter or a gate reads the time by itself: a clock is read once per check and the tick is passed down.
//! [`SystemClock`] is the only place that asks the machine; [`ManualClock`] lets tests and replays turn time by hand.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::Tick;

/// A source of now. Called once per check.
pub trait Clock: Debug + Send + Sync {
    /// Returns the current tick. May stand still; limits treat a step back as standing still.
    fn now(&self) -> Tick;
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

/// A clock that moves only when told to; clones share the time.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{Clock, ManualClock, Tick};
/// let clock = ManualClock::at(Tick::from_secs(100));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), Tick::from_secs(101));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// Makes a clock that stands at `tick`.
    #[must_use]
    pub fn at(tick: Tick) -> Self {
        Self { nanos: Arc::new(AtomicU64::new(tick.as_nanos())) }
    }

    /// Moves the time forward; saturates at [`Tick::MAX`].
    pub fn advance(&self, by: Duration) {
        let by = tidegate_core::time::nanos(by);
        // Relaxed: the tick publishes nothing but itself.
        let step = |now: u64| Some(now.saturating_add(by));
        let _ = self.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }

    /// Puts the time to `tick`, forward or back.
    pub fn set(&self, tick: Tick) {
        self.nanos.store(tick.as_nanos(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Tick {
        (**self).now()
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

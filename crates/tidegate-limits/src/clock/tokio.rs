//! Tokio's clock and timer.

use std::time::Duration;

use ::tokio::runtime::Handle;
use ::tokio::time::Instant;
use tidegate_core::Tick;

use super::{Clock, LONGEST_SLEEP, Sleep, SystemClock};

/// Tokio's monotonic clock, anchored to the Unix epoch when it is made; waits sleep on tokio's timer.
///
/// The timer is tokio's own, so there is no extra thread, waits are rounded up to its millisecond, and
/// `tokio::time::pause` also stops and skips this clock's time. Outside a runtime it waits like [`SystemClock`]. A copy
/// shares the anchor.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{Cost, Limiter, Quota, clock::TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Quota::per_minute(1))?.with_clock(TokioClock::new());
/// limiter.wait(Cost::ONE).await?;
/// limiter.wait(Cost::ONE).within(Duration::from_secs(60)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: Instant,
    anchor: Tick,
}

impl TokioClock {
    /// Makes a clock anchored to the present.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        Self { origin: Instant::now(), anchor: SystemClock::new().now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Tick {
        self.anchor.after(self.origin.elapsed())
    }

    fn tick_of(&self, instant: std::time::Instant) -> Tick {
        let origin = self.origin.into_std();
        match instant.checked_duration_since(origin) {
            Some(after) => self.anchor.after(after),
            None => self.anchor.before(origin.duration_since(instant)),
        }
    }

    /// # Panics
    /// Inside a runtime that was built without its timer (`enable_time`).
    fn sleep_until(&self, tick: Tick) -> Sleep {
        let span: Duration = tick.since(self.now()).min(LONGEST_SLEEP);
        if Handle::try_current().is_ok() {
            Box::pin(::tokio::time::sleep(span))
        } else {
            Box::pin(futures_timer::Delay::new(span))
        }
    }
}

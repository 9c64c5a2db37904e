//! A call that a breaker has admitted.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Outcome, Receipt, Tick};

use super::measured::Measured;
use super::shared::BreakerCore;

/// A call that a [`Breaker`](crate::Breaker) has admitted. Dropping it reports no outcome: a panic, or a caller who
/// hung up, is neither success nor failure, and a probe's place becomes free.
#[must_use = "a call that is dropped at once says nothing of the service"]
pub struct Call {
    shared: Arc<BreakerCore>,
    /// `None` once it has ended.
    receipt: Option<Receipt>,
    measured: Measured,
}

impl Call {
    pub(super) fn new(shared: Arc<BreakerCore>, receipt: Receipt) -> Self {
        Self { shared, receipt: Some(receipt), measured: Measured::default() }
    }

    /// Returns the tick at which it entered, by the breaker's clock.
    #[must_use]
    pub fn entered(&self) -> Tick {
        self.receipt.map_or(Tick::EPOCH, |receipt| receipt.at)
    }

    /// Notes that an answer which is streamed begins now, while the call goes on. Whether the call was slow then depends
    /// on the time until now. Only the first call counts. Reads the clock once.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::CircuitBreaker;
    /// use tidegate::{Breaker, ManualClock, Outcome};
    ///
    /// let clock = ManualClock::default();
    /// let slow = CircuitBreaker::builder().slow_calls(Duration::from_secs(1), 1.0).min_calls(1);
    /// let model = Breaker::new(slow)?.with_clock(clock.clone());
    /// let mut call = model.try_enter()?;
    /// clock.advance(Duration::from_millis(300)); // until the first token
    /// call.answer_begins();
    /// clock.advance(Duration::from_secs(20)); // until the last one
    /// call.leave(Outcome::Success);
    /// assert_eq!(model.state().as_str(), "closed", "the call was not slow");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn answer_begins(&mut self) {
        self.measured.answer_begins(|| self.shared.time.now());
    }

    /// Notes that the work begins only now: until now the call waited for a turn of the caller's own, at a rate limit or in
    /// a queue. Whether the call is slow then depends on the time from now on. If there were several waits, call this
    /// after each of them. Reads the clock once.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::breaker::CircuitBreaker;
    /// use tidegate::{Breaker, ManualClock, Outcome};
    ///
    /// let clock = ManualClock::default();
    /// let slow = CircuitBreaker::builder().slow_calls(Duration::from_secs(1), 1.0).min_calls(1);
    /// let stock = Breaker::new(slow)?.with_clock(clock.clone());
    /// let mut call = stock.try_enter()?;
    /// clock.advance(Duration::from_secs(2)); // in our own queue
    /// call.work_begins();
    /// clock.advance(Duration::from_millis(300)); // at the service
    /// call.leave(Outcome::Success);
    /// assert_eq!(stock.state().as_str(), "closed", "the service was not slow");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn work_begins(&mut self) {
        self.measured.work_begins(self.shared.time.now());
    }

    /// Reports how the call went. Its latency is the time since it entered, or since its [work
    /// began](Call::work_begins), until its [answer began](Call::answer_begins) if that was streamed.
    pub fn leave(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(receipt) = self.receipt.take() else { return };
        self.shared.leave(&receipt, self.measured, outcome);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.end(Outcome::Ignored);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("entered", &self.entered()).finish_non_exhaustive()
    }
}

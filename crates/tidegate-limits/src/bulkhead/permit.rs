//! The permit of a bulkhead, which returns its places when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Outcome;

use super::counter::Counter;
use super::latency::Times;
use super::shared::BulkheadState;
use super::waiters::Granted;

/// The right to use places of a [`Bulkhead`](crate::Bulkhead). Dropping it returns the places and reports no outcome: a
/// panic, or a caller that hangs up, does not show how the work went. A law learns nothing from that; a throttle is told
/// [`Outcome::Ignored`]. It may outlive the bulkhead.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit {
    granted: Granted,
    holder: Holder,
}

/// The owner that gets the places back.
enum Holder {
    /// The counter alone, if the bulkhead neither measures how long work takes (as one with an observer does) nor has
    /// tenants. No reference count is touched.
    Counter(&'static Counter),
    /// The bulkhead, which the permit keeps alive.
    Bulkhead {
        shared: Arc<BulkheadState>,
        times: Times,
        /// Reported when the permit is dropped.
        outcome: Outcome,
    },
}

impl Permit {
    /// Makes a permit for granted places, and tells the observer how long they were waited for. No other foreign code runs
    /// between taking places and this call, since a panic there would lose the places; so the clock is read earlier, by
    /// [`BulkheadState::begin`].
    #[inline]
    pub(super) fn new(shared: &Arc<BulkheadState>, granted: Granted, times: Times, waited: Duration) -> Self {
        // A bulkhead whose permits need only the counter has no observer, so the fast path does not ask for one.
        if let Some(counter) = shared.counter() {
            return Self { granted, holder: Holder::Counter(counter) };
        }
        if shared.is_observed() {
            shared.tell_entered(granted, times, waited);
        }
        let holder = Holder::Bulkhead { shared: Arc::clone(shared), times, outcome: Outcome::Ignored };
        Self { granted, holder }
    }

    /// Returns how many places the permit holds.
    #[must_use]
    pub const fn places(&self) -> u64 {
        self.granted.places()
    }

    /// Notes that an answer which is streamed begins now, while the work goes on. A law and a short queue then take the
    /// time until now for the latency, and the time until the permit is left for the time in the place. Only the first
    /// call counts. Reads the clock once if the bulkhead has a law, a throttle, a short queue or an observer, and else does
    /// nothing.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::concurrency::Vegas;
    /// use tidegate::{Bulkhead, ManualClock, Outcome};
    ///
    /// let clock = ManualClock::default();
    /// let model = Bulkhead::adaptive(Vegas::default()).with_clock(clock.clone());
    /// let mut permit = model.try_enter()?;
    /// clock.advance(Duration::from_millis(300)); // until the first token
    /// permit.answer_begins();
    /// clock.advance(Duration::from_secs(20)); // until the last one
    /// permit.leave(Outcome::Success); // the law learns 300 ms
    /// # Ok::<(), tidegate::Denied>(())
    /// ```
    pub fn answer_begins(&mut self) {
        if let Holder::Bulkhead { shared, times: Times { answered: answered @ None, .. }, .. } =
            &mut self.holder
            && shared.is_timed()
        {
            *answered = Some(shared.clock.now());
        }
    }

    /// Returns the places and reports how the work ended. A law, a throttle and a short queue learn from the time since
    /// the permit was given (see also [`Permit::answer_begins`]), and the first two also from the outcome. An observer is
    /// told both ([`Observer::on_place`](crate::observer::Observer::on_place)). Other bulkheads ignore it.
    #[inline]
    pub fn leave(mut self, outcome: Outcome) {
        if let Holder::Bulkhead { outcome: reported, .. } = &mut self.holder {
            *reported = outcome;
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        match &self.holder {
            Holder::Counter(counter) => counter.leave(&self.granted),
            Holder::Bulkhead { shared, times, outcome } => shared.leave(&self.granted, times, *outcome),
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("places", &self.places()).finish_non_exhaustive()
    }
}

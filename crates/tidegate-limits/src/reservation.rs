//! Reservations: capacity that is charged now, for use after a delay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Finish, Outcome, Quota, Receipt, Tick};

use crate::answer::{Answer, Denied};
use crate::clock::Clock;
use crate::observer::{Event, KeyDigest, Observer};
use crate::store::Ending;

/// Capacity that is charged now, to be used at [`Reservation::act`].
///
/// Dropping it keeps the charge. Its holder may have passed the tick on, and giving the charge back would then let
/// the capacity be spent twice. A holder that does not use the capacity calls [`Reservation::cancel`], and one that
/// spent more or less than was reserved calls [`Reservation::settle`]. For capacity that is given back when its holder
/// goes away, use [`crate::Limiter::wait`]: there the future is the holder.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::clock::ManualClock;
/// use tidegate::{Limiter, Quota, Tick};
///
/// let clock = ManualClock::at(Tick::from_secs(1));
/// let limiter = Limiter::new(Quota::per_second(10).burst(10).gcra()?)?.with_clock(clock);
/// // An estimate of six units, of which two are spent in the end.
/// let reservation = limiter.reserve(6, Duration::ZERO)?;
/// assert_eq!(limiter.standing().remaining, 4);
/// reservation.settle(2);
/// assert_eq!(limiter.standing().remaining, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a reservation is charged: act on it or cancel it"]
pub struct Reservation {
    source: Arc<dyn ChargeOwner>,
    held: HeldCharge,
}

#[derive(Debug)]
pub(crate) struct HeldCharge {
    pub(crate) event: Event,
    /// One receipt per quota of the limiter.
    pub(crate) receipts: SmallVec<[Receipt; 1]>,
    /// How often the limit had been changed when the charge was made: after a further change nothing is given back.
    pub(crate) terms: u64,
    /// The quota that the key was charged under; `None` for a limiter without keys.
    pub(crate) quota: Option<Arc<Quota>>,
}

impl HeldCharge {
    pub(crate) const fn ending(&self, receipt: Receipt, used: u64) -> Ending {
        Ending::new(receipt, Finish { used, outcome: Outcome::Ignored })
    }

    pub(crate) fn notify(&self, observer: &dyn Observer, used: u64) {
        match used {
            0 => observer.on_cancel(&self.event),
            used => observer.on_settle(&self.event, used),
        }
    }
}

impl Reservation {
    pub(crate) const fn new(source: Arc<dyn ChargeOwner>, held: HeldCharge) -> Self {
        Self { source, held }
    }

    /// Returns the tick, by the limiter's clock, from which the work may start: after the ticks of all earlier
    /// reservations.
    #[must_use]
    pub fn act(&self) -> Tick {
        // The latest of the quotas' ticks: if the clock stepped back, each quota counts from its own last change.
        self.held.receipts.iter().map(|receipt| receipt.act).max().unwrap_or(self.held.event.at)
    }

    /// Returns the delay from making the reservation until the work may start; zero means at once. It does not shrink
    /// as time passes.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.held.event.decision.wait()
    }

    /// Returns the answer with which the reservation was granted.
    #[must_use]
    pub const fn answer(&self) -> Answer {
        self.held.event.answer()
    }

    /// Settles the charge, on all quotas, with the units really spent, before or after the work started. If fewer were
    /// spent than charged, the rest is given back; 0 undoes the charge; if more, the excess is booked as a debt, which
    /// later requests wait off.
    ///
    /// No limit ends up fuller than if only `used` had been charged; if nothing was charged since, it is exactly as
    /// full. Later reservations keep their times, so the capacity that those times rely on is not granted again.
    /// Nothing is given back after a change of the limit, nor if time has returned the units already; a cost above the
    /// charge is booked in any case.
    pub fn settle(self, used: u64) {
        self.source.settle(&self.held, used);
    }

    /// Undoes the charge: the same as [`Reservation::settle`] with 0.
    pub fn cancel(self) {
        self.settle(0);
    }

    /// Waits until the work may start, and returns the reservation, to be used or settled.
    ///
    /// # Cancel safety
    /// If the future is dropped before it completes, the reservation is cancelled.
    pub async fn due(self) -> Self {
        let mut held = CancelIfDropped(Some(self));
        // It is only empty after the reservation was returned.
        while let Some(reservation) = &held.0 {
            let (clock, act) = (reservation.clock(), reservation.act());
            if clock.now() >= act {
                break;
            }
            // The sleep may end early.
            clock.sleep_until(act).await;
        }
        held.0.take().expect("taken once, here")
    }

    pub(crate) fn block(self) -> Answer {
        if !self.wait().is_zero() {
            self.source.clock().block_until(self.act());
        }
        self.answer()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.source.clock()
    }
}

struct CancelIfDropped(Option<Reservation>);

impl Drop for CancelIfDropped {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            reservation.cancel();
        }
    }
}

pub(crate) trait ChargeOwner: fmt::Debug + Send + Sync {
    fn clock(&self) -> &dyn Clock;

    /// Returns the limiter's time, which stands still while its clock steps back.
    fn now(&self) -> Tick;

    fn charge(&self, now: Tick, cost: Cost, max_wait: Duration) -> Result<HeldCharge, Denied>;

    fn settle(&self, held: &HeldCharge, used: u64);

    fn peek(&self, cost: Cost) -> Answer;

    fn observer(&self) -> Option<&dyn Observer>;

    fn digest(&self) -> Option<KeyDigest>;
}

//! Capacity taken now for use after a delay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Finish, Outcome, Quota, Receipt, Tick};

use crate::answer::{Answer, Denied};
use crate::clock::Clock;
use crate::observer::{Event, KeyDigest, Observer};
use crate::store::Ending;

/// Capacity taken now, to be used at [`Reservation::act`].
///
/// Dropping it keeps the charge. Its holder may have passed the tick on (to a queue, a header, another machine) and dropped the
/// reservation itself; if the capacity were given back then, it would be spent twice. A holder who does not act calls
/// [`Reservation::cancel`], and one who spent more or less than was reserved calls [`Reservation::settle`]. Capacity that returns by
/// itself when its holder goes away is what [`crate::Limiter::wait`] gives: there the future is the holder.
///
/// Holds reference counts and a few numbers, and no lifetime, so it can be stored.
#[derive(Debug)]
#[must_use = "a reservation is charged: act on it or cancel it"]
pub struct Reservation {
    source: Arc<dyn Source>,
    held: Held,
}

/// What is needed to settle a charge.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) event: Event,
    /// One receipt per quota of the limiter.
    pub(crate) receipts: SmallVec<[Receipt; 1]>,
    /// How often the limit had been changed when the charge was made: after a further change nothing comes back.
    pub(crate) terms: u64,
    /// The quota that the key was charged under; `None` for a limiter without keys.
    pub(crate) quota: Option<Arc<Quota>>,
}

impl Held {
    /// Ends one of the charges with the units really spent.
    pub(crate) const fn ending(&self, receipt: Receipt, used: u64) -> Ending {
        Ending::new(receipt, Finish { used, outcome: Outcome::Ignored })
    }

    /// Tells an observer that the charge was settled.
    pub(crate) fn tell(&self, observer: &dyn Observer, used: u64) {
        match used {
            0 => observer.on_cancel(&self.event),
            used => observer.on_settle(&self.event, used),
        }
    }
}

impl Reservation {
    pub(crate) const fn new(source: Arc<dyn Source>, held: Held) -> Self {
        Self { source, held }
    }

    /// Returns when the work may act, by the limiter's clock: after the ticks of all that reserved before.
    #[must_use]
    pub fn act(&self) -> Tick {
        // The latest of the quotas' ticks: where the clock stepped back, each quota counts from its own last change.
        self.held.receipts.iter().map(|receipt| receipt.act).max().unwrap_or(self.held.event.at)
    }

    /// Returns the delay from the making of the reservation until the work may act; zero means at once. It does not shrink
    /// as time passes.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.held.event.decision.wait()
    }

    /// Returns what was decided.
    #[must_use]
    pub const fn answer(&self) -> Answer {
        self.held.event.answer()
    }

    /// Settles the charge, on all quotas, with the units really spent, before or after the work acted. If fewer were spent than charged,
    /// the rest comes back; 0 undoes the charge; if more, the excess is booked as a debt, which later asks wait off.
    ///
    /// No limit ends up fuller than if only `used` had been charged; where nobody has charged since, it is exactly as full. Later
    /// reservations keep their times, so the capacity that those times rely on is not given out again. Nothing comes back after a change
    /// of the limit, nor where time has returned it already; a cost above the charge is booked in any case.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, ManualClock, Quota};
    ///
    /// let tokens = Limiter::new(Quota::per_minute(1000))?.with_clock(ManualClock::default());
    /// tokens.reserve(800, Duration::ZERO)?.settle(300);
    /// assert_eq!(tokens.standing().remaining, 700);
    /// tokens.reserve(500, Duration::ZERO)?.settle(900);
    /// assert_eq!((tokens.standing().remaining, tokens.standing().debt), (0, 200));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(self, used: u64) {
        self.source.settle(&self.held, used);
    }

    /// Undoes the charge, as if it had not been asked for: [`Reservation::settle`] with nothing spent.
    pub fn cancel(self) {
        self.settle(0);
    }

    /// Waits until the work may act, and returns the reservation, which is then used or settled.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it cancels the reservation, as a dropped [`Wait`](crate::Wait) does.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Limiter::new(Quota::per_second(1000).burst(100))?;
    /// tokens.reserve(100, Duration::ZERO)?;
    /// let reserved = tokens.reserve(10, Duration::from_secs(1))?.due().await;
    /// reserved.settle(4);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn due(self) -> Self {
        let mut held = CancelIfDropped(Some(self));
        // Nothing is held any more only after it was handed out.
        while let Some(reservation) = &held.0 {
            let (clock, act) = (reservation.clock(), reservation.act());
            if clock.now() >= act {
                break;
            }
            // Sleeps may end early.
            clock.sleep_until(act).await;
        }
        held.0.take().expect("taken once, here")
    }

    /// Blocks the thread until the work may act.
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

/// A reservation of somebody who may go away before its tick.
struct CancelIfDropped(Option<Reservation>);

impl Drop for CancelIfDropped {
    fn drop(&mut self) {
        if let Some(reservation) = self.0.take() {
            reservation.cancel();
        }
    }
}

/// Where a reservation or a wait is charged: a limiter, or one key of a keyed limiter.
pub(crate) trait Source: fmt::Debug + Send + Sync {
    fn clock(&self) -> &dyn Clock;

    /// Returns the limiter's time, which stands still where its clock steps back.
    fn now(&self) -> Tick;

    /// Charges `cost` for work that acts after at most `max_wait`.
    fn charge(&self, now: Tick, cost: Cost, max_wait: Duration) -> Result<Held, Denied>;

    /// Settles a charge with the units really spent.
    fn settle(&self, held: &Held, used: u64);

    /// Says what a charge of `cost` would be answered now; changes nothing.
    fn peek(&self, cost: Cost) -> Answer;

    /// Returns the observer, if there is one.
    fn observer(&self) -> Option<&dyn Observer>;

    /// Returns the digest of the key, where there is one.
    fn digest(&self) -> Option<KeyDigest>;
}

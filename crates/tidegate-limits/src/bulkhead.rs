//! Bulkheads: limits on how much work is in flight at once, so that one kind of work cannot take every resource.
//!
//! One atomic word counts the places taken; entering and leaving are one atomic step each. The lock of the queue is not
//! taken while the queue is empty.

mod build;
mod enter;
mod moving;
mod places;
mod queue;
mod state;
mod tenants;
mod waiters;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use build::TurnedAway;
pub use enter::Enter;
use moving::LawTimes;
use places::Counter;
pub use queue::QueueOrder;
use state::BulkheadState;
pub use tenants::Tenants;
use tidegate_core::concurrency::{Concurrency, Signal};
use tidegate_core::{Cost, Criticality, NotACost, Outcome, QuotaError, Standing, Tick};
use waiters::{Granted, PlaceRequest};

use crate::answer::Denied;
use crate::priority::named_or_carried;
use crate::refusal_reason::NoPlace;

/// Limits how much work is under way at once, in one process.
///
/// A clone shares the places. Entering and leaving are one atomic step each, without a lock or an allocation, when
/// nobody waits, no law, throttle, short queue or observer needs the time that the work took, and the places are not
/// divided among tenants. Each waiter takes an entry in a bounded list. Making a bulkhead takes a lock that all
/// bulkheads of the process share.
///
/// # Examples
/// ```
/// use tidegate::{Bulkhead, Outcome};
///
/// let reports = Bulkhead::new(2)?;
/// let permit = reports.try_enter()?;
/// let other = reports.try_enter()?;
/// assert!(reports.try_enter().is_err(), "two are under way");
///
/// drop(permit); // returns its place, whatever happened
/// other.leave(Outcome::Success); // returns its place, and says how the work went
/// assert_eq!(reports.standing().remaining, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<BulkheadState>,
}

impl Bulkhead {
    /// Makes a bulkhead of `max` places, 1 to [`Concurrency::MAX_PLACES`]. Up to 65,536 callers wait for a place, first
    /// come, first served. Deadlines are measured by the [`SystemClock`](crate::SystemClock).
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range.
    pub fn new(max: u64) -> Result<Self, QuotaError> {
        Ok(Self::of_places(Concurrency::new(max)?.max()))
    }

    /// Takes one place without waiting, at the priority that the task [carries](crate::priority::carried), or
    /// [`Criticality::Critical`](crate::Criticality::Critical) if it carries none.
    ///
    /// # Errors
    /// [`Denied`] with [`Retry::Unknown`](crate::Retry::Unknown) when all places are taken, when others wait for a
    /// place, or when a [throttle](Bulkhead::with_throttle) refuses.
    #[inline]
    pub fn try_enter(&self) -> Result<Permit, Denied> {
        if self.shared.is_throttled() {
            return self.enter_through_line();
        }
        // Without a throttle the level has no meaning.
        let times = self.times(self.shared.begin(), Criticality::Critical);
        match self.shared.enter_past_line(1, || named_or_carried(None)) {
            Ok(granted) => Ok(Permit::new(&self.shared, granted, times, Duration::ZERO)),
            Err(_) => self.enter_through_line(),
        }
    }

    #[inline]
    fn times(&self, began: Tick, level: Criticality) -> LawTimes {
        LawTimes { began, answered: None, deadline: self.shared.deadline(|| None), level }
    }

    /// The slow path, for a throttle, a set lock flag, or no free place. A separate function keeps its set-up out of
    /// the fast path.
    #[inline(never)]
    fn enter_through_line(&self) -> Result<Permit, Denied> {
        let request = PlaceRequest { places: 1, priority: named_or_carried(None), tenant: &[] };
        let refuse = |refused| Err(self.shared.refuse(refused, Duration::ZERO));
        if let Some(too_many) = self.shared.too_many(request) {
            return refuse(too_many);
        }
        let began = self.shared.begin();
        if !self.shared.admits(began, || request) {
            return refuse(TurnedAway::now(NoPlace::Throttled));
        }
        let level = request.priority.level();
        // Tells the throttle if no place is found, also when foreign code panics.
        let mut admitted = Admitted { shared: Some(&self.shared), at: began, level };
        let times = self.times(began, level);
        match self.shared.enter(1, || request) {
            Ok(granted) => {
                admitted.shared = None;
                Ok(Permit::new(&self.shared, granted, times, Duration::ZERO))
            }
            Err(refused) => {
                drop(admitted);
                refuse(refused)
            }
        }
    }

    /// Takes one place when this caller's turn comes, waiting no longer than the deadline that the task
    /// [carries](crate::deadline::carried). See [`Enter`] for errors and cancel safety.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Bulkhead;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = Bulkhead::new(10)?;
    /// let _permit = database.enter().within(Duration::from_millis(50)).await?;
    /// // do the work; the place returns with the permit
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter(&self) -> Enter {
        self.enter_n(Cost::ONE)
    }

    /// Takes several places when this caller's turn comes, all at once; see [`Enter`] for errors and cancel safety.
    pub fn enter_n(&self, places: impl TryInto<Cost, Error: Into<NotACost>>) -> Enter {
        Enter::new(Arc::clone(&self.shared), places.try_into().map_err(Into::into))
    }

    /// Changes the number of places. Permits that are held stay valid: after a decrease, nobody enters until enough
    /// have left. A waiter who asks for more places than there are now is refused with
    /// [`Retry::Never`](crate::Retry::Never).
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range, or a law moves the limit. The bulkhead is then unchanged.
    pub fn change(&self, max: u64) -> Result<(), QuotaError> {
        let max = Concurrency::new(max)?.max();
        if self.shared.rules.moves {
            let want = "cannot be set while a law moves the limit; change the law's least and most";
            return Err(QuotaError::Parameter { name: "max", value: max.to_string(), want });
        }
        self.shared.announce(Some(self.shared.set_limit(max, self.shared.clock.now())));
        Ok(())
    }

    /// Tells the law how much of the machine is in use; for bulkheads without a [watch](Bulkhead::with_signals). A
    /// throttle is told how many places are free and how many callers wait. Without either it does nothing.
    pub fn sense(&self, signal: Signal) {
        self.shared.sense(signal);
    }

    /// Returns the number of places and how many are free; `debt` counts the places taken beyond a lowered number. A
    /// place given to a waiter that has not been polled since then counts as taken.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shared.standing()
    }

    /// Returns how many callers wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }

    /// Returns the share of arrivals that the [throttle](Bulkhead::with_throttle) refuses now, in millionths: below a
    /// million, and zero without a throttle. The throttle refuses the least important first.
    #[must_use]
    pub fn refused_share(&self) -> u32 {
        self.shared.refused_share()
    }
}

/// A caller that the throttle has admitted and that has no place yet. When dropped, the caller is reported to the
/// throttle as turned away.
struct Admitted<'b> {
    shared: Option<&'b BulkheadState>,
    at: Tick,
    level: Criticality,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared {
            shared.turned_away(Some(self.at), self.level, 1);
        }
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead").field("standing", &self.standing()).finish_non_exhaustive()
    }
}

/// The right to use places of a [`Bulkhead`]. Dropping it returns the places and reports no outcome: a panic, or a
/// caller that hangs up, shows none. A law learns nothing from that; a throttle is told [`Outcome::Ignored`]. It may
/// outlive the bulkhead.
#[must_use = "dropping a permit returns its place at once"]
pub struct Permit {
    granted: Granted,
    holder: Holder,
}

enum Holder {
    /// The counter alone, if the bulkhead neither measures how long work takes (as one with an observer does) nor has
    /// tenants. No reference count is touched.
    Counter(&'static Counter),
    Bulkhead {
        shared: Arc<BulkheadState>,
        times: LawTimes,
        outcome: Outcome,
    },
}

impl Permit {
    /// Makes a permit for granted places, and tells the observer how long they were waited for. No other foreign code
    /// runs between taking places and this call, since a panic there would lose them; so the clock is read earlier, by
    /// [`BulkheadState::begin`].
    #[inline]
    fn new(shared: &Arc<BulkheadState>, granted: Granted, times: LawTimes, waited: Duration) -> Self {
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
    /// use tidegate::clock::ManualClock;
    /// use tidegate::concurrency::Vegas;
    /// use tidegate::{Bulkhead, Outcome};
    ///
    /// let clock = ManualClock::default();
    /// let model = Bulkhead::adaptive(Vegas::default()).with_clock(clock.clone());
    /// let mut permit = model.try_enter()?;
    /// clock.advance(Duration::from_millis(300)); // until the first token
    /// permit.answer_begins();
    /// clock.advance(Duration::from_secs(20)); // until the last one
    /// permit.leave(Outcome::Success); // the law learns 300 ms
    /// # Ok::<(), tidegate::limiter::Denied>(())
    /// ```
    pub fn answer_begins(&mut self) {
        if let Holder::Bulkhead { shared, times: LawTimes { answered: answered @ None, .. }, .. } =
            &mut self.holder
            && shared.is_timed()
        {
            *answered = Some(shared.clock.now());
        }
    }

    /// Returns the places and reports how the work ended. A law, a throttle and a short queue learn from the time since
    /// the permit was given (see also [`Permit::answer_begins`]), and the first two also from the outcome. An observer
    /// is told both ([`Observer::on_place`](crate::observer::Observer::on_place)). Other bulkheads ignore it.
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

#[cfg(all(test, tidegate_loom))]
mod loom_model;

//! A fixed number of places, so that one kind of work cannot take everything.
//!
//! A limiter counts how often something is asked for; a bulkhead counts how much of it is under way. Ten slow calls to one
//! service hold ten places until they end, and the eleventh is refused or waits, while calls to other services have bulkheads of
//! their own. How many places are taken is one atomic word, and entering and leaving is one step on it; who waits, and whose turn is next,
//! is behind a lock that nobody takes while nobody waits. The number of places is fixed, or moved by a law of
//! [`tidegate_core::concurrency`]; they are for all, or divided among tenants.

mod enter;
mod line;
#[cfg(all(test, tidegate_loom))]
mod loom_model;
mod moving;
mod pace;
mod permit;
mod places;
mod queue;
mod queues;
mod rules;
mod shared;
mod tenants;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use enter::Enter;
use line::{Asked, Due};
use moving::Moving;
pub use permit::Permit;
pub use queue::QueueOrder;
use rules::Rules;
use shared::Shared;
pub use tenants::Tenants;
use tidegate_core::concurrency::{Concurrency, Law, Signal};
use tidegate_core::{Cost, NotACost, Priority, Quota, QuotaError, Standing};

use crate::answer::{Denied, TakeError};
use crate::clock::{Clock, SystemClock};
use crate::deadline::Deadline;
use crate::policy::{KeepFor, KeepForError};
use crate::signals::Watch;

/// How many callers may wait unless told otherwise: as many as there can be places.
const ROOM: usize = Concurrency::MAX_PLACES as usize;

/// Limits how much work is under way at once, in one process.
///
/// A clone shares the places. Entering and leaving is an atomic step each, without lock or allocation, where nobody waits and the places are
/// not divided among tenants (beside the reference count of what is shared); each waiter takes an entry in a list, which is bounded.
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
    shared: Arc<Shared>,
}

impl Bulkhead {
    /// Makes a bulkhead of `max` places, 1 to [`Concurrency::MAX_PLACES`], for which up to 65,536 callers wait, first come, first served;
    /// deadlines go by the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range.
    pub fn new(max: u64) -> Result<Self, QuotaError> {
        let max = Concurrency::new(max)?.max();
        Ok(Self { shared: Shared::new(Arc::new(SystemClock::new()), Self::rules(false), max, None) })
    }

    /// Makes a bulkhead whose number of places a law moves, at most [`Concurrency::MAX_PLACES`]; otherwise as [`Bulkhead::new`].
    ///
    /// The law learns from each permit that is [left with an outcome](Permit::leave): how long the work took, the wait in our queue not
    /// counted, and how many were inside when it entered. A permit that is dropped teaches nothing. A lowered limit admits nobody until
    /// enough have left, a raised one wakes who waits. Who asks for more places than there are is refused, and may come back
    /// ([`Retry::Unknown`](crate::Retry::Unknown)), for the limit moves. But nothing moves it while nobody enters: where all callers ask for more
    /// than one place, or a part is kept for priorities that do not come, let the law's least limit
    /// ([`Bounds`](crate::concurrency::Bounds)) be no lower than what they ask for and what is kept, together. One resource has one law: two that move their limits by the same latencies chase each
    /// other, so what is called through one adaptive bulkhead is not put behind a second.
    ///
    /// Costs two readings of the clock per permit, and the law's arithmetic; callers who leave at the same time do not wait for each other's.
    ///
    /// # Examples
    /// ```
    /// use tidegate::concurrency::{Law, Sample};
    /// use tidegate::{Bulkhead, Outcome, Tick};
    ///
    /// /// One place less after each failure, one more after each success.
    /// #[derive(Clone, Debug)]
    /// struct UpAndDown;
    ///
    /// impl Law for UpAndDown {
    ///     type State = u64;
    ///
    ///     fn start(&self, _: Tick) -> u64 {
    ///         2
    ///     }
    ///
    ///     fn limit(&self, limit: &u64) -> u64 {
    ///         *limit
    ///     }
    ///
    ///     fn learn(&self, limit: &mut u64, sample: &Sample) {
    ///         *limit = if sample.outcome == Outcome::Success { *limit + 1 } else { (*limit - 1).max(1) };
    ///     }
    /// }
    ///
    /// let backend = Bulkhead::adaptive(UpAndDown);
    /// backend.try_enter()?.leave(Outcome::Overloaded);
    /// assert_eq!(backend.standing().limit, 1);
    /// drop(backend.try_enter()?); // nobody knows how it went
    /// assert_eq!(backend.standing().limit, 1);
    /// # Ok::<(), tidegate::Denied>(())
    /// ```
    #[must_use]
    pub fn adaptive<L>(law: L) -> Self
    where
        L: Law + Send + 'static,
        L::State: Send,
    {
        let clock = SystemClock::new();
        let moving = Moving::new(law, clock.now());
        let limit = moving.limit();
        Self { shared: Shared::new(Arc::new(clock), Self::rules(true), limit, Some(moving)) }
    }

    fn rules(moves: bool) -> Rules {
        let order = QueueOrder::default();
        let (longest_wait, keep_for, tenants, signals) = (Duration::MAX, None, None, None);
        Rules { room: ROOM, order, longest_wait, keep_for, tenants, moves, signals }
    }

    /// Returns an empty bulkhead with other rules; a law starts again.
    fn again(&self, clock: Arc<dyn Clock>, rules: Rules) -> Self {
        let (limit, moving) = self.shared.again(&*clock);
        Self { shared: Shared::new(clock, rules, limit, moving) }
    }

    fn with(&self, change: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = self.shared.rules.clone();
        change(&mut rules);
        self.again(Arc::clone(&self.shared.clock), rules)
    }

    /// Returns a bulkhead with as many places and the same rules, whose deadlines go by `clock`. A step of construction: the
    /// result is empty and shares nothing with earlier clones.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let rules = self.shared.rules.clone();
        self.again(Arc::new(clock), rules)
    }

    /// Returns a bulkhead where at most `waiting` callers wait for a place; zero refuses a caller who cannot enter at once. Where as many
    /// wait, a newcomer of higher priority takes the place of one of the lowest, who is refused at once. A step of construction, as
    /// [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_room(self, waiting: usize) -> Self {
        self.with(|rules| rules.room = waiting)
    }

    /// Returns a bulkhead where callers of the same priority are let in by `order`. A step of construction, as [`Bulkhead::with_clock`] is.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Bulkhead, QueueOrder, codel::Codel};
    ///
    /// let api = Bulkhead::new(100)?.with_order(QueueOrder::Adaptive(Codel::default()));
    /// # drop(api);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        self.with(|rules| rules.order = order)
    }

    /// Returns a bulkhead where nobody waits for longer than `longest`, whatever its own deadline; zero refuses whoever cannot enter at
    /// once. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_longest_wait(self, longest: Duration) -> Self {
        self.with(|rules| rules.longest_wait = longest)
    }

    /// Returns a bulkhead that keeps part of its places for callers of higher [priority](Enter::priority). A step of construction, as
    /// [`Bulkhead::with_clock`] is.
    ///
    /// # Errors
    /// [`KeepForError`] for a part that cannot be kept of as many places as there are now. A law may lower the limit below a part that
    /// was given in places: then nobody below that level enters.
    ///
    /// # Examples
    /// ```
    /// use tidegate::policy::{KeepFor, Kept};
    /// use tidegate::{Bulkhead, Criticality};
    ///
    /// let kept = KeepFor::default().with(Criticality::Critical, Kept::Percent(50));
    /// let api = Bulkhead::new(2)?.with_keep_for(kept)?;
    /// let _report = api.enter().priority(Criticality::Sheddable).now()?;
    /// assert!(api.enter().priority(Criticality::Sheddable).now().is_err());
    /// assert!(api.try_enter().is_ok(), "critical, as callers are unless they say otherwise");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_keep_for(self, keep_for: KeepFor) -> Result<Self, KeepForError> {
        if let Ok(places) = Concurrency::new(self.shared.standing().limit) {
            keep_for.check(&Quota::Concurrency(places), Duration::ZERO)?;
        }
        Ok(self.with(|rules| rules.keep_for = (!keep_for.is_nothing()).then_some(keep_for)))
    }

    /// Returns a bulkhead whose places are divided among tenants, who say who they are with [`Enter::of`]. Each has its own part, lends what
    /// is idle, and gets of what others lend according to its weight; a full queue refuses one of the tenant with the most waiters by
    /// its weight. Priorities and the order then hold within a tenant, so that a tenant that calls everything critical gains nothing over others, but for
    /// [kept parts](Bulkhead::with_keep_for), which go by the priority that is claimed. Entering and
    /// leaving takes a lock, and a turn looks at all tenants who wait. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        self.with(|rules| rules.tenants = Some(tenants))
    }

    /// Returns a bulkhead whose law is told by `watch` how much of the machine is in use, and which keeps the watch running. Without a law
    /// it has no effect. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_signals(self, watch: Watch) -> Self {
        self.with(|rules| rules.signals = Some(watch))
    }

    /// Enters with one place, now or not at all.
    ///
    /// # Errors
    /// [`Denied`] with [`Retry::Unknown`](crate::Retry::Unknown) when all places are taken, or others wait for one.
    #[inline]
    pub fn try_enter(&self) -> Result<Permit, Denied> {
        self.enter_now(Cost::ONE)
    }

    /// Enters with several places, all now or none.
    ///
    /// # Errors
    /// [`TakeError::Denied`] as [`Bulkhead::try_enter`]; with [`Retry::Never`](crate::Retry::Never) when there are not so many places. [`TakeError::NotACost`] for
    /// zero and less.
    #[inline]
    pub fn try_enter_n(
        &self,
        places: impl TryInto<Cost, Error: Into<NotACost>>,
    ) -> Result<Permit, TakeError> {
        let places = places.try_into().map_err(Into::into)?;
        Ok(self.enter_now(places)?)
    }

    #[inline]
    fn enter_now(&self, places: Cost) -> Result<Permit, Denied> {
        match self.shared.enter_past_line(places.units(), Priority::default()) {
            Ok(granted) => Ok(Permit::new(&self.shared, granted)),
            Err(_) => self.enter_through_line(places),
        }
    }

    /// Apart, so that what it needs is not made before the one atomic step of the usual way in.
    #[inline(never)]
    fn enter_through_line(&self, places: Cost) -> Result<Permit, Denied> {
        let (places, priority) = (places.units(), Priority::default());
        Permit::of(&self.shared, self.shared.enter(Asked { places, priority, tenant: &[] }))
    }

    /// Enters with one place, when it is this caller's turn.
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

    /// Enters with several places, when it is this caller's turn.
    pub fn enter_n(&self, places: impl TryInto<Cost, Error: Into<NotACost>>) -> Enter {
        Enter::new(Arc::clone(&self.shared), places.try_into().map_err(Into::into))
    }

    /// Enters with one place within `timeout`, holding the calling thread meanwhile.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn blocking_enter(&self, timeout: Duration) -> Result<Permit, TakeError> {
        self.enter().within(timeout).blocking()
    }

    /// Enters with one place until `deadline`, holding the calling thread meanwhile.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn blocking_enter_until(&self, deadline: impl Into<Deadline>) -> Result<Permit, TakeError> {
        self.enter().until(deadline).blocking()
    }

    /// Changes the number of places. Whoever is inside stays inside: a lowered number admits nobody until enough have left. A waiter who
    /// asks for more places than there are now is refused for good.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range, or a law moves the limit; nothing changes then.
    pub fn change(&self, max: u64) -> Result<(), QuotaError> {
        let max = Concurrency::new(max)?.max();
        if self.shared.rules.moves {
            let want = "cannot be set while a law moves the limit; change the law's least and most";
            return Err(QuotaError::Parameter { name: "max", value: max.to_string(), want });
        }
        let due = self.shared.set_limit(max, self.shared.clock.now());
        due.into_iter().for_each(Due::settle);
        Ok(())
    }

    /// Tells the law how much of the machine is in use, where no [watch](Bulkhead::with_signals) does. Without a law it does
    /// nothing.
    pub fn sense(&self, signal: Signal) {
        self.shared.sense(signal);
    }

    /// Returns the number of places and how many are free; `debt` counts those inside beyond a lowered number. Places given to a waiter who
    /// has not been polled since count as taken.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shared.standing()
    }

    /// Returns how many wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead").field("standing", &self.standing()).finish_non_exhaustive()
    }
}

//! How a bulkhead is made: what moves its limit, what stands before it, and the rules of its line.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Quota;
use tidegate_core::concurrency::{Concurrency, HillClimb, Law};
use tidegate_core::throttle::{Shedding, Throttle};

use super::Bulkhead;
use super::moving::Moving;
use super::queue::QueueOrder;
use super::rules::Rules;
use super::shared::{Parts, Shared};
use super::tenants::Tenants;
use super::throttling::Throttling;
use crate::clock::{Clock, SystemClock};
use crate::observer::Observer;
use crate::policy::{KeepFor, KeepForError};
use crate::signals::Watch;

/// How many callers may wait unless told otherwise: as many as there can be places.
const ROOM: usize = Concurrency::MAX_PLACES as usize;

impl Bulkhead {
    /// Makes a bulkhead whose number of places a law moves, at most [`Concurrency::MAX_PLACES`]; otherwise as [`Bulkhead::new`].
    ///
    /// The law learns from each permit that is [left with an outcome](crate::Permit::leave): how long the work took, the wait in our queue not
    /// counted, and how many were inside when it entered. A permit that is dropped teaches nothing. A lowered limit admits nobody until
    /// enough have left, a raised one wakes who waits. Who asks for more places than there are takes them all when its turn comes and nobody
    /// else is inside, and leaves a debt ([`Standing::debt`](crate::Standing)) while it works: so a limit that is below what all callers ask for
    /// is learnt from, and rises. Where a part is [kept](Bulkhead::with_keep_for) or places are [divided](Bulkhead::with_tenants), it is refused
    /// instead, and may come back ([`Retry::Unknown`](crate::Retry::Unknown)), for others were promised places that stay free; let the law's least
    /// limit ([`Bounds`](crate::concurrency::Bounds)) there be no lower than what callers ask for and what is kept, together. One resource has one law: two that move their limits by the same latencies chase each
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
        let clock = Arc::new(SystemClock::new());
        let moving = Moving::new(law, clock.now());
        let limit = moving.limit();
        let parts = Parts { clock, limit, moving: Some(moving), throttling: None, observer: None };
        Self { shared: Shared::new(parts, Self::rules(true)) }
    }

    /// Makes a bulkhead that finds everything by itself, for a service that nothing is known of: it lets in as many as end the most work, the
    /// most important first, and refuses the rest early.
    ///
    /// The same as
    /// `Bulkhead::adaptive(HillClimb::default()).with_short_line().with_throttle(Shedding::default())`: a [limit](crate::concurrency::HillClimb)
    /// that is moved by how much work ends well, a [short line](Bulkhead::with_short_line) before it, and
    /// [shedding](crate::throttle::Shedding) before the line. What it keeps under two and ten times the load that a service can take is
    /// measured on simulated services, with this very type: `docs/protection/overload.md`.
    ///
    /// It learns from permits that are [left with an outcome](crate::Permit::leave); a caller whose permits are all dropped has a limit of 20. Wrong
    /// for a handful of requests per second, which teach it too slowly, and together with [tenants](Bulkhead::with_tenants): a throttle refuses
    /// by priority, whoever it is. Costs a lock and two readings of the clock beside what [`Bulkhead::adaptive`] costs, and 4 KiB.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Bulkhead, Criticality, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let search = Bulkhead::self_tuning();
    /// let permit = search.enter().priority(Criticality::SheddablePlus).await?;
    /// // do the work
    /// permit.leave(Outcome::Success); // what it learns from
    /// assert_eq!((search.standing().limit, search.refused_share()), (20, 0), "for a start");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn self_tuning() -> Self {
        Self::adaptive(HillClimb::default()).with_short_line().with_throttle(Shedding::default())
    }

    pub(super) fn of_places(limit: u64) -> Self {
        let clock = Arc::new(SystemClock::new());
        let parts = Parts { clock, limit, moving: None, throttling: None, observer: None };
        Self { shared: Shared::new(parts, Self::rules(false)) }
    }

    pub(super) fn rules(moves: bool) -> Rules {
        let order = QueueOrder::default();
        let (short_line, longest_wait) = (false, Duration::MAX);
        let (keep_for, tenants, signals) = (None, None, None);
        Rules { room: ROOM, short_line, order, longest_wait, keep_for, tenants, moves, signals }
    }

    /// Returns an empty bulkhead of the same rules; a law and a throttle start again.
    fn again(&self, change: impl FnOnce(&mut Parts, &mut Rules)) -> Self {
        let mut parts = self.shared.again();
        let mut rules = self.shared.rules.clone();
        change(&mut parts, &mut rules);
        Self { shared: Shared::new(parts, rules) }
    }

    fn with(&self, change: impl FnOnce(&mut Rules)) -> Self {
        self.again(|_, rules| change(rules))
    }

    /// Returns a bulkhead with as many places and the same rules, whose deadlines go by `clock`. A step of construction: the
    /// result is empty and shares nothing with earlier clones.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let now = clock.now();
        self.again(|parts, _| parts.starting(Arc::new(clock), now))
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

    /// Returns a bulkhead that keeps part of its places for callers of higher [priority](super::Enter::priority). A step of construction, as
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

    /// Returns a bulkhead whose places are divided among tenants, who say who they are with [`Enter::of`](super::Enter::of). Each has its own part, lends what
    /// is idle, and gets of what others lend according to its weight; a full queue refuses one of the tenant with the most waiters by
    /// its weight. Priorities and the order then hold within a tenant, so that a tenant that calls everything critical gains nothing over others, but for
    /// [kept parts](Bulkhead::with_keep_for), which go by the priority that is claimed. Entering and
    /// leaving takes a lock, and a turn looks at all tenants who wait. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        self.with(|rules| rules.tenants = Some(tenants))
    }

    /// Returns a bulkhead with a short line before it: no more wait than there are places, the newest first, and nobody for longer than half
    /// the mean time that work takes (within 5 ms and 1 s) or than a [longest wait](Bulkhead::with_longest_wait). That is enough for a place that
    /// becomes free to be taken at once, and it adds little to what the work takes; who would wait longer is better told at once. Sets
    /// [`QueueOrder::Lifo`]; priorities come first all the same. Room that was [set](Bulkhead::with_room) is a bound as before.
    ///
    /// Costs two readings of the clock per permit. A step of construction, as [`Bulkhead::with_clock`] is.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Bulkhead;
    ///
    /// let printer = Bulkhead::new(2)?.with_short_line();
    /// # drop(printer);
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    #[must_use]
    pub fn with_short_line(self) -> Self {
        self.with(|rules| (rules.short_line, rules.order) = (true, QueueOrder::Lifo))
    }

    /// Returns a bulkhead before which a throttle stands: it is asked of each who arrives, by priority, and whoever it refuses takes no place in
    /// the line. It hears of each who was let in and got no place ([`Outcome::Overloaded`](crate::Outcome::Overloaded)), of each permit that is
    /// left with an outcome, and of how many places are free and how many wait then. It knows no [tenants](Bulkhead::with_tenants): where
    /// one of them floods the others, all are refused alike.
    ///
    /// Costs a lock and a reading of the clock for each who arrives. What it draws by chance begins at the same number in every process. A
    /// step of construction, as [`Bulkhead::with_clock`] is.
    ///
    /// # Examples
    /// ```
    /// use tidegate::throttle::Shedding;
    /// use tidegate::{Bulkhead, Retry};
    ///
    /// let api = Bulkhead::new(1)?.with_short_line().with_throttle(Shedding::default());
    /// let _inside = api.try_enter()?;
    /// assert_eq!(api.try_enter().unwrap_err().retry(), Retry::Unknown, "the throttle hears of it");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_throttle<T>(self, throttle: T) -> Self
    where
        T: Throttle + Send + 'static,
        T::State: Send,
    {
        self.again(|parts, _| parts.throttling = Some(Throttling::new(throttle, parts.clock.now())))
    }

    /// Returns a bulkhead whose moves of the limit `observer` is told ([`Observer::on_limit`]). A step of construction, as
    /// [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.again(|parts, _| parts.observer = Some(Arc::new(observer)))
    }

    /// Returns a bulkhead whose law is told by `watch` how much of the machine is in use, and which keeps the watch running. Without a law
    /// it has no effect. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_signals(self, watch: Watch) -> Self {
        self.with(|rules| rules.signals = Some(watch))
    }
}

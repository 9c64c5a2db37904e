//! Constructors of a bulkhead: the law of its limit, the throttle in front of its queue, and the rules of the queue.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::concurrency::{Concurrency, HillClimb, Law};
use tidegate_core::throttle::{Shedding, Throttle};
use tidegate_core::{Criticality, Priority, Quota, Retry};

use super::Bulkhead;
use super::moving::{Moving, RecentUse};
use super::places::Count;
use super::queue::QueueOrder;
use super::state::{BulkheadState, Parts, Throttling};
use super::tenants::Tenants;
use super::waiters::Granted;
use crate::clock::{Clock, SystemClock};
use crate::observer::Observer;
use crate::priority::{KeepFor, KeepForError};
use crate::refusal_reason::NoPlace;
use crate::signals::Watch;

const ROOM: usize = Concurrency::MAX_PLACES as usize;

impl Bulkhead {
    /// Makes a bulkhead with a number of places that a law moves, from 1 to [`Concurrency::MAX_PLACES`]; otherwise like
    /// [`Bulkhead::new`].
    ///
    /// The law learns from each permit that is [left with an outcome](crate::Permit::leave): how long the work took,
    /// without the wait in this queue, and how many places were taken when it entered. A permit that is dropped teaches
    /// it nothing. A lowered limit admits nobody until enough have left; a raised limit wakes waiters.
    ///
    /// A caller who asks for more places than the limit takes them all when its turn comes and no place is taken. Until
    /// it leaves, the places beyond the limit are a debt ([`Standing::debt`](crate::Standing)). In this way the law can
    /// raise a limit that is smaller than the number of places each caller asks for. If a part is
    /// [kept](Bulkhead::with_keep_for), or places are [divided](Bulkhead::with_tenants), such a caller would take
    /// places promised to others. It is then refused with [`Retry::Unknown`]: it may succeed later. In these cases,
    /// choose the law's least limit ([`Bounds`](tidegate_core::concurrency::Bounds)) at least as high as the places
    /// that one caller asks for plus the places kept.
    ///
    /// Use one law per resource, and do not put one adaptive bulkhead behind another: two laws that move their limits
    /// by the same latencies chase each other.
    ///
    /// Costs two readings of the clock per permit, and the law's arithmetic. Callers who leave at the same time do not
    /// wait for each other's arithmetic.
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
        Self { shared: BulkheadState::new(parts, Self::rules(true)) }
    }

    /// Makes a bulkhead that tunes itself, for a service about which nothing is known. It admits as many callers as
    /// complete the most work, the most important first, and refuses the rest early.
    ///
    /// The same as `Bulkhead::adaptive(HillClimb::default()).with_short_queue().with_throttle(Shedding::default())`: a
    /// [limit](tidegate_core::concurrency::HillClimb) that follows how much work is quick, a [short
    /// queue](Bulkhead::with_short_queue) in front of it, and [shedding](tidegate_core::throttle::Shedding) in front of
    /// the queue, with places [kept for important callers](Bulkhead::with_throttle). `docs/protection/overload.md` measures
    /// what it achieves at two and ten times the load that a service can take, on simulated services that run this type.
    ///
    /// It learns from permits that are [left with an outcome](crate::Permit::leave). If all permits are dropped, the
    /// limit stays at 20. Work that ends after the deadline of its [entry](crate::Enter::until), or after the one that
    /// the task [carried](crate::deadline::carried), counts as lost.
    ///
    /// Not for services with a handful of requests per second, which teach it too slowly. With
    /// [tenants](Bulkhead::with_tenants) nothing is shed on arrival: the queue then refuses whose tenant has the most
    /// waiters. Costs a lock, two readings of the clock and 4 KiB in addition to the cost of [`Bulkhead::adaptive`].
    ///
    /// # Examples
    /// ```
    /// use tidegate::priority::Criticality;
    /// use tidegate::{Bulkhead, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let search = Bulkhead::self_tuning();
    /// let permit = search.enter().priority(Criticality::SheddablePlus).await?;
    /// // do the work
    /// permit.leave(Outcome::Success); // it learns from this
    /// assert_eq!((search.standing().limit, search.refused_share()), (20, 0), "for a start");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn self_tuning() -> Self {
        Self::adaptive(HillClimb::default()).with_short_queue().with_throttle(Shedding::default())
    }

    pub(super) fn of_places(limit: u64) -> Self {
        let clock = Arc::new(SystemClock::new());
        let parts = Parts { clock, limit, moving: None, throttling: None, observer: None };
        Self { shared: BulkheadState::new(parts, Self::rules(false)) }
    }

    pub(super) fn rules(moves: bool) -> BulkheadRules {
        let order = QueueOrder::default();
        let (short_queue, longest_wait) = (false, Duration::MAX);
        let (keep_for, recent, tenants, signals) = (None, None, None, None);
        BulkheadRules {
            room: ROOM,
            short_queue,
            order,
            longest_wait,
            keep_for,
            recent,
            tenants,
            moves,
            signals,
        }
    }

    /// Returns an empty bulkhead of changed parts and rules. A law and a throttle start again.
    fn rebuilt(&self, change: impl FnOnce(&mut Parts, &mut BulkheadRules)) -> Self {
        let mut parts = self.shared.fresh_parts();
        let mut rules = self.shared.rules.clone();
        change(&mut parts, &mut rules);
        Self { shared: BulkheadState::new(parts, rules) }
    }

    fn with(&self, change: impl FnOnce(&mut BulkheadRules)) -> Self {
        self.rebuilt(|_, rules| change(rules))
    }

    /// Returns a bulkhead with the same number of places and the same rules, which measures deadlines by `clock`. A
    /// construction step: the result is empty and shares nothing with earlier clones.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let now = clock.now();
        self.rebuilt(|parts, _| parts.restart_with_clock(Arc::new(clock), now))
    }

    /// Returns a bulkhead where at most `waiting` callers wait for a place; zero refuses a caller who cannot enter at
    /// once. When the queue is full, a newcomer of higher priority replaces a waiter of the lowest priority, who is
    /// refused at once. A construction step.
    #[must_use]
    pub fn with_room(self, waiting: usize) -> Self {
        self.with(|rules| rules.room = waiting)
    }

    /// Returns a bulkhead where callers of the same priority enter in `order`. A construction step.
    #[must_use]
    pub fn with_order(self, order: QueueOrder) -> Self {
        self.with(|rules| rules.order = order)
    }

    /// Returns a bulkhead where nobody waits for longer than `longest`, even with a later deadline; zero refuses a
    /// caller who cannot enter at once. A construction step.
    #[must_use]
    pub fn with_longest_wait(self, longest: Duration) -> Self {
        self.with(|rules| rules.longest_wait = longest)
    }

    /// Returns a bulkhead that keeps part of its places for callers of higher [priority](super::Enter::priority), in place
    /// of what a [throttle](Bulkhead::with_throttle) keeps. A construction step.
    ///
    /// # Errors
    /// [`KeepForError`] when the part cannot be kept of the present number of places. A law may later lower the limit
    /// below a part given as a number of places: then no caller below that level enters.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Bulkhead;
    /// use tidegate::policy::{KeepFor, Kept};
    /// use tidegate::priority::Criticality;
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

    /// Returns a bulkhead whose places are divided among tenants; a caller names its tenant with
    /// [`Enter::of`](super::Enter::of). Each tenant has its own part, lends idle places, and receives places that
    /// others lend by its weight. A full queue refuses a waiter of the tenant that has the most waiters for its weight.
    /// Priorities and the order then apply within a tenant. So calling everything critical gains a tenant nothing,
    /// except for [kept parts](Bulkhead::with_keep_for), for which the claimed priority counts.
    ///
    /// A bulkhead with tenants has no [throttle](Bulkhead::with_throttle), whichever step comes first: a throttle cannot
    /// tell who floods the service, and would refuse quiet tenants with the others.
    ///
    /// Entering and leaving take a lock, and choosing the next waiter looks at all tenants that wait. A construction
    /// step.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        self.with(|rules| rules.tenants = Some(tenants))
    }

    /// Returns a bulkhead with a short queue in front of it: at most as many callers wait as there are places, the
    /// newest is served first, and nobody waits for longer than half the mean time that work takes, with
    /// [tenants](Bulkhead::with_tenants) two mean times (at least 5 ms, at most 1 s), nor than a [longest
    /// wait](Bulkhead::with_longest_wait). This queue is long enough to fill a place as soon as it becomes free, and adds
    /// little to the time of the work. Sets [`QueueOrder::Lifo`]; higher priorities still come first. The bound of
    /// [`Bulkhead::with_room`] still applies.
    ///
    /// Costs two readings of the clock per permit. A construction step.
    #[must_use]
    pub fn with_short_queue(self) -> Self {
        self.with(|rules| (rules.short_queue, rules.order) = (true, QueueOrder::Lifo))
    }

    /// Returns a bulkhead with a throttle in front of it. The throttle is asked for each arrival, by priority; a caller
    /// that it refuses never joins the queue. It learns of each admitted caller who got no place
    /// ([`Outcome::Overloaded`](crate::Outcome::Overloaded)) and of each permit: its outcome
    /// ([`Outcome::Ignored`](crate::Outcome::Ignored) if it is only dropped), the free places and the waiting callers
    /// at that moment. A bulkhead with [tenants](Bulkhead::with_tenants) has no throttle.
    ///
    /// Behind it, callers of each level leave free as many places as more important callers used in the last minute and
    /// do not use now, all but one at most: long work that is less important would otherwise hold the places when they
    /// come. Under a law, what they hold all the same does not count when a more important caller comes, so up to twice the
    /// limit may be taken until they leave. Where all callers have one level, neither applies. [`Bulkhead::with_keep_for`]
    /// replaces both by fixed parts.
    ///
    /// Costs a lock, a reading of the clock and some atomic steps per arrival. Its random draws start from the same seed in
    /// every process. A construction step.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Bulkhead;
    /// use tidegate::concurrency::throttle::Shedding;
    /// use tidegate::limiter::Retry;
    ///
    /// let api = Bulkhead::new(1)?.with_short_queue().with_throttle(Shedding::default());
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
        self.rebuilt(|parts, _| parts.throttling = Some(Throttling::new(throttle, parts.clock.now())))
    }

    /// Returns a bulkhead that tells `observer` about each change of the limit ([`Observer::on_limit`]), each entry
    /// that is refused, dropped or admitted, and the end of the work ([`Observer::on_place`]). A layer of
    /// `tidegate-tower` around the bulkhead reports the same refusals and ends to an observer of its own: count one of
    /// the two.
    ///
    /// Costs three readings of the clock and two calls of the observer per permit. A construction step.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        self.rebuilt(|parts, _| parts.observer = Some(Arc::new(observer)))
    }

    /// Returns a bulkhead whose law learns from `watch` how much of the machine is in use; it keeps the watch running.
    /// Without a law it has no effect. The watch averages the processor's use over about a second; a
    /// [`Bbr`](tidegate_core::concurrency::Bbr) does not [smooth](tidegate_core::concurrency::Bbr::smoothing) it again.
    /// A construction step.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Bulkhead;
    /// use tidegate::concurrency::Bbr;
    /// use tidegate::concurrency::signals::Watch;
    ///
    /// let api = Bulkhead::adaptive(Bbr::default());
    /// // There are no readings on systems other than Linux.
    /// let api = match Watch::start() {
    ///     Ok(watch) => api.with_signals(watch),
    ///     Err(_) => api,
    /// };
    /// # drop(api);
    /// ```
    #[must_use]
    pub fn with_signals(self, watch: Watch) -> Self {
        self.with(|rules| rules.signals = Some(watch))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnedAway {
    pub(super) why: NoPlace,
    /// Whether no retry of the same entry can pass.
    never: bool,
}

impl TurnedAway {
    pub(super) const fn now(why: NoPlace) -> Self {
        Self { why, never: false }
    }

    pub(super) const fn forever(why: NoPlace) -> Self {
        Self { why, never: true }
    }

    pub(super) const fn retry(self) -> Retry {
        if self.never { Retry::Never } else { Retry::Unknown }
    }
}

#[derive(Clone, Debug)]
pub(super) struct BulkheadRules {
    pub(super) room: usize,
    /// Whether the queue is also bounded by the limit, and a wait by the mean time that work takes.
    pub(super) short_queue: bool,
    pub(super) order: QueueOrder,
    pub(super) longest_wait: Duration,
    /// `None` if no part is kept, so that the fast path skips the check.
    pub(super) keep_for: Option<KeepFor>,
    /// What is kept behind a throttle, if no part is. Each bulkhead makes its own: see [`BulkheadState::new`].
    pub(super) recent: Option<Arc<RecentUse>>,
    pub(super) tenants: Option<Tenants>,
    /// Whether a law moves the limit: then too many places are refused with [`Retry::Unknown`], since it may rise.
    pub(super) moves: bool,
    pub(super) signals: Option<Watch>,
}

impl BulkheadRules {
    #[inline]
    fn kept_part(&self, priority: impl FnOnce() -> Priority, limit: u64) -> u64 {
        self.keep_for.as_ref().map_or(0, |keep_for| keep_for.kept_back(priority(), limit).min(limit))
    }

    /// Returns how many places count as taken, if `taken` of `limit` are: see [`RecentUse::taken`].
    #[inline]
    pub(super) fn taken(&self, taken: u64, limit: impl FnOnce() -> u64) -> u64 {
        self.recent.as_ref().map_or(taken, |recent| recent.taken(taken, limit()))
    }

    /// Says whether a waiter of a priority that asks for `wanted` places is considered. One that nothing is kept from
    /// is considered as soon as one place is free, so that one who wants many is served in the end. Otherwise it needs
    /// all its places to be free: earlier it would hold up those that a part is kept for.
    pub(super) fn may_consider(&self, priority: Priority, wanted: u64, count: Count) -> bool {
        let most = self.most_taken(|| priority, count.limit());
        if most < count.limit() { count.taken() + wanted <= most } else { count.taken() < most }
    }

    /// Notes that a caller of a priority holds places, and returns its level, if that matters.
    #[inline]
    pub(super) fn hold(&self, priority: impl FnOnce() -> Priority, places: u64) -> Criticality {
        let Some(recent) = &self.recent else { return Criticality::default() };
        let level = priority().level();
        recent.holds(level, places);
        level
    }

    /// Notes that places come back. Call it before they do: in between, an important caller would find them free and held.
    #[inline]
    pub(super) fn release(&self, granted: &Granted) {
        if let Some(recent) = &self.recent {
            recent.returns(granted.class.level, granted.places());
        }
    }

    /// Returns how many places may be taken once a caller of a priority has entered.
    #[inline]
    pub(super) fn most_taken(&self, priority: impl FnOnce() -> Priority, limit: u64) -> u64 {
        let Some(recent) = &self.recent else { return limit - self.kept_part(priority, limit) };
        let priority = priority();
        // A fixed limit is a promise to who named it.
        let held = if self.moves { recent.below(priority.level()) } else { 0 };
        limit - recent.kept(priority, limit) + held.min(limit)
    }

    pub(super) fn room(&self, limit: u64) -> usize {
        // Fits: a limit is at most 2¹⁶.
        if self.short_queue { self.room.min(limit as usize) } else { self.room }
    }

    /// A caller who asks for more than the limit enters alone if a law moves it: otherwise nobody might enter, the law
    /// would learn nothing, and the limit would stay too low. Not if a part is kept or lent, since those places were
    /// promised to others.
    pub(super) const fn enters_alone(&self) -> bool {
        self.moves && self.keep_for.is_none() && self.tenants.is_none()
    }

    pub(super) fn most(&self, priority: Priority, limit: u64) -> u64 {
        if self.enters_alone() { Concurrency::MAX_PLACES } else { limit - self.kept_part(|| priority, limit) }
    }

    pub(super) fn too_many(&self, places: u64, priority: Priority, limit: u64) -> Option<TurnedAway> {
        (places > self.most(priority, limit)).then(|| self.too_many_now(places))
    }

    pub(super) const fn too_many_now(&self, places: u64) -> TurnedAway {
        let why = NoPlace::TooManyPlaces;
        if self.moves && places <= Concurrency::MAX_PLACES {
            TurnedAway::now(why)
        } else {
            TurnedAway::forever(why)
        }
    }
}

//! The state that the clones of a bulkhead share, with the two ways to enter: the fast path without the lock, and the
//! slow path with it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use tidegate_core::concurrency::{Sample, Signal};
use tidegate_core::decision::Ruling;
use tidegate_core::throttle::{Arrival, Room, Throttle};
use tidegate_core::{Criticality, Decision, Outcome, Priority, Standing, Tick};

use super::build::{BulkheadRules, TurnedAway};
use super::moving::{LawTimes, MeanLatency, Moving};
use super::places::{Counter, EnterFailure, OwnedCounter, Owner};
use super::queue::Class;
use super::waiters::{Answer, Granted, PendingWakers, PlaceRequest, Ticket, Waiters};
use crate::answer::{Answer as Answered, Denied};
use crate::clock::Clock;
use crate::deadline;
use crate::deferred_panic::DeferredPanic;
use crate::observer::{LimitMoved, Observer, PlaceDid};
use crate::refusal_reason::NoPlace;
use crate::rng::Rng;
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct BulkheadState {
    places: OwnedCounter,
    pub(super) rules: BulkheadRules,
    moving: Option<Moving>,
    throttling: Option<Throttling>,
    latency: MeanLatency,
    /// Whether the bulkhead measures how long work takes: for a law, a throttle, a short queue or an observer.
    timed: bool,
    /// Whether work of unknown outcome is reported as well: to a throttle or an observer.
    reports_all: bool,
    /// Whether a permit needs only the counter to return its places: work is not timed and there are no tenants.
    counter_suffices: bool,
    pub(super) clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
    /// Never held while a clock or an observer is called, or a waker is called, cloned or dropped.
    waiters: Mutex<Waiters>,
}

#[derive(Debug)]
pub(super) struct Parts {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limit: u64,
    pub(super) moving: Option<Moving>,
    pub(super) throttling: Option<Throttling>,
    pub(super) observer: Option<Arc<dyn Observer>>,
}

impl Parts {
    pub(super) fn restart_with_clock(&mut self, clock: Arc<dyn Clock>, now: Tick) {
        self.moving = self.moving.take().map(|moving| moving.restarted(now));
        self.throttling = self.throttling.take().map(|throttling| throttling.restarted(now));
        self.clock = clock;
    }

    fn at_start(mut self) -> Self {
        self.limit = self.moving.as_ref().map_or(self.limit, Moving::limit);
        self
    }
}

const NO_TIMES: LawTimes =
    LawTimes { began: Tick::EPOCH, answered: None, deadline: None, level: Criticality::Critical };

impl Owner for BulkheadState {
    fn return_places(&self, granted: &Granted) {
        self.leave(granted, &NO_TIMES, Outcome::Ignored);
    }
}

pub(super) type Joined = Result<Ticket, Answer>;

impl BulkheadState {
    pub(super) fn new(parts: Parts, mut rules: BulkheadRules) -> Arc<Self> {
        let Parts { clock, limit, moving, throttling, observer } = parts;
        // A throttle sees priorities alone. With tenants the queue decides who is refused.
        let throttling = throttling.filter(|_| rules.tenants.is_none());
        rules.recent = (throttling.is_some() && rules.keep_for.is_none()).then(Arc::default);
        let places = OwnedCounter::new(limit);
        let waiters = Mutex::new(Waiters::new(&rules, limit, clock.now()));
        if rules.tenants.is_some() {
            places.lock();
        }
        let signals = rules.signals.clone().filter(|_| moving.is_some());
        let reports_all = throttling.is_some() || observer.is_some();
        let timed = moving.is_some() || reports_all || rules.short_queue;
        let counter_suffices = !timed && rules.tenants.is_none();
        let latency = MeanLatency::default();
        let shared = Arc::new(Self {
            places,
            rules,
            moving,
            throttling,
            latency,
            timed,
            reports_all,
            counter_suffices,
            clock,
            observer,
            waiters,
        });
        let owner: Weak<Self> = Arc::downgrade(&shared);
        shared.places.set_owner(owner);
        if let Some(watch) = signals {
            // Weak: the bulkhead holds the watch, and a strong reference would be a cycle.
            let weak = Arc::downgrade(&shared);
            watch.subscribe(move |signal| weak.upgrade().map(|shared| shared.sense(signal)).is_some());
        }
        shared
    }

    pub(super) fn fresh_parts(&self) -> Parts {
        let Self { moving, throttling, clock, observer, .. } = self;
        let now = clock.now();
        Parts {
            clock: Arc::clone(clock),
            limit: self.standing().limit,
            moving: moving.as_ref().map(|moving| moving.restarted(now)),
            throttling: throttling.as_ref().map(|throttling| throttling.restarted(now)),
            observer: observer.clone(),
        }
        .at_start()
    }

    pub(super) fn standing(&self) -> Standing {
        self.places.count().standing()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiters.lock().waiting()
    }

    /// Returns the share of arrivals that the throttle refuses now, in millionths.
    pub(super) fn refused_share(&self) -> u32 {
        self.throttling.as_ref().map_or(0, |throttling| throttling.refused_share(self.clock.now()))
    }

    pub(super) const fn is_timed(&self) -> bool {
        self.timed
    }

    /// Returns until when the caller waits, if a law learns from it: the earlier of its `own` deadline and the one that
    /// the task carries. Call it before a place is taken, since the clock is foreign code.
    #[inline]
    pub(super) fn deadline(&self, own: impl FnOnce() -> Option<Tick>) -> Option<Tick> {
        self.moving.as_ref()?;
        let carried = deadline::carried().map(|deadline| deadline.at(&*self.clock));
        carried.into_iter().chain(own()).min()
    }

    #[inline]
    pub(super) fn counter(&self) -> Option<&'static Counter> {
        self.counter_suffices.then(|| self.places.for_permit())
    }

    #[inline]
    pub(super) const fn is_throttled(&self) -> bool {
        self.throttling.is_some()
    }

    #[inline]
    fn reports_everybody(&self) -> bool {
        self.reports_all || self.moving.as_ref().is_some_and(Moving::counts_ignored)
    }

    /// Returns the tick at which work that enters now begins; does not read the clock if work is not timed. Call it
    /// before a place is taken: the clock is foreign code, and a panic after that would lose the place.
    #[inline]
    pub(super) fn begin(&self) -> Tick {
        if self.timed { self.clock.now() } else { Tick::EPOCH }
    }

    /// Says whether the throttle admits a caller. If so, the caller wants its places until it is [turned
    /// away](Self::turned_away) or leaves. Call it once per arrival.
    pub(super) fn admits<'a>(&self, at: Tick, request: impl FnOnce() -> PlaceRequest<'a>) -> bool {
        let Some(throttling) = &self.throttling else { return true };
        let request = request();
        if let Some(recent) = &self.rules.recent {
            recent.pass(at, self.places.count().limit());
        }
        if throttling.admits(at, request.priority) {
            if let Some(recent) = &self.rules.recent {
                recent.wants(request.priority.level(), request.places);
            }
            return true;
        }
        let free = self.free();
        if free > 0 {
            // The throttle hears of free places when admitted work ends, which after a rest is too seldom: it would go
            // on to refuse as it did before the rest. Nobody waits for the lock here: if it is held, somebody enters or
            // leaves.
            let waiting = self.waiters.try_lock().map(|waiters| waiters.waiting() as u64);
            if let Some(waiting) = waiting {
                throttling.sense(at, Room { free, waiting });
            }
        }
        false
    }

    /// Returns how many places are free for the least important caller who is here.
    fn free(&self) -> u64 {
        let count = self.places.count();
        count.limit().saturating_sub(self.rules.taken(count.taken(), || count.limit()))
    }

    /// Notes that a caller, admitted at this level, gets no places. `at` is `None` if the clock panicked.
    pub(super) fn turned_away(&self, at: Option<Tick>, level: Criticality, places: u64) {
        if let Some(recent) = &self.rules.recent {
            recent.gone(level, places);
        }
        if let (Some(throttling), Some(at)) = (&self.throttling, at) {
            throttling.turned_away(at);
        }
    }

    #[inline]
    pub(super) fn enter_past_line(
        &self,
        places: u64,
        priority: impl Fn() -> Priority,
    ) -> Result<Granted, EnterFailure> {
        let alone = places > 1 && self.rules.enters_alone();
        let taken = self.places.enter(places, alone, |limit| self.rules.most_taken(&priority, limit))?;
        let level = self.rules.hold(&priority, places);
        let in_flight = self.rules.taken(taken, || self.places.count().limit());
        Ok(Granted::new(places, in_flight, Class::default().at(level)))
    }

    /// Enters without waiting, or refuses. The throttle must have admitted the caller before.
    #[inline]
    pub(super) fn enter<'a>(&self, places: u64, request: impl Fn() -> PlaceRequest<'a>) -> Answer {
        match self.enter_past_line(places, || request().priority) {
            Ok(granted) => Ok(granted),
            Err(EnterFailure::Full) => Err(self.turned_away_at_once(request())),
            Err(EnterFailure::Locked) => self.enter_locked(request()),
        }
    }

    #[cold]
    fn turned_away_at_once(&self, request: PlaceRequest<'_>) -> TurnedAway {
        let none = || TurnedAway::now(self.places.count().no_place(request.places));
        self.too_many(request).unwrap_or_else(none)
    }

    #[cold]
    fn enter_locked(&self, request: PlaceRequest<'_>) -> Answer {
        if let Some(refused) = self.too_many(request) {
            return Err(refused);
        }
        let now = self.clock.now();
        let (answer, wakers) = self.waiters.lock().enter(&self.rules, &self.places, request, now);
        self.answered(answer, wakers.wake_all())
    }

    /// Returns an answer to its caller. If foreign code panicked meanwhile, the caller never sees the answer, so its
    /// places go to others before the panic goes on.
    fn answered(&self, answer: Answer, panicked: DeferredPanic) -> Answer {
        if panicked.is_some() {
            if let Ok(granted) = &answer {
                self.take_back(granted);
            }
            panicked.resume();
        }
        answer
    }

    pub(super) fn too_many(&self, request: PlaceRequest<'_>) -> Option<TurnedAway> {
        self.rules.too_many(request.places, request.priority, self.standing().limit)
    }

    pub(super) fn longest_wait(&self) -> Duration {
        let longest = self.rules.longest_wait;
        if !self.rules.short_queue {
            return longest;
        }
        // The turn of a tenant that holds less than its part comes once others leave: at the latest when what they began
        // just now has ended.
        let halves = if self.rules.tenants.is_some() { 4 } else { 1 };
        longest.min(self.latency.short_wait(halves))
    }

    pub(super) fn join(
        &self,
        request: PlaceRequest<'_>,
        now: Tick,
        deadline: Option<Tick>,
        waker: Waker,
    ) -> Joined {
        let mut waker = Some(waker);
        let (joined, mut wakers) =
            self.waiters.lock().join(&self.rules, &self.places, request, now, deadline, &mut waker);
        wakers.to_drop = waker;
        let panicked = wakers.wake_all();
        match joined {
            // The caller will never ask for the answer to this ticket.
            Ok(ticket) if panicked.is_some() => {
                let removed =
                    self.waiters.lock().remove_dropped(&self.rules, &self.places, &ticket, Some(now));
                panicked.or(removed.wake_all()).resume();
                Ok(ticket)
            }
            Ok(ticket) => Ok(ticket),
            Err(answer) => Err(self.answered(answer, panicked)),
        }
    }

    /// Fetches a waiter's answer if there is one; otherwise `waker` replaces the waiter's waker.
    pub(super) fn ask(&self, ticket: &Ticket, waker: Waker) -> Option<Answer> {
        let (answer, wakers) = self.waiters.lock().ask(ticket, waker);
        let panicked = wakers.wake_all();
        match answer {
            Some(answer) => Some(self.answered(answer, panicked)),
            None => {
                panicked.resume();
                None
            }
        }
    }

    pub(super) fn give_up(&self, ticket: &Ticket, why: NoPlace, now: Tick) -> Answer {
        let (answer, wakers) = self.waiters.lock().give_up(&self.rules, &self.places, ticket, now);
        self.answered(answer.unwrap_or(Err(TurnedAway::now(why))), wakers.wake_all())
    }

    /// Removes a waiter that was dropped, and tells the observer. A place that it was given and has not fetched goes to
    /// the next waiter. It was admitted at this level.
    pub(super) fn remove_dropped(&self, ticket: &Ticket, arrived: Tick, level: Criticality, places: u64) {
        let (now, panicked) = self.now_or_panic();
        let wakers = self.waiters.lock().remove_dropped(&self.rules, &self.places, ticket, now);
        let panicked = panicked.or(wakers.wake_all());
        self.turned_away(now, level, places);
        let waited = now.map_or(Duration::ZERO, |now| now.since(arrived));
        panicked.or(self.tell_held(PlaceDid::Dropped { waited })).resume_unless_panicking();
    }

    fn denied(&self, refused: TurnedAway) -> Denied {
        let decision =
            Decision { ruling: Ruling::Denied { retry: refused.retry() }, standing: self.standing() };
        Denied { answer: Answered::decided(decision, 0), no_place: Some(refused.why) }
    }

    pub(super) fn sense(&self, signal: Signal) {
        if self.moving.is_none() && self.throttling.is_none() {
            return;
        }
        let at = self.clock.now();
        if let Some(moving) = &self.moving {
            self.announce(Some(moving.sense(at, signal, |limit| self.set_limit(limit, at))));
        }
        if let Some(throttling) = &self.throttling {
            let room = Room { free: self.free(), waiting: self.waiting() as u64 };
            throttling.sense(at, room);
        }
    }

    /// Changes the number of places. [`BulkheadState::announce`] calls the wakers and the observer, since the caller
    /// may hold the law.
    pub(super) fn set_limit(&self, to: u64, at: Tick) -> LimitChange {
        let from = self.standing().limit;
        if from == to {
            return LimitChange(None);
        }
        let wakers = self.waiters.lock().change(&self.rules, &self.places, to, at);
        LimitChange(Some((wakers, LimitMoved { at, from, to })))
    }

    /// Wakes the waiters that a new limit has served, and tells the observer. Not to be called with a lock held.
    pub(super) fn announce(&self, change: Option<LimitChange>) {
        let Some(LimitChange(Some((wakers, event)))) = change else { return };
        let panicked = wakers.wake_all();
        if let Some(observer) = &self.observer {
            observer.on_limit(&event);
        }
        panicked.resume();
    }

    /// Reads the clock on a path that returns places, which must finish even if the clock panics.
    fn now_or_panic(&self) -> (Option<Tick>, DeferredPanic) {
        DeferredPanic::of(|| self.clock.now())
    }
}

#[derive(Debug)]
#[must_use = "wakers wait to be called"]
pub(super) struct LimitChange(Option<(PendingWakers, LimitMoved)>);

impl BulkheadState {
    /// Places and times are references, because the atomic step would wait for copies of them.
    #[inline]
    pub(super) fn leave(&self, granted: &Granted, times: &LawTimes, outcome: Outcome) {
        // First, so that the places are kept for the next of this level, if they are.
        if let Some(recent) = &self.rules.recent {
            recent.gone(times.level, granted.places());
        }
        self.rules.release(granted);
        let locked = self.places.leave(granted.places());
        if locked || outcome != Outcome::Ignored || self.reports_everybody() {
            if self.is_observed() {
                return self.after_observed_leave(granted, times, outcome, locked);
            }
            self.after_leave(granted, times, outcome, locked);
        }
    }

    #[inline(never)]
    fn after_leave(&self, granted: &Granted, times: &LawTimes, outcome: Outcome, locked: bool) {
        // A throttle has counted the arrival, so it is told of unknown outcomes too, and so is a law that waits for
        // those inside to leave. A short queue is not: such work shows nothing about the service.
        let told = self.timed && outcome != Outcome::Ignored || self.reports_everybody();
        if !locked && !told {
            return;
        }
        let (now, clock_panic) = self.now_or_panic();
        let (waiting, waker_panic) =
            if locked { self.pass_on(granted, now) } else { (0, DeferredPanic::default()) };
        if let (true, Some(at)) = (told, now) {
            self.learn(granted, times, outcome, at, waiting);
        }
        clock_panic.or(waker_panic).resume_unless_panicking();
    }

    /// Tells the observer that the work has ended, after all else: also if a waker, the law or the throttle panicked.
    #[cold]
    fn after_observed_leave(&self, granted: &Granted, times: &LawTimes, outcome: Outcome, locked: bool) {
        let panicked = DeferredPanic::of(|| self.after_leave(granted, times, outcome, locked)).1;
        let (now, clock_panic) = self.now_or_panic();
        let held = now.map_or(Duration::ZERO, |now| now.since(times.began));
        let end_panic = self.tell_held(PlaceDid::Left { outcome, held });
        panicked.or(clock_panic).or(end_panic).resume_unless_panicking();
    }

    #[cold]
    fn take_back(&self, granted: &Granted) {
        self.rules.release(granted);
        if self.places.leave(granted.places()) {
            // Of several panics the first one goes on, in the caller of this method.
            let (now, _later) = self.now_or_panic();
            let (_, _later) = self.pass_on(granted, now);
        }
    }

    fn pass_on(&self, granted: &Granted, now: Option<Tick>) -> (usize, DeferredPanic) {
        let mut waiters = self.waiters.lock();
        let wakers = waiters.give_returned(&self.rules, &self.places, *granted, now);
        let waiting = waiters.waiting();
        drop(waiters);
        (waiting, wakers.wake_all())
    }

    fn learn(&self, granted: &Granted, times: &LawTimes, outcome: Outcome, at: Tick, waiting: usize) {
        let LawTimes { began, answered, deadline, .. } = *times;
        let held = at.since(began);
        let latency = answered.map_or(held, |answered| answered.since(began));
        // The throttle comes before the law and its observer, which are foreign code and may panic.
        if let Some(throttling) = &self.throttling {
            throttling.learn(at, latency.saturating_add(granted.waited()), outcome);
        }
        let mut change = None;
        if outcome != Outcome::Ignored {
            self.latency.learn(latency);
        }
        if let Some(moving) = &self.moving {
            let time_left = deadline.map(|deadline| deadline.since(began));
            let (in_flight, places) = (granted.in_flight(), granted.places());
            let sample = Sample { at, latency, held, in_flight, places, time_left, outcome };
            let apply = |limit| self.set_limit(limit, at);
            change = match outcome {
                Outcome::Ignored => moving.count_ignored(&sample, apply),
                _ => moving.learn(sample, apply),
            };
        }
        if let Some(throttling) = &self.throttling {
            throttling.sense(at, Room { free: self.free(), waiting: waiting as u64 });
        }
        self.announce(change);
    }
}

// What the observer of a bulkhead is told. It is called with no lock held, and after places are in order.

impl BulkheadState {
    #[inline]
    pub(super) const fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    /// Tells the observer, if there is one. Its panic goes on, unless another one is under way.
    pub(super) fn tell(&self, did: PlaceDid) {
        self.tell_held(did).resume_unless_panicking();
    }

    fn tell_held(&self, did: PlaceDid) -> DeferredPanic {
        match &self.observer {
            Some(observer) => DeferredPanic::of(|| observer.on_place(did)).1,
            None => DeferredPanic::default(),
        }
    }

    /// Tells the observer that a caller has places. If that panics, they are returned. Called before the permit is made: the
    /// fast path then keeps no permit across a call.
    #[cold]
    pub(super) fn tell_entered(&self, granted: Granted, times: LawTimes, waited: Duration) {
        let panicked = self.tell_held(PlaceDid::Entered { waited });
        // During another panic this one is swallowed, and the caller gets its permit.
        if panicked.is_some() && !std::thread::panicking() {
            let again = DeferredPanic::of(|| self.leave(&granted, &times, Outcome::Ignored)).1;
            panicked.or(again).resume();
        }
    }

    #[cold]
    pub(super) fn refuse(&self, refused: TurnedAway, waited: Duration) -> Denied {
        let denied = self.denied(refused);
        self.tell(PlaceDid::Refused { cause: refused.why, waited });
        denied
    }
}

/// The seed of the random draws. Fixed, so that the same arrivals get the same answers in every process and every
/// replay.
const SEED: u64 = 0;

pub(super) struct Throttling {
    /// Held while the throttle is asked or given an outcome. No other lock is taken while it is held.
    throttle: Mutex<Box<dyn ErasedThrottle>>,
    draws: Rng,
}

impl Throttling {
    pub(super) fn new<T>(throttle: T, now: Tick) -> Self
    where
        T: Throttle + Send + 'static,
        T::State: Send,
    {
        let state = throttle.start(now);
        Self::with(Box::new(ThrottleWithState { throttle, state }))
    }

    fn with(throttle: Box<dyn ErasedThrottle>) -> Self {
        Self { throttle: Mutex::new(throttle), draws: Rng::seeded(SEED) }
    }

    pub(super) fn restarted(&self, now: Tick) -> Self {
        Self::with(self.throttle.lock().restarted(now))
    }

    pub(super) fn admits(&self, at: Tick, priority: Priority) -> bool {
        let draw = self.draws.next();
        self.throttle.lock().admit(&Arrival { at, priority, draw })
    }

    pub(super) fn turned_away(&self, at: Tick) {
        self.throttle.lock().learn(at, Duration::ZERO, Outcome::Overloaded);
    }

    /// Records that an admitted caller has ended its work. `latency` includes its wait for a place.
    pub(super) fn learn(&self, at: Tick, latency: Duration, outcome: Outcome) {
        self.throttle.lock().learn(at, latency, outcome);
    }

    pub(super) fn sense(&self, at: Tick, room: Room) {
        self.throttle.lock().sense(at, room);
    }

    pub(super) fn refused_share(&self, now: Tick) -> u32 {
        self.throttle.lock().refused_share(now)
    }
}

impl fmt::Debug for Throttling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.throttle.lock().fmt(f)
    }
}

trait ErasedThrottle: fmt::Debug + Send {
    fn admit(&mut self, arrival: &Arrival) -> bool;
    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome);
    fn sense(&mut self, at: Tick, room: Room);
    fn refused_share(&self, now: Tick) -> u32;
    fn restarted(&self, now: Tick) -> Box<dyn ErasedThrottle>;
}

#[derive(Debug)]
struct ThrottleWithState<T: Throttle> {
    throttle: T,
    state: T::State,
}

impl<T> ErasedThrottle for ThrottleWithState<T>
where
    T: Throttle + Send + 'static,
    T::State: Send,
{
    fn admit(&mut self, arrival: &Arrival) -> bool {
        self.throttle.admit(&mut self.state, arrival)
    }

    fn learn(&mut self, at: Tick, latency: Duration, outcome: Outcome) {
        self.throttle.learn(&mut self.state, at, latency, outcome);
    }

    fn sense(&mut self, at: Tick, room: Room) {
        self.throttle.sense(&mut self.state, at, room);
    }

    fn refused_share(&self, now: Tick) -> u32 {
        self.throttle.refused_share(&self.state, now)
    }

    fn restarted(&self, now: Tick) -> Box<dyn ErasedThrottle> {
        let state = self.throttle.start(now);
        Box::new(Self { throttle: self.throttle.clone(), state })
    }
}

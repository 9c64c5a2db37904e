//! The queue of waiters behind the lock of a bulkhead: who waits for a place, and whose turn is next.
//!
//! Places are given under the lock, and wakers are called after it is released. A place that becomes free is given at
//! once to the waiter whose turn is next, and is not left for the first caller to take it. So nobody overtakes, and a
//! place given to a waiter that has gone goes to the next. Wakers are foreign code: they are cloned before the lock is
//! taken, and called and dropped after it is released.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Priority, Tick};

use super::build::{BulkheadRules, TurnedAway};
use super::moving::PlacePace;
use super::places::Places;
use super::queue::{Class, Queues, Turn, Waiting};
use crate::deferred_panic::DeferredPanic;
use crate::refusal_reason::NoPlace;

/// Places that were given to a caller. Small, since each permit carries it: writing more between the two atomic steps
/// delays the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    places: u32,
    in_flight: u32,
    /// How long the caller waited for the places, in microseconds.
    waited: u32,
    pub(super) class: Class,
}

impl Granted {
    #[inline]
    pub(super) fn new(places: u64, in_flight: u64, class: Class) -> Self {
        // Both fit: they are at most twice the most places there can be, 2¹⁷.
        Self { places: places as u32, in_flight: in_flight as u32, waited: 0, class }
    }

    /// Sets the wait. More than 71 minutes count as 71.
    pub(super) fn after(self, wait: Duration) -> Self {
        Self { waited: wait.as_micros().min(u32::MAX.into()) as u32, ..self }
    }

    pub(super) const fn waited(self) -> Duration {
        Duration::from_micros(self.waited as u64)
    }

    pub(super) const fn places(self) -> u64 {
        self.places as u64
    }

    /// Returns how many places were taken after this caller entered, its own included.
    pub(super) const fn in_flight(self) -> u64 {
        self.in_flight as u64
    }
}

pub(super) type Answer = Result<Granted, TurnedAway>;

#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceRequest<'a> {
    pub(super) places: u64,
    pub(super) priority: Priority,
    pub(super) tenant: &'a [u8],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    class: Class,
    turn: Turn,
}

#[derive(Debug)]
pub(super) struct Waiters {
    /// How many callers have ever waited. A waiter's number is the count at its arrival, so numbers keep the order.
    arrivals: u64,
    queues: Queues,
    answered: BTreeMap<u64, Answer>,
    pace: PlacePace,
    /// The tick of the last call of `advance`; used when the clock panics.
    latest: Tick,
}

impl Waiters {
    pub(super) fn new(rules: &BulkheadRules, limit: u64, now: Tick) -> Self {
        let queues = Queues::new(rules, limit, now);
        Self { arrivals: 0, queues, answered: BTreeMap::new(), pace: PlacePace::default(), latest: now }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.len()
    }

    fn take(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        wanted: u64,
        priority: Priority,
        class: Class,
        now: Tick,
    ) -> Option<Granted> {
        if !self.queues.has_room(class, wanted) {
            return None;
        }
        let most = |limit| rules.most_taken(|| priority, limit);
        let taken = places.enter_locked(wanted, rules.enters_alone(), most).ok()?;
        let class = self.queues.count_taken(class, wanted, now).at(rules.hold(|| priority, wanted));
        let limit = places.count().limit();
        // A law takes places that are kept from this caller, or from its tenant, for taken: the limit binds.
        let binds = rules.moves && !self.queues.has_room(class, limit.div_ceil(10));
        let in_flight = if binds { taken.max(limit) } else { rules.taken(taken, || limit) };
        Some(Granted::new(wanted, in_flight, class))
    }

    pub(super) fn enter(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        request: PlaceRequest<'_>,
        now: Tick,
    ) -> (Answer, PendingWakers) {
        let (answer, wakers) = self.enter_if_next(rules, places, request, now);
        self.open_if_empty(places);
        (answer, wakers)
    }

    fn enter_if_next(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        request: PlaceRequest<'_>,
        now: Tick,
    ) -> (Answer, PendingWakers) {
        // Waiters come first: there may be returned places that have not been given to them yet.
        let wakers = self.advance(rules, places, now);
        let class = self.queues.class_of(request.tenant, now);
        if request.places > self.queues.most(class) {
            return (Err(rules.too_many_now(request.places)), wakers);
        }
        let may_consider = |priority, wanted| rules.may_consider(priority, wanted, places.count());
        let answer = if self.queues.is_next(class, request.priority, request.places, now, may_consider) {
            self.take(rules, places, request.places, request.priority, class, now)
        } else {
            None
        };
        let none = || TurnedAway::now(places.count().no_place(request.places));
        (answer.ok_or_else(none), wakers)
    }

    /// Enters, or joins the queue. Takes the waker only if the caller joins.
    pub(super) fn join(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        request: PlaceRequest<'_>,
        now: Tick,
        deadline: Option<Tick>,
        waker: &mut Option<Waker>,
    ) -> (Result<Ticket, Answer>, PendingWakers) {
        if let Some(refused) = rules.too_many(request.places, request.priority, places.count().limit()) {
            return (Err(Err(refused)), PendingWakers::default());
        }
        // From here on every caller takes the lock. Places returned before are counted below; a permit that is dropped
        // later waits for the lock.
        places.lock();
        let (answer, mut wakers) = self.enter_if_next(rules, places, request, now);
        let joined = match answer {
            Ok(granted) => Err(Ok(granted)),
            Err(refused) if refused.why == NoPlace::TooManyPlaces => Err(Err(refused)),
            Err(_) if self.is_late(request, now, deadline) => Err(Err(TurnedAway::now(NoPlace::TurnTooLate))),
            Err(none) => self.wait(rules, places, request, now, waker, &mut wakers).ok_or_else(|| {
                let room = rules.room(places.count().limit());
                Err(if room == 0 { none } else { TurnedAway::now(NoPlace::QueueFull) })
            }),
        };
        self.open_if_empty(places);
        (joined, wakers)
    }

    /// Says whether a newcomer's turn is expected after its deadline. Never for the first one, by whose turn the pace
    /// is measured, so that a wrong measurement does not last.
    fn is_late(&self, request: PlaceRequest<'_>, now: Tick, deadline: Option<Tick>) -> bool {
        let Some(ahead) = self.queues.ahead_of(request.priority, now) else { return false };
        let (false, Some(deadline)) = (ahead == 0, deadline) else { return false };
        let expected = self.pace.expected(ahead.saturating_add(request.places));
        expected.is_some_and(|expected| now.after(expected) > deadline)
    }

    /// Joins the queue; `None` if it is full and no waiter gives way.
    fn wait(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        request: PlaceRequest<'_>,
        now: Tick,
        waker: &mut Option<Waker>,
        wakers: &mut PendingWakers,
    ) -> Option<Ticket> {
        const DISPLACED: TurnedAway = TurnedAway::now(NoPlace::Displaced);
        let class = self.queues.class_of(request.tenant, now);
        let (room, mut displaced) = (rules.room(places.count().limit()), false);
        if self.queues.len() >= room {
            let (class, turn) = self.queues.gives_way_to(class, request.priority, now)?;
            self.answer(class, turn, Err(DISPLACED), wakers);
            displaced = true;
        }
        // `None` only if the waker was taken before. It cannot be: `join` calls this once.
        let waker = waker.take()?;
        if self.queues.len() == 0 {
            self.pace.begin(now);
        }
        self.arrivals += 1;
        let turn = Turn::new(request.priority, self.arrivals);
        let PlaceRequest { places: wanted, priority, .. } = request;
        self.queues.push(class, turn, Waiting { places: wanted, priority, since: now, waker });
        if displaced {
            // The waiter that went may have held up others, this newcomer included.
            wakers.to_wake.extend(self.advance(rules, places, now).to_wake);
        }
        Some(Ticket { class, turn })
    }

    fn answer(&mut self, class: Class, turn: Turn, answer: Answer, wakers: &mut PendingWakers) {
        if let Some(waiting) = self.queues.remove(class, &turn) {
            self.answered.insert(turn.number, answer);
            wakers.to_wake.push(waiting.waker);
        }
    }

    /// Fetches a waiter's answer, once. If there is none, `waker` replaces the waiter's waker.
    pub(super) fn ask(&mut self, ticket: &Ticket, waker: Waker) -> (Option<Answer>, PendingWakers) {
        let to_drop = match self.queues.get_mut(ticket.class, &ticket.turn) {
            Some(waiting) => std::mem::replace(&mut waiting.waker, waker),
            None => waker,
        };
        (
            self.answered.remove(&ticket.turn.number),
            PendingWakers { to_drop: Some(to_drop), ..PendingWakers::default() },
        )
    }

    /// Removes a waiter from the queue, and returns its answer if there was one. Places in the answer then belong to
    /// the caller.
    pub(super) fn give_up(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        ticket: &Ticket,
        now: Tick,
    ) -> (Option<Answer>, PendingWakers) {
        let to_drop = self.queues.remove(ticket.class, &ticket.turn).map(|waiting| waiting.waker);
        // This waiter may have been the first, and may have held up others that need fewer places.
        let wakers = PendingWakers { to_drop, ..self.advance(rules, places, now) };
        self.open_if_empty(places);
        (self.answered.remove(&ticket.turn.number), wakers)
    }

    /// Removes a waiter that was dropped; a place that it was given goes to the next. `now` is `None` if the clock
    /// panicked: places are given to waiters all the same.
    pub(super) fn remove_dropped(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        ticket: &Ticket,
        now: Option<Tick>,
    ) -> PendingWakers {
        let (answer, mut wakers) = self.give_up(rules, places, ticket, now.unwrap_or(self.latest));
        if let Some(Ok(granted)) = answer {
            rules.release(&granted);
            places.leave(granted.places());
            wakers.to_wake.extend(self.give_returned(rules, places, granted, now).to_wake);
        }
        wakers
    }

    pub(super) fn give_returned(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        granted: Granted,
        now: Option<Tick>,
    ) -> PendingWakers {
        let now = now.unwrap_or(self.latest);
        self.queues.count_returned(granted.class, granted.places(), now);
        let wakers = self.advance(rules, places, now);
        self.open_if_empty(places);
        wakers
    }

    /// Changes the number of places. Waiters that ask for more places than they may have now are refused, wherever they
    /// stand in the queue.
    pub(super) fn change(
        &mut self,
        rules: &BulkheadRules,
        places: &Places,
        limit: u64,
        now: Tick,
    ) -> PendingWakers {
        let mut wakers = PendingWakers::default();
        places.change(limit);
        self.queues.change(limit);
        for (class, turn) in self.queues.too_wide(|priority| rules.most(priority, limit)) {
            self.answer(class, turn, Err(rules.too_many_now(1)), &mut wakers);
        }
        wakers.to_wake.extend(self.advance(rules, places, now).to_wake);
        self.open_if_empty(places);
        wakers
    }

    fn advance(&mut self, rules: &BulkheadRules, places: &Places, now: Tick) -> PendingWakers {
        const STANDING: TurnedAway = TurnedAway::now(NoPlace::StandingQueue);
        self.latest = now;
        let mut wakers = PendingWakers::default();
        let may_consider = |priority, wanted| rules.may_consider(priority, wanted, places.count());
        while let Some((class, turn, waiting)) = self.queues.next(now, may_consider) {
            let (wanted, priority, since) = (waiting.places, waiting.priority, waiting.since);
            let Some(granted) = self.take(rules, places, wanted, priority, class, now) else { break };
            if self.queues.waited_too_long(class, since, now) {
                rules.release(&granted);
                places.leave(wanted);
                self.queues.count_returned(granted.class, wanted, now);
                self.answer(class, turn, Err(STANDING), &mut wakers);
                continue;
            }
            self.answer(class, turn, Ok(granted), &mut wakers);
            self.pace.turn(now, wanted);
            while let Some(stale) = self.queues.stale(class, now) {
                self.answer(class, stale, Err(STANDING), &mut wakers);
            }
        }
        if self.queues.len() == 0 {
            self.pace.end();
        }
        wakers
    }

    fn open_if_empty(&self, places: &Places) {
        if self.queues.len() == 0 && !self.queues.are_divided() {
            places.open();
        }
    }
}

/// Wakers to call, or only to drop, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "wakers wait to be called"]
pub(super) struct PendingWakers {
    pub(super) to_wake: SmallVec<[Waker; 2]>,
    pub(super) to_drop: Option<Waker>,
}

impl PendingWakers {
    /// Calls the wakers. Not to be called with the lock held. If a waker panics, the others are called all the same: a
    /// waiter that is not woken would hold places without knowing it. Returns the first panic.
    pub(super) fn wake_all(self) -> DeferredPanic {
        let mut first = DeferredPanic::default();
        for waker in self.to_wake {
            first = first.or(DeferredPanic::of(|| waker.wake()).1);
        }
        match self.to_drop {
            None => first,
            Some(waker) => first.or(DeferredPanic::of(|| drop(waker)).1),
        }
    }
}

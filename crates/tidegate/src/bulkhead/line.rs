//! Who waits for a place, and whose turn is next: the state that the lock of a bulkhead protects.
//!
//! Places are given under the lock, and wakers are called after it. A place that becomes free goes at once to the waiter whose turn is
//! next, and is not left for whoever comes first: so nobody overtakes, and a place that was given to a waiter who has gone is found with
//! the waiter and passed on. Wakers are foreign code: they come in as copies, and go out to be called and dropped after the lock.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Priority, Retry, Tick};

use super::pace::Pace;
use super::places::Places;
use super::queue::{Turn, Waiting};
use super::queues::{Class, Queues};
use super::rules::Rules;

/// Places that were given to somebody. Small, for each permit carries it: what is written between two atomic steps delays the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    places: u32,
    in_flight: u32,
    /// How long the wait for them was, in microseconds.
    waited: u32,
    pub(super) class: Class,
}

impl Granted {
    #[inline]
    pub(super) fn new(places: u64, in_flight: u64, class: Class) -> Self {
        // Neither exceeds the most places there can be, 2¹⁶.
        Self { places: places as u32, in_flight: in_flight as u32, waited: 0, class }
    }

    /// The same after a wait; of more than 71 minutes those count.
    pub(super) fn after(self, wait: Duration) -> Self {
        Self { waited: wait.as_micros().min(u32::MAX.into()) as u32, ..self }
    }

    pub(super) const fn waited(self) -> Duration {
        Duration::from_micros(self.waited as u64)
    }

    pub(super) const fn places(self) -> u64 {
        self.places as u64
    }

    /// How many were taken then, these included.
    pub(super) const fn in_flight(self) -> u64 {
        self.in_flight as u64
    }
}

/// What became of an ask.
pub(super) type Answer = Result<Granted, Retry>;

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) places: u64,
    pub(super) priority: Priority,
    /// The tenant; empty where none was named.
    pub(super) tenant: &'a [u8],
}

/// Where a waiter is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    class: Class,
    turn: Turn,
}

/// Wakers to call, or only to drop, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "wakers wait to be called"]
pub(super) struct Due {
    wake: SmallVec<[Waker; 2]>,
    gone: Option<Waker>,
}

impl Due {
    /// Calls the wakers. Not to be called under the lock. One that panics keeps none of the others from being called: whoever is not woken would
    /// hold places that it does not know of.
    pub(super) fn settle(self) {
        let mut panicked = None;
        for waker in self.wake {
            panicked = panicked.or(catch_unwind(AssertUnwindSafe(|| waker.wake())).err());
        }
        drop(self.gone);
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

#[derive(Debug)]
pub(super) struct Line {
    /// How many have ever waited; each waiter's number is its count, so numbers keep the order.
    arrivals: u64,
    queues: Queues,
    /// Answers that were not fetched yet, by the waiter's number.
    answered: BTreeMap<u64, Answer>,
    pace: Pace,
    /// The latest tick that was passed in.
    latest: Tick,
}

impl Line {
    pub(super) fn new(rules: &Rules, limit: u64, now: Tick) -> Self {
        let queues = Queues::new(rules, limit, now);
        Self { arrivals: 0, queues, answered: BTreeMap::new(), pace: Pace::default(), latest: now }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.len()
    }

    /// Takes places for whoever is next, where there are enough.
    fn take(
        &mut self,
        (rules, places): (&Rules, &Places),
        (wanted, priority): (u64, Priority),
        class: Class,
        now: Tick,
    ) -> Option<Granted> {
        if !self.queues.has_room(class, wanted) {
            return None;
        }
        let kept = |limit| rules.kept(|| priority, limit);
        let in_flight = places.enter_locked(wanted, rules.enters_alone(), kept).ok()?;
        let class = self.queues.taken(class, wanted, now);
        Some(Granted::new(wanted, in_flight, class))
    }

    /// Enters at once or not at all.
    pub(super) fn enter(
        &mut self,
        rules: &Rules,
        places: &Places,
        asked: Asked<'_>,
        now: Tick,
    ) -> (Answer, Due) {
        let (answer, due) = self.enter_if_next(rules, places, asked, now);
        self.open_if_empty(places);
        (answer, due)
    }

    fn enter_if_next(
        &mut self,
        rules: &Rules,
        places: &Places,
        asked: Asked<'_>,
        now: Tick,
    ) -> (Answer, Due) {
        // First those who wait: places may have been left that nobody has passed on yet.
        let due = self.advance(rules, places, now);
        let class = self.queues.class_of(asked.tenant, now);
        let open = |priority, wanted| rules.is_open(priority, wanted, places.count());
        let answer = if self.queues.is_next(class, (asked.priority, asked.places), now, open) {
            self.take((rules, places), (asked.places, asked.priority), class, now).ok_or(Retry::Unknown)
        } else {
            Err(Retry::Unknown)
        };
        (answer, due)
    }

    /// Enters, or joins those who wait. The waker is taken only then.
    pub(super) fn join(
        &mut self,
        rules: &Rules,
        places: &Places,
        asked: Asked<'_>,
        (now, deadline): (Tick, Option<Tick>),
        waker: &mut Option<Waker>,
    ) -> (Result<Ticket, Answer>, Due) {
        if let Some(retry) = rules.too_many(asked.places, asked.priority, places.count().limit()) {
            return (Err(Err(retry)), Due::default());
        }
        // From here on everybody takes the lock: whoever left before is counted below, and whoever leaves later waits for the lock.
        places.lock();
        let (answer, mut due) = self.enter_if_next(rules, places, asked, now);
        let joined = match answer {
            Err(Retry::Unknown) if !self.is_late(asked, now, deadline) => {
                self.wait((rules, places.count().limit()), asked, now, waker, &mut due)
            }
            answer => Err(answer),
        };
        self.open_if_empty(places);
        (joined, due)
    }

    /// Says whether the turn of a newcomer is expected after its deadline. Never for the first one in line, whose turn is what the pace is measured by: so
    /// a wrong measurement does not last.
    fn is_late(&self, asked: Asked<'_>, now: Tick, deadline: Option<Tick>) -> bool {
        let Some(ahead) = self.queues.ahead_of(asked.priority, now) else { return false };
        let (false, Some(deadline)) = (ahead == 0, deadline) else { return false };
        let expected = self.pace.expected(ahead.saturating_add(asked.places));
        expected.is_some_and(|expected| now.after(expected) > deadline)
    }

    fn wait(
        &mut self,
        (rules, limit): (&Rules, u64),
        asked: Asked<'_>,
        now: Tick,
        waker: &mut Option<Waker>,
        due: &mut Due,
    ) -> Result<Ticket, Answer> {
        const SHED: Answer = Err(Retry::Unknown);
        let class = self.queues.class_of(asked.tenant, now);
        if self.queues.len() >= rules.room(limit) {
            let (class, turn) = self.queues.gives_way_to(class, asked.priority, now).ok_or(SHED)?;
            self.answer((class, turn), SHED, due);
        }
        // `None` only where the caller has waited already, and so has no second waker to leave.
        let waker = waker.take().ok_or(SHED)?;
        if self.queues.len() == 0 {
            self.pace.begin(now);
        }
        self.arrivals += 1;
        let turn = Turn::new(asked.priority, self.arrivals);
        let Asked { places, priority, .. } = asked;
        self.queues.push(class, turn, Waiting { places, priority, since: now, waker });
        Ok(Ticket { class, turn })
    }

    /// Answers a waiter who then fetches it.
    fn answer(&mut self, (class, turn): (Class, Turn), answer: Answer, due: &mut Due) {
        if let Some(waiting) = self.queues.remove(class, &turn) {
            self.answered.insert(turn.number, answer);
            due.wake.push(waiting.waker);
        }
    }

    /// Fetches a waiter's answer, once. While there is none, `waker` takes the place of the waker left before.
    pub(super) fn ask(&mut self, ticket: &Ticket, waker: Waker) -> (Option<Answer>, Due) {
        let gone = match self.queues.get_mut(ticket.class, &ticket.turn) {
            Some(waiting) => std::mem::replace(&mut waiting.waker, waker),
            None => waker,
        };
        (self.answered.remove(&ticket.turn.number), Due { gone: Some(gone), ..Due::default() })
    }

    /// Takes a waiter out of the line, and returns its answer if there was one; a place in it is then the caller's.
    pub(super) fn give_up(
        &mut self,
        rules: &Rules,
        places: &Places,
        ticket: &Ticket,
        now: Tick,
    ) -> (Option<Answer>, Due) {
        let gone = self.queues.remove(ticket.class, &ticket.turn).map(|waiting| waiting.waker);
        // The first one may have held up others who need fewer places.
        let due = Due { gone, ..self.advance(rules, places, now) };
        self.open_if_empty(places);
        (self.answered.remove(&ticket.turn.number), due)
    }

    /// Takes out a waiter that was dropped; a place that was given to it goes to the next. `now` is `None` where the clock panicked: places
    /// are passed on all the same.
    pub(super) fn go(&mut self, rules: &Rules, places: &Places, ticket: &Ticket, now: Option<Tick>) -> Due {
        let (answer, mut due) = self.give_up(rules, places, ticket, now.unwrap_or(self.latest));
        if let Some(Ok(granted)) = answer {
            places.leave(granted.places());
            due.wake.extend(self.left(rules, places, granted, now).wake);
        }
        due
    }

    /// Passes on places that were returned; `now` as for [`Line::go`].
    pub(super) fn left(
        &mut self,
        rules: &Rules,
        places: &Places,
        granted: Granted,
        now: Option<Tick>,
    ) -> Due {
        let now = now.unwrap_or(self.latest);
        self.queues.left(granted.class, granted.places(), now);
        let due = self.advance(rules, places, now);
        self.open_if_empty(places);
        due
    }

    /// Changes the number of places. Whoever is inside stays inside; waiters who ask for more places than they may have now are refused,
    /// wherever they stand in the line.
    pub(super) fn change(&mut self, rules: &Rules, places: &Places, limit: u64, now: Tick) -> Due {
        let mut due = Due::default();
        places.change(limit);
        self.queues.change(limit);
        for (class, turn) in self.queues.too_wide(|priority| rules.most(priority, limit)) {
            self.answer((class, turn), Err(rules.too_many_now(1)), &mut due);
        }
        due.wake.extend(self.advance(rules, places, now).wake);
        self.open_if_empty(places);
        due
    }

    /// Gives places to those whose turn is next for as long as there are enough.
    fn advance(&mut self, rules: &Rules, places: &Places, now: Tick) -> Due {
        self.latest = now;
        let mut due = Due::default();
        let open = |priority, wanted| rules.is_open(priority, wanted, places.count());
        while let Some((class, turn, waiting)) = self.queues.next(now, open) {
            let (wanted, priority, since) = (waiting.places, waiting.priority, waiting.since);
            let Some(granted) = self.take((rules, places), (wanted, priority), class, now) else { break };
            if self.queues.waited_too_long(class, since, now) {
                places.leave(wanted);
                self.queues.left(granted.class, wanted, now);
                self.answer((class, turn), Err(Retry::Unknown), &mut due);
                continue;
            }
            self.answer((class, turn), Ok(granted), &mut due);
            self.pace.turn(now, wanted);
            while let Some(stale) = self.queues.stale(class, now) {
                self.answer((class, stale), Err(Retry::Unknown), &mut due);
            }
        }
        if self.queues.len() == 0 {
            self.pace.end();
        }
        due
    }

    /// Opens the way past the lock where nobody waits.
    fn open_if_empty(&self, places: &Places) {
        if self.queues.len() == 0 && !self.queues.are_divided() {
            places.open();
        }
    }
}

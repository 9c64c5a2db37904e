//! What the clones of a bulkhead share, and the two ways in: past the lock, and through it.

use std::sync::Arc;
use std::task::Waker;

use tidegate_core::concurrency::{Sample, Signal};
use tidegate_core::decision::Ruling;
use tidegate_core::{Decision, Outcome, Priority, Retry, Standing, Tick};

use super::line::{Answer, Asked, Due, Granted, Line, Ticket};
use super::moving::Moving;
use super::places::{NotNow, Places};
use super::queues::Class;
use super::rules::Rules;
use crate::answer::{Answer as Answered, Denied};
use crate::clock::Clock;
use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct Shared {
    places: Places,
    pub(super) rules: Rules,
    moving: Option<Moving>,
    pub(super) clock: Arc<dyn Clock>,
    /// Never held while a clock is called, or a waker called, copied or dropped.
    line: Mutex<Line>,
}

impl Shared {
    pub(super) fn new(clock: Arc<dyn Clock>, rules: Rules, limit: u64, moving: Option<Moving>) -> Arc<Self> {
        let places = Places::new(limit);
        let line = Line::new(&rules, limit, clock.now());
        if rules.tenants.is_some() {
            places.lock();
        }
        let signals = rules.signals.clone().filter(|_| moving.is_some());
        let shared = Arc::new(Self { places, rules, moving, clock, line: Mutex::new(line) });
        if let Some(watch) = signals {
            // Weak, for the bulkhead holds the watch.
            let weak = Arc::downgrade(&shared);
            watch.tell(move |signal| weak.upgrade().map(|shared| shared.sense(signal)).is_some());
        }
        shared
    }

    /// Returns what makes an empty bulkhead of the same kind by another clock.
    pub(super) fn again(&self, clock: &dyn Clock) -> (u64, Option<Moving>) {
        let moving = self.moving.as_ref().map(|moving| moving.again(clock.now()));
        let limit = moving.as_ref().map_or_else(|| self.standing().limit, Moving::limit);
        (limit, moving)
    }

    pub(super) fn standing(&self) -> Standing {
        self.places.count().standing()
    }

    pub(super) fn waiting(&self) -> usize {
        self.line.lock().waiting()
    }

    /// Enters at once where nobody waits and nobody shares, without a lock; says otherwise why not.
    #[inline]
    pub(super) fn enter_past_line(&self, places: u64, priority: Priority) -> Result<Granted, NotNow> {
        let in_flight = self.places.enter(places, |limit| self.rules.kept(priority, limit))?;
        Ok(Granted::new(places, in_flight, Class::default()))
    }

    /// Enters at once or not at all.
    #[inline]
    pub(super) fn enter(&self, asked: Asked<'_>) -> Answer {
        match self.enter_past_line(asked.places, asked.priority) {
            Ok(granted) => Ok(granted),
            Err(NotNow::Full) => Err(self.never(asked).unwrap_or(Retry::Unknown)),
            Err(NotNow::Locked) => self.enter_locked(asked),
        }
    }

    #[cold]
    fn enter_locked(&self, asked: Asked<'_>) -> Answer {
        if let Some(retry) = self.never(asked) {
            return Err(retry);
        }
        let now = self.clock.now();
        let (answer, due) = self.line.lock().enter(&self.rules, &self.places, asked, now);
        due.settle();
        answer
    }

    /// What is told to whoever asks for more places than it could ever have.
    fn never(&self, asked: Asked<'_>) -> Option<Retry> {
        self.rules.too_many(asked.places, asked.priority, self.standing().limit)
    }

    /// Enters or joins those who wait.
    pub(super) fn join(
        &self,
        asked: Asked<'_>,
        (now, deadline): (Tick, Option<Tick>),
        waker: Waker,
    ) -> Result<Ticket, Answer> {
        let mut waker = Some(waker);
        let (joined, due) =
            self.line.lock().join(&self.rules, &self.places, asked, (now, deadline), &mut waker);
        due.settle();
        joined
    }

    /// Fetches a waiter's answer.
    pub(super) fn ask(&self, ticket: &Ticket, waker: Waker) -> Option<Answer> {
        let (answer, due) = self.line.lock().ask(ticket, waker);
        due.settle();
        answer
    }

    /// Ends a wait: fetches the answer, which is a refusal where none came.
    pub(super) fn give_up(&self, ticket: &Ticket, now: Tick) -> Answer {
        let (answer, due) = self.line.lock().give_up(&self.rules, &self.places, ticket, now);
        due.settle();
        answer.unwrap_or(Err(Retry::Unknown))
    }

    /// Takes out a waiter that was dropped.
    pub(super) fn go(&self, ticket: &Ticket) {
        let now = self.clock.now();
        let due = self.line.lock().go(&self.rules, &self.places, ticket, now);
        due.settle();
    }

    /// When work begins that enters now. Without a law nobody asks how long it takes, and the clock is not read.
    #[inline]
    pub(super) fn begin(&self) -> Tick {
        if self.moving.is_some() { self.clock.now() } else { Tick::EPOCH }
    }

    #[cold]
    pub(super) fn denied(&self, retry: Retry) -> Denied {
        let decision = Decision { ruling: Ruling::Denied { retry }, standing: self.standing() };
        Answered::settled(decision, 0).into()
    }

    /// Returns places, passes them on, and has the law learn from the outcome.
    ///
    /// What was granted stays where it is: copying it would have the atomic step wait for the copy.
    #[inline]
    pub(super) fn leave(&self, granted: &Granted, began: &Tick, outcome: Outcome) {
        let locked = self.places.leave(granted.places());
        if locked || outcome != Outcome::Ignored {
            self.left(granted, *began, outcome, locked);
        }
    }

    #[inline(never)]
    fn left(&self, granted: &Granted, began: Tick, outcome: Outcome, locked: bool) {
        if locked {
            let now = self.clock.now();
            let due = self.line.lock().left(&self.rules, &self.places, *granted, now);
            due.settle();
        }
        if let Some(moving) = &self.moving
            && outcome != Outcome::Ignored
        {
            self.learn(moving, granted, began, outcome);
        }
    }

    fn learn(&self, moving: &Moving, granted: &Granted, began: Tick, outcome: Outcome) {
        let at = self.clock.now();
        let sample = Sample { at, latency: at.since(began), in_flight: granted.in_flight(), outcome };
        let due = moving.learn(sample, |limit| self.set_limit(limit, at));
        due.flatten().into_iter().for_each(Due::settle);
    }

    /// Has the law take in a reading of the machine.
    pub(super) fn sense(&self, signal: Signal) {
        let Some(moving) = &self.moving else { return };
        let at = self.clock.now();
        let due = moving.sense(at, signal, |limit| self.set_limit(limit, at));
        due.into_iter().for_each(Due::settle);
    }

    /// Changes the number of places. The wakers are called by the caller, who may hold the law.
    pub(super) fn set_limit(&self, limit: u64, now: Tick) -> Option<Due> {
        if self.standing().limit == limit {
            return None;
        }
        Some(self.line.lock().change(&self.rules, &self.places, limit, now))
    }
}

//! Who is inside, and who waits for a place: the state that the lock of a bulkhead protects.
//!
//! Places are given under the lock, and wakers are called after it. A place that becomes free goes at once to the first waiter, and is not
//! left for whoever comes first: so nobody overtakes, and a place that was given to a waiter who has gone is found with the waiter and
//! passed on. Wakers are foreign code: they come in as copies, and go out to be called and dropped after the lock.

use std::collections::BTreeMap;
use std::task::Waker;

use smallvec::SmallVec;
use tidegate_core::concurrency::{Concurrency, ConcurrencyState};
use tidegate_core::decision::Ruling;
use tidegate_core::{
    Ask, Cost, Decision, Guard, Outcome, Receipt, Replace, Retry, Standing, Tick, Transition,
};

/// The tick passed to a guard whose places do not lapse: any tick will do.
const ANY_TIME: Tick = Tick::EPOCH;

/// The receipt of the places taken, or the decision that refused them.
pub(super) type Answer = Result<Receipt, Decision>;

/// Wakers to call, or only to drop, once the lock is released.
#[derive(Debug, Default)]
#[must_use = "wakers wait to be called"]
pub(super) struct Due {
    wake: SmallVec<[Waker; 2]>,
    gone: Option<Waker>,
}

impl Due {
    /// Calls the wakers. Not to be called under the lock.
    pub(super) fn settle(self) {
        drop(self.gone);
        self.wake.into_iter().for_each(Waker::wake);
    }
}

/// One waiter.
#[derive(Debug)]
struct Waiting {
    places: Cost,
    waker: Waker,
}

#[derive(Debug)]
pub(super) struct Line {
    guard: Concurrency,
    state: ConcurrencyState,
    /// How many have ever waited; each waiter's number is its count, so numbers keep the order.
    arrivals: u64,
    /// The waiters by number, the first to come first. At most `room`.
    waiting: BTreeMap<u64, Waiting>,
    /// Answers that were not fetched yet, by the waiter's number.
    answered: BTreeMap<u64, Answer>,
    room: usize,
}

impl Line {
    pub(super) fn new(guard: Concurrency, room: usize) -> Self {
        let (waiting, answered) = (BTreeMap::new(), BTreeMap::new());
        Self { guard, state: guard.fresh(ANY_TIME), arrivals: 0, waiting, answered, room }
    }

    /// Returns an empty line with the same guard and room.
    pub(super) fn again(&self) -> Self {
        Self::new(self.guard, self.room)
    }

    pub(super) fn standing(&self) -> Standing {
        self.guard.standing(&self.state, ANY_TIME)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) const fn guard(&self) -> Concurrency {
        self.guard
    }

    pub(super) fn refused(&self, retry: Retry) -> Decision {
        Decision { ruling: Ruling::Denied { retry }, standing: self.standing() }
    }

    /// Takes places without regard to those who wait.
    fn take(&mut self, places: Cost) -> Answer {
        match self.guard.enter(&self.state, Ask::allow(ANY_TIME, places)) {
            Transition::Allowed { next, receipt, .. } => {
                self.state = next;
                Ok(receipt)
            }
            Transition::Denied { retry } => Err(self.refused(retry)),
        }
    }

    /// Enters at once or not at all; nobody enters past those who wait.
    pub(super) fn enter(&mut self, places: Cost) -> Answer {
        if self.waiting.is_empty() || places.units() > self.guard.max() {
            return self.take(places);
        }
        Err(self.refused(Retry::Unknown))
    }

    /// Enters, or stands at the end of the line and returns the number there. The waker is taken only then.
    pub(super) fn join(&mut self, places: Cost, waker: &mut Option<Waker>) -> Result<u64, Answer> {
        match self.enter(places) {
            Err(refused) if refused.retry() == Retry::Unknown && self.waiting.len() < self.room => {
                let Some(waker) = waker.take() else { return Err(Err(refused)) };
                self.arrivals += 1;
                self.waiting.insert(self.arrivals, Waiting { places, waker });
                Ok(self.arrivals)
            }
            answer => Err(answer),
        }
    }

    /// Fetches a waiter's answer, once. While there is none, `waker` takes the place of the waker left before.
    pub(super) fn ask(&mut self, number: u64, waker: Waker) -> (Option<Answer>, Due) {
        let gone = match self.waiting.get_mut(&number) {
            Some(waiting) => std::mem::replace(&mut waiting.waker, waker),
            None => waker,
        };
        (self.answered.remove(&number), Due { gone: Some(gone), ..Due::default() })
    }

    /// Takes a waiter out of the line, and returns its answer if there was one; a place in it is then the caller's.
    pub(super) fn give_up(&mut self, number: u64) -> (Option<Answer>, Due) {
        let gone = self.waiting.remove(&number).map(|waiting| waiting.waker);
        // The first one may have held up others who need fewer places.
        let due = Due { gone, ..self.advance() };
        (self.answered.remove(&number), due)
    }

    /// Takes out a waiter that was dropped; a place that was given to it goes to the next.
    pub(super) fn go(&mut self, number: u64) -> Due {
        let (answer, mut due) = self.give_up(number);
        if let Some(Ok(receipt)) = answer {
            due.wake.extend(self.leave(&receipt, Outcome::Ignored).wake);
        }
        due
    }

    /// Returns the places of a receipt, and gives them to those who wait.
    pub(super) fn leave(&mut self, receipt: &Receipt, outcome: Outcome) -> Due {
        self.state = self.guard.leave(&self.state, ANY_TIME, receipt, outcome);
        self.advance()
    }

    /// Changes the guard. Whoever is inside stays inside; waiters who ask for more places than there are now are refused for good, wherever
    /// they stand in the line.
    pub(super) fn change(&mut self, guard: Concurrency) -> Due {
        self.state = guard.carry(&self.guard, &self.state, ANY_TIME, Replace::AsIs);
        self.guard = guard;
        let never = self.refused(Retry::Never);
        let mut due = Due::default();
        for (number, waiting) in
            self.waiting.extract_if(.., |_, waiting| waiting.places.units() > guard.max())
        {
            self.answered.insert(number, Err(never));
            due.wake.push(waiting.waker);
        }
        due.wake.extend(self.advance().wake);
        due
    }

    /// Gives places to the first in line for as long as there are enough.
    fn advance(&mut self) -> Due {
        let mut due = Due::default();
        while let Some(first) = self.waiting.first_entry() {
            let (number, places) = (*first.key(), first.get().places);
            let answer = self.take(places);
            if matches!(&answer, Err(refused) if refused.retry() == Retry::Unknown) {
                break;
            }
            if let Some(waiting) = self.waiting.remove(&number) {
                self.answered.insert(number, answer);
                due.wake.push(waiting.waker);
            }
        }
        due
    }
}

//! Who waits for the disk, and for which write.
//!
//! Whoever wants what has changed so far to be on disk takes a number, and the thread that writes is woken. A write covers all numbers that
//! were taken before it began, so many who wait share one.

use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// What came of a number.
pub(crate) type Came = Result<(), String>;

#[derive(Debug)]
pub(crate) struct Orders {
    state: Mutex<State>,
    /// Rung for the thread that writes.
    wanted: Condvar,
    /// Rung for threads that wait.
    answered: Condvar,
    /// The same for tasks that wait: how often a write has ended.
    ended: watch::Sender<u64>,
    /// The thread that writes, which cannot wait for itself.
    writer: OnceLock<ThreadId>,
}

/// Why a call on the thread that writes, from within `on_change`, fails.
const BY_WRITER: &str =
    "it was asked from `on_change`, on the thread that writes, which cannot wait for itself";

#[derive(Debug, Default)]
struct State {
    /// The latest number that was taken.
    taken: u64,
    /// All numbers up to this one are answered.
    answered: u64,
    /// The numbers that have failed: beyond the first one, up to the second one, for this reason.
    failed: Option<(u64, u64, String)>,
    closing: bool,
    closed: Option<Came>,
}

/// What the thread that writes has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// The numbers that the next write covers.
    pub(crate) upto: u64,
    /// Whether somebody waits for it.
    pub(crate) waited_for: bool,
    /// Whether it is the last one.
    pub(crate) last: bool,
}

impl Orders {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            wanted: Condvar::new(),
            answered: Condvar::new(),
            ended: watch::Sender::new(0),
            writer: OnceLock::new(),
        }
    }

    /// Makes the calling thread the one that writes.
    pub(crate) fn begin(&self) {
        let _ = self.writer.set(thread::current().id());
    }

    /// Answers whoever waits, for a thread that has ended; returns whether it had not closed before.
    pub(crate) fn end(&self, reason: &str) -> bool {
        let upto = {
            let state = self.state.lock();
            if state.closed.is_some() {
                return false;
            }
            state.taken
        };
        self.answer(Order { upto, waited_for: true, last: true }, &Err(reason.to_owned()));
        true
    }

    /// Says why the calling thread cannot wait for the disk; `None` where it can.
    pub(crate) fn cannot_wait(&self) -> Option<&'static str> {
        (self.writer.get() == Some(&thread::current().id())).then_some(BY_WRITER)
    }

    /// Takes a number: for what was changed before this call.
    pub(crate) fn take(&self) -> u64 {
        let mut state = self.state.lock();
        state.taken += 1;
        self.wanted.notify_one();
        state.taken
    }

    /// Says what came of a number; `None` while it is not known.
    pub(crate) fn came(&self, number: u64) -> Option<Came> {
        self.state.lock().came(number)
    }

    /// Returns what wakes a task when a write has ended; to be asked for before [`Orders::came`].
    pub(crate) fn ends(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Holds the calling thread until a number is answered.
    pub(crate) fn wait(&self, number: u64) -> Came {
        if let Some(reason) = self.cannot_wait() {
            return Err(reason.to_owned());
        }
        let mut state = self.state.lock();
        loop {
            if let Some(came) = state.came(number) {
                return came;
            }
            self.answered.wait(&mut state);
        }
    }

    /// Has the thread write for the last time, and waits for that. On that thread itself it does not wait.
    pub(crate) fn close(&self) -> Came {
        let mut state = self.state.lock();
        state.closing = true;
        self.wanted.notify_one();
        if let Some(reason) = self.cannot_wait().filter(|_| state.closed.is_none()) {
            return Err(reason.to_owned());
        }
        loop {
            if let Some(closed) = &state.closed {
                return closed.clone();
            }
            self.answered.wait(&mut state);
        }
    }

    /// Holds the thread that writes until `due`, or until somebody wants it to write; but not before `earliest`, but for closing.
    pub(crate) fn next(&self, earliest: Instant, due: Instant, now: impl Fn() -> Instant) -> Order {
        let mut state = self.state.lock();
        loop {
            let waited_for = state.taken > state.answered;
            let (time, last) = (now(), state.closing);
            if last || time >= due || waited_for && time >= earliest {
                return Order { upto: state.taken, waited_for, last };
            }
            let until = if waited_for { earliest } else { due };
            self.wanted.wait_until(&mut state, until);
        }
    }

    /// Answers numbers.
    pub(crate) fn answer(&self, order: Order, came: &Came) {
        let mut state = self.state.lock();
        if let Err(reason) = came {
            // Numbers of an earlier failure are told of this one, if they still have to be told.
            let from = match &state.failed {
                Some((from, upto, _)) if *upto == state.answered => *from,
                _ => state.answered,
            };
            state.failed = Some((from, order.upto, reason.clone()));
        }
        state.answered = order.upto;
        if order.last {
            state.closed = Some(came.clone());
        }
        drop(state);
        self.answered.notify_all();
        self.ended.send_modify(|ended| *ended += 1);
    }
}

impl State {
    fn came(&self, number: u64) -> Option<Came> {
        if number <= self.answered {
            return Some(match &self.failed {
                Some((from, upto, reason)) if number > *from && number <= *upto => Err(reason.clone()),
                _ => Ok(()),
            });
        }
        self.closed.as_ref().map(|_| Err("the store is closed".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_thread_that_has_ended() {
        let orders = Orders::new();
        let number = orders.take();
        assert!(orders.end("gone"));
        assert_eq!(orders.wait(number), Err("gone".to_owned()));
        assert!(orders.close().is_err());
        assert_eq!(orders.wait(orders.take()), Err("the store is closed".to_owned()));
    }

    #[test]
    fn the_thread_that_writes_does_not_wait_for_itself() {
        let orders = Orders::new();
        orders.begin();
        assert_eq!(orders.wait(orders.take()), Err(BY_WRITER.to_owned()));
        assert_eq!(orders.close(), Err(BY_WRITER.to_owned()));
    }
}

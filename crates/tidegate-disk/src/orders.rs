//! Requests to the writer thread, and the waiting for its writes.
//!
//! A caller that wants all changes on disk takes a number, which wakes the thread. A write covers all numbers taken
//! before it began, so many callers share one.

use std::sync::OnceLock;
use std::thread::{self, ThreadId};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

pub(crate) type WriteResult = Result<(), String>;

#[derive(Debug)]
pub(crate) struct Orders {
    state: Mutex<State>,
    wanted: Condvar,
    answered: Condvar,
    /// Wakes waiting tasks: counts the writes that have ended.
    ended: watch::Sender<u64>,
    writer: OnceLock<ThreadId>,
}

/// The error of a call on the writer thread, from within `on_change`.
const BY_WRITER: &str =
    "it was asked from `on_change`, on the thread that writes, which cannot wait for itself";

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// All numbers up to this one are answered.
    answered: u64,
    /// The latest failed numbers: above the first, up to the second.
    failed: Option<(u64, u64, String)>,
    closing: bool,
    closed: Option<WriteResult>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) upto: u64,
    /// Whether a caller waits for it.
    pub(crate) waited_for: bool,
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

    pub(crate) fn begin(&self) {
        let _ = self.writer.set(thread::current().id());
    }

    /// Fails all waiting callers. Returns whether the thread ended without closing the store.
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

    pub(crate) fn cannot_wait(&self) -> Option<&'static str> {
        (self.writer.get() == Some(&thread::current().id())).then_some(BY_WRITER)
    }

    pub(crate) fn take(&self) -> u64 {
        let mut state = self.state.lock();
        state.taken += 1;
        self.wanted.notify_one();
        state.taken
    }

    /// Returns the result of a number, once it is known.
    pub(crate) fn result_of(&self, number: u64) -> Option<WriteResult> {
        self.state.lock().result_of(number)
    }

    /// Returns a receiver that wakes a task when a write has ended. Subscribe before [`Orders::result_of`].
    pub(crate) fn ends(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Blocks the calling thread until a number is answered.
    pub(crate) fn wait(&self, number: u64) -> WriteResult {
        if let Some(reason) = self.cannot_wait() {
            return Err(reason.to_owned());
        }
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.result_of(number) {
                return result;
            }
            self.answered.wait(&mut state);
        }
    }

    /// Makes the writer thread write for the last time, and waits for that; on that thread itself, fails.
    pub(crate) fn close(&self) -> WriteResult {
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

    /// Blocks the writer thread until `due`, or until a caller wants a write, but not before `earliest`. Closing ends
    /// the wait.
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

    pub(crate) fn answer(&self, order: Order, result: &WriteResult) {
        let mut state = self.state.lock();
        if let Err(reason) = result {
            // If the numbers before failed too, the range grows: callers that have not read their result get the newer
            // reason.
            let from = match &state.failed {
                Some((from, upto, _)) if *upto == state.answered => *from,
                _ => state.answered,
            };
            state.failed = Some((from, order.upto, reason.clone()));
        }
        state.answered = order.upto;
        if order.last {
            state.closed = Some(result.clone());
        }
        drop(state);
        self.answered.notify_all();
        self.ended.send_modify(|ended| *ended += 1);
    }
}

impl State {
    fn result_of(&self, number: u64) -> Option<WriteResult> {
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

//! Who waits for the disk, and for which write.
//!
//! Whoever wants what has changed so far to be on disk takes a number, and the thread that writes is woken. A write covers all numbers that
//! were taken before it began, so many who wait share one.

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
}

#[derive(Debug, Default)]
struct State {
    /// The latest number that was taken.
    taken: u64,
    /// All numbers up to this one are answered.
    answered: u64,
    /// All numbers up to this one, and beyond the last that was on disk before, have failed, for this reason.
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
        }
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
        let mut state = self.state.lock();
        loop {
            if let Some(came) = state.came(number) {
                return came;
            }
            self.answered.wait(&mut state);
        }
    }

    /// Has the thread write for the last time, and waits for that.
    pub(crate) fn close(&self) -> Came {
        let mut state = self.state.lock();
        state.closing = true;
        self.wanted.notify_one();
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

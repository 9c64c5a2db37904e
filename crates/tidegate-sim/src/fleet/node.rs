//! A node: a real stack of stores over a made-up wire.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tidegate::ManualClock;
use tidegate::store::{Answer, Charge, Later, OnStoreError, Op, Settled, Settling, Step, StepClock, Store};
use tidegate_core::{Cost, Quota, Tick};

use super::across::Across;
use super::link::Remote;

/// What a stack is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Parts {
    /// The engine of the node's region.
    pub remote: Remote,
    /// What the regions agree through.
    pub across: Across,
    /// The node's clock.
    pub clock: ManualClock,
    /// How many nodes the region has at most.
    pub nodes: u64,
    /// Which of all nodes this is, from 0.
    pub node: u64,
    /// Runs futures that nobody awaits.
    pub background: Background,
}

/// Runs futures that nobody awaits, as a node's runtime does.
#[derive(Clone, Default)]
pub struct Background {
    put: Arc<Mutex<Vec<Later<()>>>>,
}

impl Background {
    /// Has a future run by the node.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.put.lock().push(Box::pin(future));
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Background")
    }
}

/// Puts the stores of a node together.
pub type Stack = dyn Fn(&Parts) -> Arc<dyn Store>;

/// One request whose decision has not come.
struct Waiting {
    asked: u64,
    key: u32,
    answer: Later<Answer>,
}

/// One decision.
pub(super) struct Decided {
    pub(super) asked: u64,
    pub(super) key: u32,
    pub(super) allowed: bool,
}

/// A node.
pub(super) struct Node {
    pub(super) parts: Parts,
    store: Arc<dyn Store>,
    waiting: Vec<Waiting>,
    background: Vec<Later<()>>,
    woken: Arc<Woken>,
    /// How far its clock is ahead, in nanoseconds.
    pub(super) ahead: i64,
    /// Until when it stands still.
    pub(super) paused: u64,
    pub(super) running: bool,
    /// The wake that was planned last: one is planned once.
    pub(super) wakes: Option<u64>,
}

/// Set by whatever wakes a future of the node.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Node {
    pub(super) fn start(parts: Parts, stack: &Stack) -> Self {
        let store = stack(&parts);
        Self {
            parts,
            store,
            waiting: Vec::new(),
            background: Vec::new(),
            woken: Arc::new(Woken(AtomicBool::new(false))),
            ahead: 0,
            paused: 0,
            running: true,
            wakes: None,
        }
    }

    /// Sets the clock by the world's.
    pub(super) fn turn_to(&self, now: u64) {
        self.parts.clock.set(Tick::from_nanos(now.saturating_add_signed(self.ahead)));
    }

    /// Returns when, by the world's clock, somebody here wakes by the clock.
    pub(super) fn next_wake(&self) -> Option<u64> {
        Some(self.parts.clock.next_wake()?.as_nanos().saturating_add_signed(self.ahead.saturating_neg()))
    }

    /// Asks for one unit of a key; the decision is returned if it is made on the spot.
    pub(super) fn ask(
        &mut self,
        now: u64,
        key: u32,
        (limit, on_error): (&Arc<Quota>, OnStoreError),
    ) -> Option<Decided> {
        use tidegate::Clock as _;
        let name = key.to_be_bytes();
        let charges = [Charge { on_error, ..Charge::new(&name, limit, Cost::ONE) }];
        let step = Step {
            clock: StepClock::Engine,
            receipts: false,
            ..Step::new(self.parts.clock.now(), Op::Take, &charges)
        };
        let mut settled = Settled::default();
        self.parts.across.deciding(true);
        let settling = self.store.settle_into(&step, &mut settled);
        self.parts.across.deciding(false);
        match settling {
            Settling::Done(done) => {
                Some(Decided { asked: now, key, allowed: done.is_ok() && settled.allowed })
            }
            Settling::Later(answer) => {
                self.waiting.push(Waiting { asked: now, key, answer });
                self.woken.0.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Polls what was woken, until nothing is; hands each decision on.
    pub(super) fn poll(&mut self, mut decided: impl FnMut(Decided)) {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        loop {
            let new = std::mem::take(&mut *self.parts.background.put.lock());
            let fresh = !new.is_empty();
            self.background.extend(new);
            if !self.woken.0.swap(false, Ordering::Relaxed) && !fresh {
                return;
            }
            self.background.retain_mut(|future| future.as_mut().poll(&mut cx).is_pending());
            self.parts.across.deciding(true);
            self.waiting.retain_mut(|one| match one.answer.as_mut().poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    let allowed = answer.is_ok_and(|settled| settled.allowed);
                    decided(Decided { asked: one.asked, key: one.key, allowed });
                    false
                }
            });
            self.parts.across.deciding(false);
        }
    }

    /// How many requests wait for their decision.
    pub(super) fn waits(&self) -> usize {
        self.waiting.len()
    }
}

//! A simulated node: real stores over a simulated wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tidegate::clock::ManualClock;
use tidegate::store::{
    Charge, ChargeRules, Executed, Execution, Later, OnStoreError, Op, Step, StepAnswer, StepClock, Store,
};
use tidegate_core::{Cost, Quota, Tick};

use super::global_coordinator::GlobalCoordinator;
use super::link::Remote;

#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) remote: Remote,
    pub(crate) global: GlobalCoordinator,
    pub(crate) clock: ManualClock,
    /// The most nodes that the region has.
    pub(crate) nodes: u64,
    pub(crate) node: u64,
    pub(crate) background: Background,
}

/// Futures in the background, as in a node's runtime.
#[derive(Clone, Default)]
pub(crate) struct Background {
    put: Arc<Mutex<Vec<Later<()>>>>,
}

impl Background {
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.put.lock().push(Box::pin(future));
    }
}

pub(crate) type Stack = dyn Fn(&Parts) -> Arc<dyn Store>;

struct Waiting {
    asked: u64,
    key: u32,
    answer: Later<StepAnswer>,
}

pub(super) struct Decided {
    pub(super) asked: u64,
    pub(super) key: u32,
    pub(super) allowed: bool,
}

pub(super) struct Node {
    pub(super) parts: Parts,
    store: Arc<dyn Store>,
    waiting: Vec<Waiting>,
    background: Vec<Later<()>>,
    woken: Arc<Woken>,
    /// How far the node's clock is ahead, in nanoseconds.
    pub(super) ahead: i64,
    pub(super) paused: u64,
    pub(super) running: bool,
    /// The wake-up that was scheduled last, so that it is scheduled only once.
    pub(super) wakes: Option<u64>,
}

/// Set when a future of the node is woken.
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

    pub(super) fn turn_to(&self, now: u64) {
        self.parts.clock.set(Tick::from_nanos(now.saturating_add_signed(self.ahead)));
    }

    /// Returns when a timer of the node is due, by the world's clock.
    pub(super) fn next_wake(&self) -> Option<u64> {
        Some(self.parts.clock.next_wake()?.as_nanos().saturating_add_signed(self.ahead.saturating_neg()))
    }

    /// Asks for one unit of a key. Returns the decision if it is made at once.
    pub(super) fn ask(
        &mut self,
        now: u64,
        key: u32,
        limit: &Arc<Quota>,
        on_error: OnStoreError,
    ) -> Option<Decided> {
        use tidegate::clock::Clock as _;
        let name = key.to_be_bytes();
        let rules = ChargeRules { on_error, ..ChargeRules::new(0) };
        let charges = [Charge { rules, ..Charge::new(&name, limit, Cost::ONE) }];
        let step = Step {
            clock: StepClock::Engine,
            receipts: false,
            ..Step::new(self.parts.clock.now(), Op::Take, &charges)
        };
        let mut executed = Executed::default();
        self.parts.global.deciding(true);
        let execution = self.store.execute_into(&step, &mut executed);
        self.parts.global.deciding(false);
        match execution {
            Execution::Done(done) => {
                Some(Decided { asked: now, key, allowed: done.is_ok() && executed.allowed })
            }
            Execution::Later(answer) => {
                self.waiting.push(Waiting { asked: now, key, answer });
                self.woken.0.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Polls the node's futures until none of them has been woken again.
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
            self.parts.global.deciding(true);
            self.waiting.retain_mut(|one| match one.answer.as_mut().poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    let allowed = answer.is_ok_and(|executed| executed.allowed);
                    decided(Decided { asked: one.asked, key: one.key, allowed });
                    false
                }
            });
            self.parts.global.deciding(false);
        }
    }

    pub(super) fn waits(&self) -> usize {
        self.waiting.len()
    }
}

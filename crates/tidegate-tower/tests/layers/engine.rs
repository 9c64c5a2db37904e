//! A store that is shared by nodes and answers later, or not until the test lets it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidegate::Gate;
use tidegate::clock::ManualClock;
use tidegate::policy::{Descriptor, Policy, PolicySet};
use tidegate::store::{
    Caps, Executed, Execution, Home, Later, Occupancy, OwnedStep, PlainStore, Step, Store, StoreError,
};

use crate::layers::service::poll;

/// An engine. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Engine {
    plain: Arc<PlainStore>,
    silent: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
}

impl Engine {
    /// Answers nothing from now on, until it speaks.
    pub(crate) fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Settles and answers what it was asked.
    pub(crate) fn speak(&self) {
        self.silent.store(false, Ordering::Relaxed);
    }

    /// Fails from now on.
    pub(crate) fn fail(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    /// A gate over this engine, whose background work the test runs.
    pub(crate) fn gate(&self, policies: Vec<Policy>, clock: &ManualClock) -> (Arc<Gate>, Background) {
        let background = Background::default();
        let gate = Gate::new(PolicySet::new(policies).unwrap(), self.clone())
            .with_clock(clock.clone())
            .with_background(background.take());
        (Arc::new(gate), background)
    }

    /// What is left of each limit.
    pub(crate) fn left(&self, gate: &Gate) -> Vec<u64> {
        let request = Descriptor::new();
        let mut looking = Box::pin(gate.check(tidegate::gate::Check::of(&request).peek()));
        let Poll::Ready(looked) = poll(looking.as_mut()) else { panic!("it does not answer") };
        looked.unwrap().limits.iter().map(|limit| limit.decision.standing.remaining).collect()
    }
}

impl Store for Engine {
    fn execute_into(&self, step: &Step<'_>, _: &mut Executed) -> Execution {
        let (engine, step) = (self.clone(), OwnedStep::of(step));
        Execution::Later(Box::pin(async move {
            engine.asked.fetch_add(1, Ordering::Relaxed);
            let silent = || engine.silent.load(Ordering::Relaxed);
            poll_fn(|_| if silent() { Poll::Pending } else { Poll::Ready(()) }).await;
            if engine.gone.load(Ordering::Relaxed) {
                return Err(StoreError::Unavailable { reason: "it is gone".to_owned() });
            }
            step.with(|step| engine.plain.blocking_execute(step))
        }))
    }

    fn occupancy(&self) -> Occupancy {
        self.plain.occupancy()
    }

    fn caps(&self) -> Caps {
        Caps::ENGINE
    }

    fn home(&self) -> Home {
        Home::Nodes
    }
}

/// The futures that a gate has handed to its background.
#[derive(Clone, Default)]
pub(crate) struct Background(Arc<Mutex<Vec<Later<()>>>>);

impl Background {
    fn take(&self) -> impl Fn(Later<()>) + Send + Sync + 'static {
        let all = Arc::clone(&self.0);
        move |later| all.lock().unwrap().push(later)
    }

    /// Polls each of them once, and returns how many go on.
    pub(crate) fn run(&self) -> usize {
        let mut all = std::mem::take(&mut *self.0.lock().unwrap());
        all.retain_mut(|later| later.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let left = all.len();
        self.0.lock().unwrap().append(&mut all);
        left
    }
}
